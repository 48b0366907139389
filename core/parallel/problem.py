"""The problem of a parallel plan, and the cost of its stages.

This is the definition for the search. A stage of degree t with d replicas takes, for each
micro-batch of a batch of N,

    load = (compute + in + out) / d + sync,    sync = f (d - 1) / d * weights / (N * bandwidth)

where `--comm` may let transfers and compute overlap, and `--overlap-sync` the synchronisation with
the rest; f is a number of `dnnp.core.model.plan.WEIGHT_SYNC`. Each of its devices holds

    memory = fixed + y * held,    y = ceil(s / d)

where s is the number of replicas of this stage and of all later ones: in a schedule of one forward
and one backward pass in turn (1F1B) a replica has that many micro-batches under way (Piper, section
3, equations for `TPS` and memory).

A shared stage has t devices, all there are, and one replica. A device then takes

    its own stage's load + the loads of all shared stages

and so much memory; the value of a plan is the largest such sum.

In a schedule (`placement_of_hybrid`) a stage is a forward and a backward block on all devices of a
replica at once; replicas take the micro-batches in turn. Blocks of a shared stage are on all
devices. Recomputed forward passes are part of the backward block. A forward block holds the memory
of a micro-batch that its stage keeps, its backward block releases it. Where a graph has no backward
pass, both are one block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.items import Items, nets_of
from dnnp.core.cost.load import node_memory, transfer_times, weights_stated
from dnnp.core.cost.load_formula import COMM, OVERLAP, SUM, collective_time, combine, shared_load
from dnnp.core.cost.placing import StageRules, positions
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import UsageError
from dnnp.core.model.graph import (
    PARAMETER,
    Bools,
    Floats,
    Graph,
    Ints,
    csr,
    distinct,
    offsets,
    row_of,
    totals,
)
from dnnp.core.model.plan import WEIGHT_SYNC, HybridOptions, Plan
from dnnp.core.model.schedule import PlacedBlock, Placement, Unit, Wait

METHOD = "hybrid"
"""Name of the search, in records."""

MOST_DEVICES = 20_000
"""Devices of a parallel plan: there is a number for each of them and each set of items."""


@dataclass(frozen=True, eq=False)
class HybridProblem:
    """`n` items to be split, `p` nets, `D` degrees; seconds (or the stream's unit) and bytes.

    The first axis of `time`, `held` and `fixed` is whether the forward pass is run again. That is a
    choice of each of `q` parts of items, or of a stage; then there is one part an item.
    """

    degrees: Ints
    """i64[D], tensor-parallel degrees, ascending."""
    part: Ints
    """i64[q], the item of each part."""
    time: Floats
    """f64[2, D, q], of one micro-batch, collectives included; inf: it cannot run so."""
    held: Floats
    """f64[2, D, q], bytes on each device for every micro-batch that is under way."""
    fixed: Floats
    """f64[2, D, q], bytes on each device besides."""
    weight: Floats
    """f64[D, n], bytes of weights on each device, which replicas synchronise; what several items
    read is the first one's."""
    pin_ptr: Ints
    pins: Ints
    """Items of each net (CSR), ascending: producer and consumers of a tensor; or consumers of a
    weight."""
    source: Ints
    """i64[p], item that makes the tensor, or the first that reads the weight."""
    in_s: Floats
    """f64[D, p], time when it enters a stage of such a degree."""
    out_s: Floats
    """f64[D, p], time when it leaves one."""
    kept: Floats
    """f64[p], bytes that a stage that runs its forward pass again holds of a tensor that enters it,
    for every micro-batch that is under way."""
    read: Floats
    """f64[D, p], bytes of weights of a stage that reads them without their first item."""
    tail: Ints
    head: Ints
    """Distinct precedence pairs between items, tail < head."""
    devices: int
    memory: float
    """Of one device."""
    sync_s: float
    """Time to synchronise a byte of weights, per micro-batch, but for the factor (d - 1) / d."""
    comm: int
    """Combination of transfers and compute, one of `dnnp.core.cost.load_formula.COMM`."""
    options: HybridOptions
    ahead: Bools
    """bool[n], items with something to run again; a stage without any does not."""
    labels: Ints = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    """i64[R, n], labels of items by rules: a stage holds at most one a row, besides 0."""
    exactly: int = 0
    """Number of stages; 0: any."""
    pinned: Ints = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64))
    """i64[P, 2], number of a device and an item whose stage uses it, ascending."""
    widest: int = MOST_DEVICES
    """Devices of a stage, at most."""
    partwise: bool = False
    """True if the choice to run forward passes again is one of each part, where nothing is kept of
    what enters a stage; else it is one of a stage."""
    whole: int = -1
    """Position of the degree of shared stages, which is that of all devices; -1: there are none."""
    shared_only: Bools | None = None
    """bool[n], items that only shared stages may hold; None: there are none."""

    @property
    def n(self) -> int:
        """Number of items."""
        return self.weight.shape[1]

    def parts(self, items: Ints) -> Ints:
        """Parts of some items, ascending."""
        return np.flatnonzero(np.isin(self.part, items))


