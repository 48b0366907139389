"""Costs of operators: work by formula, and time by a roofline over a device's figures."""
