"""Parallel plans: pipeline, tensor and data parallelism with recomputation, planned at once."""
