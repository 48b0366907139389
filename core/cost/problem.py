"""A split problem: a graph, its units, devices and options; and the price of a split.

Every number of a plan is computed here, from the nodes of its blocks alone.

Bounds from sums alone come before any search. The stages of a split hold each node's memory
(`sum`), or each distinct parameter and constant (`peak`), at least once between them; a unit is
never divided. Where that is more than the devices have, no split of any validity fits. Units that
may run where there is no limit, such as on CPUs, are left out of the sum.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from threading import Lock
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.items import (
    Items,
    LinearizedItems,
    execution_order,
    free_items_of,
    item_choices,
    nets_of,
    quotient_order,
    steps_of,
    validity_of,
)
from dnnp.core.cost.load import (
    Linked,
    StageLoad,
    Steps,
    at_best_links,
    link_times,
    linked_stages,
    node_memory,
    peak_reach,
    stage_load,
)
from dnnp.core.cost.load_formula import MARGIN, ROOM
from dnnp.core.cost.placing import StageRules
from dnnp.core.model.device import DeviceClass, Link, Machine, machine_of, offered
from dnnp.core.model.errors import FormatError, InfeasibleError, UsageError
from dnnp.core.model.graph import (
    PARAMETER,
    Clustering,
    Floats,
    Graph,
    Ints,
    csr,
    distinct,
    place_of,
    row_of,
    totals,
)
from dnnp.core.model.placing import Rule
from dnnp.core.model.plan import CLOSED, VALIDITIES, Block, CostOptions, Plan, Stage
from dnnp.core.model.text import shown_bytes

LOADS = 1_000
"""Loads of stages that are remembered: a curve over numbers of devices has many in common."""

LINES = 4
"""Lines that are remembered, the last ones used: one of 50,000 nodes takes some megabytes."""


@dataclass(frozen=True, eq=False)
class SplitProblem:
    """A graph to be split over devices; what follows from it is derived once and remembered.

    The arrays that it hands out must not be changed.
    """

    graph: Graph
    units: Clustering
    """Groups of nodes that a split keeps whole, with their costs."""
    devices: tuple[DeviceClass, ...]
    options: CostOptions
    links: tuple[Link, ...] = ()
    """Links between the devices; none: what their classes state."""
    rules: tuple[Rule, ...] = ()
    """Rules that every split keeps; graph and units are those of `with_rules`."""

    @cached_property
    def stage_rules(self) -> StageRules | None:
        """Rules about what stages hold; None: there are none."""
        found = any(rule.by_stage for rule in self.rules)
        return StageRules(self.graph, self.rules) if found else None

    @cached_property
    def machine(self) -> Machine:
        """The single devices, and what a transfer between two of them takes; see `machine_of`."""
        return machine_of(self.devices, self.links, self.graph.passes)

    def plan(self, blocks: list[Block]) -> Plan:
        """Price a split; raises what `make_plan` does."""
        return make_plan(self, blocks)

    def value(self, blocks: list[Block]) -> float:
        """Objective of a split; raises what `make_plan` does."""
        return self.plan(blocks).value

    @property
    def clustered(self) -> bool:
        """True if some devices form clusters, and no links say more."""
        return not self.links and any(d.cluster_size for d in self.devices)

    @cached_property
    def unlinked(self) -> SplitProblem:
        """The same problem without links, in which no split has a larger objective.

        It is what methods and bounds work on that know the bandwidths of classes only.
        """
        if not self.links:
            return self
        devices = at_best_links(self.devices, self.links, self.options)
        return self.sharing(replace(self, devices=devices, links=()))

    @cached_property
    def searched(self) -> SplitProblem:
        """The problem that methods and bounds work on: no limits where capacities are ignored."""
        if self.options.memory_mode != "ignore":
            return self
        devices = tuple(replace(d, memory_bytes=math.inf) for d in self.devices)
        options = replace(self.options, memory_mode="hard")
        return self.sharing(replace(self, devices=devices, options=options))

    def own(self, blocks: Sequence[Block]) -> list[Block]:
        """The same blocks, on the devices of this problem: by class, whatever else they state."""
        devices = {d.name: d for d in self.devices}
        return [b._replace(device=devices[b.device.name]) for b in blocks]

    @property
    def items(self) -> Items:
        """Items of an ordered split; with a backward pass, those of its finer direction."""
        return self.item_choices[0]

    @property
    def item_choices(self) -> tuple[Items, ...]:
        """Items for each direction of a backward pass, most items first."""
        return self._derived.item_choices

    def kept_items(self, blocks: Sequence[Block]) -> tuple[Items, Ints] | None:
        """The finest items that blocks keep whole and in order, and the block of each of them.

        None: the blocks cut some items of each choice, or are in no order of them.
        """
        block = row_of((one.nodes for one in blocks), self.graph.n)
        for items in self.item_choices:
            at = np.empty(items.count, dtype=np.int64)
            at[items.label] = block
            if (at[items.label] == block).all() and (at[items.tail] <= at[items.head]).all():
                return items, at
        return None

    @property
    def free_items(self) -> Items:
        """Items of a split without order."""
        return self._derived.free_items

    def line(self, items: Items | None = None, order: Ints | None = None) -> LinearizedItems:
        """Lay items out (default: `items`) in a topological order (default: their Kahn order)."""
        items = self.items if items is None else items
        return self._derived.line(self, items, items.order if order is None else order)

    def with_options(self, options: CostOptions) -> SplitProblem:
        """The same graph and devices under other options."""
        return self.sharing(replace(self, options=options))

    def with_devices(self, *devices: DeviceClass) -> SplitProblem:
        """The same graph and options on other devices."""
        return self.sharing(replace(self, devices=devices))

    @cached_property
    def _derived(self) -> _Derived:
        return _Derived(self.graph, self.units)

    def sharing(self, other: SplitProblem) -> SplitProblem:
        """`other`, a problem of the same graph and units, with what is derived from these."""
        other.__dict__["_derived"] = self._derived
        return other


class _Laid(NamedTuple):
    """A line, and what it was made from."""

    items: Items
    order: Ints
    devices: tuple[DeviceClass, ...]
    options: CostOptions
    line: LinearizedItems


class _Derived:
    """Items and lines of a graph and its units, for all devices and options."""

    def __init__(self, graph: Graph, units: Clustering) -> None:
        self.graph, self.units = graph, units
        self.own: set[Items] = set()
        # By nodes, device, options and replicas.
        self.loads: dict[tuple[object, ...], StageLoad] = {}
        self.laid: deque[_Laid] = deque(maxlen=LINES)
        self.lock = Lock()  # a search and what would be answered instead run beside each other

    @cached_property
    def item_choices(self) -> tuple[Items, ...]:
        choices = tuple(item_choices(self.graph, self.units))
        self.own.update(choices)
        return choices

    @cached_property
    def free_items(self) -> Items:
        items = free_items_of(self.graph, self.units)
        self.own.add(items)
        return items

    def line(self, problem: SplitProblem, items: Items, order: Ints) -> LinearizedItems:
        """A line of `problem`, laid out if it is not among the last ones."""
        if items not in self.own:  # contracted further by the caller, which alone has them
            return make_line(problem, items, order)
        with self.lock:
            for i, one in enumerate(self.laid):
                same = one.items is items and np.array_equal(one.order, order)
                if same and (one.devices, one.options) == (problem.devices, problem.options):
                    del self.laid[i]
                    self.laid.append(one)
                    return one.line
        line = make_line(problem, items, order)
        with self.lock:
            self.laid.append(_Laid(items, order, problem.devices, problem.options, line))
        return line


def make_line(problem: SplitProblem, items: Items, order: Ints) -> LinearizedItems:
    """Lay the items out in `order` (a topological order of `items`).

    The line knows of no more devices of a class than the items can use.
    """
    graph, units, options = problem.graph, problem.units, problem.options
    most = items.count * options.max_replicas
    devices = tuple(replace(d, count=min(d.count, most)) for d in problem.devices)
    place = place_of(order)
    where = place[items.label]
    sequence = execution_order(graph, units, where)
    node_ptr, nodes = csr(where[sequence], sequence, items.count)
    first = units.member_idx[units.member_ptr[:-1]]
    times = units.times_on(*(d.name for d in devices))
    work = np.stack([totals(where[first], row, items.count) for row in times])
    nets, tensor = nets_of(graph, where, items.count, options)
    costs = link_times(graph, devices, tensor)
    rules = problem.stage_rules
    labels = np.zeros((0, items.count), dtype=np.int64)
    if rules is not None:
        labels = rules.labels_of(where, items.count)
        work[:, (labels < 0).any(axis=0)] = np.inf
    late = totals(units.label, ~graph.backward, units.g) == 0
    late_times = np.where(late, np.nan_to_num(times, posinf=0.0), 0.0)
    line = LinearizedItems(
        devices=devices,
        node_ptr=node_ptr,
        nodes=nodes,
        work=work,
        nets=nets,
        cost=costs,
        reach=np.zeros((0, 0), dtype=np.int64),
        tail=place[items.tail],
        head=place[items.head],
        memory=totals(where, node_memory(graph), items.count),
        backward_work=np.stack([totals(where[first], row, items.count) for row in late_times]),
        backward_net=(nets.source >= 0) & graph.backward[graph.producer[tensor]],
        labels=labels,
        exactly=max((rule.stages for rule in problem.rules), default=0),
    )
    return _with_reach(graph, line, options)


def _with_reach(graph: Graph, line: LinearizedItems, options: CostOptions) -> LinearizedItems:
    """Fill `reach`: how far an interval can go before a node is unsupported or memory is full."""
    n = line.n
    reach = np.empty((len(line.devices), n), dtype=np.int64)
    steps: Steps | None = None
    for c, device in enumerate(line.devices):
        blocked = np.flatnonzero(~np.isfinite(line.work[c]))
        stop = np.append(blocked, n)[np.searchsorted(blocked, np.arange(n))] - 1
        limited = options.memory_mode == "hard" and not device.is_cpu
        if limited and np.isfinite(device.memory_bytes):
            steps = steps or steps_of(graph, line, options)
            stop = np.minimum(stop, peak_reach(steps, device.memory_bytes))
        for row in line.labels.tolist():
            stop = np.minimum(stop, _label_reach(row))
        reach[c] = stop
    return replace(line, reach=reach)


def _label_reach(labels: Sequence[int]) -> Ints:
    """Last position of intervals from each one that hold one label besides 0; i64[n]."""
    found = np.empty(len(labels), dtype=np.int64)
    last, label = len(labels) - 1, 0
    first = len(labels)
    for i in range(len(labels) - 1, -1, -1):
        if labels[i]:
            last, label = first - 1 if label not in (0, labels[i]) else last, labels[i]
            first = i
        found[i] = last
    return found


def planned_blocks(plan: Plan, graph: Graph) -> list[Block]:
    """The stages of a plan, to be priced again."""
    position = {node: v for v, node in enumerate(graph.node_ids.tolist())}
    devices = {d.name: d for d in plan.devices}
    return [
        Block(
            np.array([position[node] for node in stage.nodes], dtype=np.int64),
            devices[stage.device_class],
            stage.replicas,
            devices[stage.device_class].number_of(stage.device),
            stage.peak_bound_bytes or 0.0,
        )
        for stage in plan.stages
    ]


def make_plan(
    problem: SplitProblem,
    blocks: Sequence[Block],
    *,
    method: str = "",
    bound: float = 0.0,
    digest: str = "",
    interrupted: bool = False,
    planned_by: str = "",
) -> Plan:
    """Price a split.

    Empty blocks are dropped; blocks come out in pipeline order when the split is ordered. The
    devices of a class are numbered in that order, save where blocks state numbers.

    Raises
    ------
    FormatError
        A node is missing or in two blocks, or a group is cut in two.
    InfeasibleError
        More blocks of a class than devices, a node its device cannot run, or a capacity
        exceeded in the hard memory mode.
    """
    blocks = [b._replace(nodes=np.asarray(b.nodes, dtype=np.int64)) for b in blocks if len(b.nodes)]
    graph, options = problem.graph, problem.options
    block = _block_of(problem, blocks)
    validity = validity_of(graph, block, len(blocks))
    order = quotient_order(graph, block, len(blocks))
    if order is not None:
        blocks = [blocks[b] for b in order.tolist()]
    blocks = _numbered(blocks)
    if problem.stage_rules is not None:
        problem.stage_rules.refuse(block)
    near = surroundings(problem, blocks)
    stages = [_stage(problem, b, close) for b, close in zip(blocks, near, strict=True)]
    value = objective_of(stages, options)
    proven = bound >= value * (1 - CLOSED)
    excess = excess_of(stages, problem.devices, options.memory_mode)
    status = "optimal" if proven else "interrupted" if interrupted else "feasible"
    return Plan(
        stages=tuple(stages),
        k=sum(d.count for d in problem.devices if not d.is_cpu),
        method=method,
        validity=validity,
        value=value,
        bound=value if proven else min(bound, value),
        status="infeasible" if excess else status,
        options=options,
        devices=problem.devices,
        digest=digest,
        links=problem.links,
        rules=problem.rules,
        planned_by=planned_by,
        excess_bytes=excess,
    )


def excess_of(stages: Sequence[Stage], devices: Sequence[DeviceClass], mode: str) -> float:
    """Bytes that an accelerator needs beyond what it has, at most, where capacities are ignored.

    0: all fits, or the mode of memory is another one. Table 4 of the 2020 paper has such splits.
    """
    if mode != "ignore":
        return 0.0
    held: dict[tuple[str, str], float] = {}
    peaks: dict[tuple[str, str], float] = {}
    for stage in stages:
        key, peak = (stage.device_class, stage.device), stage.peak_bytes or 0.0
        # Of the live tensors of stages that a device runs one after the other, the most count.
        more = max(peak - peaks.get(key, 0.0), 0.0)
        held[key] = held.get(key, 0.0) + stage.memory_bytes - peak + more
        peaks[key] = peaks.get(key, 0.0) + more
    room = {d.name: np.inf if d.is_cpu else d.memory_bytes for d in devices}
    return max(
        (m - room[name] for (name, _), m in held.items() if m > room[name] * ROOM), default=0.0
    )


def objective_of(stages: Sequence[Stage], options: CostOptions) -> float:
    """The objective of a plan, from its stages."""
    if options.objective == "gpipe":
        ahead = max((s.forward_s or 0.0 for s in stages), default=0.0)
        return ahead + max((s.backward_s or 0.0 for s in stages), default=0.0)
    loads = [s.load_s for s in stages]
    return sum(loads) if options.objective == "sequence" else max(loads, default=0.0)


def _numbered(blocks: Sequence[Block]) -> list[Block]:
    """Give every block the number of its first device."""
    used: dict[str, int] = {}
    numbered = []
    for b in blocks:
        number = used.get(b.device.name, 0) if b.number < 0 else b.number
        used[b.device.name] = max(used.get(b.device.name, 0), number + b.replicas)
        if number + b.replicas > b.device.count:
            raise InfeasibleError(
                f"infeasible: the split needs more than the {b.device.count} devices "
                f"of class '{b.device.name}'"
            )
        numbered.append(b._replace(number=number))
    return numbered


def surroundings(problem: SplitProblem, blocks: Sequence[Block]) -> Sequence[Ints | Linked | None]:
    """For each (numbered) block what its transfers depend on besides its class, as `stage_load`
    takes it: links where there are any, else clusters."""
    if problem.links:
        return linked_stages(problem.graph.n, problem.machine, blocks)
    return link_levels(problem.graph, blocks)


def link_levels(graph: Graph, blocks: Sequence[Block]) -> list[Ints | None]:
    """For each (numbered) block the level of its link to every node, as `stage_load` takes it.

    None: its devices form no clusters.
    """
    devices = {b.device.name: b.device for b in blocks if b.device.cluster_size}
    homes = {name: _homes(graph, blocks, device) for name, device in devices.items()}
    found: list[Ints | None] = []
    for b in blocks:
        if not b.device.cluster_size:
            found.append(None)
            continue
        level = np.full(graph.n, len(b.device.levels), dtype=np.int64)
        for i in reversed(range(len(b.device.levels))):
            home = homes[b.device.name][i]
            if home[b.nodes[0]] >= 0:
                level[home == home[b.nodes[0]]] = i
        found.append(level)
    return found


def _homes(graph: Graph, blocks: Sequence[Block], device: DeviceClass) -> Ints:
    """i64[levels, n]: the cluster that holds all devices of every node's block; -1: none does."""
    homes = np.full((len(device.levels), graph.n), -1, dtype=np.int64)
    for b in blocks:
        for home, level in zip(homes, device.levels, strict=True):
            first, last = b.number // level.size, (b.number + b.replicas - 1) // level.size
            if b.device.name == device.name and first == last:
                home[b.nodes] = first
    return homes


