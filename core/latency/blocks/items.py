"""Items of blocks: tasks that a split keeps together (2020 paper, Appendix B; `blocks`).

Tasks of one colour and pass lie in one block, and so do all tasks on paths between two of them:
colours and then strongly connected components are contracted, each pass by itself. Colours also
tie items of different passes to one device. An item lies in one block or wholly in the pool.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.cost.items import by_first, components
from dnnp.core.cost.latency import LatencyProblem, Tasks, host_times, pool_times
from dnnp.core.cost.load_formula import MARGIN, SAFE_ROOM
from dnnp.core.kernels.kernel import plain
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.graph import (
    PARAMETER,
    Bools,
    Floats,
    Ints,
    connected,
    csr,
    distinct,
    kahn,
    totals,
)
from dnnp.core.model.text import shown_bytes


class BlockItems(NamedTuple):
    """`c` items in topological order, `f` flows, `n` tasks and `a` accelerators, for kernels."""

    exactly: int
    """Number of devices in use, the pool counted as one; 0: any."""
    label: Ints
    """i64[n], item of each task."""
    late: Ints
    """i64[c], 1: the item belongs to the backward pass."""
    mixed: Bools
    """bool[c]: a cycle through both passes, which no block can hold."""
    group: Ints
    """i64[c]: items with equal numbers, 0.., must share a device."""
    group_ptr: Ints
    group_idx: Ints
    """Items of each group (CSR)."""
    devices: Ints
    """i64[a], number in the machine of each accelerator."""
    time: Floats
    """f64[a, c]; inf: unsupported."""
    memory: Floats
    """f64[c], bytes."""
    capacity: Floats
    """f64[a], bytes; with the slack of the cost model."""
    pool: Floats
    """f64[n], time of each task on the CPU pool; inf: unsupported."""
    pooled: Bools
    """bool[c]: the CPU supports all of the item."""
    maker: Ints
    """i64[f], item that makes each flow, or -1; flows that stay inside of an item are left out."""
    leaves: Bools
    """bool[f]: the flow is written to the host in any case."""
    move: Floats
    """f64[a, f], time to move each flow to or from the memory of the host."""
    use_ptr: Ints
    use_idx: Ints
    """Items that read each flow, its maker excluded (CSR)."""
    in_ptr: Ints
    in_idx: Ints
    """Flows that each item reads and does not make."""
    out_ptr: Ints
    out_idx: Ints
    """Flows that each item makes."""
    before_ptr: Ints
    before_idx: Ints
    after_ptr: Ints
    after_idx: Ints
    """Items directly before and after each."""
    member_ptr: Ints
    member_idx: Ints
    """Tasks of each item, in topological order."""
    task_before_ptr: Ints
    task_before_idx: Ints
    task_after_ptr: Ints
    task_after_idx: Ints
    """Tasks directly before and after each."""
    slot_late: Ints
    """i64[S], pass of each slot: a block that an accelerator may run; see `state`."""
    marks: Ints
    """i64[rules, c], labels by rules: a device holds at most one a row, besides 0; -1: two."""

    @property
    def size(self) -> int:
        """Number of items."""
        return len(self.memory)

    @property
    def tied(self) -> bool:
        """True if some items must share a device with others."""
        return len(self.group) > 0 and int(self.group.max()) + 1 < self.size


def block_items(problem: LatencyProblem) -> BlockItems:
    """Contract the tasks of a problem into items."""
    tasks, machine = problem.tasks, problem.machine
    most = problem.options.invocations
    label = _renumber(tasks, _contract(tasks, most == 1))
    n, count = tasks.n, int(label.max(initial=-1)) + 1
    devices = np.flatnonzero(~machine.is_cpu)
    late = totals(label, tasks.backward, count) > 0
    mixed = late & (totals(label, ~tasks.backward, count) > 0)
    flow = np.repeat(np.arange(tasks.flows), np.diff(tasks.use_ptr))
    maker = np.where(tasks.maker >= 0, label[tasks.maker], -1) if n else tasks.maker
    reader = label[tasks.use_idx]
    outside = reader != maker[flow]
    pairs = distinct(flow[outside] * max(count, 1) + reader[outside])
    kept = tasks.leaves.copy()
    kept[flow[outside]] = True
    number = np.cumsum(kept) - 1
    flows = int(kept.sum())
    flow, reader = number[pairs // max(count, 1)], pairs % max(count, 1)
    maker = maker[kept]
    made = np.flatnonzero(maker >= 0)
    a, b = tasks.edges
    tail, head = _edges_between(tasks, label)
    pool = pool_times(tasks, machine)
    move = [host_times(tasks, machine, d)[kept] for d in devices.tolist()]
    time = np.array([totals(label, tasks.time[d], count) for d in devices.tolist()])
    time = time.reshape(len(devices), count)
    time[:, mixed] = np.inf
    late &= ~mixed
    group = _ties(label, tasks.together, count)
    passes = [0, 1] if late.any() else [0]
    marks, whole = np.zeros((0, count), dtype=np.int64), problem.whole
    if whole is not None and whole.stage_rules is not None:
        marks = whole.stage_rules.labels_of(label[whole.units.label], count)
    return BlockItems(
        max((rule.stages for rule in (whole.rules if whole else ())), default=0),
        *plain(
            label,
            late.astype(np.int64),
            mixed,
            group,
            *csr(group, np.arange(count), int(group.max(initial=-1)) + 1),
            devices,
            time,
            totals(label, tasks.memory, count),
            machine.capacity[devices] * SAFE_ROOM,
            pool,
            np.isfinite(totals(label, pool, count)),
            maker,
            tasks.leaves[kept],
            np.array(move).reshape(len(devices), flows),
            *csr(flow, reader, flows),
            *csr(reader, flow, count),
            *csr(maker[made], made, count),
            *csr(head, tail, count),
            *csr(tail, head, count),
            *csr(label[tasks.order], tasks.order, count),
            *csr(b, a, n),
            *csr(a, b, n),
            np.repeat(np.array(passes, dtype=np.int64), len(devices) * most),
            marks,
        ),
    )


class HeldTensors(NamedTuple):
    """Live tensors of blocks; nodes in the order in which those of one block run.

    Memory counts as in `stage_memory`.
    """

    room: Floats
    """f64[a], bytes of each accelerator for parameters and live tensors."""
    born: Ints
    """i64[t], node that makes each tensor, or -1."""
    size: Floats
    """f64[t], bytes."""
    lasts: Ints
    """i64[t], 1: an output of the model."""
    reader_ptr: Ints
    reader_at: Ints
    """Nodes that read each tensor, the last one first (CSR)."""
    node_item: Ints
    """i64[N], item of each node."""
    change: Floats
    marked: Ints
    """f64[S, N + 1] and i64[S], scratch: bytes that begin and end with each node in each slot."""


def held_tensors(problem: LatencyProblem, items: BlockItems) -> HeldTensors | None:
    """Live tensors of a problem as arrays; None if its devices hold all at once."""
    live = problem.live
    if live is None or not live.binds:
        return None
    graph, slots = live.graph.in_memory, len(items.slot_late)
    nodes = np.concatenate([live.units.members(u) for u in problem.tasks.order.tolist()])
    place = np.append(np.argsort(nodes), -1)
    tensor = np.repeat(np.arange(graph.m), np.diff(graph.use_ptr))
    reader = place[graph.use_idx]
    falling = np.argsort(-reader, kind="stable")
    return HeldTensors(
        *plain(
            live.capacity[items.devices] * SAFE_ROOM,
            place[graph.producer],
            np.where(graph.tensor_kind < PARAMETER, graph.tensor_bytes, 0.0),
            graph.is_output.astype(np.int64),
            *csr(tensor[falling], reader[falling], graph.m),
            items.label[live.units.label[nodes]],
            np.zeros((slots, graph.n + 1)),
            np.zeros(slots, dtype=np.int64),
        )
    )


def _contract(tasks: Tasks, tied: bool) -> Ints:
    """Item of each task, in no order; i64[n].

    tied: items of one pass that must share a device lie in one block, since it has no other.
    """
    label: Ints = np.unique(2 * tasks.together + tasks.backward, return_inverse=True)[1]
    tail, head = tasks.edges
    while True:
        label = components(label, tail, head)
        if not tied:
            return label
        count = int(label.max(initial=-1)) + 1
        group = _ties(label, tasks.together, count)[label]
        joined: Ints = np.unique(2 * group + tasks.backward, return_inverse=True)[1]
        if int(joined.max(initial=-1)) + 1 == count:
            return label
        label = joined


def _ties(label: Ints, together: Ints, count: int) -> Ints:
    """Group of each item: the items that colours tie to one device, directly or not."""
    if not count:
        return label
    size = count + int(together.max()) + 1
    group = connected(size, label, count + together)[:count]
    return np.unique(group, return_inverse=True)[1].astype(np.int64)


def _renumber(tasks: Tasks, label: Ints) -> Ints:
    """Number the items in Kahn order, the one with the earliest member first."""
    label = by_first(label[tasks.order])[label]
    tail, head = _edges_between(tasks, label)
    number = np.zeros(int(label.max(initial=-1)) + 1, dtype=np.int64)
    number[kahn(tail, head, len(number))[0]] = np.arange(len(number))
    return number[label]


def _edges_between(tasks: Tasks, label: Ints) -> tuple[Ints, Ints]:
    """Distinct edges between items, sorted."""
    count = max(int(label.max(initial=-1)) + 1, 1)
    a, b = (label[ends] for ends in tasks.edges)
    pairs = distinct(a[a != b] * count + b[a != b])
    return pairs // count, pairs % count


def kind_of_each(items: BlockItems) -> Ints:
    """Kind of each accelerator, i64[a], 0..; those of one kind have equal times and capacities."""
    kind: list[int] = []
    found: list[int] = []
    for d in range(len(items.devices)):
        same = (
            k
            for k, e in enumerate(found)
            if items.capacity[d] == items.capacity[e]
            and np.array_equal(items.time[d], items.time[e])
            and np.array_equal(items.move[d], items.move[e])
        )
        k = next(same, len(found))
        if k == len(found):
            found.append(d)
        kind.append(k)
    return np.array(kind, dtype=np.int64)


def check_feasible(items: BlockItems) -> None:
    """Raise InfeasibleError where an item fits nowhere, or all together do not fit."""
    for i in np.flatnonzero((items.marks < 0).any(axis=0)).tolist():
        first = items.member_idx[items.member_ptr[i]]
        raise InfeasibleError(f"infeasible: rules part what belongs together with task {first}")
    count, devices = items.size, len(items.devices)
    groups = int(items.group.max(initial=-1)) + 1
    size = np.bincount(items.group, items.memory, groups)
    runs = np.ones((devices, groups), dtype=np.bool_)
    pooled = np.ones(groups, dtype=np.bool_)
    for d in range(devices):
        np.logical_and.at(runs[d], items.group, np.isfinite(items.time[d]))
        runs[d] &= size <= items.capacity[d]
    np.logical_and.at(pooled, items.group, items.pooled)
    for i in range(count):
        g = int(items.group[i])
        if not pooled[g] and not runs[:, g].any():
            raise InfeasibleError(
                f"infeasible: no device can run what belongs together with task "
                f"{items.member_idx[items.member_ptr[i]]} ({shown_bytes(size[g], 6)})"
            )
    bound = float(size[~pooled].sum())
    room = float(items.capacity.sum())
    if bound > room * (1 + MARGIN):
        raise InfeasibleError(
            f"infeasible: the tasks that no CPU runs need {shown_bytes(bound, 6)}, the "
            f"accelerators have {shown_bytes(room, 6)} together"
        )
