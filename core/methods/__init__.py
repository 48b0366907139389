"""Every method by name: what it is, what may be asked of it, and where it stands.

Options, help, manual pages, methods.md and dispatch follow from these tables. They import nothing,
so that help and completion come at once.
"""

from __future__ import annotations

from dnnp.core.methods.bounds import BOUNDS, LATENCY_BOUNDS
from dnnp.core.methods.method import Method, lines, plain
from dnnp.core.methods.schedules import ALL_SHAPES, RECIPES, SCHEDULES, SEARCHES
from dnnp.core.methods.splits import LATENCY, SPLITS

__all__ = [
    "ALL_SHAPES",
    "BOUNDS",
    "LATENCY",
    "LATENCY_BOUNDS",
    "RECIPES",
    "SCHEDULES",
    "SEARCHES",
    "SPLITS",
    "Method",
    "lines",
    "plain",
]
