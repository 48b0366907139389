"""A split while it is annealed: who is where, what every device spends and holds, its energy.

A device pays for a net by how many of the net's pins it holds,

    pins held     none        some        all
    pays          nothing     its cost    nothing, or its cost if always paid

as `out` where it holds the source and as `in` elsewhere. So an item that moves changes two
devices only, and its own nets say by how much.

The energy is the sum over devices and passes of weight * (load / reference)^q with a large q, so
that the largest loads count most, plus a price of memory above a hard capacity.

Kernels that run millions of times take plain arrays: numba counts references to every array of
a tuple on each call.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.cost.items import Line, ordered_edges
from dnnp.core.cost.load_formula import COMM, ROUNDING, load_of
from dnnp.core.kernels.kernel import callee, lean, plain
from dnnp.core.model.graph import CONSTANT, PARAMETER, Floats, Graph, Ints, csr, csr_rows
from dnnp.core.model.plan import CostOptions
from dnnp.core.split.annealing.random import exponential_table, generator

IN, WORK, OUT = range(3)
"""Columns of a device's times; those of pass p start at 3 p."""

NET, SIZE, COLUMN, SOURCE = range(4)
"""Columns of `AnnealArrays.hooks`."""

CLUSTER, SECOND, LOOSE, SQUARINGS = range(4)
"""Entries of `AnnealMemory.mix`."""


class AnnealArrays(NamedTuple):
    """Arrays of the problem: `n` items, `p` nets, `D` devices of `C` classes, `P` passes.

    There is one pass, or forward and backward where the objective tells them apart.
    """

    comm: int
    hard: bool
    """Capacities may not be exceeded."""
    ordered: bool
    """Devices are stages of a pipeline, in order: no edge leads back to an earlier one."""
    kind: Ints
    """i64[D], class of each device."""
    work: Floats
    """f64[C, P, n]; 0 where unsupported."""
    allowed: np.ndarray
    """bool[C, n]: the class runs the item, and it fits there alone."""
    hook_ptr: Ints
    """Rows of `hooks` of each item (CSR)."""
    hooks: Ints
    """i64[pins, 4]: the net; its number of pins, beyond all numbers if it is always paid; first
    column of its pass; the item that makes it, or -1."""
    pin_ptr: Ints
    pins: Ints
    """Items of each net (CSR)."""
    price: Floats
    """f64[C, p]; 0 on a CPU."""
    bond: Floats
    """f64[p], the largest price of any class."""
    memory: Floats
    """f64[n], bytes."""
    capacity: Floats
    """f64[C], bytes; inf on a CPU."""
    stream: Floats
    """f64[C], time for each byte above capacity; 0 where that is not streamed."""
    earlier_ptr: Ints
    earlier: Ints
    """Items that each item follows (CSR); none unless ordered."""
    later_ptr: Ints
    later: Ints
    """Items that follow each item (CSR); none unless ordered."""
    step: Ints
    """i64[N], item of each node, in the graph's order; none unless stages are to stay convex."""
    past_ptr: Ints
    past: Ints
    """Positions in this order of what each node reads from in its own pass (CSR)."""


class SplitState(NamedTuple):
    """A split, changed in place by the kernels."""

    place: Ints
    """i64[n], device of each item."""
    pins_on: np.ndarray
    """i32[p, D], pins of each net on each device."""
    spent: Floats
    """f64[D, 3 P], time of each device: in, compute and out of each pass."""
    used: Floats
    """f64[D], memory of the items on each device, bytes."""
    ratio: Floats
    """f64[D], true memory over `used`; 1 in the `sum` model."""


