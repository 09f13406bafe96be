"""What learning from a replay buffer costs, beside SB3 and SBX."""
