"""Least latency of splits into blocks."""