def anneal_arrays(
    line: Line,
    options: CostOptions,
    *,
    ordered: bool = False,
    paths: tuple[Ints, Ints, Ints] | None = None,
) -> AnnealArrays:
    """Arrange a line for search: free items (`free_items_of`) in any order, or ordered ones.

    `paths` (`paths_of`): stages are to stay convex.
    """
    none = np.zeros(0, dtype=np.int64)
    devices, sizes = line.devices, np.diff(line.pin_ptr)
    two = options.objective == "gpipe"
    hard = options.memory_mode == "hard"
    allowed = np.isfinite(line.work)
    if hard:
        # Peak memory of several nodes may fall when others join them.
        sure = options.memory_model == "sum" or np.diff(line.node_ptr) == 1
        allowed &= (line.reach >= np.arange(line.n)) | ~np.broadcast_to(sure, line.n)
    work = np.where(np.isfinite(line.work), line.work, 0.0)
    passes = [work - line.backward_work, line.backward_work] if two else [work]
    net = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
    hook_ptr, by_item = csr(line.pins, np.arange(len(line.pins)), line.n)
    reached = net[by_item]
    size = np.where(line.always, np.iinfo(np.int64).max, sizes)
    column = 3 * line.backward_net.astype(np.int64) if two else np.zeros(len(sizes), np.int64)
    hooks = np.stack([reached, size[reached], column[reached], line.source[reached]], axis=1)
    speed = np.array([d.bandwidth_bytes_per_s for d in devices])
    # The true peak is the sum times a ratio, which nothing can be if the sum is zero.
    tail, head = (line.tail, line.head) if ordered else (line.tail[:0], line.head[:0])
    memory = line.memory if options.memory_model == "sum" else line.memory + 1.0
    arrays = plain(
        np.repeat(np.arange(len(devices), dtype=np.int64), [d.count for d in devices]),
        np.stack(passes, axis=1),
        allowed,
        hook_ptr,
        hooks,
        line.pin_ptr,
        line.pins,
        line.cost,
        line.cost.max(axis=0),
        memory,
        np.array([np.inf if d.is_cpu else d.memory_bytes for d in devices], dtype=np.float64),
        np.zeros(len(devices)) if hard or two else 1 / speed,
        *csr(head, tail, line.n),
        *csr(tail, head, line.n),
        *(paths or (none, np.zeros(1, dtype=np.int64), none)),
    )
    return AnnealArrays(COMM[options.comm], hard, ordered, *arrays)


def paths_of(graph: Graph, label: Ints) -> tuple[Ints, Ints, Ints]:
    """`step`, `past_ptr` and `past` of `AnnealArrays`; `label` is the item of each node."""
    tail, head = ordered_edges(graph, along=True)
    return label[graph.order], *csr(graph.rank[head], graph.rank[tail], graph.n)


@callee
def convex(problem, place, device, left):  # type: ignore[no-untyped-def]
    """True if no path of one pass leaves a device and comes back; `left` is bool[N], scratch."""
    for s in range(len(problem.step)):
        outside = False
        for q in range(problem.past_ptr[s], problem.past_ptr[s + 1]):
            before = problem.past[q]
            if left[before]:
                outside = True
            elif place[problem.step[before]] == device:
                outside |= place[problem.step[s]] != device
        if outside and place[problem.step[s]] == device:
            return False
        left[s] = outside
    return True


def new_state(problem: AnnealArrays, place: Ints) -> SplitState:
    """State of a placement (i64[n], device of each item, one that is allowed)."""
    nets, devices = len(problem.bond), len(problem.kind)
    state = SplitState(
        place=np.array(place, dtype=np.int64),
        pins_on=np.zeros((nets, devices), dtype=np.int32),
        spent=np.zeros((devices, 3 * problem.work.shape[1])),
        used=np.zeros(devices),
        ratio=np.ones(devices),
    )
    fill(problem, state)
    return state


@lean
def fill(problem, state):  # type: ignore[no-untyped-def]
    """Compute everything from `place`, which also rids the sums of rounding left by moves."""
    for d in range(len(state.used)):
        state.used[d] = 0.0
        for c in range(state.spent.shape[1]):
            state.spent[d, c] = 0.0
    for e in range(len(problem.bond)):
        for d in range(len(state.used)):
            state.pins_on[e, d] = 0
    for e in range(len(problem.bond)):
        for q in range(problem.pin_ptr[e], problem.pin_ptr[e + 1]):
            state.pins_on[e, state.place[problem.pins[q]]] += 1
    for i in range(len(state.place)):
        d = state.place[i]
        k = problem.kind[d]
        state.used[d] += problem.memory[i]
        for p in range(problem.work.shape[1]):
            state.spent[d, 3 * p + WORK] += problem.work[k, p, i]
        for q in range(problem.hook_ptr[i], problem.hook_ptr[i + 1]):
            e = problem.hooks[q, NET]
            held = state.pins_on[e, d]
            column = problem.hooks[q, COLUMN]
            # The last pin of a net on a device pays for all of them there.
            if held > 0 and held < problem.hooks[q, SIZE]:
                made = problem.hooks[q, SOURCE] >= 0 and state.place[problem.hooks[q, SOURCE]] == d
                state.spent[d, column + (OUT if made else IN)] += problem.price[k, e]
                state.pins_on[e, d] = -held
    for e in range(len(problem.bond)):
        for q in range(problem.pin_ptr[e], problem.pin_ptr[e + 1]):
            d = state.place[problem.pins[q]]
            state.pins_on[e, d] = abs(state.pins_on[e, d])


