"""The ground: files, the machine, signals, argument checks."""
