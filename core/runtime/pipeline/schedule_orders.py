"""A schedule as steps of a pipeline, with the jobs of each unit in order.

A pass that runs nodes is a step, and so is a transfer. Of several units that run a pass at once the
last one works; the others arrive before and leave when it is done, which are steps too. So they do
nothing else meanwhile, and all waiting is of jobs for jobs: a rehearsal of all jobs
(`edge_capacities`) proves that none waits for ever.

Devices run their blocks in the order of the schedule; a block starts when the one before it on its
device has ended and its inputs are there. Start times are not waited for, but a stage that is
faster than predicted gets no further ahead of the next one than the schedule lets it, and a few
samples.

Threads of one process could read each other's tensors, but a schedule with transfers says that they
move, so they do: the thread of the link, or of the device that receives, copies every tensor; from
a GPU to the host. An emulated link copies nothing and takes as long as the schedule says.

A block on several devices at once becomes one for each piece (`schedule_of_pieces`): a part of the
stage that one of its devices runs in one go, between two exchanges with the others. Pieces of a
block share its time by their depth. Each device keeps the order of its blocks, and none starts one
before all devices have ended what it waits for; within a block devices wait for each other's
tensors alone. A transfer brings what a stage made to one device of another stage; its pieces there
take it from the transfer.
"""

from __future__ import annotations

import heapq
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

import numpy as np

from dnnp.core.model.errors import FormatError, UsageError
from dnnp.core.model.graph import Floats
from dnnp.core.model.plan import Plan, Stage
from dnnp.core.runtime.model.session import Values, to_numpy
from dnnp.core.runtime.pipeline.steps import DeviceOrders, Edge, Job, Step, Worker, route
from dnnp.core.runtime.report.statistics import Moved, Trace, Transfer, share_of

Record = Mapping[str, Any]

Carriers = Mapping[tuple[int, int], int]
"""(step, maker of what it reads) -> transfer, as a step, that hands it on."""


@dataclass(frozen=True)
class UnitOrders:
    """Jobs of each device and link of a schedule, in their order."""

    orders: tuple[tuple[Job, ...], ...]
    """Jobs of each device and link in their order."""
    waits: tuple[tuple[int, int], ...]
    """(step, step that comes after it), for every sample."""
    start_s: Floats
    """f64[steps, micro-batches]; those that run nodes come first."""
    end_s: Floats
    transfers: tuple[Transfer, ...] = ()
    via: Carriers = field(default_factory=dict)
    others: tuple[str, ...] = ()
    """Names of the steps that run no nodes."""

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.start_s)

    @property
    def count(self) -> int:
        """Micro-batches."""
        return int(self.start_s.shape[1])

    def name(self, step: int) -> str:
        """Name of a step in messages."""
        stages = self.steps - len(self.others)
        return f"stage {step}" if step < stages else self.others[step - stages]

    def of_nodes(self) -> tuple[list[tuple[Job, ...]], list[tuple[int, int]]]:
        """Orders and waits of the steps that run nodes alone.

        What waits for a transfer waits for what that waits for; units that only carry are left out.
        """
        stages = self.steps - len(self.others)
        orders = [tuple(job for job in row if job.step < stages) for row in self.orders]
        tails: dict[int, set[int]] = {step: set() for step in range(self.steps)}
        for tail, head in self.waits:
            tails[head].add(tail)
        before: dict[int, set[int]] = {}
        for step in TopologicalSorter(tails).static_order():
            own = [{tail} if tail < stages else before[tail] for tail in tails[step]]
            before[step] = set().union(*own)
        waits = [(tail, step) for step in range(stages) for tail in before[step]]
        return [row for row in orders if row], sorted(waits)


class _PassSteps(NamedTuple):
    """The steps of a pass."""

    work: int
    arrive: tuple[int, ...]
    """Steps of all units but the last."""
    leave: tuple[int, ...]


