"""Least latency where every operator is placed by itself."""
