"""Annealing state: assignment of items, load and memory of each device, energy; random numbers.

A device pays for a net by how many of the net's pins it holds,

    pins held     none        some        all
    pays          nothing     its cost    nothing, or its cost if always paid

as `out` where it holds the source and as `in` elsewhere. So an item that moves changes two
devices only, and its own nets say by how much.

The energy is the sum over devices and passes of weight * (load / reference)^q with a large q, so
that the largest loads count most, plus a price of memory above a hard capacity.

Random numbers inside kernels are the same on every machine, compiled or not.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np

from dnnp.core.cost.items import LinearizedItems, class_costs, ordered_edges
from dnnp.core.cost.load_formula import COMM, ROUNDING, load_of
from dnnp.core.kernels.kernel import callee, lean, part, plain, scratch
from dnnp.core.model.graph import PARAMETER, Floats, Graph, Ints, csr, csr_rows
from dnnp.core.model.hypergraph import ClassCosts, Hypergraph
from dnnp.core.model.plan import CostOptions

IN, WORK, OUT = range(3)
"""Columns of a device's times; those of pass p start at 3 p."""

NET, SIZE, COLUMN, SOURCE = range(4)
"""Columns of `AnnealArrays.hooks`."""

CLUSTER, SECOND, LOOSE, SQUARINGS = range(4)
"""Entries of `AnnealMemory.mix`."""


class AnnealArrays(NamedTuple):
    """Arrays of the problem: items and nets, `D` devices of `C` classes, `P` passes.

    There is one pass, or forward and backward where the objective tells them apart.
    """

    nets: Hypergraph
    costs: ClassCosts
    """Work is 0 where unsupported; stream is 0 where memory above the capacity is not streamed."""
    comm: int
    hard: bool
    """Capacities may not be exceeded."""
    ordered: bool
    """Devices are stages of a pipeline, in order: no edge leads back to an earlier one."""
    exactly: int
    """Number of devices that hold items; 0: any."""
    kind: Ints
    """i64[D], class of each device."""
    allowed: np.ndarray
    """bool[C, n]: the class runs the item, and it fits there alone."""
    hooks: Ints
    """i64[pins, 4] by `nets.item_net`: the net; its number of pins, beyond all numbers if it is
    always paid; first column of its pass; the item that makes it, or -1."""
    bond: Floats
    """f64[p], the largest cost on any class."""
    memory: Floats
    """f64[n], bytes."""
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
    labels: Ints
    """i64[rules, n], labels of items: a device holds at most one a row, besides 0."""


class SplitState(NamedTuple):
    """A split, changed in place by the kernels."""

    place: Annotated[Ints, "i64[items]"]
    """Device of each item."""
    pins_on: Annotated[Ints, "i32[nets, devices]"]
    """Pins of each net on each device."""
    spent: Annotated[Floats, "f64[devices, times]"]
    """Time of each device: in, compute and out of each pass."""
    used: Annotated[Floats, "f64[devices]"]
    """Memory of the items on each device, bytes."""
    ratio: Annotated[Floats, "f64[devices]"]
    """True memory over `used`; 1 in the `sum` model."""
    marked: Annotated[Ints, "i64[rules, labels, devices]"]
    """Items of each label on each device."""
    broken: Annotated[Ints, "i64[1]"]
    """Labels and devices too many or too few, by `broken`."""


