"""Lookup, construction and stepping of environments."""
