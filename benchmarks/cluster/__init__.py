"""Several machines: speed beside one machine, and faults."""
