"""What lies between the processes: shared memory, messages, starting and ending. NumPy and the standard library."""
