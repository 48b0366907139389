"""Tensor parallelism: how every node of a model runs on several devices at once."""