def orders_of_units(
    schedule: Record,
    blocks: Sequence[Record],
    step_of: Mapping[int, int],
    replica: Callable[[int, int], int] = lambda number, unit: 0,
) -> UnitOrders:
    """Jobs of each unit by a valid schedule.

    Parameters
    ----------
    step_of
        Passes that run nodes, by their position -> step, from 0 on. Others, unless they are
        transfers, are done by themselves: what waits for them waits for what they wait for.
    replica
        Pass that runs nodes, unit -> which of the replicas of the step this is.

    Raises
    ------
    UsageError
        A pass runs on a number of units that changes.
    FormatError
        Passes wait for each other in a circle.
    """
    passes, count = schedule["passes"], schedule["micro_batches"]
    pass_steps, others = _pass_steps(schedule, step_of)
    steps = len(step_of) + len(others)
    start, end = np.zeros((steps, count)), np.zeros((steps, count))
    rows: dict[int, list[tuple[float, Job]]] = {}
    for block in blocks:
        number, n = block["pass"], block["micro_batch"]
        if number not in pass_steps:
            continue
        of_pass, homes = pass_steps[number], passes[number]["homes"]
        *waiting, working = homes[n % len(homes)]
        job = Job(of_pass.work, replica(number, working) if number in step_of else 0, n)
        rows.setdefault(working, []).append((block["start_s"], job))
        start[of_pass.work, n], end[of_pass.work, n] = block["start_s"], block["end_s"]
        for unit, arrive, leave in zip(waiting, of_pass.arrive, of_pass.leave, strict=True):
            pair = (block["start_s"], Job(arrive, 0, n)), (block["start_s"], Job(leave, 0, n))
            rows.setdefault(unit, []).extend(pair)
            start[arrive, n] = end[arrive, n] = block["start_s"]
            start[leave, n] = end[leave, n] = block["end_s"]
    orders = []
    for _, row in sorted(rows.items()):
        row.sort(key=lambda entry: entry[0])  # stable: equal starts keep their order
        orders.append(tuple(job for _, job in row))
    waits, via = _joined(passes, step_of, pass_steps)
    transfers = tuple(_transfers(schedule, pass_steps, step_of))
    return UnitOrders(tuple(orders), waits, start, end, transfers, via, tuple(others))


def _pass_steps(
    schedule: Record, step_of: Mapping[int, int]
) -> tuple[dict[int, _PassSteps], list[str]]:
    """Steps of passes, and names of the steps without nodes."""
    units, others = schedule["units"], list[str]()

    def step(name: str) -> int:
        others.append(name)
        return len(step_of) + len(others) - 1

    pass_steps = {}
    for number, row in enumerate(schedule["passes"]):
        if number not in step_of and row["kind"] != "transfer":
            continue
        name, widths = row["name"], {len(home) for home in row["homes"]}
        if len(widths) != 1 or 0 in widths:
            raise UsageError(
                f"pass {name} runs on as many units as the micro-batch has it: that cannot run"
            )
        work = step_of[number] if number in step_of else step(f"transfer {name}")
        waiting = [units[u]["name"] for u in row["homes"][0][:-1]]
        pass_steps[number] = _PassSteps(
            work,
            tuple(step(f"{unit}, before {name}") for unit in waiting),
            tuple(step(f"{unit}, after {name}") for unit in waiting),
        )
    return pass_steps, others


def _joined(
    passes: Sequence[Record], step_of: Mapping[int, int], pass_steps: Mapping[int, _PassSteps]
) -> tuple[tuple[tuple[int, int], ...], Carriers]:
    """Steps that wait for steps, and what hands on what steps read."""
    waits = {p: [wait["pass"] for wait in row["after"]] for p, row in enumerate(passes)}
    before: dict[int, set[int]] = {}
    brought: dict[int, dict[int, int]] = {}
    pairs, via = set[tuple[int, int]](), dict[tuple[int, int], int]()
    try:
        order = list(TopologicalSorter(waits).static_order())
    except CycleError as error:
        circle = " -> ".join(passes[p]["name"] for p in reversed(error.args[1]))
        raise FormatError(f"passes wait for each other in a circle: {circle}") from None
    for p in order:
        before[p], brought[p] = set(), {}
        for q in waits[p]:
            before[p] |= {pass_steps[q].work} if q in pass_steps else before[q]
            own = {step_of[q]: step_of[q]} if q in step_of else brought[q]
            for maker, last in own.items():
                hands = pass_steps[q].work if q in pass_steps else last
                # What comes by a transfer is taken from there, also where its maker is waited for.
                if brought[p].get(maker, maker) == maker:
                    brought[p][maker] = hands
        if p not in pass_steps:
            continue
        of_pass = pass_steps[p]
        pairs |= {(b, of_pass.work) for b in (*before[p], *of_pass.arrive)}
        pairs |= {(of_pass.work, after) for after in of_pass.leave}
        via |= {(of_pass.work, m): hands for m, hands in brought[p].items() if hands != m}
    return tuple(sorted(pairs)), via


