"""Algorithms that learn from a replay buffer: frozen hyperparameters, and a pure loss for each group of weights."""
