"""Placements whose devices may hold less, or more."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dnnp.core.model.graph import Floats
from dnnp.core.model.placement import Placement


def with_limit(placement: Placement, memory_bytes: float) -> Placement:
    """The same placement where every device may hold so much."""
    units = tuple(u if u.link else replace(u, memory_bytes=memory_bytes) for u in placement.units)
    return replace(placement, units=units)


def within(placement: Placement, memory_bytes: Floats) -> Placement:
    """The same placement where no device may hold more than any does now, nor more than before.

    `memory_bytes` (f64[units]) is what they hold; inf where it grows without end.
    """
    ends = np.isfinite(memory_bytes)
    most = float(memory_bytes[ends].max(initial=0.0))
    units = tuple(
        replace(unit, memory_bytes=min(unit.memory_bytes, most)) if end else unit
        for unit, end in zip(placement.units, ends.tolist(), strict=True)
    )
    return replace(placement, units=units)
