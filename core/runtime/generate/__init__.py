"""Decode loops over the stages of a model that generates."""