def _block_of(problem: SplitProblem, blocks: Sequence[Block]) -> Ints:
    """Block of every node, after checking that blocks partition nodes and keep groups whole."""
    graph, units = problem.graph, problem.units
    nodes = np.concatenate([b.nodes for b in blocks]) if blocks else np.zeros(0, np.int64)
    counts = np.bincount(nodes, minlength=graph.n)
    if (counts != 1).any():
        wrong = int(np.flatnonzero(counts != 1)[0])
        what = "in no stage" if not counts[wrong] else f"in {int(counts[wrong])} places"
        raise FormatError(
            f"the split does not fit the graph: node {graph.node_ids[wrong]} is {what}"
        )
    block = row_of((one.nodes for one in blocks), graph.n)
    first = block[units.member_idx[units.member_ptr[:-1]]]
    cut = np.flatnonzero(first[units.label] != block)
    if len(cut):
        group = int(units.group_ids[units.label[int(cut[0])]])
        raise FormatError(f"the split does not fit the graph: group {group} is in two stages")
    return block


def _stage(problem: SplitProblem, block: Block, near: Ints | Linked | None) -> Stage:
    graph, units, options = problem.graph, problem.units, problem.options
    nodes, device = block.nodes, block.device
    # Of what the problem states the number of devices changes no load.
    loads, held = problem._derived.loads, sha256(nodes.tobytes()).digest()
    key = (held, replace(device, count=1), options, block.replicas)
    cost = loads.get(key) if near is None else None
    if cost is None:
        cost = stage_load(graph, units, nodes, device, options, block.replicas, near)
        if near is None and len(loads) < LOADS:
            loads[key] = cost
    name = device.device_name(block.number)
    if not np.isfinite(cost.compute_s):
        (times,) = units.times_on(device.name)
        group = int(np.flatnonzero(~np.isfinite(times[units.label[nodes]]))[0])
        node = int(graph.node_ids[nodes[group]])
        raise InfeasibleError(f"infeasible: node {node} is not supported on '{device.name}'")
    over = cost.memory_bytes > device.memory_bytes * ROOM
    if over and options.memory_mode == "hard" and not device.is_cpu:
        raise InfeasibleError(
            f"infeasible: the stage on {name} needs {shown_bytes(cost.memory_bytes, 6)}, "
            f"its device has {shown_bytes(device.memory_bytes, 6)}"
        )
    return Stage(
        name,
        device.name,
        tuple(graph.node_ids[nodes].tolist()),
        replicas=block.replicas,
        peak_bound_bytes=_peak_bound(block, cost.peak_bytes),
        **vars(cost),
    )


