"""The ground: files, the machine, signals, argument checks, and the package's version."""

__version__ = "0.2.0.dev0"
