"""Measures play in games of two: against the random player, minimax of several depths, and perfect play."""