class HybridBlock(NamedTuple):
    """A stage to be: what a search returns."""

    items: Ints
    """Ascending."""
    degree: int
    """Position of its tensor-parallel degree in `HybridProblem.degrees`."""
    replicas: int
    recomputed: Ints
    """Parts that run their forward pass again, ascending; a stage's choice: none, or all."""
    shared: bool = False
    """True if all devices hold it, besides stages of their own; it has one replica then."""


class HybridCost(NamedTuple):
    """Costs of a stage on each of its devices, for a micro-batch."""

    load_s: float
    compute_s: float
    """Before replicas share it, as all times but `load_s`."""
    in_s: float
    out_s: float
    sync_s: float
    memory_bytes: float
    in_flight: int
    """Micro-batches under way on a device at once."""


def check_hybrid(given: SplitProblem, options: HybridOptions) -> DeviceClass:
    """The class of devices of a parallel plan.

    Raises UsageError: what parallel plans do not know: several classes, links, or other models
    of memory.
    """
    classes = [d for d in given.devices if not d.is_cpu]
    if len(classes) != 1 or len(given.devices) > 1:
        raise UsageError("parallel plans are for devices of one class, without CPUs beside them")
    if given.links:
        raise UsageError("parallel plans know the links of a class only: no --link")
    cost = given.options
    if cost.objective != "throughput":
        asked = "latency" if cost.objective == "sequence" else cost.objective
        raise UsageError(f"parallel plans are for --objective throughput, not {asked}")
    if cost.memory_model != "sum" or cost.memory_mode == "overflow":
        raise UsageError("parallel plans add memory up, within capacity: --memory-model sum")
    if cost.charge_io:
        raise UsageError("parallel plans do not charge inputs and outputs: no --charge-io")
    stated = given.graph.shards is not None and given.graph.shards.again is not None
    if options.recompute != "none" and not stated and not given.graph.backward.any():
        raise UsageError(f"--recompute {options.recompute}: the graph has no backward pass")
    return classes[0]