def anneal_arrays(
    line: LinearizedItems,
    options: CostOptions,
    *,
    ordered: bool = False,
    paths: tuple[Ints, Ints, Ints] | None = None,
) -> AnnealArrays:
    """Arrange a line for search: free items (`free_items_of`) in any order, or ordered ones.

    `paths` (`paths_of`): stages are to stay convex.
    """
    none = np.zeros(0, dtype=np.int64)
    nets, costs = line.nets, class_costs(line, options)
    two, hard = costs.work.shape[1] > 1, options.memory_mode == "hard"
    able = np.isfinite(line.work)
    costs.work[:] = np.where(able[:, None], costs.work, 0.0)
    if two:
        costs.stream[:] = 0.0
    allowed = able
    if hard:
        # Peak memory of several nodes may fall when others join them.
        sure = options.memory_model == "sum" or np.diff(line.node_ptr) == 1
        allowed = able & ((line.reach >= np.arange(line.n)) | ~np.broadcast_to(sure, line.n))
    reached = nets.item_net
    size = np.where(nets.always, np.iinfo(np.int64).max, nets.sizes)
    columns = (size[reached], 3 * costs.net_pass[reached], nets.source[reached])
    # The true peak is the sum times a ratio, which nothing can be if the sum is zero.
    tail, head = (line.tail, line.head) if ordered else (line.tail[:0], line.head[:0])
    memory = line.memory if options.memory_model == "sum" else line.memory + 1.0
    arrays = plain(
        np.repeat(np.arange(len(line.devices)), [d.count for d in line.devices]),
        allowed,
        np.stack([reached, *columns], axis=1),
        line.cost.max(axis=0),
        memory,
        *csr(head, tail, line.n),
        *csr(tail, head, line.n),
        *(paths or (none, np.zeros(1, dtype=np.int64), none)),
        line.labels,
    )
    return AnnealArrays(nets, costs, COMM[options.comm], hard, ordered, line.exactly, *arrays)


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


@callee
def broken(marked, exactly):  # type: ignore[no-untyped-def]
    """Labels beyond one a row of each device, and devices in use beyond, or short of, `exactly`."""
    excess, used = 0, 0
    for r in range(marked.shape[0]):
        for d in range(marked.shape[2]):
            many = 0
            for x in range(1, marked.shape[1]):
                many += marked[r, x, d] > 0
            excess += max(many - 1, 0)
            used += r == 0 and (many > 0 or marked[r, 0, d] > 0)
    return excess + (abs(used - exactly) if exactly > 0 else 0)


def new_state(problem: AnnealArrays, place: Ints) -> SplitState:
    """State of a placement (i64[n], device of each item, one that is allowed)."""
    state = scratch(SplitState, _sizes(problem))
    state.place[:] = place
    state.ratio[:] = 1.0
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
        for q in range(problem.nets.net_ptr[e], problem.nets.net_ptr[e + 1]):
            state.pins_on[e, state.place[problem.nets.pins[q]]] += 1
    for i in range(len(state.place)):
        d = state.place[i]
        k = problem.kind[d]
        state.used[d] += problem.memory[i]
        for p in range(problem.costs.work.shape[1]):
            state.spent[d, 3 * p + WORK] += problem.costs.work[k, p, i]
        for q in range(problem.nets.item_ptr[i], problem.nets.item_ptr[i + 1]):
            e = problem.hooks[q, NET]
            held = state.pins_on[e, d]
            column = problem.hooks[q, COLUMN]
            # The last pin of a net on a device pays for all of them there.
            if held > 0 and held < problem.hooks[q, SIZE]:
                made = problem.hooks[q, SOURCE] >= 0 and state.place[problem.hooks[q, SOURCE]] == d
                state.spent[d, column + (OUT if made else IN)] += problem.costs.net_cost[k, e]
                state.pins_on[e, d] = -held
    for e in range(len(problem.bond)):
        for q in range(problem.nets.net_ptr[e], problem.nets.net_ptr[e + 1]):
            d = state.place[problem.nets.pins[q]]
            state.pins_on[e, d] = abs(state.pins_on[e, d])
    state.marked[:] = 0
    for r in range(len(problem.labels)):
        for i in range(len(state.place)):
            state.marked[r, problem.labels[r, i], state.place[i]] += 1
    state.broken[0] = broken(state.marked, problem.exactly)


@part
def update_times(problem, state, item, device, own, table, row):  # type: ignore[no-untyped-def]
    """Add to the times `table[row]` of a device what an item costs there, or take it away.

    `own` is 0 for an item that comes, 1 for one that is counted there and goes.
    """
    sign, kind, hooks = 1.0 - 2.0 * own, problem.kind[device], problem.hooks
    work, price, item_ptr = problem.costs.work, problem.costs.net_cost, problem.nets.item_ptr
    for p in range(work.shape[1]):
        table[row, 3 * p + WORK] += sign * work[kind, p, item]
    for q in range(item_ptr[item], item_ptr[item + 1]):
        e = hooks[q, NET]
        cost = sign * price[kind, e]
        others = state.pins_on[e, device] - own
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
            if source >= 0 and state.place[source] == device:
                column += OUT
            table[row, column] -= cost


