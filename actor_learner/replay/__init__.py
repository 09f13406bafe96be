"""The past, to learn from again: a bounded memory of trajectories, and what is sampled from it."""
