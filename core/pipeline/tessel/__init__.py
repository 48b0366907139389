"""Tessel's own search (Lin et al. 2024), for comparison."""
