"""Exact search for the latency of placements of operators whose transfers do not wait."""