def _transfers(
    schedule: Record, pass_steps: Mapping[int, _PassSteps], step_of: Mapping[int, int]
) -> Iterator[Transfer]:
    for number, of_pass in pass_steps.items():
        row = schedule["passes"][number]
        if number not in step_of:
            units = frozenset(unit for home in row["homes"] for unit in home)
            blocking = not all(schedule["units"][unit].get("link", False) for unit in units)
            yield Transfer(
                of_pass.work,
                number,
                row["name"],
                float(row["time_s"]),
                blocking,
                len(row["homes"][0]),
                units,
            )


@dataclass(frozen=True)
class Program:
    """A schedule of a plan: its stages or parts of them, and the jobs of each device."""

    stages: tuple[Stage, ...]
    """Stages of the plan, or parts of them, each run as one inference."""
    owners: tuple[int, ...]
    """Stage of the plan that each of them is part of."""
    unit_orders: UnitOrders
    """Jobs of devices and links; steps are positions in `stages`, others follow."""
    makespan_s: float
    """Predicted makespan."""
    bubble: float

    @property
    def count(self) -> int:
        """Micro-batches."""
        return self.unit_orders.count

    @property
    def transfer_share(self) -> float:
        """Share of the makespan that the units that carry transfers are occupied by them."""
        unit_orders = self.unit_orders
        spent = (unit_orders.end_s - unit_orders.start_s).sum(axis=1)
        occupied = sum(t.width * float(spent[t.step]) for t in unit_orders.transfers)
        return share_of(unit_orders.transfers, occupied, self.makespan_s)