def hybrid_problem(
    given: SplitProblem, items: Items, options: HybridOptions, shared_only: Bools | None = None
) -> HybridProblem:
    """The problem of splitting items; they are numbered by `items.order`.

    `shared_only`: bool[count], items by their own numbers that only shared stages may hold.
    """
    device = check_hybrid(given, options)
    graph, n = given.graph, items.count
    usable = min(device.count, n * options.tensor_parallel * options.data_parallel)
    if options.shared_stages:
        usable = device.count
    if usable > MOST_DEVICES:
        raise UsageError(
            f"{usable} devices may be used; parallel plans have at most {MOST_DEVICES} (-k, "
            "--tensor-parallel, --data-parallel)"
        )
    place = np.argsort(items.order)
    where = place[items.label]
    degrees = degrees_in(graph)
    time, again = node_times(given, device)
    memory, held = node_bytes(graph)
    fixed = np.stack([memory[0] - held[0], memory[1] - held[1]])
    shards = graph.shards
    nets, tensor = nets_of(graph, where, n, given.options)
    pin_ptr, pins = nets.net_ptr, nets.pins
    source = where[graph.producer[tensor]]
    weight, readers, parameter = _weights(graph, where, n)
    if options.data_parallel > 1 and len(parameter):
        pin_ptr = offsets([*np.diff(pin_ptr), *map(len, readers)])
        source = np.append(source, [row[0] for row in readers])
        pins, tensor = np.concatenate([pins, *readers]), np.append(tensor, parameter)
    made = graph.producer[tensor]
    moves = made >= 0
    unstated = ~stated_weights(graph)[:, None]
    own = np.where(moves, transfer_times(graph, device)[tensor], 0.0)
    band = device.bandwidth_bytes_per_s
    none = np.zeros((1, graph.m))
    coming, going = (none, none) if shards is None else (shards.in_bytes, shards.out_bytes)
    partwise = shards is not None and shards.again is not None

    def parts(values: Floats) -> Floats:
        return values if partwise else summed(values, where, n)

    only = None if shared_only is None or not shared_only.any() else shared_only[items.order]
    early = moves & ~graph.backward[made] & (not partwise)
    tail, head = place[items.tail], place[items.head]
    single = [rule for rule in given.rules if "/" in rule.device]
    pinned = {
        (int(p.device.rpartition("/")[2]), where[v])
        for p in single
        for v in positions(graph, p.parts[0])
    }
    return HybridProblem(
        degrees=degrees,
        part=where if partwise else np.arange(n),
        time=parts(np.stack([time, again])),
        held=parts(held),
        fixed=parts(fixed),
        weight=np.where(unstated, weight, _stated_weight(graph, where, n)),
        pin_ptr=pin_ptr,
        pins=pins,
        source=source,
        in_s=own + moves * coming[:, tensor] / band,
        out_s=own + moves * going[:, tensor] / band,
        kept=np.where(early, graph.tensor_bytes[tensor], 0.0),
        read=np.where(unstated & ~moves, graph.tensor_bytes[tensor], 0.0),
        tail=tail,
        head=head,
        devices=usable,
        memory=np.inf if given.options.memory_mode == "ignore" else device.memory_bytes,
        sync_s=WEIGHT_SYNC[options.weight_sync] / options.micro_batches / band,
        comm=COMM[given.options.comm],
        options=options,
        ahead=summed(~graph.backward | partwise, where, n) > 0,
        labels=StageRules(graph, given.rules).labels_of(where, n),
        exactly=max((rule.stages for rule in given.rules), default=0),
        pinned=np.array(sorted(pinned), dtype=np.int64).reshape(-1, 2),
        partwise=partwise,
        whole=_whole(degrees, device.count) if options.shared_stages else -1,
        shared_only=only,
    )


def _whole(degrees: Ints, count: int) -> int:
    """Position of the degree of all devices."""
    found = np.flatnonzero(degrees == count)
    if not len(found):
        raise UsageError(
            f"--shared-stages: nodes state nothing for {count} devices at once, which is all of "
            f"them (dnnp-profile --tensor-parallel {count})"
        )
    return int(found[0])


def degrees_in(graph: Graph) -> Ints:
    """Tensor-parallel degrees that a graph states; i64[D]."""
    return np.ones(1, dtype=np.int64) if graph.shards is None else graph.shards.degrees


def node_times(given: SplitProblem, device: DeviceClass) -> tuple[Floats, Floats]:
    """Times of nodes with their collectives, without and with their forward pass run again.

    f64[D, n] each. Where groups are priced by themselves, their nodes share that in proportion.
    The forward pass is that of nodes outside the backward pass, unless shards state the times.
    """
    graph, shards = given.graph, given.graph.shards
    whole = graph.times.get(device.name, np.full(graph.n, np.inf))
    time = whole[None] if shards is None else shards.plain.times[device.name]
    time = time * _factor(given, device, whole)
    exchanged = exchange_times(graph, device)
    if shards is not None and shards.again is not None:
        again = shards.again.times[device.name] * _factor(given, device, whole)
        return time + exchanged, again + exchanged
    time = time + exchanged
    return time, np.where(graph.backward, time, 2 * time)


