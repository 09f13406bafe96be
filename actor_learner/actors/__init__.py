"""The actors: they step environments and fill batches."""
