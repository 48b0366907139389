"""What is asked of a schedule, and what a method answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from dnnp.core.model.graph import Floats
from dnnp.core.model.placement import Placement
from dnnp.core.model.schedule import Repetend
from dnnp.core.pipeline.problem import ScheduleProblem


@dataclass(frozen=True)
class Wanted:
    """What is asked for."""

    micro_batches: int
    method: str = "auto"
    """A name of `core.methods`."""
    unroll: int | None = None
    """Micro-batches in a period; None: 1, and more where that leaves a gap to the bound."""
    most_in_flight: int | None = None
    """`tessel`: micro-batches that a repetend may be made of (N_R)."""
    lazy: bool = True
    """`tessel`: complete the best repetend only, not every better one."""


class Batch(NamedTuple):
    """All micro-batches that a schedule is for."""

    placement: Placement
    problem: ScheduleProblem
    """Of all micro-batches."""
    bound: float
    """No schedule within the memory limits is shorter."""


class Answer(NamedTuple):
    """What a method found."""

    start: Floats
    """f64[micro-batches * blocks]."""
    method: str
    """What made `start`."""
    bound: float
    """No schedule of as many micro-batches within the memory limits is shorter."""
    status: str = "feasible"
    """`optimal`, `feasible` or `interrupted`."""
    repetend: Repetend | None = None
    """The best one, if the method looks for any."""
    rate_s: float | None = None
    """Time for each of many micro-batches; None: not known."""