def exchange_times(graph: Graph, device: DeviceClass) -> Floats:
    """Time that collectives of nodes take at each degree; f64[D, n]."""
    degrees = degrees_in(graph).tolist()
    found = np.zeros((len(degrees), graph.n))
    if graph.shards is None:
        return found
    bands = [_collective_bandwidth(device, degrees, t) for t in degrees]
    for i, v, kind, size in graph.shards.collectives:
        found[i, v] += collective_time(kind, size, degrees[i], bands[i])
    return found


def _collective_bandwidth(device: DeviceClass, degrees: list[int], devices: int) -> float:
    """Bandwidth of the links among so many devices.

    The smallest cluster holds them that is made of several such numbers, as stages of many devices
    get the first numbers; but only if each degree divides the next.
    """
    if not any(b % a for a, b in pairwise(degrees)):
        for level in device.levels:
            if level.size % devices == 0:
                return level.bandwidth_bytes_per_s
    return device.bandwidth_bytes_per_s


def _factor(given: SplitProblem, device: DeviceClass, whole: Floats) -> Floats:
    """Time of the group of each node over that of its nodes; f64[n]."""
    units = given.units
    (stated,) = units.times_on(device.name)
    summed = totals(units.label, whole, units.g)
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.where((summed > 0) & np.isfinite(summed), stated / summed, 1.0)
    near = np.isclose(factor, 1.0, rtol=1e-12)
    return np.asarray(np.where(near, 1.0, factor)[units.label])


def node_bytes(graph: Graph) -> tuple[Floats, Floats]:
    """Memory of nodes with one micro-batch in flight, and its part that each micro-batch holds.

    f64[2, D, n] each; the second row is for recomputed forward passes: unless shards state it, they
    hold nothing, and their memory exists once.
    """
    shards = graph.shards
    own = node_memory(graph)
    if shards is None:
        memory, held = own[None], graph.held_bytes[None]
    else:
        memory = np.where(np.isnan(shards.plain.memory), own, shards.plain.memory)
        held = shards.plain.held
    if shards is None or shards.again is None:
        return np.stack([memory, memory]), np.stack([held, np.zeros_like(held)])
    again = np.where(np.isnan(shards.again.memory), memory, shards.again.memory)
    return np.stack([memory, again]), np.stack([held, shards.again.held])


def stated_weights(graph: Graph) -> Bools:
    """True for degrees at which all nodes state their weights; bool[D]."""
    if graph.shards is None:
        return np.zeros(1, dtype=np.bool_)
    return np.asarray(~np.isnan(graph.shards.weight).any(axis=1))


def _stated_weight(graph: Graph, where: Ints, n: int) -> Floats:
    """Weights of items as nodes state them, where all do at a degree; f64[D, n]."""
    return summed(np.zeros((1, graph.n)) if graph.shards is None else graph.shards.weight, where, n)


