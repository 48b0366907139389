"""Repetends on whole ticks, by dynamic programming."""
