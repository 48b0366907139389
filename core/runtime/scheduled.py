"""A pipeline schedule as what each device runs: stages, or parts of them, sample by sample.

Devices run their blocks in the order of the schedule; a block starts when the one before it on
its device has ended and its inputs are there. Start times are not waited for, but a stage that is
faster than predicted gets no further ahead of the next one than the schedule lets it, and a few
samples (`room_of`).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

import numpy as np

from dnnp.core.model.errors import FormatError, UsageError
from dnnp.core.model.graph import Floats
from dnnp.core.model.plan import Plan, Stage
from dnnp.core.runtime.pipeline import Edge, Job

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Program:
    """What each device runs."""

    stages: tuple[Stage, ...]
    """What runs in one go: stages of the plan, or parts of them."""
    owners: tuple[int, ...]
    """Stage of the plan that each of them is part of."""
    orders: tuple[tuple[Job, ...], ...]
    """Of each device, in the order of the schedule; steps are positions in `stages`."""
    waits: tuple[tuple[int, int], ...]
    """(step, step that comes after it), for every sample; by way of transfers too."""
    count: int
    """Micro-batches."""
    makespan_s: float
    """What the schedule predicts."""
    bubble: float
    start_s: Floats
    """f64[steps, count], by the schedule."""
    end_s: Floats


class _PassPart(NamedTuple):
    """A pass that runs nodes."""

    stage: int
    number: int
    """Position among the passes."""
    nodes: tuple[int, ...]


def program_of(schedule: Record, blocks: Sequence[Record], plan: Plan) -> Program:
    """What the devices of a plan run by a schedule of it.

    Passes without nodes, such as transfers, are carried out on the way; what waits for them
    waits for what they wait for.

    Parameters
    ----------
    schedule, blocks
        Records of a schedule that `core.check` has no objection to.

    Raises
    ------
    UsageError
        The schedule holds backward passes, or passes on several devices at once.
    FormatError
        A pass runs on a device that its stage is not on.
    """
    passes = schedule["passes"]
    _check_kinds(passes)
    parts = []
    for number, row in enumerate(passes):
        if row["kind"] == "forward":
            nodes = tuple(row.get("nodes", plan.stages[row["stage"]].nodes))
            if nodes:
                parts.append(_PassPart(row["stage"], number, nodes))
    parts.sort()
    step_of = {part.number: step for step, part in enumerate(parts)}
    before = _ahead(passes, step_of)
    waits = {(b, step_of[p]) for p, steps in before.items() if p in step_of for b in steps}
    return Program(
        stages=tuple(_stage(plan, part, passes[part.number]) for part in parts),
        owners=tuple(part.stage for part in parts),
        orders=_orders(schedule, blocks, plan, step_of),
        waits=tuple(sorted(waits)),
        count=schedule["micro_batches"],
        makespan_s=float(schedule["makespan_s"]),
        bubble=float(schedule["bubble"]),
        start_s=_times(blocks, "start_s", step_of, schedule["micro_batches"]),
        end_s=_times(blocks, "end_s", step_of, schedule["micro_batches"]),
    )


def _check_kinds(passes: Sequence[Record]) -> None:
    for row in passes:
        if row["kind"] in ("backward", "weight"):
            raise UsageError(
                f"the schedule holds {row['kind']} passes ({row['name']}): only schedules of "
                "forward passes can run as ONNX models"
            )
        if row["kind"] == "forward" and any(len(home) > 1 for home in row["homes"]):
            raise UsageError(
                f"pass {row['name']} runs on several devices at once, which an ONNX model cannot"
            )


def _stage(plan: Plan, part: _PassPart, row: Record) -> Stage:
    """What a part is as a stage of its own; a whole stage is what it was."""
    stage = plan.stages[part.stage]
    if len(part.nodes) == len(stage.nodes):
        return replace(stage, nodes=part.nodes)
    time = float(row["time_s"])
    return replace(stage, nodes=part.nodes, load_s=time / stage.replicas, compute_s=time)


def _ahead(passes: Sequence[Record], step_of: Mapping[int, int]) -> dict[int, set[int]]:
    """Steps that each pass waits for; those that they wait for themselves may be left out."""
    waits = {p: [wait["pass"] for wait in row["after"]] for p, row in enumerate(passes)}
    before: dict[int, set[int]] = {}
    try:
        for p in TopologicalSorter(waits).static_order():
            before[p] = set()
            for q in waits[p]:
                before[p] |= {step_of[q]} if q in step_of else before[q]
    except CycleError as error:
        circle = " -> ".join(passes[p]["name"] for p in reversed(error.args[1]))
        raise FormatError(f"passes wait for each other in a circle: {circle}") from None
    return before


def _orders(
    schedule: Record, blocks: Sequence[Record], plan: Plan, step_of: Mapping[int, int]
) -> tuple[tuple[Job, ...], ...]:
    """Jobs of each device by start; those that start together as their records stand."""
    rows: dict[int, list[tuple[float, Job]]] = {}
    replica: dict[tuple[int, int], int] = {}
    for block in blocks:
        number = block["pass"]
        if number not in step_of:
            continue
        (unit,) = block["units"]
        stage = schedule["passes"][number]["stage"]
        if (stage, unit) not in replica:
            replica[stage, unit] = _replica(plan.stages[stage], schedule["units"][unit]["name"])
        job = Job(step_of[number], replica[stage, unit], block["micro_batch"])
        rows.setdefault(unit, []).append((block["start_s"], job))
    found = []
    for _, row in sorted(rows.items()):
        row.sort(key=lambda entry: entry[0])
        found.append(tuple(job for _, job in row))
    return tuple(found)


def _times(blocks: Sequence[Record], name: str, step_of: Mapping[int, int], count: int) -> Floats:
    """Starts or ends of all jobs; f64[steps, count]."""
    times = np.zeros((len(step_of), count))
    for block in blocks:
        if block["pass"] in step_of:
            times[step_of[block["pass"]], block["micro_batch"]] = block[name]
    return times


def room_of(program: Program, edges: Sequence[Edge], spare: int) -> dict[tuple[int, int], int]:
    """Samples that edges between steps hold: as many as in the schedule, and some to spare.

    The jobs are rehearsed in the order of their times, each after all that it waits for. As edges
    hold what they hold then, the devices come to an end, whatever their pace.

    Raises
    ------
    FormatError
        The orders wait for ever, for each other or for what nobody runs; names the steps that
        come next on the devices that are stuck.
    """
    steps = len(program.stages)
    tails: list[list[int]] = [[] for _ in range(steps)]
    heads: list[list[int]] = [[] for _ in range(steps)]
    for edge in edges:
        if edge.tail >= 0 and edge.head < steps:
            tails[edge.head].append(edge.tail)
            heads[edge.tail].append(edge.head)
    device = {(job.step, job.sample): d for d, row in enumerate(program.orders) for job in row}
    if len(device) < steps * program.count or len(device) < sum(map(len, program.orders)):
        raise FormatError("the devices of the schedule do not run every sample in each stage once")
    stage = _Rehearsal(program, tails, heads)
    events = [event for d in range(len(program.orders)) if (event := stage.next_event(d))]
    heapq.heapify(events)
    while events:
        _, begins, d = heapq.heappop(events)
        job = program.orders[d][stage.at[d]]
        woken = [d]
        if begins:
            stage.take(d, job)
        else:
            stage.put(d, job)
            woken += [device[head, job.sample] for head in heads[job.step]]
        for other in dict.fromkeys(woken):
            if (event := stage.next_event(other)) is not None:
                heapq.heappush(events, event)
    rows = zip(program.orders, stage.at, strict=True)
    stuck = [row[i] for row, i in rows if i < len(row)]
    if stuck:
        names = ", ".join(f"stage {job.step} for sample {job.sample}" for job in stuck[:3])
        raise FormatError(f"the devices of the schedule wait for each other for ever: {names}")
    return {edge: most + spare for edge, most in stage.room.items()}


Event = tuple[float, bool, int]
"""When a device hands over (False) or begins (True) the job that it is at, and the device."""


class _Rehearsal:
    """What has been done on every device, and what lies on the edges."""

    def __init__(
        self, program: Program, tails: Sequence[Sequence[int]], heads: Sequence[Sequence[int]]
    ) -> None:
        self._program, self._tails, self._heads = program, tails, heads
        self.at = [0] * len(program.orders)
        """Position of each device in its order."""
        self._queued = [False] * len(program.orders)
        """Whether the next event of a device was given out."""
        self._begun = [False] * len(program.orders)
        self._done: set[tuple[int, int]] = set()
        self._taken: list[set[int]] = [set() for _ in tails]
        self._first = [0] * len(tails)
        """All samples before it have begun in each step."""
        self.room = {(t, h): 1 for t, row in enumerate(heads) for h in row}
        """Most samples that an edge held, from the first one that was not taken on."""

    def next_event(self, d: int) -> Event | None:
        """What a device does next; None where it has to wait, or that was said before."""
        row, i = self._program.orders[d], self.at[d]
        if self._queued[d] or i == len(row):
            return None
        step, _, sample = row[i]
        if self._begun[d]:
            self._queued[d] = True
            return float(self._program.end_s[step, sample]), False, d
        if not all((tail, sample) in self._done for tail in self._tails[step]):
            return None
        self._queued[d] = True
        return float(self._program.start_s[step, sample]), True, d

    def take(self, d: int, job: Job) -> None:
        """A job begins."""
        self._queued[d], self._begun[d] = False, True
        taken = self._taken[job.step]
        taken.add(job.sample)
        while self._first[job.step] in taken:
            taken.remove(self._first[job.step])
            self._first[job.step] += 1

    def put(self, d: int, job: Job) -> None:
        """A job ends and hands over what it made."""
        self._queued[d], self._begun[d] = False, False
        self.at[d] += 1
        self._done.add((job.step, job.sample))
        for head in self._heads[job.step]:
            held = job.sample - self._first[head] + 1
            self.room[job.step, head] = max(self.room[job.step, head], held)


def _replica(stage: Stage, device: str) -> int:
    """Which of the devices of a stage this is."""
    first = stage.device.rpartition("/")[2]
    owner, _, number = device.rpartition("/")
    if owner == stage.device_class and number.isdecimal() and first.isdecimal():
        replica = int(number) - int(first)
        if 0 <= replica < stage.replicas:
            return replica
    raise FormatError(f"a pass of the stage on {stage.device} runs on {device}")
