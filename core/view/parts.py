"""Stages as text and pictures show them: parts of their loads, times at which they work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dnnp.core.model.plan import Plan, Stage
from dnnp.core.model.text import shown_bytes, shown_time
from dnnp.core.view.facts import Facts, Part

LOADS = ("in", "compute", "overflow", "out", "sync")
"""Parts of a load, in the order in which a bar shows them."""
SUM_TOLERANCE = 1e-9
"""Relative difference between a load and the sum of its parts that rounding explains."""
OVERLAP = "parts that overlap count once in a load, but are all in its bar"
"""What is said below bars that are longer than loads."""


def amount(stage: Stage, name: str) -> float:
    """A part of a stage's load, for one sample, over its replicas."""
    found: float = getattr(stage, f"{name}_s")
    return found if name == "sync" else found / stage.replicas


def bar_length(stage: Stage) -> float:
    """The sum of the parts, which is the load where they do not overlap."""
    return sum(amount(stage, name) for name in LOADS)


def longest_bar(parts: Sequence[Part]) -> float:
    """What bars are drawn to the scale of; 1 where all loads are 0."""
    return max((bar_length(part.stage) for part in parts), default=0.0) or 1.0


def parts_overlap(parts: Sequence[Part]) -> bool:
    """Whether some load is less than the sum of its parts, as transfers may be hidden."""
    return any(part.stage.load_s < bar_length(part.stage) * (1 - SUM_TOLERANCE) for part in parts)


def bar_bound(plan: Plan, parts: Sequence[Part]) -> float | None:
    """The bound, where bars are as long as what it is a bound of; None: they are not."""
    alike = plan.objective == "throughput" and not plan.shared_s and not parts_overlap(parts)
    return plan.bound if alike and plan.bound > 0 else None


def most_loaded(parts: Sequence[Part], most: int) -> list[int]:
    """Numbers of the stages with the largest loads, in the order of the pipeline."""
    order = sorted(range(len(parts)), key=lambda i: (-parts[i].stage.load_s, i))
    return sorted(order[:most])


def shared_words(facts: Facts) -> list[str]:
    """What every device takes for stages that all share, in words; empty: there are none."""
    plan = facts.plan
    if plan is None or len(plan.own) == len(plan.stages):
        return []
    memory = sum(stage.memory_bytes for stage in plan.stages if stage.shared)
    return [f"shared: {shown_time(plan.shared_s, facts.seconds)}, {shown_bytes(memory)}"]


def working(part: Part) -> Iterator[tuple[float, float]]:
    """When a stage of a plan for latency computes: start and end of each time."""
    stage = part.stage
    if stage.starts_s:
        for start, time in zip(stage.starts_s, part.times.tolist(), strict=False):
            yield start, start + time
    elif stage.begin_s is not None:
        yield stage.begin_s + stage.in_s, stage.begin_s + stage.in_s + stage.compute_s
