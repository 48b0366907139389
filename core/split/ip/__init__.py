"""Integer programs of splits of the largest throughput."""