def _peak_bound(block: Block, peak: float | None) -> float | None:
    """The bound that the block brings; one that is equal but for rounding is the peak itself."""
    if peak is None or (peak and not block.peak_bound_bytes):
        return None
    return peak if block.peak_bound_bytes >= peak * (1 - MARGIN) else block.peak_bound_bytes


SPREAD_STEPS = 300
"""Steps towards the best weights of several classes; any weights give a bound."""


def spread(times: Floats, counts: Floats) -> tuple[float, Floats]:
    """Largest sum over units of min over classes of weight * time that was found.

    The weights of all devices add up to 1, so no split has a smaller largest load: weigh its
    loads, and move every unit to the class where it weighs least. This is the Lagrangian dual
    of spreading units over devices in fractions; one class needs no search.

    `times`: f64[C, g], inf: unsupported; `counts`: f64[C], devices of each class. Returns the bound
    and the weight of a device of each class, f64[C].
    """
    weights = np.full(len(counts), 1 / counts.sum())
    units = np.arange(times.shape[1])
    best, chosen = 0.0, weights
    for step in range(SPREAD_STEPS if len(counts) > 1 else 1):
        weighed = weights[:, None] * times
        place = weighed.argmin(axis=0)
        value = float(weighed[place, units].sum())
        if not np.isfinite(value):
            return value, weights
        if value > best:
            best, chosen = value, weights
        # A class that got more than its share should weigh more.
        loads = totals(place, times[place, units], len(counts)) / counts
        weights = weights * np.exp((loads / max(loads.max(), 1e-300) - 0.5) / (1 + step / 10))
        weights /= (weights * counts).sum()
    return best, chosen


