"""The latency of one sample: tasks, flows, devices, and the two ways to run them.

A task is a unit of the graph (a group, or a node where there are none) and runs as one. A flow
is what one task makes and others read, and has to move if they are elsewhere: a tensor with all
its readers, or (Moirai) everything that goes from one task to one other.

`blocks` (2020 paper, Section 4): accelerators are invoked for whole blocks. An invocation starts
when everything that its block reads is in the memory of the host and the device is free. It reads
these flows, each once, runs its tasks, and writes the flows that are read elsewhere back, one after
the other:

    end = start + in + compute + out

Tasks on the CPU pool start when all they read is there; the pool is wide enough, so that none
waits for a core. Nothing stays on an accelerator between two invocations but parameters. An
accelerator may be invoked up to q times (Section 4.1), q times for each pass of a training
graph (Section 4.2), each time for tasks of one pass; all its blocks together must fit its memory.

`operators` (Moirai, Section III.D): every task is placed by itself. A device runs one task at a
time. A flow moves once to every device that has readers of it and is not its maker's. A task starts
when its device is free and all it reads has arrived, a transfer when its flow is made and its
channel is free:

    device   a device sends one flow at a time, and receives one at a time (Moirai, Eq. 8)
    channel  from one device to one other, one flow at a time
    none     transfers never wait for each other

The order is that of one sequence of events, tasks and transfers: every event starts as
early as those before it allow. Every schedule without needless waiting is that of some sequence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.items import joined_by
from dnnp.core.cost.live import Live, block_peaks, live_of, placed_peaks
from dnnp.core.cost.load import node_memory
from dnnp.core.cost.load_formula import ROOM
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.device import Machine, machine_of
from dnnp.core.model.errors import FormatError, InfeasibleError, UsageError
from dnnp.core.model.graph import (
    INPUT,
    PARAMETER,
    Bools,
    Clustering,
    Floats,
    Graph,
    Ints,
    contract,
    csr,
    distinct,
    place_of,
    totals,
)
from dnnp.core.model.plan import CostOptions
from dnnp.core.model.search_context import Learned
from dnnp.core.model.text import shown_bytes


@dataclass(frozen=True, eq=False)
class Tasks:
    """`n` tasks and `f` flows, in flat arrays; CSR as in `Graph`."""

    time: Floats
    """f64[D, n], time of each task on each device of the machine; inf: unsupported."""
    memory: Floats
    """f64[n], bytes."""
    together: Ints
    """i64[n]: tasks with equal numbers, 0..c-1, must share a device (colours)."""
    backward: Bools
    """bool[n]: the task belongs to the backward pass."""
    order: Ints
    """i64[n], a topological order."""
    maker: Ints
    """i64[f], task that makes the flow; -1: an input of the model (with `charge_io` only)."""
    leaves: Bools
    """bool[f]: an output of the model that costs a transfer (with `charge_io` only)."""
    size: Floats
    """f64[f], bytes whose time is theirs over the bandwidth."""
    fixed: Floats
    """f64[f], time of a transfer that the source states, on top."""
    carried_ptr: Ints
    carried_id: Ints
    """Ids of the tensors in each flow, ascending."""
    use_ptr: Ints
    use_idx: Ints
    """Tasks that read each flow, ascending, its maker excluded."""
    in_ptr: Ints
    in_idx: Ints
    """Flows that each task reads, ascending."""
    out_ptr: Ints
    out_idx: Ints
    """Flows that each task makes, ascending."""

    @property
    def n(self) -> int:
        """Number of tasks."""
        return len(self.memory)

    @property
    def flows(self) -> int:
        """Number of flows."""
        return len(self.maker)

    @property
    def edges(self) -> tuple[Ints, Ints]:
        """Distinct pairs (maker i64[e], reader i64[e]), sorted."""
        maker = np.repeat(self.maker, np.diff(self.use_ptr))
        made = maker >= 0
        pairs = distinct(maker[made] * self.n + self.use_idx[made])
        return pairs // max(self.n, 1), pairs % max(self.n, 1)


def tasks_of(graph: Graph, units: Clustering, machine: Machine, options: CostOptions) -> Tasks:
    """Lay out the units of a graph as tasks on the devices of a machine."""
    coarse = contract(graph, units)
    n = coarse.n
    tensor, flow, leaves = _flows(coarse, options)
    count = len(leaves)
    stated = ~np.isnan(coarse.transfer_s[tensor])
    maker = np.empty(count, dtype=np.int64)
    maker[flow] = coarse.producer[tensor]
    carried_ptr, carried = csr(flow, tensor, count)
    flow_of_use, reader = _uses(coarse, options, tensor, flow)
    use_ptr, use_idx = csr(flow_of_use, reader, len(maker))
    in_ptr, in_idx = csr(reader, flow_of_use, n)
    made = np.flatnonzero(maker >= 0)
    out_ptr, out_idx = csr(maker[made], made, n)
    return Tasks(
        time=units.times_on(*machine.classes),
        memory=unit_memory(graph, units, options),
        together=joined_by(coarse.color),
        backward=coarse.backward,
        order=coarse.order,
        maker=maker,
        leaves=leaves,
        size=totals(flow, np.where(stated, 0.0, coarse.tensor_bytes[tensor]), count),
        fixed=totals(flow, np.where(stated, coarse.transfer_s[tensor], 0.0), count),
        carried_ptr=carried_ptr,
        carried_id=coarse.tensor_ids[carried],
        use_ptr=use_ptr,
        use_idx=use_idx,
        in_ptr=in_ptr,
        in_idx=in_idx,
        out_ptr=out_ptr,
        out_idx=out_idx,
    )


def rank_of(tasks: Tasks) -> Ints:
    """Position of each task in `order`; i64[n]."""
    return place_of(tasks.order)


def unit_memory(graph: Graph, units: Clustering, options: CostOptions) -> Floats:
    """Memory of each unit; f64[g], bytes.

    `weights`: what the source states of a node, else the parameters and constants that the nodes
    of the unit read, each once; `peak`: the latter of all nodes, live tensors come on top. `sum`:
    the memory of the nodes added up.
    """
    if options.memory_model == "sum":
        return totals(units.label, node_memory(graph), units.g)
    graph = graph.in_memory
    stated = ~np.isnan(graph.node_bytes) & (options.memory_model == "weights")
    static = (graph.tensor_kind[graph.in_idx] >= PARAMETER) & ~stated[graph.reader]
    pairs = distinct(units.label[graph.reader[static]] * graph.m + graph.in_idx[static])
    own = totals(units.label[stated], graph.node_bytes[stated], units.g)
    return own + totals(pairs // graph.m, graph.tensor_bytes[pairs % graph.m], units.g)


def _flows(coarse: Graph, options: CostOptions) -> tuple[Ints, Ints, Bools]:
    """Tensors that move, the flow each is part of (i64 both, a tensor may be in several), and
    whether each flow leaves the model. Of edges, reads come first, then what leaves."""
    tensor, reader = _reads(coarse, options)
    output = coarse.is_output & (coarse.producer >= 0) & options.charge_io
    if options.transfers == "edge":
        # The host is one more reader of each output.
        made = np.flatnonzero(output)
        tensor = np.concatenate([tensor, made])
        reader = np.concatenate([reader, np.full(len(made), coarse.n)])
        ends = (coarse.producer[tensor] + 1) * (coarse.n + 1) + reader
        pairs, flow = np.unique(ends, return_inverse=True)
        return tensor, flow.astype(np.int64), pairs % (coarse.n + 1) == coarse.n
    moves = output.copy()
    moves[tensor] = True
    kept = np.flatnonzero(moves)
    return kept, np.arange(len(kept)), output[kept]


def _uses(coarse: Graph, options: CostOptions, tensor: Ints, flow: Ints) -> tuple[Ints, Ints]:
    """Flow and reader of every use; `tensor` and `flow` are what `_flows` gives."""
    read, reader = _reads(coarse, options)
    if options.transfers == "edge":
        pairs = distinct(flow[: len(read)] * coarse.n + reader)
        return pairs // coarse.n, pairs % coarse.n
    number = np.full(coarse.m, -1, dtype=np.int64)
    number[tensor] = flow
    return number[read], reader


def _reads(coarse: Graph, options: CostOptions) -> tuple[Ints, Ints]:
    """Tensor and reader of every read that may need a transfer."""
    tensor = np.repeat(np.arange(coarse.m), np.diff(coarse.use_ptr))
    moves = coarse.producer >= 0
    if options.charge_io:
        moves |= coarse.tensor_kind == INPUT
    chosen = moves[tensor] & (coarse.use_idx != coarse.producer[tensor])
    return tensor[chosen], coarse.use_idx[chosen]


POOL = -1
"""Block of a task that runs on the CPU pool."""


@dataclass(frozen=True, eq=False)
class Invocations:
    """A split into blocks: the invocation of each task."""

    device: Ints
    """i64[b], device (number in the machine) of each invocation. Those of one device run in
    this order."""
    block: Ints
    """i64[n], invocation that runs each task, or `POOL`."""


@dataclass(frozen=True, eq=False)
class BlockTimes:
    """Times of all invocations and tasks."""

    value: float
    """Latency: when the last task is done and what it made is in the memory of the host."""
    start_s: Floats
    in_s: Floats
    compute_s: Floats
    out_s: Floats
    """f64[b] each, of every invocation."""
    ready_s: Floats
    """f64[n], when the outputs of each task are in the memory of the host."""

    @property
    def end_s(self) -> Floats:
        """f64[b], end of each invocation."""
        return self.start_s + self.in_s + self.compute_s + self.out_s


def pool_times(tasks: Tasks, machine: Machine) -> Floats:
    """Time of each task on the CPU pool; f64[n], inf where there is no CPU that runs it."""
    if not machine.is_cpu.any():
        return np.full(tasks.n, np.inf)
    pool: Floats = tasks.time[int(np.argmax(machine.is_cpu))]
    return pool


def host_times(tasks: Tasks, machine: Machine, device: int) -> Floats:
    """Time to move each flow between a device and the memory of the host; f64[f]."""
    return tasks.size * machine.host_rate[device] + tasks.fixed


def time_invocations(tasks: Tasks, machine: Machine, split: Invocations) -> BlockTimes:
    """Compute the latency of a split; the limits are `check_invocations`' business.

    Raises FormatError: two blocks, or a block and a task of the pool, wait for each other.
    """
    count, n = len(split.device), tasks.n
    parts = _parts(tasks, machine, split)
    vertex = np.where(split.block >= 0, split.block, count + np.arange(n))
    previous = _previous(split.device)
    before: list[set[int]] = [set() for _ in range(count + n)]
    for maker, reader in zip(*(x.tolist() for x in tasks.edges), strict=True):
        if vertex[maker] != vertex[reader]:
            before[vertex[reader]].add(int(vertex[maker]))
    for b, earlier in enumerate(previous):
        if earlier >= 0:
            before[b].add(earlier)
    pool = pool_times(tasks, machine)
    end = np.zeros(count + n)
    start = np.zeros(count + n)
    length = np.concatenate([parts.sum(axis=0), pool])
    for v in _order(before, distinct(vertex).tolist(), count):
        start[v] = max((end[u] for u in before[v]), default=0.0)
        end[v] = start[v] + length[v]
    ready = end[vertex]
    return BlockTimes(
        value=float(max(ready.max(initial=0.0), end[:count].max(initial=0.0))),
        start_s=start[:count],
        in_s=parts[0],
        compute_s=parts[1],
        out_s=parts[2],
        ready_s=ready,
    )


def check_invocations(tasks: Tasks, machine: Machine, split: Invocations, most: int) -> None:
    """Check a split against the limits of its devices.

    Raises
    ------
    FormatError
        A block has tasks of both passes, or no task; a colour is on two devices.
    InfeasibleError
        An accelerator is invoked more than `most` times in a pass, has not enough memory, or
        does not support a task.
    """
    used: dict[tuple[int, bool], int] = {}
    for b, device in enumerate(split.device.tolist()):
        passes = distinct(tasks.backward[split.block == b])
        if len(passes) != 1:
            what = "holds tasks of both passes" if len(passes) else "has no tasks"
            raise FormatError(f"block {b} on {machine.names[device]} {what}")
        key = device, bool(passes[0])
        used[key] = used.get(key, 0) + 1
        if used[key] > most:
            raise InfeasibleError(
                f"infeasible: {machine.names[device]} is invoked {used[key]} times, "
                f"above the {most} that are allowed"
            )
    home = _home_of(split)
    check_homes(tasks, machine, home)
    if np.isinf(pool_times(tasks, machine)[home == POOL]).any():
        raise InfeasibleError("infeasible: there is no CPU for what no block holds")


def check_homes(tasks: Tasks, machine: Machine, home: Ints) -> None:
    """Check colours, memory and support; `home` is i64[n], a device or `POOL`.

    Raises
    ------
    FormatError
        A colour is on two devices.
    InfeasibleError
        A device has not enough memory, or does not support a task.
    """
    first = np.full(int(tasks.together.max(initial=-1)) + 1, -2, dtype=np.int64)
    first[tasks.together] = home
    if (first[tasks.together] != home).any():
        raise FormatError("nodes of one colour are on two devices")
    for device in distinct(home[home >= 0]).tolist():
        mine = home == device
        if np.isinf(tasks.time[device, mine]).any():
            raise InfeasibleError(
                f"infeasible: {machine.names[device]} does not support all it is to run"
            )
        needed = float(tasks.memory[mine].sum())
        if needed > machine.capacity[device] * ROOM:
            raise InfeasibleError(
                f"infeasible: the part on {machine.names[device]} needs {shown_bytes(needed, 6)}, "
                f"its device has {shown_bytes(machine.capacity[device], 6)}"
            )


def _parts(tasks: Tasks, machine: Machine, split: Invocations) -> Floats:
    """In, compute and out of every invocation; f64[3, b]."""
    count = len(split.device)
    parts = np.zeros((3, count))
    flow = np.repeat(np.arange(tasks.flows), np.diff(tasks.use_ptr))
    reader = split.block[tasks.use_idx]
    maker = np.where(tasks.maker >= 0, split.block[tasks.maker], POOL - 1)
    crosses = reader != maker[flow]
    enters = crosses & (reader >= 0)
    pairs = distinct(reader[enters] * max(tasks.flows, 1) + flow[enters])
    away = tasks.leaves.copy()
    away[flow[crosses]] = True
    for b, device in enumerate(split.device.tolist()):
        moved = host_times(tasks, machine, device)
        read = pairs[pairs // max(tasks.flows, 1) == b] % max(tasks.flows, 1)
        parts[0, b] = moved[read].sum()
        parts[1, b] = tasks.time[device, split.block == b].sum()
        parts[2, b] = moved[away & (maker == b)].sum()
    return parts


def _previous(device: Ints) -> list[int]:
    """The invocation before each one on the same device, or -1."""
    last: dict[int, int] = {}
    previous = []
    for b, d in enumerate(device.tolist()):
        previous.append(last.get(d, -1))
        last[d] = b
    return previous


def _order(before: list[set[int]], vertices: list[int], count: int) -> list[int]:
    """Vertices after all they wait for."""
    try:
        waits = {v: before[v] for v in (*range(count), *vertices)}
        return list(TopologicalSorter(waits).static_order())
    except CycleError:
        raise FormatError("the blocks of the split wait for each other") from None


TASK = -1
"""Flow of an event that is a task."""


@dataclass(frozen=True, eq=False)
class Placement:
    """A placement of tasks: the device of each, and the sequence of events."""

    device: Ints
    """i64[n], device (number in the machine) of each task."""
    events: Ints
    """i64[e, 2]: (`TASK`, task), or (flow, device that receives it); each exactly once, after
    what it waits for."""


@dataclass(frozen=True, eq=False)
class Timeline:
    """Times of all tasks and transfers."""

    value: float
    """Latency: the end of the last task."""
    start_s: Floats
    """f64[n], start of each task."""
    end_s: Floats
    moves: Ints
    """i64[m, 3], flow, sender and receiver of each transfer, in the order of the events."""
    move_start_s: Floats
    move_end_s: Floats
    """f64[m] each."""


def simulate(tasks: Tasks, machine: Machine, placement: Placement, congestion: str) -> Timeline:
    """Compute the times of a placement; the limits are `check_homes`' business.

    Raises FormatError: an event comes before what it waits for, is missing, there twice, or
    needless.
    """
    device = placement.device.tolist()
    n, count = tasks.n, machine.count
    start, end = np.full(n, np.nan), np.full(n, np.nan)
    busy = [0.0] * count
    sending, receiving = np.zeros((count, count)), np.zeros((count, count))
    arrival: dict[tuple[int, int], float] = {}
    moves, begins, ends = [], [], []
    for flow, what in placement.events.tolist():
        if flow == TASK:
            d = device[what]
            ready = busy[d]
            for f in tasks.in_idx[tasks.in_ptr[what] : tasks.in_ptr[what + 1]].tolist():
                maker = int(tasks.maker[f])
                here = device[maker] == d
                came = end[maker] if here else arrival.get((f, d), np.nan)
                if not came == came:
                    raise FormatError(f"task {what} comes before flow {f}, which it reads")
                ready = max(ready, came)
            if start[what] == start[what]:
                raise FormatError(f"task {what} is there twice")
            start[what] = ready
            end[what] = busy[d] = ready + tasks.time[d, what]
            continue
        maker = int(tasks.maker[flow])
        source = device[maker]
        readers = tasks.use_idx[tasks.use_ptr[flow] : tasks.use_ptr[flow + 1]]
        if what == source or (flow, what) in arrival or what not in placement.device[readers]:
            raise FormatError(f"flow {flow} needs no transfer to {machine.names[what]}")
        if not end[maker] == end[maker]:
            raise FormatError(f"flow {flow} moves before it is made")
        # With `device`, one lane of the sender and one of the receiver; with `channel`, their own.
        out = (source, source) if congestion == "device" else (source, what)
        come = (what, what) if congestion == "device" else (source, what)
        free = 0.0 if congestion == "none" else max(sending[out], receiving[come])
        begin = max(free, end[maker])
        length = (
            machine.latency[source, what]
            + tasks.size[flow] * machine.rate[source, what]
            + tasks.fixed[flow] * machine.charged[source, what]
        )
        sending[out] = receiving[come] = arrival[flow, what] = begin + length
        moves.append((flow, source, what))
        begins.append(begin)
        ends.append(begin + length)
    if np.isnan(end).any():
        raise FormatError(f"task {int(np.flatnonzero(np.isnan(end))[0])} is not among the events")
    return Timeline(
        value=float(end.max(initial=0.0)),
        start_s=start,
        end_s=end,
        moves=np.array(moves, dtype=np.int64).reshape(-1, 3),
        move_start_s=np.array(begins, dtype=np.float64),
        move_end_s=np.array(ends, dtype=np.float64),
    )


def check_placement(tasks: Tasks, machine: Machine, placement: Placement) -> None:
    """Check colours, memory and support; see `check_homes` for the errors."""
    check_homes(tasks, machine, placement.device)


def lazy_events(tasks: Tasks, device: Ints, order: Ints) -> Ints:
    """Events of tasks in `order` (i64[n]), every transfer just before the first task that reads it.

    Returns i64[e, 2], as in `Placement`.
    """
    moved: set[tuple[int, int]] = set()
    events: list[tuple[int, int]] = []
    for v in order.tolist():
        for f in tasks.in_idx[tasks.in_ptr[v] : tasks.in_ptr[v + 1]].tolist():
            move = (f, int(device[v]))
            if device[tasks.maker[f]] != device[v] and move not in moved:
                moved.add(move)
                events.append(move)
        events.append((TASK, v))
    return np.array(events, dtype=np.int64).reshape(-1, 2)


TRIES = 5
"""Of what knows no live tensors: those of one placement are set aside for the next."""

MOST_DEVICES = 1024
"""Devices of a machine: the mesh of all pairs must fit in memory."""

Split = Invocations | Placement
"""A plan for one sample: in blocks, or operator by operator."""


def _home_of(split: Split) -> Ints:
    """Device of each task, or `POOL`; i64[n]."""
    if isinstance(split, Placement):
        return split.device
    return np.append(split.device, POOL)[split.block]  # block POOL is the last one


@dataclass(frozen=True, eq=False)
class LatencyProblem:
    """Tasks to be placed on the devices of a machine."""

    tasks: Tasks
    machine: Machine
    options: CostOptions
    """`execution`, `invocations`, `transfers` and `congestion` count here."""
    whole: SplitProblem | None = None
    """Its split problem; None: it has tasks and machine alone."""
    live: Live | None = None
    """Tensors that count beside the memory of the tasks; None: none do."""

    def value(self, split: Split) -> float:
        """Latency of a split; FormatError or InfeasibleError if it is not valid."""
        if isinstance(split, Invocations):
            check_invocations(self.tasks, self.machine, split, self.options.invocations)
        else:
            check_placement(self.tasks, self.machine, split)
        if self.whole is not None and self.whole.stage_rules is not None:
            self.whole.stage_rules.refuse(_home_of(split)[self.whole.units.label])
        if self.live is not None and self.live.binds:
            held = self.held(split)
            over = held - self.live.capacity * ROOM
            if (over > 0).any():
                d = int(np.argmax(over))
                raise InfeasibleError(
                    f"infeasible: {self.machine.names[d]} needs {shown_bytes(float(held[d]), 6)} "
                    f"with its live tensors, it has {shown_bytes(self.live.capacity[d], 6)}"
                )
        return self.time(split)

    def peaks(self, split: Split) -> Floats:
        """Peak of live tensors of each device, f64[D], or of each invocation, f64[b]; bytes."""
        if self.live is None:
            raise ValueError("no tensors count")
        if isinstance(split, Invocations):
            count, rank = len(split.device), rank_of(self.tasks)
            return block_peaks(self.live, split.block, count, rank)
        times = simulate(self.tasks, self.machine, split, self.options.congestion)
        span, moved = (times.start_s, times.end_s), (times.move_start_s, times.move_end_s)
        return placed_peaks(self.live, split.device, span, times.moves, moved)

    def held(self, split: Split) -> Floats:
        """Memory of each device with live tensors, the pool aside; f64[D], bytes."""
        peaks, count = self.peaks(split), self.machine.count
        home = _home_of(split)
        if isinstance(split, Invocations):
            most = np.zeros(count)
            np.maximum.at(most, split.device, peaks)
            peaks = most
        mine = home >= 0
        return peaks + totals(home[mine], self.tasks.memory[mine], count)

    def fits(self, split: Split) -> bool:
        """True if the devices hold a split."""
        try:
            self.value(split)
        except InfeasibleError:
            return False
        return True

    @property
    def relaxed(self) -> LatencyProblem:
        """The problem without live tensors: its bounds hold for this one."""
        return self if self.live is None else replace(self, live=None)

    def tightened(self, split: Split, than: LatencyProblem) -> LatencyProblem:
        """A problem without live tensors, less the room that those of a placement take."""
        room = np.minimum(than.machine.capacity, self.machine.capacity - self.peaks(split))
        return replace(than, machine=replace(than.machine, capacity=room), live=None)

    @property
    def searched(self) -> LatencyProblem:
        """The same where a device does not support what alone needs more than it has."""
        if self.live is None or not self.live.binds:
            return self
        needed = self.tasks.memory + self.live.floor
        time = np.where(needed > self.machine.capacity[:, None] * ROOM, np.inf, self.tasks.time)
        return replace(self, tasks=replace(self.tasks, time=time))

    def time(self, split: Split) -> float:
        """Latency of a split whatever the devices hold; FormatError where it cannot run."""
        if isinstance(split, Invocations):
            return time_invocations(self.tasks, self.machine, split).value
        return simulate(self.tasks, self.machine, split, self.options.congestion).value


@dataclass(frozen=True, eq=False)
class LatencySolution:
    """A split, and what was proven about the latency of any."""

    split: Split
    bound: float = 0.0
    bound_method: str = ""
    """The argument for the bound; empty: nothing was proven yet."""
    method: str = ""
    """The method that made it; empty: the requested one."""
    learned: Learned | None = None
    """The policy that made it; None: none did."""


class SearchProof(NamedTuple):
    """Result of an exact search."""

    bound: float = 0.0
    """No split takes less; inf: none fits."""
    split: Split | None = None
    """A split that takes less than the one that was known."""
    reason: str = ""
    """Reason for an early end other than time; empty: it was done."""
    more: bool = False
    """True: more effort or time would get further."""


def latency_problem(problem: SplitProblem) -> LatencyProblem:
    """Lay out a graph and a cluster for the latency solvers.

    Without links the devices of a class are alike, and no more of them count than there are units.

    Raises UsageError: more than `MOST_DEVICES` devices.
    """
    devices, units, options = problem.devices, problem.units, problem.options
    if not problem.links:
        devices = tuple(replace(d, count=min(d.count, units.g)) for d in devices)
    if sum(d.count for d in devices) > MOST_DEVICES:
        raise UsageError(f"latency is planned for up to {MOST_DEVICES} devices")
    machine = machine_of(devices, problem.links)
    tasks = tasks_of(problem.graph, units, machine, options)
    live = None
    if options.memory_model == "peak":
        carried, readers = (tasks.carried_ptr, tasks.carried_id), (tasks.use_ptr, tasks.use_idx)
        total = float(tasks.memory.sum())
        live = live_of(problem.graph, units, options, machine.capacity, total, carried, readers)
    return LatencyProblem(tasks, machine, options, problem, live)