def program_of(schedule: Record, blocks: Sequence[Record], plan: Plan) -> Program:
    """Make a program of a plan and its schedule.

    Transfers are steps of their own; passes without nodes are done by themselves.

    `schedule, blocks`: records of a schedule that `core.check` has no objection to.

    Raises
    ------
    UsageError
        The schedule holds backward passes, or passes on several devices at once.
    FormatError
        A pass runs on a device that its stage is not on.
    """
    passes = schedule["passes"]
    _check_kinds(passes)
    # Stage and position of each pass that runs nodes, and these.
    parts: list[tuple[int, int, tuple[int, ...]]] = []
    for number, row in enumerate(passes):
        if row["kind"] == "forward":
            nodes = tuple(row.get("nodes", plan.stages[row["stage"]].nodes))
            if nodes:
                parts.append((row["stage"], number, nodes))
    parts.sort()
    step_of = {number: step for step, (_, number, _) in enumerate(parts)}
    replica: dict[tuple[int, int], int] = {}

    def which(number: int, unit: int) -> int:
        stage = passes[number]["stage"]
        if (stage, unit) not in replica:
            homes, device = plan.stages[stage].homes, schedule["units"][unit]["name"]
            if device not in homes:
                where = plan.stages[stage].device
                raise FormatError(f"a pass of the stage on {where} runs on {device}")
            replica[stage, unit] = homes.index(device)
        return replica[stage, unit]

    return Program(
        stages=tuple(_stage(plan.stages[s], nodes, passes[p]) for s, p, nodes in parts),
        owners=tuple(stage for stage, _, _ in parts),
        unit_orders=orders_of_units(schedule, blocks, step_of, which),
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


def _stage(stage: Stage, nodes: tuple[int, ...], row: Record) -> Stage:
    """Make some nodes of a stage one of its own; a whole stage stays."""
    if len(nodes) == len(stage.nodes):
        return replace(stage, nodes=nodes)
    time = float(row["time_s"])
    return replace(stage, nodes=nodes, load_s=time / stage.replicas, compute_s=time)


def edge_capacities(
    unit_orders: UnitOrders, edges: Sequence[Edge], spare: int
) -> dict[tuple[int, int], int]:
    """Capacity of edges between steps: samples held in the schedule, plus `spare`.

    The jobs are rehearsed in the order of their times, each after all that it waits for. As edges
    hold what they hold then, the devices come to an end at any pace.

    Raises `FormatError` if the orders wait for ever, for each other or for steps without jobs;
    names the steps that come next on the devices that are stuck.
    """
    steps = unit_orders.steps
    tails: list[list[int]] = [[] for _ in range(steps)]
    heads: list[list[int]] = [[] for _ in range(steps)]
    for edge in edges:
        if edge.tail >= 0 and edge.head < steps:
            tails[edge.head].append(edge.tail)
            heads[edge.tail].append(edge.head)
    device = {(job.step, job.sample): d for d, row in enumerate(unit_orders.orders) for job in row}
    if len(device) < steps * unit_orders.count or len(device) < sum(map(len, unit_orders.orders)):
        raise FormatError("the devices of the schedule do not run every sample in each stage once")
    stage = _Rehearsal(unit_orders, tails, heads)
    events = [event for d in range(len(unit_orders.orders)) if (event := stage.next_event(d))]
    heapq.heapify(events)
    while events:
        _, begins, d = heapq.heappop(events)
        job = unit_orders.orders[d][stage.at[d]]
        woken = [d]
        if begins:
            stage.take(d, job)
        else:
            stage.put(d, job)
            woken += [device[head, job.sample] for head in heads[job.step]]
        for other in dict.fromkeys(woken):
            if (event := stage.next_event(other)) is not None:
                heapq.heappush(events, event)
    rows = zip(unit_orders.orders, stage.at, strict=True)
    stuck = [row[i] for row, i in rows if i < len(row)]
    if stuck:
        names = ", ".join(f"{unit_orders.name(j.step)} for sample {j.sample}" for j in stuck[:3])
        raise FormatError(f"the devices of the schedule wait for each other for ever: {names}")
    return {edge: most + spare for edge, most in stage.capacities.items()}


Event = tuple[float, bool, int]
"""Time at which a device hands over (False) or begins (True) its current job; the device."""


class _Rehearsal:
    """Progress of every device, and samples on the edges."""

    def __init__(
        self,
        unit_orders: UnitOrders,
        tails: Sequence[Sequence[int]],
        heads: Sequence[Sequence[int]],
    ) -> None:
        self._turns, self._tails, self._heads = unit_orders, tails, heads
        self.at = [0] * len(unit_orders.orders)
        """Position of each device in its order."""
        self._queued = [False] * len(unit_orders.orders)
        """True for devices with a queued next event."""
        self._begun = [False] * len(unit_orders.orders)
        self._done: set[tuple[int, int]] = set()
        self._taken: list[set[int]] = [set() for _ in tails]
        self._first = [0] * len(tails)
        """All samples before it have begun in each step."""
        self.capacities = {(t, h): 1 for t, row in enumerate(heads) for h in row}
        """Most samples that an edge held, from the first one that was not taken on."""

    def next_event(self, d: int) -> Event | None:
        """Next event of a device; None where it has to wait, or the event was given out before."""
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
        """A job ends and passes its outputs on."""
        self._queued[d], self._begun[d] = False, False
        self.at[d] += 1
        self._done.add((job.step, job.sample))
        for head in self._heads[job.step]:
            held = job.sample - self._first[head] + 1
            self.capacities[job.step, head] = max(self.capacities[job.step, head], held)


def _copied(value: Any) -> Any:
    """The value in memory of its own."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, list):
        return [_copied(entry) for entry in value]
    return to_numpy(value)


def _size(value: Any) -> int:
    """Bytes of a value; 0 where it does not tell."""
    if isinstance(value, list):
        return sum(map(_size, value))
    if hasattr(value, "tensor_size_in_bytes"):
        return int(value.tensor_size_in_bytes()) if value.is_tensor() else 0
    return int(getattr(value, "nbytes", 0))


@dataclass
class TransferCall:
    """Moves the tensors of a transfer, sample by sample."""

    seconds: float | None = None
    """Time of an emulated link; None: copy."""
    moved: list[int] = field(default_factory=list)
    """Bytes of each sample, in any order."""
    _stopped: threading.Event = field(default_factory=threading.Event)

    def __call__(self, values: Values) -> Values:
        """The same tensors where they are to be."""
        self.moved.append(sum(map(_size, values.values())))
        if self.seconds is None:
            return {name: _copied(value) for name, value in values.items()}
        self._stopped.wait(min(self.seconds, threading.TIMEOUT_MAX))
        return values

    def stop(self) -> None:
        """End what is under way."""
        self._stopped.set()


@dataclass(frozen=True)
class ScheduleSteps:
    """The steps of a schedule."""

    steps: tuple[Step, ...]
    """Steps with nodes, then the others."""
    carriers: tuple[TransferCall, ...]
    """Calls of each transfer."""
    unit_orders: UnitOrders

    def device_orders(self, outputs: Sequence[str], spare: int) -> DeviceOrders:
        """Jobs of each device; see `edge_capacities` for `spare` and errors."""
        edges = route(self.steps, outputs, waits=self.unit_orders.waits)
        capacities = edge_capacities(self.unit_orders, edges, spare)
        return DeviceOrders(self.unit_orders.orders, capacities, self.unit_orders.waits)

    def apart(self, trace: Trace) -> Trace:
        """The trace of the steps that run nodes, with what the transfers did."""
        stages = len(self.steps) - len(self.unit_orders.others)
        rows = [transfer.step for transfer in self.unit_orders.transfers]
        moved = Moved(
            self.unit_orders.transfers,
            trace.start_ns[rows],
            trace.end_ns[rows],
            tuple(sum(c.moved) / max(len(c.moved), 1) for c in self.carriers),
            emulated=any(carrier.seconds is not None for carrier in self.carriers),
        )
        return replace(
            trace,
            start_ns=trace.start_ns[:stages],
            end_ns=trace.end_ns[:stages],
            replicas=trace.replicas[:stages],
            waited_ns=None if trace.waited_ns is None else trace.waited_ns[:stages],
            moved=moved if rows else None,
        )


def schedule_steps(
    stages: Sequence[Step], unit_orders: UnitOrders, *, emulate: bool = False
) -> ScheduleSteps:
    """Steps of a schedule: stages, which read the outputs of transfers, and the transfers.

    Parameters
    ----------
    stages
        The steps that run nodes, in the order of the schedule's.
    emulate
        Transfers take as long as the schedule says; else they copy.
    """
    maker = {name: i for i, step in enumerate(stages) for name in step.outputs}
    takes: list[dict[str, int]] = [{} for _ in range(unit_orders.steps)]
    for i, step in enumerate(stages):
        for name in step.inputs:
            head = i
            while (tail := unit_orders.via.get((head, maker.get(name, -1)))) is not None:
                takes[head][name] = tail
                head = tail
            if head != i:
                takes[head][name] = maker[name]
    steps = [replace(step, takes=takes[i]) for i, step in enumerate(stages)]
    carriers = {t.step: TransferCall(t.time_s if emulate else None) for t in unit_orders.transfers}
    for i in range(len(stages), unit_orders.steps):
        name = unit_orders.name(i)
        if i in carriers:
            worker = Worker(name, carriers[i], stop=carriers[i].stop)
            steps.append(Step(name, tuple(takes[i]), (), (worker,), takes[i]))
        else:
            steps.append(Step(name, (), (), (Worker(name, lambda values: {}),)))
    return ScheduleSteps(tuple(steps), tuple(carriers.values()), unit_orders)


class Piece(NamedTuple):
    """A part of a stage on one of its devices."""

    stage: int
    homes: tuple[str, ...]
    """Its device in each replica of the stage."""
    depth: int
    """Pieces of its stage that come before it, on the longest way."""


def schedule_of_pieces(
    schedule: Record, blocks: Sequence[Record], pieces: Sequence[Piece]
) -> tuple[Record, list[Record]]:
    """Valid schedule with a pass for each piece at its position, then the other passes.

    Raises
    ------
    UsageError
        A stage runs in several passes.
    FormatError
        A pass does not run on all devices of its stage.
    """
    passes = schedule["passes"]
    held: dict[int, list[int]] = {}
    for i, piece in enumerate(pieces):
        held.setdefault(piece.stage, []).append(i)
    parts: dict[int, list[int]] = {}
    """Pass -> its pieces."""
    for number, row in enumerate(passes):
        if row["kind"] == "forward":
            parts[number] = held.pop(row["stage"], [])
            if not parts[number]:
                raise UsageError(
                    f"stage {row['stage']} runs in several passes ({row['name']} is another one), "
                    "which a stage on several devices cannot"
                )
    rest = [number for number in range(len(passes)) if number not in parts]
    behind = {number: len(pieces) + at for at, number in enumerate(rest)}
    waits = _Waits(schedule, pieces, parts, behind)
    rows: list[Record] = [{}] * len(pieces)
    for number, mine in parts.items():
        row = passes[number]
        for i in mine:
            homes = waits.turns(row, pieces[i])
            rows[i] = {**row, "stage": i, "homes": homes, "after": waits.of_piece(row, i, homes)}
    for number in rest:
        before = waits.ends([wait["pass"] for wait in passes[number]["after"]], last=False)
        rows.append({**passes[number], "after": [{"pass": other} for other in before]})
    found: list[Record] = []
    for block in blocks:
        mine = parts.get(block["pass"], [])
        if block["pass"] in behind:
            found.append({**block, "pass": behind[block["pass"]]})
        share = (block["end_s"] - block["start_s"]) / (
            1 + max((pieces[i].depth for i in mine), default=0)
        )
        for i in mine:
            start = block["start_s"] + pieces[i].depth * share
            found.append({**block, "pass": i, "start_s": start, "end_s": start + share})
    return {**schedule, "passes": rows}, found


class _Waits:
    """Waits of pieces, from those of passes."""

    def __init__(
        self,
        schedule: Record,
        pieces: Sequence[Piece],
        parts: Mapping[int, Sequence[int]],
        behind: Mapping[int, int],
    ) -> None:
        self._passes, self._parts, self._behind = schedule["passes"], parts, behind
        self._names = [unit["name"] for unit in schedule["units"]]
        first: dict[tuple[int, tuple[str, ...]], int] = {}
        last: dict[tuple[int, tuple[str, ...]], int] = {}
        for i in sorted(range(len(pieces)), key=lambda i: pieces[i].depth):
            first.setdefault(pieces[i][:2], i)
            last[pieces[i][:2]] = i
        self._first, self._last = {*first.values()}, {*last.values()}

    def turns(self, row: Record, piece: Piece) -> list[list[int]]:
        """The device of a piece for micro-batches in turn."""
        turns = [[u for u in home if self._names[u] in piece.homes] for home in row["homes"]]
        if any(len(turn) != 1 for turn in turns):
            raise FormatError(f"pass {row['name']} does not run on all devices of its stage")
        return turns

    def of_piece(self, row: Record, i: int, homes: Sequence[Sequence[int]]) -> list[Record]:
        """Waits of a piece: transfers to its device, and all before the first one on a device."""
        found: dict[int, None] = {}
        for number in (wait["pass"] for wait in row["after"]):
            moves = self._passes[number]["kind"] == "transfer"
            if moves and self._brings(self._passes[number], homes):
                found[self._behind[number]] = None
            elif i in self._first:
                own = (
                    [wait["pass"] for wait in self._passes[number]["after"]] if moves else [number]
                )
                found |= dict.fromkeys(self.ends(own, last=True))
        return [{"pass": number} for number in found]

    def ends(self, numbers: Sequence[int], *, last: bool) -> Iterator[int]:
        """Pieces of passes, or the last one of each device; other passes as they are."""
        for number in numbers:
            mine = self._parts.get(number)
            if mine is None:
                yield self._behind[number]
            else:
                yield from [i for i in mine if i in self._last or not last]

    def _brings(self, transfer: Record, homes: Sequence[Sequence[int]]) -> bool:
        """True if a transfer ends on a device, or does not say where."""
        turns = transfer["homes"]
        for n in range(math.lcm(len(turns), len(homes))):
            carriers = [self._names[u] for u in turns[n % len(turns)]]
            _, arrow, target = carriers[-1].rpartition(">")
            if (arrow or len(carriers) > 1) and target != self._names[homes[n % len(homes)][0]]:
                return False
        return True
