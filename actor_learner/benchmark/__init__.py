"""Measures how fast a setting is, how fast it could be, and which setting is the fastest."""
