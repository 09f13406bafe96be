"""What values look like: spaces, masks, trajectories."""