@callee
def settle(  # type: ignore[no-untyped-def]
    hook_ptr, hooks, work, price, place, pinned, item, device, kind, own, table, row
):
    """Add to the times `table[row]` of a device what an item costs there, or take it away.

    `own` is 0 for an item that comes, 1 for one that is counted there and goes.
    """
    sign = 1.0 - 2.0 * own
    for p in range(work.shape[1]):
        table[row, 3 * p + WORK] += sign * work[kind, p, item]
    for q in range(hook_ptr[item], hook_ptr[item + 1]):
        e = hooks[q, NET]
        cost = sign * price[kind, e]
        others = pinned[e, device] - own
        pays = others + 1 < hooks[q, SIZE]
        column = hooks[q, COLUMN]
        source = hooks[q, SOURCE]
        if source == item:
            if others > 0:
                table[row, column + IN] -= cost
            if pays:
                table[row, column + OUT] += cost
        elif others == 0:
            if pays:
                table[row, column + IN] += cost
        elif not pays:
            if source >= 0 and place[source] == device:
                column += OUT
            table[row, column] -= cost


@callee
def carry(hook_ptr, hooks, place, pinned, item, device):  # type: ignore[no-untyped-def]
    """Move an item to a device: its place and the counts of its nets only."""
    before = place[item]
    place[item] = device
    for q in range(hook_ptr[item], hook_ptr[item + 1]):
        e = hooks[q, NET]
        pinned[e, before] -= 1
        pinned[e, device] += 1


@callee
def load_in(comm, table, row, column, extra):  # type: ignore[no-untyped-def]
    """Load from the times in `table[row]` of the pass that starts at `column`."""
    entering = table[row, column + IN] + extra
    return load_of(comm, entering, table[row, column + WORK], 0.0, table[row, column + OUT])


@callee
def excess(problem, state, device):  # type: ignore[no-untyped-def]
    """Bytes above the capacity of a device."""
    held = state.used[device] * state.ratio[device]
    return max(0.0, held - problem.capacity[problem.kind[device]])


@callee
def load(problem, state, device, p):  # type: ignore[no-untyped-def]
    """Load of a device in pass p."""
    stream = problem.stream[problem.kind[device]]
    extra = excess(problem, state, device) * stream if stream > 0.0 else 0.0
    return load_in(problem.comm, state.spent, device, 3 * p, extra)


@callee
def objective(problem, state):  # type: ignore[no-untyped-def]
    """The largest load of each pass, added up."""
    total = 0.0
    for p in range(problem.work.shape[1]):
        largest = 0.0
        for d in range(len(problem.kind)):
            largest = max(largest, load(problem, state, d, p))
        total += largest
    return total


@callee
def fits(problem, state):  # type: ignore[no-untyped-def]
    """True if every device keeps to a hard capacity, but for rounding."""
    for d in range(len(problem.kind)):
        over = excess(problem, state, d)
        if problem.hard and over > ROUNDING * problem.capacity[problem.kind[d]]:
            return False
    return True


class Live(NamedTuple):
    """Nodes as steps that hold tensors, for the `peak` memory model; empty for `sum`."""

    item: Ints
    """i64[n], item of each step; steps are nodes in the graph's order."""
    read_ptr: Ints
    reads: Ints
    """Tensors that each step reads (CSR)."""
    write_ptr: Ints
    writes: Ints
    """Tensors that each step writes (CSR)."""
    size: Floats
    """f64[m], bytes."""
    static: np.ndarray
    """bool[m], held throughout."""
    maker: Ints
    """i64[m], item that makes the tensor, or -1."""
    lasting: np.ndarray
    """bool[m], an output of the model."""
    left: np.ndarray
    """i32[m, D], scratch: readers still to run on each device."""
    abroad: np.ndarray
    """bool[m], scratch: some reader runs on another device than the maker."""
    bytes: Floats
    """f64[D, 3], scratch: held throughout, live, largest live."""


