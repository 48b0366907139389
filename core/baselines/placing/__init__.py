"""Placers; each raises `InfeasibleError` or `LimitError` where it is proven, or just so, that the
tasks do not fit."""
