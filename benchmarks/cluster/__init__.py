"""Several machines: speed beside one machine and beside Ray's object store, and faults."""
