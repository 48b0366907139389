"""Validate figures of samples that arrived at their own pace, against their arrivals.

Arrivals at random are drawn here anew, from the bits of the generator alone: gaps are
-log(1 - u) / rate of numbers u that take the upper 53 bits of each word of PCG64 (O'Neill 2014),
whose words are the same in every version of numpy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dnnp.core.check.violation import Violation, above, same, wrong

Record = Mapping[str, Any]

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
"""Latencies of which none is below the one before it."""

MOST = 2_000_000
"""Arrivals of a stream that are drawn again; of more only the mean gap is compared."""

DEVIATIONS = 8.0
"""How many standard deviations the sum of more gaps may be off: less than 1 of 10^14 is."""


class Redrawn:
    """Draws arrivals anew, as long as that is little work."""

    def __init__(self) -> None:
        self._left = MOST

    def times_s(self, row: Record, drawn: Record) -> NDArray[np.float64] | None:
        """f64[samples], seconds from the first arrival to each; None: too many, or not known."""
        count, rate, seed = row["samples"], row["rate_per_s"], drawn.get("seed", -1)
        at_random = drawn["process"] != "uniform"
        if count > self._left or (at_random and seed < 0):
            return None
        self._left -= count
        gaps = np.ones(count - 1)
        if at_random:
            words = np.random.PCG64(seed).random_raw(count - 1) >> np.uint64(11)
            gaps = -np.log1p(-words.astype(np.float64) * 2.0**-53)
        with np.errstate(over="ignore"):
            times: NDArray[np.float64] = np.concatenate([[0.0], np.cumsum(gaps)]) / rate
        return times


def check_rate(
    row: Record, drawn: Record, redrawn: Redrawn, workers: int, subject: str
) -> Iterator[Violation]:
    """Return what does not hold about the figures of one rate.

    Parameters
    ----------
    row
        The figures.
    drawn
        How samples arrived: `process` and `seed`.
    redrawn
        That of the stream.
    workers
        Samples that can be in work at once; 0: nobody knows.
    """
    yield from _latencies(row, subject)
    times_s, span = redrawn.times_s(row, drawn), row["span_s"]
    gaps = row["samples"] - 1
    expected = gaps / row["rate_per_s"] if times_s is None else float(times_s[-1])
    # Arrivals are at whole nanoseconds.
    allowed = 2e-9 + 1e-9 * expected
    if times_s is None and drawn["process"] != "uniform":
        allowed += DEVIATIONS * expected / math.sqrt(max(gaps, 1))
    if abs(span - expected) > allowed:
        yield wrong(subject, "span_s", span, expected)
    if times_s is not None:
        yield from _backlog(row, times_s, subject)
    whole, most = whole_s(row), row["latency_max_s"]
    # The last one to leave left after it had arrived, and arrived by the end of the span.
    if above(span, whole) or above(whole, span + most):
        message = f"throughput_per_s makes {whole!r} seconds, the span is {span!r} and no sample "
        yield Violation("value", subject, f"{message}takes more than {most!r}", span, whole)
    left, count = max(row["backlog"] - workers, 0), row["samples"]
    saturated = left > 0.05 * count and left * left > count
    if workers and row["saturated"] != saturated:
        yield wrong(subject, "saturated", row["saturated"], saturated)


def whole_s(row: Record) -> float:
    """Time from the first arrival to the last output."""
    return row["samples"] / row["throughput_per_s"] if row["throughput_per_s"] else 0.0


def _latencies(row: Record, subject: str) -> Iterator[Violation]:
    """Percentiles rise, and the mean is one that they leave possible."""
    count, most = row["samples"], row["latency_max_s"]
    values = {name: row[f"latency_{name}_s"] for name in QUANTILES} | {"max": most}
    rising = list(values.items())
    for (_, low), (name, high) in pairwise(rising):
        if above(low, high):
            message = f"latency_{name}_s is {high!r}, a lower percentile {low!r}"
            yield Violation("value", subject, message, low, high)
    # In between two samples a percentile lies on a line; of n samples in their order, those from
    # ceil((n - 1) q) on take the percentile q or more, those up to floor((n - 1) q) at most it.
    places = [-1.0, *((count - 1) * share for share in (*QUANTILES.values(), 1.0)), float(count)]
    least = largest = 0.0
    around = zip(places, places[1:], places[2:], strict=False)
    for (_, value), (before, place, after) in zip(rising, around, strict=True):
        least += value * (math.ceil(after) - math.ceil(place))
        largest += value * (math.floor(place) - math.floor(before))
    mean = row["latency_mean_s"]
    if above(mean, largest / count) or above(least / count, mean):
        message = f"latency_mean_s is {mean!r}, but from {least / count!r} to {largest / count!r} "
        yield Violation("value", subject, f"{message}is possible", largest / count, mean)
    yield from _last_gap(row, subject)


def _last_gap(row: Record, subject: str) -> Iterator[Violation]:
    """Percentiles between the two slowest samples lie on one line, which ends at the slowest."""
    most = row["latency_max_s"]
    last = [(n, q) for n, q in QUANTILES.items() if 0 < (row["samples"] - 1) * (1 - q) <= 1]
    for (low, p), (high, q) in pairwise(last):
        stated = row[f"latency_{low}_s"]
        expected = most - (most - row[f"latency_{high}_s"]) * (1 - p) / (1 - q)
        if not same(stated, expected, most * (1 - p) / (1 - q)):
            yield wrong(subject, f"latency_{low}_s", stated, expected)


def _backlog(row: Record, times_s: NDArray[np.float64], subject: str) -> Iterator[Violation]:
    """Who is not through at the last arrival came no longer ago than anybody took."""
    last = float(times_s[-1])
    most = int((times_s >= last - row["latency_max_s"] - 2e-9 - 1e-9 * last).sum())
    if not 1 <= row["backlog"] <= most:
        message = f"backlog is {row['backlog']}, but from 1, the last one, to {most} is possible: "
        message += "nobody took longer than latency_max_s"
        yield Violation("value", subject, message, most, row["backlog"])
