"""The load from its parts, and the rounding of such sums that is forgiven.

With transfers in and out counted once a tensor, the load of a stage S on a device is

    sum      in(S) + compute(S) + overflow(S) + out(S)
    overlap  max(compute(S), in(S) + overflow(S) + out(S))
    duplex   max(compute(S), in(S) + overflow(S), out(S))

`sum` is MTPP Eq. 3 and acc(S) of the 2020 paper (section 5.1.1); a CPU of that paper costs
compute only. Overflow is MTPP Eq. 2.

The scalar formulas are plain functions; `load_of` and `share_of` are the same ones, compiled.
"""

from __future__ import annotations

import numpy as np

from dnnp.core.kernels.kernel import lean
from dnnp.core.model.graph import Floats

SUM, OVERLAP, DUPLEX = range(3)

COMM = {"sum": SUM, "overlap": OVERLAP, "duplex": DUPLEX}
"""Numbers of the ways to combine, for kernels."""

ROUNDING = 1e-12
"""Loads, latencies or sums of memory that differ by less, relatively, differ by the order of their
additions only."""

LARGEST = float(np.finfo(np.float64).max)
"""The largest target: what no device can run stays above it."""

MARGIN = 1e-9
"""The same for sums over a whole graph, or where a claim must be safe: a bound that is less by
this holds, and what is more by this than a capacity does not fit, in whatever order it is added."""

WORTHWHILE = 1e-9
"""Relative gain below which a better load is not worth a search."""

MEMORY = ROUNDING
"""Share of a capacity by which memory may exceed it and fit; the checker has the same."""

ROOM = 1 + MEMORY
"""Factor of a capacity that is still within it."""

SAFE_ROOM = 1 + MEMORY / 2
"""Factor of a capacity for those who fill it: what keeps within it is within `ROOM` however its
memory is added up."""


def combine(comm: int, in_s: float, compute_s: float, overflow_s: float, out_s: float) -> float:
    """Load from its parts, all in one unit of time; `comm` is one of `COMM`.

    Where in and out add up (`SUM`, `OVERLAP`), either may hold both.
    """
    if comm == SUM:
        return in_s + compute_s + overflow_s + out_s
    if comm == OVERLAP:
        return max(compute_s, in_s + overflow_s + out_s)
    return max(compute_s, in_s + overflow_s, out_s)


def combine_arrays(
    comm: int, in_s: Floats, compute_s: Floats, overflow_s: Floats, out_s: Floats
) -> Floats:
    """`combine` for arrays that broadcast, element by element."""
    if comm == SUM:
        return np.asarray(in_s + compute_s + overflow_s + out_s)
    if comm == OVERLAP:
        return np.asarray(np.maximum(compute_s, in_s + overflow_s + out_s))
    return np.asarray(np.maximum(compute_s, np.maximum(in_s + overflow_s, out_s)))


def shared_load(comm: int, load_s: float, replicas: int, sync_s: float) -> float:
    """Load of a stage whose samples are shared among `replicas` devices (2020 paper, App. C.2).

    Synchronising its weights takes `sync_s` more, or runs beside the rest.
    """
    share = load_s / replicas
    return share + sync_s if comm == SUM else max(share, sync_s)


load_of, share_of = lean(combine), lean(shared_load)
"""The formulas for kernels to call."""
