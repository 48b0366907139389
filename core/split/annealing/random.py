"""Random numbers inside kernels: the same on every machine, compiled or not."""

from __future__ import annotations

import numpy as np

from dnnp.core.kernels.kernel import callee
from dnnp.core.model.graph import Floats

_A, _B, _C, _D = np.uint64(13), np.uint64(7), np.uint64(17), np.uint64(32)


def generator(seed: int) -> np.ndarray:
    """State of a generator, u64[1], never zero; nearby seeds give unlike states."""
    mask = (1 << 64) - 1
    z = (seed + 1) * 0x9E3779B97F4A7C15 & mask
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
    return np.array([z ^ z >> 31 or 1], dtype=np.uint64)


def exponential_table() -> Floats:
    """f64[4096], a draw among which is exponential with mean 1: no logarithm in the kernels."""
    steps = 4096
    return -np.log((np.arange(steps) + 0.5) / steps)


@callee
def below(rng, n):  # type: ignore[no-untyped-def]
    """Random integer in 0..n-1 (Marsaglia's xorshift, 13-7-17; its upper half)."""
    x = rng[0]
    x ^= x << _A
    x ^= x >> _B
    x ^= x << _C
    rng[0] = x
    return (np.int64(x >> _D) * n) >> 32
