"""When to measure, how long, and whether a measurement is worth keeping.

A rate that still changes says little: caches fill, processors change their speed, and whatever ran
before may take a moment to end. So stretches of samples go through until two in a row have the
same rate and no other process took part of the processors meanwhile.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from dnnp.core.runtime.report import Timing
from dnnp.core.runtime.waits import DISTURBED

STEADY = 0.05
"""Rates that differ by this share at most count as the same."""
STRETCH_S = 0.1
"""How long a stretch takes, unless its fewest samples take longer."""
SETTLE_S = 1.5
"""How long to wait for a steady rate, seconds."""
PATIENCE_S = 4.0
"""No measurement that was disturbed is repeated if that would take longer than this in all."""
TRIES = 3
"""Measurements at most, the repeated ones included."""

MOST_TAKEN = 0.1
"""Nothing is concluded from a measurement if others took more from a stage, or a copy of the model:
a share of its time, the largest of all."""

Clock = Callable[[], float]


@dataclass(frozen=True)
class Settled:
    """What went through before the measurement."""

    samples: int = 0
    rate_per_s: float = 0.0
    """Of the last stretch."""
    change: float | None = None
    """By which share it differs from the rate before; None: there was only one."""


def settle(
    stretch: Callable[[int], Timing],
    first: int,
    *,
    most: int | None = None,
    clock: Clock = time.perf_counter,
) -> Settled:
    """Send stretches of samples through until the rate is steady, or for `SETTLE_S`.

    Parameters
    ----------
    stretch
        Sends so many samples through; fewer if it was interrupted, which ends this.
    first
        Samples of the first stretch; later ones are as long as `STRETCH_S` allows.
    most
        Stretches at most.
    clock
        Seconds.
    """
    began = clock()
    count, total, number = max(first, 2), 0, 0
    before = 0.0
    while True:
        start = clock()
        timing = stretch(count)
        now = clock()
        total, number = total + timing.samples, number + 1
        rate = timing.throughput_per_s
        change = abs(rate - before) / max(rate, before) if before > 0 and rate > 0 else None
        steady = change is not None and change <= STEADY and not is_disturbed(timing)
        took = max(now - start, 1e-9)
        long_enough = took >= STRETCH_S / 2
        late = now + took > began + SETTLE_S
        if timing.samples < count or number == most or (steady and long_enough) or late:
            return Settled(total, rate, change)
        before = rate
        if not long_enough:
            count = min(4 * count, math.ceil(count * STRETCH_S / took))


def count_for(rate_per_s: float, seconds: float, least: int) -> int:
    """Samples that take so many seconds at a rate, but at least so many."""
    return max(least, math.ceil(rate_per_s * seconds))


def is_disturbed(timing: Timing) -> bool:
    """Whether other processes took enough to matter."""
    return timing.lost > DISTURBED


def tells_nothing(taken: float) -> str:
    """Why nothing is concluded where others took such a share; empty: it may be."""
    if taken <= MOST_TAKEN:
        return ""
    return f"other processes or the host took {taken:.0%} of the processors, above {MOST_TAKEN:.0%}"


def worth_repeating(timing: Timing, tries: int, spent_s: float) -> bool:
    """Whether to measure again after so many tries, which took so many seconds in all."""
    again = spent_s / max(tries, 1)
    return is_disturbed(timing) and tries < TRIES and spent_s + again <= PATIENCE_S