def over_capacity(problem: SplitProblem) -> InfeasibleError | None:
    """The reason why no split of units over devices fits; None: sums do not tell. O(n + m)."""
    graph, units = problem.graph, problem.units
    devices = [d for d in problem.devices if d.count > 0]
    if problem.options.memory_mode != "hard" or not graph.n or not devices:
        return None
    runs = np.isfinite(units.times_on(*(d.name for d in devices)))
    room = np.array([np.inf if d.is_cpu else d.memory_bytes for d in devices])
    summed, what = problem.options.memory_model == "sum", "the nodes"
    if summed:
        least = totals(units.label, node_memory(graph), units.g)
    else:
        graph = graph.in_memory
        least = np.zeros(units.g)
        # What is live while a node runs at least, and the weights.
        live = np.where(graph.tensor_kind < PARAMETER, graph.tensor_bytes, 0.0)
        np.maximum.at(least, units.label, graph.touched(live))
        static = graph.tensor_kind[graph.in_idx] >= PARAMETER
        pairs = distinct(units.label[graph.reader[static]] * graph.m + graph.in_idx[static])
        least += totals(pairs // graph.m, graph.tensor_bytes[pairs % graph.m], units.g)
    large = np.flatnonzero(~(runs & (least <= room[:, None] * (1 + MARGIN))).any(axis=0))
    if len(large):
        able = [d for d, fits in zip(devices, runs[:, large[0]], strict=True) if fits]
        return unplaceable_nodes(problem, np.flatnonzero(units.label == large[0]), able)
    bound = ~(runs & np.isinf(room)[:, None]).any(axis=0)
    sizes = least[bound]
    if not summed:
        what = "the weights, each counted once,"
        if graph.states is not None:
            what = "the weights, each counted once, and the states"
        sizes = graph.tensor_bytes[distinct(pairs[bound[pairs // graph.m]] % graph.m)]
    return shortage(float(sizes.sum()), what, devices)


def shortage(need: float, what: str, devices: Sequence[DeviceClass]) -> InfeasibleError | None:
    """The reason why devices cannot hold so many bytes between them; None: they can."""
    limited = [d for d in devices if not d.is_cpu and np.isfinite(d.memory_bytes)]
    there = sum(d.count * d.memory_bytes for d in limited)
    if not limited or need <= there * (1 + MARGIN):
        return None
    most = max(d.memory_bytes for d in limited)
    count = math.ceil(need / most * (1 - MARGIN)) if most else 0
    least = f"; at least {count} devices of {shown_bytes(most, 6)} hold them" if most else ""
    return InfeasibleError(
        f"infeasible: {what} need {shown_bytes(need, 6)}; all devices together have "
        f"{shown_bytes(there, 6)} ({offered(limited)}){least}"
    )


def unplaceable_nodes(
    problem: SplitProblem, nodes: Ints, runs: Sequence[DeviceClass], least: float | None = None
) -> InfeasibleError:
    """Say that nodes which belong together fit none of the devices that run them.

    `least`: bytes that they take in any order; None: those in the order given.
    """
    graph = problem.graph
    name = f"node {graph.node_ids[nodes[0]]} ('{graph.node_names[nodes[0]]}')"
    if len(nodes) > 1:
        name = f"{name} and {len(nodes) - 1} more that belong with it"
        tie = tied_by(graph, nodes)[0]
        name += f", as {tie}," if tie else ""
    if not runs:
        return InfeasibleError(f"infeasible: {name} cannot run on any device offered")
    need = least
    if need is None:
        need = stage_load(graph, problem.units, nodes, runs[0], problem.options).memory_bytes
    most = max(d.memory_bytes for d in runs)
    needed, there = shown_bytes(need, 6), shown_bytes(most, 6)
    return InfeasibleError(f"infeasible: {name} needs {needed}; the largest device has {there}")


def tied_by(graph: Graph, nodes: Ints) -> tuple[str, bool, int]:
    """The reason that joins the nodes of a colour that are farthest apart, in words.

    And whether it is a shared parameter, and how many colours join nodes of the forward pass;
    0, and no words: none does.
    """
    ahead = nodes[(graph.color[nodes] >= 0) & ~graph.backward[nodes]]
    ahead = ahead[np.lexsort((graph.rank[ahead], graph.color[ahead]))]
    starts = np.flatnonzero(np.diff(graph.color[ahead], prepend=-1))
    groups = [group for group in np.split(ahead, starts[1:]) if len(group) > 1]
    if not groups:
        return "", False, 0
    group = max(groups, key=lambda one: graph.rank[one[-1]] - graph.rank[one[0]])
    ends = f"'{graph.node_names[group[0]]}' and '{graph.node_names[group[-1]]}'"
    reads = np.concatenate([distinct(graph.reads(v)) for v in group])
    read, times = np.unique(reads, return_counts=True)
    shared = read[(times > 1) & (graph.tensor_kind[read] == PARAMETER)]
    if not len(shared):
        return f"{ends} have one colour, {graph.color[group[0]]}", False, len(groups)
    names = ", ".join(f"'{graph.tensor_names[t]}'" for t in shared[:3].tolist())
    more = f" and {len(shared) - 3} more" if len(shared) > 3 else ""
    what = f"the parameter{'s' * (len(shared) > 1)} {names}{more}"
    return f"{ends} share {what}", True, len(groups)


SAME = 1e-9
"""Relative difference up to which a stated value is the recomputed one."""


def check_options(problem: SplitProblem) -> None:
    """Refuse cost options that no method, and not the cost model itself, defines.

    Raises UsageError: the options do not go together, or not with this graph.
    """
    options = problem.options
    training = bool(problem.graph.backward.any())
    if options.objective == "gpipe" and not training:
        raise UsageError("--objective gpipe needs a graph with a backward pass")
    limited = any(np.isfinite(d.memory_bytes) and not d.is_cpu for d in problem.devices)
    if options.objective == "gpipe" and options.memory_mode == "overflow" and limited:
        raise UsageError(
            "--objective gpipe is not defined with --memory-mode overflow: overflow belongs to "
            "neither pass"
        )
    if options.memory_model == "weights":
        raise UsageError("--memory-model weights is for --objective latency")
    if options.memory_model == "peak" and training:
        raise UsageError("--memory-model peak is not defined for a graph with a backward pass")


def given_plan(problem: SplitProblem, plan: Plan) -> tuple[list[Block], float]:
    """The blocks of a plan for `problem`, in pipeline order, and its value, recomputed.

    Raises
    ------
    FormatError
        The plan is not what it says: value, validity or objective. `field` names which.
    InfeasibleError
        It does not fit its devices.
    """
    try:
        check_options(problem)
    except UsageError as error:
        raise FormatError(str(error), field="objective") from None
    blocks = planned_blocks(plan, problem.graph)
    again = problem.plan(blocks)
    if abs(again.value - plan.value) > SAME * max(again.value, plan.value):
        reason = f"{plan.value!r} is stated, {again.value!r} is the value of these stages"
        raise FormatError(reason, field="value")
    if VALIDITIES.index(again.validity) < VALIDITIES.index(plan.validity):
        reason = f"{plan.validity} is stated, but the stages are only {again.validity}"
        raise FormatError(reason, field="validity")
    return blocks, again.value
