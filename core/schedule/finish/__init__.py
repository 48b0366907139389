"""Schedules of finitely many micro-batches: around a repetend, or without one."""
