"""Repetends by search over the orders of blocks on units."""
