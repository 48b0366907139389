"""The grid of operators that a device file is fitted on: kinds, sizes, element types."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from dnnp.core.runtime.operator_cases import convolutions, products, quantised
from dnnp.core.runtime.operator_chains import Case
from dnnp.core.runtime.operator_layers import layers
from dnnp.core.runtime.operator_vectors import elementwise, moves, rows

QUICK = ("product", "pointwise", "arithmetic", "softmax", "transpose", "view")
"""Kinds of which a quick grid has one point each."""


def grid(threads: int = 1, *, quick: bool = False) -> list[Case]:
    """All points, or with `quick` the smallest of some kinds."""
    cases = [
        *products(),
        *convolutions(),
        *elementwise(),
        *rows(),
        *moves(),
        *quantised(),
        *layers(),
    ]
    if quick:
        cases.sort(key=lambda case: prod(case.shape))
        first = {case.kind: case for case in reversed(cases)}
        cases = [first[kind] for kind in QUICK]
    return [replace(case, threads=threads) for case in cases]
