"""Measures the speed of a setting and the speed that it could reach, and finds the fastest setting."""
