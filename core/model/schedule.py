"""A schedule: when every block of every micro-batch starts."""

from __future__ import annotations

from dataclasses import dataclass

from dnnp.core.model.graph import Floats
from dnnp.core.model.placement import Placement


@dataclass(frozen=True)
class Repetend:
    """A part of a schedule that repeats: the blocks of `unroll` consecutive micro-batches.

    Block i of micro-batch n starts at `start[n % unroll, i] + (n // unroll) * period_s`.
    """

    unroll: int
    period_s: float
    start_s: Floats
    """f64[unroll, blocks]; the least is 0."""
    memory_bytes: Floats
    """f64[units], peak while it repeats without end, what is always held included."""
    period_bound_s: float = 0.0
    """No repetend of `unroll` micro-batches has a shorter period within the memory limits."""
    memory_bound_bytes: float = 0.0
    """None of this period has a smaller largest `memory_bytes`."""
    span_bound_s: float = 0.0
    """None of this period and largest memory has a shorter span."""
    status: str = "feasible"
    """`optimal`: period, memory and span equal their bounds; `feasible` or `interrupted`."""
    span_s: float = 0.0
    """First start to last end of the blocks of `unroll` micro-batches."""
    method: str = "orders"
    """What found it: `orders`, the search over orders of blocks; `list`, list scheduling alone;
    `sequential`, one block after the other; `tessel`; `tessel-fast`."""

    @property
    def rate_s(self) -> float:
        """Time for each micro-batch."""
        return self.period_s / self.unroll


@dataclass(frozen=True)
class Schedule:
    """Start times of the blocks of `len(start_s)` micro-batches."""

    placement: Placement
    start_s: Floats
    """f64[micro-batches, blocks]; the least is 0."""
    method: str
    """What made `start_s`."""
    bound_s: float
    """No schedule of as many micro-batches within the memory limits is shorter."""
    status: str = "feasible"
    """`optimal`, `feasible` or `interrupted`."""
    repetend: Repetend | None = None
    """The best one found, which repeats in schedules of more micro-batches; None: none was looked
    for."""
    rate_s: float | None = None
    """Time for each of many micro-batches; None: not known."""
    rate_bound_s: float = 0.0
    """No schedule within the memory limits takes less time for each of many micro-batches."""


@dataclass(frozen=True)
class Point:
    """One point of the trade-off between period and memory."""

    memory_bytes: float
    period_s: float
    """For each micro-batch."""
    period_bound_s: float
    start_s: Floats
    """f64[unroll, blocks] of a repetend that is an example."""
    method: str = "orders"
    """`Repetend.method` of it."""

    @property
    def unroll(self) -> int:
        """Micro-batches in a period."""
        return len(self.start_s)