@part
def carry(problem, state, item, device):  # type: ignore[no-untyped-def]
    """Move an item to a device: its place and the counts of its nets and labels only."""
    hooks, item_ptr, pins_on = problem.hooks, problem.nets.item_ptr, state.pins_on
    before = state.place[item]
    state.place[item] = device
    for q in range(item_ptr[item], item_ptr[item + 1]):
        e = hooks[q, NET]
        pins_on[e, before] -= 1
        pins_on[e, device] += 1
    for r in range(len(problem.labels)):
        state.marked[r, problem.labels[r, item], before] -= 1
        state.marked[r, problem.labels[r, item], device] += 1


@callee
def load_in(comm, table, row, column, extra):  # type: ignore[no-untyped-def]
    """Load from the times in `table[row]` of the pass that starts at `column`."""
    entering = table[row, column + IN] + extra
    return load_of(comm, entering, table[row, column + WORK], 0.0, table[row, column + OUT])


@callee
def excess(problem, state, device):  # type: ignore[no-untyped-def]
    """Bytes above the capacity of a device."""
    held = state.used[device] * state.ratio[device]
    return max(0.0, held - problem.costs.capacity[problem.kind[device]])


@callee
def load(problem, state, device, p):  # type: ignore[no-untyped-def]
    """Load of a device in pass p."""
    stream = problem.costs.stream[problem.kind[device]]
    extra = excess(problem, state, device) * stream if stream > 0.0 else 0.0
    return load_in(problem.comm, state.spent, device, 3 * p, extra)


@callee
def objective(problem, state):  # type: ignore[no-untyped-def]
    """The largest load of each pass, added up."""
    total = 0.0
    for p in range(problem.costs.work.shape[1]):
        largest = 0.0
        for d in range(len(problem.kind)):
            largest = max(largest, load(problem, state, d, p))
        total += largest
    return total


@callee
def fits(problem, state):  # type: ignore[no-untyped-def]
    """True if every device keeps to a hard capacity, but for rounding, and all rules are kept."""
    if state.broken[0] > 0:
        return False
    for d in range(len(problem.kind)):
        over = excess(problem, state, d)
        if problem.hard and over > ROUNDING * problem.costs.capacity[problem.kind[d]]:
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
            kind >= PARAMETER,
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
    strict: Floats
    """f64[2], what a device above its capacity adds to the energy, and one over the bytes for
    which it adds that once more."""
    value: Floats
    """f64[1], objective of the best placement; inf while there is none."""
    scale: Annotated[Floats, "f64[passes]"]
    """One over the reference of each pass."""
    weight: Annotated[Floats, "f64[passes]"]
    """Weight of each pass in the energy."""
    best: Annotated[Ints, "i64[items]"]
    """The best placement so far that fits."""
    kind: Annotated[Ints, "i64[devices]"]
    """The classes of the devices then."""
    energy: Annotated[Floats, "f64[devices]"]
    """Energy of each device."""
    times: Annotated[Floats, "f64[rows, times]"]
    """Scratch: times of devices, as a move would make them or as they were."""
    bytes: Annotated[Floats, "f64[rows]"]
    """Scratch: used memory of the same devices."""
    other: Annotated[Floats, "f64[rows]"]
    """Scratch: energy of the same devices."""
    touched: Annotated[Ints, "i64[devices]"]
    """Scratch: the numbers of these devices."""
    mark: Annotated[Ints, "i64[devices]"]
    """The last step that touched a device."""
    member: Annotated[Ints, "i64[members]"]
    """Scratch: items that a step moves."""
    origin: Annotated[Ints, "i64[members]"]
    """Scratch: their devices before the step."""
    stamp: Annotated[Ints, "i64[items]"]
    """The last cluster that held an item."""
    left: Annotated[np.ndarray, "bool[steps]"]
    """Scratch of `convex`."""
    clock: Annotated[Ints, "i64[3]"]
    """Steps; clusters; a device that lately was no better than `value`."""


