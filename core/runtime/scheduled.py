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
from typing import Any, NamedTuple

from dnnp.core.model.errors import FormatError, UsageError
from dnnp.core.model.plan import Plan, Stage
from dnnp.core.runtime.routes import Edge, Routed, route
from dnnp.core.runtime.steps import Job, Steered
from dnnp.core.runtime.trace import share_of
from dnnp.core.runtime.turns import Turns, turns_of

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Program:
    """What each device runs."""

    stages: tuple[Stage, ...]
    """What runs in one go: stages of the plan, or parts of them."""
    owners: tuple[int, ...]
    """Stage of the plan that each of them is part of."""
    turns: Turns
    """What devices and links do; steps are positions in `stages`, and others after them."""
    makespan_s: float
    """What the schedule predicts."""
    bubble: float

    @property
    def count(self) -> int:
        """Micro-batches."""
        return self.turns.count

    @property
    def transfer_share(self) -> float:
        """Share of the makespan that the units that carry transfers are occupied by them."""
        turns = self.turns
        spent = (turns.end_s - turns.start_s).sum(axis=1)
        occupied = sum(t.width * float(spent[t.step]) for t in turns.transfers)
        return share_of(turns.transfers, occupied, self.makespan_s)


class _PassPart(NamedTuple):
    """A pass that runs nodes."""

    stage: int
    number: int
    """Position among the passes."""
    nodes: tuple[int, ...]


def program_of(schedule: Record, blocks: Sequence[Record], plan: Plan) -> Program:
    """What the devices of a plan run by a schedule of it.

    Transfers are steps of their own; passes without nodes are done by themselves.

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
    replica: dict[tuple[int, int], int] = {}

    def which(number: int, unit: int) -> int:
        stage = passes[number]["stage"]
        if (stage, unit) not in replica:
            replica[stage, unit] = _replica(plan.stages[stage], schedule["units"][unit]["name"])
        return replica[stage, unit]

    return Program(
        stages=tuple(_stage(plan, part, passes[part.number]) for part in parts),
        owners=tuple(part.stage for part in parts),
        turns=turns_of(schedule, blocks, step_of, which),
        makespan_s=float(schedule["makespan_s"]),
        bubble=float(schedule["bubble"]),
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


def steering(turns: Turns, steps: Sequence[Routed], outputs: Sequence[str], spare: int) -> Steered:
    """What each device runs by a schedule; see `room_of` for `spare` and what is raised."""
    edges = route(steps, outputs, waits=turns.waits)
    return Steered(turns.orders, room_of(turns, edges, spare), turns.waits)


def room_of(turns: Turns, edges: Sequence[Edge], spare: int) -> dict[tuple[int, int], int]:
    """Samples that edges between steps hold: as many as in the schedule, and some to spare.

    The jobs are rehearsed in the order of their times, each after all that it waits for. As edges
    hold what they hold then, the devices come to an end, whatever their pace.

    Raises
    ------
    FormatError
        The orders wait for ever, for each other or for what nobody runs; names the steps that
        come next on the devices that are stuck.
    """
    steps = turns.steps
    tails: list[list[int]] = [[] for _ in range(steps)]
    heads: list[list[int]] = [[] for _ in range(steps)]
    for edge in edges:
        if edge.tail >= 0 and edge.head < steps:
            tails[edge.head].append(edge.tail)
            heads[edge.tail].append(edge.head)
    device = {(job.step, job.sample): d for d, row in enumerate(turns.orders) for job in row}
    if len(device) < steps * turns.count or len(device) < sum(map(len, turns.orders)):
        raise FormatError("the devices of the schedule do not run every sample in each stage once")
    stage = _Rehearsal(turns, tails, heads)
    events = [event for d in range(len(turns.orders)) if (event := stage.next_event(d))]
    heapq.heapify(events)
    while events:
        _, begins, d = heapq.heappop(events)
        job = turns.orders[d][stage.at[d]]
        woken = [d]
        if begins:
            stage.take(d, job)
        else:
            stage.put(d, job)
            woken += [device[head, job.sample] for head in heads[job.step]]
        for other in dict.fromkeys(woken):
            if (event := stage.next_event(other)) is not None:
                heapq.heappush(events, event)
    rows = zip(turns.orders, stage.at, strict=True)
    stuck = [row[i] for row, i in rows if i < len(row)]
    if stuck:
        names = ", ".join(f"{turns.name(j.step)} for sample {j.sample}" for j in stuck[:3])
        raise FormatError(f"the devices of the schedule wait for each other for ever: {names}")
    return {edge: most + spare for edge, most in stage.room.items()}


Event = tuple[float, bool, int]
"""When a device hands over (False) or begins (True) the job that it is at, and the device."""


class _Rehearsal:
    """What has been done on every device, and what lies on the edges."""

    def __init__(
        self, turns: Turns, tails: Sequence[Sequence[int]], heads: Sequence[Sequence[int]]
    ) -> None:
        self._turns, self._tails, self._heads = turns, tails, heads
        self.at = [0] * len(turns.orders)
        """Position of each device in its order."""
        self._queued = [False] * len(turns.orders)
        """Whether the next event of a device was given out."""
        self._begun = [False] * len(turns.orders)
        self._done: set[tuple[int, int]] = set()
        self._taken: list[set[int]] = [set() for _ in tails]
        self._first = [0] * len(tails)
        """All samples before it have begun in each step."""
        self.room = {(t, h): 1 for t, row in enumerate(heads) for h in row}
        """Most samples that an edge held, from the first one that was not taken on."""

    def next_event(self, d: int) -> Event | None:
        """What a device does next; None where it has to wait, or that was said before."""
        row, i = self._turns.orders[d], self.at[d]
        if self._queued[d] or i == len(row):
            return None
        step, _, sample = row[i]
        if self._begun[d]:
            self._queued[d] = True
            return float(self._turns.end_s[step, sample]), False, d
        if not all((tail, sample) in self._done for tail in self._tails[step]):
            return None
        self._queued[d] = True
        return float(self._turns.start_s[step, sample]), True, d

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