def live_of(graph: Graph, label: Ints, devices: int, options: CostOptions) -> Live:
    """Steps of a graph split over `devices` devices; `label` is the item of each node."""
    order = graph.order if options.memory_model == "peak" else np.zeros(0, dtype=np.int64)
    graph = graph.in_memory
    m = graph.m if len(order) else 0
    read_ptr, reads = csr_rows(graph.in_ptr, graph.in_idx, order)
    write_ptr, writes = csr_rows(graph.out_ptr, graph.out_idx, order)
    made = graph.producer[:m]
    kind = graph.tensor_kind[:m]
    return Live(
        *plain(
            label[order],
            read_ptr,
            reads,
            write_ptr,
            writes,
            graph.tensor_bytes[:m],
            (kind == PARAMETER) | (kind == CONSTANT),
            np.where(made >= 0, label[made], -1),
            graph.is_output[:m],
            np.zeros((m, devices), dtype=np.int32),
            np.zeros(m, dtype=np.bool_),
            np.zeros((devices, 3)),
        )
    )


@callee
def measure(live, state):  # type: ignore[no-untyped-def]
    """Set `state.ratio` so that used * ratio is each device's peak; O(reads + writes + m)."""
    steps = len(live.item)
    if steps == 0:
        return
    place, left, abroad, held = state.place, live.left, live.abroad, live.bytes
    for d in range(len(held)):
        held[d, 0] = 0.0
        held[d, 1] = 0.0
    for t in range(len(abroad)):
        abroad[t] = False
    for s in range(steps):
        d = place[live.item[s]]
        for q in range(live.read_ptr[s], live.read_ptr[s + 1]):
            t = live.reads[q]
            if left[t, d] == 0:
                if live.static[t]:
                    held[d, 0] += live.size[t]
                elif live.maker[t] < 0 or place[live.maker[t]] != d:
                    held[d, 1] += live.size[t]
            left[t, d] += 1
            if live.maker[t] >= 0 and place[live.maker[t]] != d:
                abroad[t] = True
    for d in range(len(held)):
        held[d, 2] = held[d, 1]
    for s in range(steps):
        d = place[live.item[s]]
        for q in range(live.write_ptr[s], live.write_ptr[s + 1]):
            held[d, 1] += live.size[live.writes[q]]
        held[d, 2] = max(held[d, 2], held[d, 1])
        for q in range(live.read_ptr[s], live.read_ptr[s + 1]):
            t = live.reads[q]
            left[t, d] -= 1
            if left[t, d] == 0 and not live.static[t]:
                own = live.maker[t] >= 0 and place[live.maker[t]] == d
                if not (own and (abroad[t] or live.lasting[t])):
                    held[d, 1] -= live.size[t]
        for q in range(live.write_ptr[s], live.write_ptr[s + 1]):
            t = live.writes[q]
            if left[t, d] == 0 and not (abroad[t] or live.lasting[t]):
                held[d, 1] -= live.size[t]
    for d in range(len(state.used)):
        # Items without memory of their own may still hold what they read.
        held[d, 0] += held[d, 2]
        state.ratio[d] = held[d, 0] / state.used[d] if state.used[d] > 0.0 else 1.0


class AnnealMemory(NamedTuple):
    """Energies, the best state and scratch of a round, changed in place."""

    rng: np.ndarray
    """u64[1]."""
    dice: Floats
    """Exponential draws."""
    mix: Ints
    """i64[4]: per cent of moves that are clusters, of those with a second cluster, and of those
    that collect items from several devices; logarithm to base 2 of the exponent q."""
    scale: Floats
    """f64[P], one over the reference of each pass."""
    weight: Floats
    """f64[P], of each pass in the energy."""
    strict: Floats
    """f64[2], what a device above its capacity adds to the energy, and one over the bytes for
    which it adds that once more."""
    best: Ints
    """i64[n], the best placement so far that fits."""
    kind: Ints
    """i64[D], the classes of the devices then."""
    value: Floats
    """f64[1], its objective; inf while there is none."""
    energy: Floats
    """f64[D], of each device."""
    times: Floats
    """f64[D, 3 P], scratch: times of devices, as a move would make them or as they were."""
    bytes: Floats
    """f64[D], scratch: used memory of the same devices."""
    other: Floats
    """f64[D], scratch: energy of the same devices."""
    touched: Ints
    """i64[D], scratch: which devices these are."""
    mark: Ints
    """i64[D], the last step that touched a device."""
    member: Ints
    """i64[2 n], scratch: items that a step moves."""
    origin: Ints
    """i64[2 n], scratch: where they were."""
    stamp: Ints
    """i64[n], the last cluster that held an item."""
    left: np.ndarray
    """bool[N], scratch of `convex`."""
    clock: Ints
    """i64[3]: steps; clusters; a device that lately was no better than `value`."""


