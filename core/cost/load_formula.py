"""The load from its parts, times of collectives, and the rounding of sums that is forgiven.

With transfers in and out counted once a tensor, the load of a stage S on a device is

    sum      in(S) + compute(S) + overflow(S) + out(S)
    overlap  max(compute(S), in(S) + overflow(S) + out(S))
    duplex   max(compute(S), in(S) + overflow(S), out(S))

`sum` is MTPP Eq. 3 and acc(S) of the 2020 paper (section 5.1.1); a CPU of that paper costs
compute only. Overflow is MTPP Eq. 2.

The scalar formulas are plain functions; `load_of` and `share_of` are the same ones, compiled.

Collectives go around a ring (Thakur, Rabenseifner, Gropp 2005, "Optimization of collective
communication operations in MPICH"): where messages have no latency, nothing is faster.
"""

from __future__ import annotations

import math

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
"""Factor of a capacity up to which it may be filled: what keeps within it is within `ROOM` however
its memory is added up."""


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


SCALES = tuple(10.0**digits for digits in range(7))
"""Short decimals become whole numbers by one of these factors."""

NOISE = 1e-13
"""Relative error up to which a number that was computed counts as a short decimal."""

MOST = 2**40
"""Limit of the multiples: beyond, one more of them is lost in `ROUNDING`."""

FINEST = 1e6
"""Numbers that are whole multiples of one this much smaller count as real numbers."""


def common_divisor(values: Floats) -> float:
    """The largest number that all are whole multiples of, if they are short decimals; else 0.

    Also 0 if all are 0, or some are not finite. For decimals that floats only come close to.
    """
    parts = np.abs(values[values != 0])
    if not len(parts) or not np.isfinite(parts).all():
        return 0.0
    for scale in SCALES:
        whole = np.rint(parts * scale)
        if whole.max() < MOST and (np.abs(whole / scale - parts) <= NOISE * parts).all():
            return math.gcd(*whole.astype(np.int64).tolist()) / scale
    return 0.0


def exact_divisor(values: Floats) -> float:
    """The largest number that all are whole multiples of, as the binary fractions that they are.

    Their sums are exact multiples, too. 0 if all are 0, or it is more than `FINEST` times smaller
    than one of them.
    """
    from fractions import Fraction

    exact = [abs(Fraction(v)) for v in values.tolist() if v]
    if not exact:
        return 0.0
    below = max(f.denominator for f in exact)  # powers of 2: of floats
    divisor = Fraction(math.gcd(*(int(f * below) for f in exact)), below)
    return float(divisor) if max(exact) <= FINEST * divisor else 0.0


def snapped(bound: float, divisor: float) -> float:
    """The least multiple of a divisor that is not below a bound, less rounding; 0: the bound."""
    if not divisor:
        return bound
    return float(np.ceil(bound / divisor - 1e-6) * divisor * (1 - ROUNDING))


ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
)


def moved_bytes(kind: str, size: float, devices: int) -> float:
    """Bytes that each of the devices sends around a ring for a tensor of `size` bytes in all."""
    passed = size * (devices - 1) / devices
    if kind == ALL_REDUCE:
        return 2 * passed
    return passed / devices if kind == ALL_TO_ALL else passed


def collective_time(kind: str, size: float, devices: int, bandwidth: float) -> float:
    """Seconds that it takes.

    Parameters
    ----------
    kind
        One of `ALL_REDUCE`, `ALL_GATHER`, `REDUCE_SCATTER` and `ALL_TO_ALL`.
    size
        Bytes of the whole tensor; of `ALL_TO_ALL` what the devices hold of it together.
    bandwidth
        Of each device's link, bytes per second; messages have no latency.
    """
    return moved_bytes(kind, size, devices) / bandwidth if devices > 1 else 0.0
