"""The exact search for the latency of blocks, over order ideals."""
