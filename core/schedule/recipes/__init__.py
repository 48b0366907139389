"""Schedules with a name, by fixed recipes."""
