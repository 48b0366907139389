"""Pipelines: steps and the edges between them, their threads, samples and schedules."""
