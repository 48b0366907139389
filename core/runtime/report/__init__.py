"""Results of runs: statistics, verification, sweeps, the fastest way, records and tables."""