def _weights(graph: Graph, where: Ints, n: int) -> tuple[Floats, list[Ints], Ints]:
    """Weights of items whose nodes state none: their parameters, each once, at its first reader.

    Also the readers of parameters with several of them, and these tensors.
    """
    own, readers, shared = np.zeros(n), list[Ints](), list[int]()
    if graph.backward.any():
        memory = weights_stated(graph)
        own = totals(where[memory], graph.node_bytes[memory], n)
        reader = np.repeat(np.arange(graph.n), np.diff(graph.in_ptr))
        wanted = (graph.tensor_kind[graph.in_idx] == PARAMETER) & ~memory[reader]
        pairs = distinct(graph.in_idx[wanted] * n + where[reader[wanted]])
        ptr, item = csr(pairs // n, pairs % n, graph.m)
        read = np.flatnonzero(np.diff(ptr))
        own += totals(item[ptr[read]], graph.tensor_bytes[read], n)
        shared = read[np.diff(ptr)[read] > 1].tolist()
        readers = [item[ptr[t] : ptr[t + 1]] for t in shared]
    return own, readers, np.array(shared, dtype=np.int64)


def summed(values: Floats | Bools, where: Ints, n: int) -> Floats:
    """Sums by place, of `n`; f64[..., n]."""
    flat = values.reshape(-1, values.shape[-1])
    return np.stack([totals(where, row, n) for row in flat]).reshape(*values.shape[:-1], n)


def in_flight(replicas: int, later: int) -> int:
    """Micro-batches under way on a replica; `later`: replicas of all later stages."""
    return -(-(replicas + later) // replicas)


def crossing(problem: HybridProblem, inside: Bools) -> tuple[Bools, Bools]:
    """Nets that enter a set of items, and that leave it; bool[p] each.

    `inside`: bool[n].
    """
    p = len(problem.source)
    net = np.repeat(np.arange(p), np.diff(problem.pin_ptr))
    pinned = np.bincount(net, weights=inside[problem.pins], minlength=p)
    some = pinned > 0
    cut = some & (pinned < np.diff(problem.pin_ptr))
    mine = (problem.source >= 0) & inside[problem.source]
    return cut & ~mine & (problem.source >= 0), cut & mine


def block_cost(problem: HybridProblem, block: HybridBlock, later: int) -> HybridCost:
    """Cost of a stage on each of its devices; `later`: replicas of all later stages."""
    i, d = block.degree, block.replicas
    inside = np.zeros(problem.n, dtype=np.bool_)
    inside[block.items] = True
    again = np.zeros(len(problem.part), dtype=np.int64)
    again[block.recomputed] = 1
    parts = problem.parts(block.items)

    def total(values: Floats) -> float:
        return float(values[again[parts], i, parts].sum())

    compute = total(problem.time)
    enters, leaves = crossing(problem, inside)
    in_s, out_s = float(problem.in_s[i, enters].sum()), float(problem.out_s[i, leaves].sum())
    weights = float(problem.weight[i, block.items].sum() + problem.read[i, enters].sum())
    sync = problem.sync_s * weights * (d - 1) / d
    y = in_flight(d, later)
    held = total(problem.held)
    if len(block.recomputed):
        held += float(problem.kept[enters].sum())
    load = combine(problem.comm, in_s, compute, 0.0, out_s)
    load = shared_load(OVERLAP if problem.options.overlap_sync else SUM, load, d, sync)
    return HybridCost(load, compute, in_s, out_s, sync, total(problem.fixed) + y * held, y)


def costs_of(problem: HybridProblem, blocks: Sequence[HybridBlock]) -> list[HybridCost]:
    """Cost of every stage of a plan, in the order of the pipeline."""
    later = sum(block.replicas for block in blocks)
    found = []
    for block in blocks:
        later -= block.replicas
        found.append(block_cost(problem, block, later))
    return found


def value_of(blocks: Sequence[HybridBlock], costs: Sequence[HybridCost]) -> float:
    """Load of the busiest device of a plan."""
    own = [c.load_s for b, c in zip(blocks, costs, strict=True) if not b.shared]
    return max(own, default=0.0) + shared_time(blocks, costs)


def shared_time(blocks: Sequence[HybridBlock], costs: Sequence[HybridCost]) -> float:
    """Time of every device for the shared stages of a plan."""
    return sum(c.load_s for b, c in zip(blocks, costs, strict=True) if b.shared)


def memory_of(blocks: Sequence[HybridBlock], costs: Sequence[HybridCost]) -> float:
    """Memory of the fullest device of a plan."""
    own = [c.memory_bytes for b, c in zip(blocks, costs, strict=True) if not b.shared]
    return max(own, default=0.0) + shared_memory(blocks, costs)


def shared_memory(blocks: Sequence[HybridBlock], costs: Sequence[HybridCost]) -> float:
    """Memory of every device for the shared stages of a plan."""
    return sum(c.memory_bytes for b, c in zip(blocks, costs, strict=True) if b.shared)


def degrees_of(problem: HybridProblem) -> list[int]:
    """Positions of the tensor-parallel degrees that are allowed."""
    most = min(problem.options.tensor_parallel, problem.devices)
    return [i for i, t in enumerate(problem.degrees.tolist()) if t <= most]


def replicas_of(problem: HybridProblem) -> Ints:
    """Numbers of replicas that are allowed, ascending: they share a batch equally; i64[r]."""
    options = problem.options
    most = min(options.data_parallel, options.micro_batches, problem.devices)
    numbers = np.arange(1, most + 1)
    return numbers[options.micro_batches % numbers == 0]


def loads_alone(given: SplitProblem, plan: Plan) -> list[float]:
    """Loads of the stages of a parallel plan without replicas over a graph of one pass."""
    degrees, (device,) = degrees_in(given.graph).tolist(), plan.devices
    times, found = node_times(given, device)[0], []
    for stage in plan.stages:
        mine, i = np.isin(given.graph.node_ids, stage.nodes), degrees.index(stage.shards)
        moved = _moved(given, plan, i, mine, backward=False)
        found.append(float(times[i, mine].sum()) + sum(moved))
    return found


class _Pass(NamedTuple):
    """One pass of a stage."""

    stage: int
    backward: bool
    time_s: float
    held_bytes: float


def placement_of_hybrid(given: SplitProblem, plan: Plan, *, explicit: bool = False) -> Placement:
    """The blocks of one micro-batch of a parallel plan.

    With `explicit`, transfers between stages are `Wait.transfer_s`, else part of the blocks;
    exchanges among the devices of a stage are part of them in any case.

    Raises UsageError: transfers that overlap with computing.
    """
    if plan.options.comm != "sum":
        raise UsageError(
            f"schedules of parallel plans have transfers within blocks: not --comm "
            f"{plan.options.comm}"
        )
    graph = given.graph
    stage_of = row_of((positions(graph, stage.nodes) for stage in plan.stages), graph.n)
    passes = [
        p for s in range(len(plan.stages)) for p in _passes(given, plan, s, stage_of, explicit)
    ]
    number = {(p.stage, p.backward): i for i, p in enumerate(passes)}
    part = np.array(
        [number[s, bool(b)] for s, b in zip(stage_of.tolist(), graph.backward, strict=True)],
        dtype=np.int64,
    )
    tail, head = graph.edges
    pairs = distinct(part[tail] * len(passes) + part[head])
    waits: dict[int, set[int]] = {i: set() for i in range(len(passes))}
    for a, b in zip((pairs // len(passes)).tolist(), (pairs % len(passes)).tolist(), strict=True):
        if a != b:
            waits[b].add(a)
    for i, one in enumerate(passes):
        ahead = number.get((one.stage, False))
        if one.backward and ahead is not None:
            waits[i].add(ahead)
    carried = _carried(given, plan, part) if explicit else {}
    units, homes = _units(plan, passes)
    blocks = tuple(
        PlacedBlock(
            f"{'B' if p.backward else 'F'}{p.stage}",
            "backward" if p.backward else "forward",
            homes[p.stage],
            p.time_s,
            p.held_bytes,
            tuple(Wait(j, 0.0, carried.get((j, i), 0.0)) for j in sorted(waits[i])),
            p.stage,
        )
        for i, p in enumerate(passes)
    )
    return Placement("plan", units, blocks)


def _carried(given: SplitProblem, plan: Plan, part: Ints) -> dict[tuple[int, int], float]:
    """Time that what one pass makes and another reads takes to a device; `part`: i64[n], passes."""
    graph, count = given.graph, int(part.max(initial=0)) + 1
    (device,) = plan.devices
    tensor = np.repeat(np.arange(graph.m), np.diff(graph.use_ptr))
    read = distinct(tensor * count + part[graph.use_idx])
    read = read[graph.producer[read // count] >= 0]
    time = transfer_times(graph, device)
    carried: dict[tuple[int, int], float] = {}
    for t, reader in zip((read // count).tolist(), (read % count).tolist(), strict=True):
        pair = int(part[graph.producer[t]]), reader
        carried[pair] = carried.get(pair, 0.0) + float(time[t])
    return carried


def _passes(given: SplitProblem, plan: Plan, s: int, stage_of: Ints, explicit: bool) -> list[_Pass]:
    """The passes of a stage with work; their times add up to that of the stage."""
    graph, stage = given.graph, plan.stages[s]
    (device,) = plan.devices
    i = degrees_in(graph).tolist().index(stage.shards)
    once, twice = node_times(given, device)
    mine = stage_of == s
    again = np.isin(graph.node_ids, stage.recomputed) & mine
    late = mine & graph.backward
    within = [_moved(given, plan, i, mine, backward) for backward in (False, True)]
    moved = [sum(both) for both in within] if not explicit else [own for _, own in within]
    if not late.any():
        time = stage.load_s * stage.replicas - explicit * within[0][0]
        return [_Pass(s, False, time, 0.0)]
    ahead = mine & ~graph.backward
    forward = float(once[i, ahead].sum()) + moved[0]
    repeated = float((twice[i, again] - once[i, again]).sum())
    behind = float(once[i, late].sum()) + repeated + moved[1] + stage.sync_s * stage.replicas
    held = _held(given, i, mine, again)
    return [_Pass(s, False, forward, held), _Pass(s, True, behind, -held)]


def _moved(
    given: SplitProblem, plan: Plan, i: int, mine: Bools, backward: bool
) -> tuple[float, float]:
    """Time that tensors of one pass take to enter and leave a stage, and that the devices of the
    stage take besides to have them as they need them."""
    graph = given.graph
    (device,) = plan.devices
    made = graph.producer >= 0
    kind = made & (graph.backward[graph.producer] == backward)
    tensor = np.repeat(np.arange(graph.m), np.diff(graph.use_ptr))
    reads, leaves = (totals(tensor, x[graph.use_idx], graph.m) > 0 for x in (mine, ~mine))
    inside = made & mine[graph.producer]
    cost = transfer_times(graph, device)
    band = device.bandwidth_bytes_per_s
    shards = graph.shards
    none = np.zeros(graph.m)
    coming, going = (none, none) if shards is None else (shards.in_bytes[i], shards.out_bytes[i])
    enters, goes = kind & ~inside & reads, kind & inside & leaves
    crossing = float(cost[enters].sum() + cost[goes].sum())
    return crossing, float((coming / band)[enters].sum() + (going / band)[goes].sum())


def _held(given: SplitProblem, i: int, mine: Bools, again: Bools) -> float:
    """Bytes that a stage holds of a micro-batch from its forward to its backward pass."""
    graph = given.graph
    _, held = node_bytes(graph)
    stated = graph.shards is not None and graph.shards.again is not None
    if stated or not again.any():
        return float(held[0, i, mine & ~again].sum() + held[1, i, again].sum())
    tensor = np.repeat(np.arange(graph.m), np.diff(graph.use_ptr))
    read = distinct(tensor[mine[graph.use_idx]])
    read = read[graph.producer[read] >= 0]
    entering = ~mine[graph.producer[read]] & ~graph.backward[graph.producer[read]]
    return float(graph.tensor_bytes[read[entering]].sum())


def _units(
    plan: Plan, passes: list[_Pass]
) -> tuple[tuple[Unit, ...], list[tuple[tuple[int, ...], ...]]]:
    """The devices with their limits, and those of the replicas of each stage."""
    (device,) = plan.devices
    limit = device.memory_bytes if plan.options.memory_mode == "hard" else float("inf")
    between = {p.stage: p.held_bytes for p in passes if not p.backward}
    homes = []
    fixed: dict[int, float] = {}
    for s, stage in enumerate(plan.stages):
        first = int(stage.device.rpartition("/")[2])
        numbers = range(first, first + stage.devices)
        always = max(stage.memory_bytes - (stage.in_flight or 1) * between[s], 0.0)
        for number in numbers:
            fixed[number] = fixed.get(number, 0.0) + always
        t = stage.shards
        homes.append(tuple(numbers[j * t : (j + 1) * t] for j in range(stage.replicas)))
    units = tuple(Unit(f"{device.name}/{n}", limit, fixed[n]) for n in sorted(fixed))
    place = {number: i for i, number in enumerate(sorted(fixed))}
    return units, [tuple(tuple(place[n] for n in turn) for turn in home) for home in homes]
