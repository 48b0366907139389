"""Graphs of others, and graphs that people write down."""
