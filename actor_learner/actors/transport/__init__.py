"""The way between the processes: shared memory, batches, weights and messages."""
