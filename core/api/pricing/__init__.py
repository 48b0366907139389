"""Costs of nodes and groups: by formula, by measuring, from files."""