def new_search(problem: AnnealArrays, seed: int) -> AnnealMemory:
    """Memory for annealing `problem`."""
    passes, n = problem.work.shape[1:]
    devices = len(problem.kind)
    total = float(problem.memory.sum())
    return AnnealMemory(
        rng=generator(seed),
        dice=exponential_table(),
        mix=np.array([20, 10, 10, 4], dtype=np.int64),
        scale=np.zeros(passes),
        weight=np.zeros(passes),
        strict=np.array([1.0, n / total if total > 0 else 1.0]),
        best=np.zeros(n, dtype=np.int64),
        kind=np.zeros(devices, dtype=np.int64),
        value=np.array([np.inf]),
        energy=np.zeros(devices),
        times=np.zeros((max(devices, 2), 3 * passes)),
        bytes=np.zeros(max(devices, 2)),
        other=np.zeros(max(devices, 2)),
        touched=np.zeros(devices, dtype=np.int64),
        mark=np.zeros(devices, dtype=np.int64),
        member=np.zeros(2 * n, dtype=np.int64),
        origin=np.zeros(2 * n, dtype=np.int64),
        stamp=np.zeros(n, dtype=np.int64),
        left=np.zeros(len(problem.step), dtype=np.bool_),
        clock=np.zeros(3, dtype=np.int64),
    )


@callee
def power(x, squarings):  # type: ignore[no-untyped-def]
    """x^(2^squarings), linear where that would get out of hand."""
    y = min(x, 8.0)
    for _ in range(squarings):
        y *= y
    return y * max(1.0, x * 0.125)


@callee
def appraise(  # type: ignore[no-untyped-def]
    comm, hard, weight, scale, strict, squarings, table, row, over, stream, capacity
):
    """Energy of a device with the times in `table[row]` and `over` bytes above its capacity."""
    energy = 0.0
    for p in range(len(weight)):
        cost = load_in(comm, table, row, 3 * p, over * stream)
        energy += weight[p] * power(cost * scale[p], squarings)
    if hard and over > ROUNDING * capacity:
        energy += strict[0] * (1.0 + over * strict[1])
    return energy


@lean
def refer(problem, state, search):  # type: ignore[no-untyped-def]
    """Make the largest loads of the state the reference of the energy, as far as there is load."""
    total = 0.0
    for p in range(problem.work.shape[1]):
        largest = 0.0
        for d in range(len(problem.kind)):
            largest = max(largest, load(problem, state, d, p))
        search.scale[p] = 1 / largest if largest > 0.0 else 0.0
        search.weight[p] = largest
        total += largest
    if total > 0.0:
        for p in range(problem.work.shape[1]):
            search.weight[p] /= total
    weigh(problem, state, search)


@callee
def weigh(problem, state, search):  # type: ignore[no-untyped-def]
    """Energies of all devices, anew."""
    for d in range(len(problem.kind)):
        k = problem.kind[d]
        search.energy[d] = appraise(
            problem.comm,
            problem.hard,
            search.weight,
            search.scale,
            search.strict,
            search.mix[SQUARINGS],
            state.spent,
            d,
            excess(problem, state, d),
            problem.stream[k],
            problem.capacity[k],
        )


@callee
def record(problem, state, live, search):  # type: ignore[no-untyped-def]
    """Keep the state, and refer to it, if it is the best so far; rid its sums of rounding."""
    fill(problem, state)
    measure(live, state)
    value = objective(problem, state)
    if value < search.value[0] and fits(problem, state):
        search.value[0] = value
        for i in range(len(state.place)):
            search.best[i] = state.place[i]
        for d in range(len(problem.kind)):
            search.kind[d] = problem.kind[d]
        refer(problem, state, search)
    else:
        weigh(problem, state, search)


@callee
def note(problem, state, live, search):  # type: ignore[no-untyped-def]
    """Keep the state if it is the best so far; else remember a device that is in the way."""
    goal = search.value[0] * (1 - ROUNDING)
    for d in range(len(problem.kind)):
        if load(problem, state, d, 0) >= goal:
            search.clock[2] = d
            return
    if objective(problem, state) < goal and fits(problem, state):
        record(problem, state, live, search)
