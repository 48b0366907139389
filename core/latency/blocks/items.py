"""Items: what a split into blocks moves as one (2020 paper, Appendix B; `blocks`).

Tasks of one colour and pass lie in one block, and so does whatever lies on a path between two of
them: colours and then strongly connected components are contracted, each pass by itself. Colours
also tie items of different passes to one device. An item lies in one block or wholly in the pool.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from dnnp.core.cost.items import components
from dnnp.core.cost.latency import LatencyProblem, Tasks, host_times, pool_times
from dnnp.core.cost.load_formula import SAFE_ROOM
from dnnp.core.model.graph import Bools, Floats, Ints, connected, csr, distinct, totals


@dataclass(frozen=True, eq=False)
class BlockItems:
    """`c` items in a topological order, their flows, and what they take on `a` accelerators."""

    label: Ints
    """i64[n], item of each task."""
    backward: Bools
    """bool[c]: the item belongs to the backward pass."""
    mixed: Bools
    """bool[c]: a cycle through both passes, which no block can hold."""
    group: Ints
    """i64[c]: items with equal numbers, 0.., must share a device."""
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

    @property
    def count(self) -> int:
        """Number of items."""
        return len(self.memory)

    @property
    def tied(self) -> bool:
        """Whether some items must share a device with others."""
        return len(self.group) > 0 and int(self.group.max()) + 1 < self.count


def block_items(problem: LatencyProblem) -> BlockItems:
    """Contract the tasks of a problem into items."""
    tasks, machine = problem.tasks, problem.machine
    label = _renumber(tasks, _contract(tasks, problem.options.invocations == 1))
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
    use_ptr, use_idx = csr(flow, reader, flows)
    in_ptr, in_idx = csr(reader, flow, count)
    out_ptr, out_idx = csr(maker[made], made, count)
    a, b = tasks.edges
    inner = label[a] != label[b]
    ends = distinct(label[a[inner]] * max(count, 1) + label[b[inner]])
    tail, head = ends // max(count, 1), ends % max(count, 1)
    before_ptr, before_idx = csr(head, tail, count)
    after_ptr, after_idx = csr(tail, head, count)
    member_ptr, member = csr(label[tasks.order], tasks.order, count)
    task_before_ptr, task_before_idx = csr(b, a, n)
    task_after_ptr, task_after_idx = csr(a, b, n)
    pool = pool_times(tasks, machine)
    move = [host_times(tasks, machine, d)[kept] for d in devices.tolist()]
    time = np.array([totals(label, tasks.time[d], count) for d in devices.tolist()])
    time = time.reshape(len(devices), count)
    time[:, mixed] = np.inf
    return BlockItems(
        label=label,
        backward=late & ~mixed,
        mixed=mixed,
        group=_ties(label, tasks.together, count),
        devices=devices,
        time=time,
        memory=totals(label, tasks.memory, count),
        capacity=machine.capacity[devices] * SAFE_ROOM,
        pool=pool,
        pooled=np.isfinite(totals(label, pool, count)),
        maker=maker,
        leaves=tasks.leaves[kept],
        move=np.array(move).reshape(len(devices), flows),
        use_ptr=use_ptr,
        use_idx=use_idx,
        in_ptr=in_ptr,
        in_idx=in_idx,
        out_ptr=out_ptr,
        out_idx=out_idx,
        before_ptr=before_ptr,
        before_idx=before_idx,
        after_ptr=after_ptr,
        after_idx=after_idx,
        member_ptr=member_ptr,
        member_idx=member,
        task_before_ptr=task_before_ptr,
        task_before_idx=task_before_idx,
        task_after_ptr=task_after_ptr,
        task_after_idx=task_after_idx,
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
    count = int(label.max(initial=-1)) + 1
    first = np.full(count, tasks.n, dtype=np.int64)
    np.minimum.at(first, label[tasks.order], np.arange(tasks.n))
    a, b = tasks.edges
    ends = distinct(label[a] * max(count, 1) + label[b])
    tail, head = ends // max(count, 1), ends % max(count, 1)
    tail, head = tail[tail != head], head[tail != head]
    ptr, after = (x.tolist() for x in csr(tail, head, count))
    waits = np.bincount(head, minlength=count).tolist()
    heap = [(int(first[i]), i) for i in range(count) if not waits[i]]
    heapq.heapify(heap)
    number = np.zeros(count, dtype=np.int64)
    placed = 0
    while heap:
        i = heapq.heappop(heap)[1]
        number[i] = placed
        placed += 1
        for j in after[ptr[i] : ptr[i + 1]]:
            waits[j] -= 1
            if not waits[j]:
                heapq.heappush(heap, (int(first[j]), j))
    return number[label]


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