def _sizes(problem: AnnealArrays) -> dict[str, int]:
    """Sizes of the arrays of a state and of a round."""
    passes, items = problem.costs.work.shape[1:]
    devices = len(problem.kind)
    return {
        "items": items, "members": 2 * items, "nets": len(problem.bond), "passes": passes,
        "times": 3 * passes, "devices": devices, "rows": max(devices, 2),
        "steps": len(problem.step), "rules": len(problem.labels),
        "labels": 1 + int(problem.labels.max(initial=0)),
    }  # fmt: skip


def new_search(problem: AnnealArrays, seed: int) -> AnnealMemory:
    """Memory for annealing `problem`."""
    total = float(problem.memory.sum())
    return scratch(
        AnnealMemory,
        _sizes(problem),
        rng=generator(seed),
        dice=exponential_table(),
        mix=np.array([20, 10, 10, 4], dtype=np.int64),
        strict=np.array([1.0, len(problem.memory) / total if total > 0 else 1.0]),
        value=np.array([np.inf]),
    )


@callee
def power(x, squarings):  # type: ignore[no-untyped-def]
    """x^(2^squarings), linear where that would get out of hand."""
    y = min(x, 8.0)
    for _ in range(squarings):
        y *= y
    return y * max(1.0, x * 0.125)


@part
def evaluate(problem, search, device, table, row, held):  # type: ignore[no-untyped-def]
    """Energy of a device with the times in `table[row]` that holds so many bytes."""
    kind, energy = problem.kind[device], 0.0
    capacity = problem.costs.capacity[kind]
    over = max(0.0, held - capacity)
    extra = over * problem.costs.stream[kind]
    for p in range(len(search.weight)):
        cost = load_in(problem.comm, table, row, 3 * p, extra)
        energy += search.weight[p] * power(cost * search.scale[p], search.mix[SQUARINGS])
    if problem.hard and over > ROUNDING * capacity:
        energy += search.strict[0] * (1.0 + over * search.strict[1])
    return energy


@lean
def set_reference(problem, state, search):  # type: ignore[no-untyped-def]
    """Make the largest loads of the state the reference of the energy, as far as there is load."""
    total = 0.0
    for p in range(problem.costs.work.shape[1]):
        largest = 0.0
        for d in range(len(problem.kind)):
            largest = max(largest, load(problem, state, d, p))
        search.scale[p] = 1 / largest if largest > 0.0 else 0.0
        search.weight[p] = largest
        total += largest
    if total > 0.0:
        for p in range(problem.costs.work.shape[1]):
            search.weight[p] /= total
    weigh(problem, state, search)


@callee
def weigh(problem, state, search):  # type: ignore[no-untyped-def]
    """Energies of all devices, anew."""
    for d in range(len(problem.kind)):
        held = state.used[d] * state.ratio[d]
        search.energy[d] = evaluate(problem, search, d, state.spent, d, held)


@callee
def record(problem, state, live, search):  # type: ignore[no-untyped-def]
    """Keep the state as the reference if it is the best so far; rid its sums of rounding."""
    fill(problem, state)
    measure(live, state)
    value = objective(problem, state)
    if value < search.value[0] and fits(problem, state):
        search.value[0] = value
        for i in range(len(state.place)):
            search.best[i] = state.place[i]
        for d in range(len(problem.kind)):
            search.kind[d] = problem.kind[d]
        set_reference(problem, state, search)
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


_A, _B, _C, _D = np.uint64(13), np.uint64(7), np.uint64(17), np.uint64(32)


def generator(seed: int) -> np.ndarray:
    """State of a generator, u64[1], never zero; nearby seeds give unlike states."""
    mask = (1 << 64) - 1
    z = (seed + 1) * 0x9E3779B97F4A7C15 & mask
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
    return np.array([z ^ z >> 31 or 1], dtype=np.uint64)


def exponential_table() -> Floats:
    """f64[4096], a draw among which is exponential with mean 1: no logarithm in the kernels."""
    steps = 4096
    return -np.log((np.arange(steps) + 0.5) / steps)


@callee
def below(rng, n):  # type: ignore[no-untyped-def]
    """Random integer in 0..n-1 (Marsaglia's xorshift, 13-7-17; its upper half)."""
    x = rng[0]
    x ^= x << _A
    x ^= x >> _B
    x ^= x << _C
    rng[0] = x
    return (np.int64(x >> _D) * n) >> 32
