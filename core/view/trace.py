"""A schedule, or a plan for latency, as a timeline: what was predicted, not what was measured."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dnnp.core.model.errors import UsageError
from dnnp.core.view.facts import Facts, working
from dnnp.formats.stream import Record
from dnnp.formats.trace_events import Edge, Move, Timeline, Times, Work

NANO = 1e9
"""Nanoseconds of a second; a time without a unit is shown as one second."""
EXACT = float(2**53)
"""Nanoseconds up to which all programs tell two apart."""


def scale_of(facts: Facts) -> float:
    """Nanoseconds that a unit of time is shown as: those of a second, or of a thousandth or less
    of it, where the timeline would be too long."""
    longest = facts.plan.value if facts.plan is not None else 0.0
    if facts.schedule is not None:
        longest = facts.schedule["makespan_s"]
    scale = NANO
    while longest * scale > EXACT:
        scale /= 1000
    return scale


def timeline_of(facts: Facts) -> Timeline:
    """The timeline of a schedule, with its micro-batches as samples, or of a plan for latency.

    Raises
    ------
    UsageError
        There is neither.
    """
    if facts.schedule is not None:
        return _of_schedule(facts.schedule, facts.stream.get("block"), scale_of(facts))
    if facts.plan is None or facts.plan.objective != "latency":
        raise UsageError(
            "there is no timeline: the stream has neither a schedule (dnnp-schedule) nor a plan "
            "for latency; dnnp-run --trace has that of a run"
        )
    return _of_latency(facts)


def _of_schedule(record: Record, blocks: list[Record], scale: float) -> Timeline:
    """Every pass is a work, on each of its units; arrows lead to the first of these."""
    passes, count = record["passes"], record["micro_batches"]
    starts = np.zeros((len(passes), count), dtype=np.int64)
    ends = np.zeros_like(starts)
    for block in blocks:
        at = block["pass"], block["micro_batch"]
        starts[at], ends[at] = round(block["start_s"] * scale), round(block["end_s"] * scale)
    works: list[Work] = []
    first: list[int] = []
    for number, one in enumerate(passes):
        first.append(len(works))
        homes = [one["homes"][n % len(one["homes"])] for n in range(count)]
        for part in range(min(map(len, homes))):
            tracks = np.array([home[part] for home in homes], dtype=np.int64)
            works.append(Work(one["name"], tracks, starts[number], ends[number]))
    edges = [
        Edge(first[before["pass"]], first[number])
        for number, one in enumerate(passes)
        for before in one["after"]
    ]
    done = ends.max(axis=0, initial=0)
    return Timeline([unit["name"] for unit in record["units"]], works, edges, done)


def _of_latency(facts: Facts) -> Timeline:
    """Every task is a work of one sample; transfers are on links.

    A device that is invoked several times has several stages.
    """
    scale = scale_of(facts)

    def ns(time: float) -> Times:
        return np.array([round(time * scale)], dtype=np.int64)

    works: list[Work] = []
    moves: list[Move] = []
    tracks = list(dict.fromkeys(part.stage.device for part in facts.parts))
    for number, part in enumerate(facts.parts):
        track = tracks.index(part.stage.device)
        for name, start, end in _tasks(facts, number):
            works.append(Work(name, np.array([track]), ns(start), ns(end)))
        for sent in part.stage.receives or ():
            name = f"{sent.source} to {part.stage.device}"
            moves.append(Move(name, ns(sent.start_s), ns(sent.end_s)))
    last = max((int(work.end_ns[0]) for work in works), default=0)
    return Timeline(tracks, works, (), np.array([last]), moves=moves)


def _tasks(facts: Facts, number: int) -> Iterator[tuple[str, float, float]]:
    """Name, start and end of what a stage of a plan for latency computes."""
    part, graph = facts.parts[number], facts.unit_graph
    names = [f"stage {number}"]
    if part.stage.starts_s is not None and graph is not None:
        names = [graph.node_names[unit] for unit in part.units.tolist()]
    for name, (start, end) in zip(names, working(part), strict=False):
        yield name, start, end
