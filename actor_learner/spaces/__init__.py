"""The structure of values: spaces, masks, trajectories, and their checks."""
