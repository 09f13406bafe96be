"""Measurements of the test suite."""
