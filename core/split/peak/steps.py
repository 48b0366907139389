"""Nodes of a block and the tensors that are live while they run.

Between two steps the live bytes are a function of the set of nodes that have run; they are
submodular in it. Running a node costs the live bytes before it plus what it makes; the peak of
an order is its most expensive step (MTPP, section 2: peak memory scheduling).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.kernels.kernel import kernel, plain
from dnnp.core.model.graph import ACTIVATION, INPUT, Floats, Graph, Ints, csr, csr_rows, distinct


class Steps(NamedTuple):
    """`n` nodes, numbered in some topological order, and `t` tensors; CSR rows."""

    read_ptr: Ints
    reads: Ints
    """Tensors that each node reads."""
    make_ptr: Ints
    makes: Ints
    """Tensors that each node makes."""
    use_ptr: Ints
    uses: Ints
    """Nodes that read each tensor, ascending."""
    maker: Ints
    """i64[t], node that makes the tensor; -1: it is live from the start."""
    stays: np.ndarray
    """bool[t]: once live, the tensor stays so."""
    size: Floats
    """f64[t], bytes."""
    made: Floats
    """f64[n], bytes that each node makes."""
    needs: Ints
    """i64[n], tensors that each node reads and another of the nodes makes."""


def steps_of(graph: Graph, nodes: Ints) -> tuple[Steps, float]:
    """Steps of a block, and the bytes live before the first.

    `nodes` are positions in execution order; step i is nodes[i].
    """
    n = len(nodes)
    step = np.full(graph.n, -1, dtype=np.int64)
    step[nodes] = np.arange(n)
    reader, read = _rows(graph.in_ptr, graph.in_idx, nodes)
    live = (graph.tensor_kind[read] == INPUT) | (graph.tensor_kind[read] == ACTIVATION)
    reader, read = reader[live], read[live]
    maker, made = _rows(graph.out_ptr, graph.out_idx, nodes)
    tensors = distinct(np.concatenate([read, made]))
    local = np.empty(graph.m, dtype=np.int64)
    local[tensors] = np.arange(len(tensors))
    source = np.where(graph.producer[tensors] >= 0, step[graph.producer[tensors]], -1)
    inside = np.bincount(local[read], minlength=len(tensors))
    leaves = graph.is_output[tensors] | (np.diff(graph.use_ptr)[tensors] > inside)
    size = graph.tensor_bytes[tensors]
    steps = make_steps(
        n, reader, local[read], maker, local[made], (source >= 0) & leaves, size, source
    )
    return steps, float(size[source < 0].sum())


def make_steps(
    n: int,
    reader: Ints,
    read: Ints,
    maker: Ints,
    made: Ints,
    stays: np.ndarray,
    size: Floats,
    source: Ints,
) -> Steps:
    """Steps from pairs (reader, read) and (maker, made) of nodes and tensors."""
    read_ptr, reads = csr(reader, read, n)
    make_ptr, makes = csr(maker, made, n)
    order = np.argsort(reader, kind="stable")
    use_ptr, uses = csr(read[order], reader[order], len(size))
    total = np.bincount(maker, weights=size[made], minlength=n).astype(np.float64)
    needs = np.bincount(reader[source[read] >= 0], minlength=n).astype(np.int64)
    return Steps(
        *plain(read_ptr, reads, make_ptr, makes, use_ptr, uses, source, stays, size, total, needs)
    )


def part_of(steps: Steps, nodes: Ints, before: Ints) -> Steps:
    """Steps of some of the nodes, in this order, run after the nodes `before`.

    A tensor that nodes of neither kind read later stays; `nodes` and `before` together are
    closed under producers.
    """
    n = len(steps.made)
    place = np.full(n, n, dtype=np.int64)
    place[before] = -1
    place[nodes] = np.arange(len(nodes))
    reader, read = _rows(steps.read_ptr, steps.reads, nodes)
    maker, made = _rows(steps.make_ptr, steps.makes, nodes)
    tensors = distinct(np.concatenate([read, made]))
    local = np.empty(len(steps.size), dtype=np.int64)
    local[tensors] = np.arange(len(tensors))
    owner, users = _rows(steps.use_ptr, steps.uses, tensors)
    later = np.bincount(owner, weights=place[users] == n, minlength=len(tensors)) > 0
    source = np.where(steps.maker[tensors] >= 0, place[steps.maker[tensors]], -1)
    return make_steps(
        len(nodes),
        reader,
        local[read],
        maker,
        local[made],
        steps.stays[tensors] | later,
        steps.size[tensors],
        source,
    )


def _rows(ptr: Ints, idx: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """Pairs (position in `rows`, item) of the CSR rows `rows`."""
    chosen, items = csr_rows(ptr, idx, rows)
    return np.repeat(np.arange(len(rows), dtype=np.int64), np.diff(chosen)), items


@kernel
def walk(steps, start, order):  # type: ignore[no-untyped-def]
    """Bytes live before each step, and while it runs; f64[n] each."""
    n = len(order)
    before, during = np.empty(n), np.empty(n)
    left = steps.use_ptr[1:] - steps.use_ptr[:-1]
    live = start
    for p in range(n):
        v = order[p]
        before[p] = live
        live += steps.made[v]
        during[p] = live
        for i in range(steps.read_ptr[v], steps.read_ptr[v + 1]):
            t = steps.reads[i]
            left[t] -= 1
            if left[t] == 0 and not steps.stays[t]:
                live -= steps.size[t]
        for i in range(steps.make_ptr[v], steps.make_ptr[v + 1]):
            t = steps.makes[i]
            if left[t] == 0 and not steps.stays[t]:
                live -= steps.size[t]
    return before, during


def walk_given(steps: Steps, start: float) -> tuple[Floats, Floats]:
    """`walk` for the order in which the nodes are numbered; nothing is compiled."""
    n = len(steps.made)
    uses = np.diff(steps.use_ptr)
    last = steps.maker.copy()
    last[uses > 0] = steps.uses[steps.use_ptr[1:][uses > 0] - 1]
    ends = ~steps.stays
    freed = np.bincount(last[ends], weights=steps.size[ends], minlength=n)
    before = start + np.concatenate([np.zeros(1), np.cumsum(steps.made - freed)])[:n]
    return before, before + steps.made


def cuts(steps: Steps) -> np.ndarray:
    """bool[n]: the node stands before or after every other one, in all orders."""
    n = len(steps.made)
    reader = np.repeat(np.arange(n), np.diff(steps.read_ptr))
    maker = steps.maker[steps.reads]
    reader, maker = reader[maker >= 0], maker[maker >= 0]
    first, last = np.full(n, n, dtype=np.int64), np.full(n, -1, dtype=np.int64)
    np.minimum.at(first, maker, reader)
    np.maximum.at(last, reader, maker)
    # A node all of whose readers come later than v is not ordered against v; and so backwards.
    furthest = np.concatenate([np.full(1, -1), np.maximum.accumulate(first)])[:n]
    nearest = np.concatenate([np.minimum.accumulate(last[::-1])[::-1], np.full(1, n)])[1:]
    place = np.arange(n)
    cut: np.ndarray = (furthest <= place) & (nearest >= place)
    return cut


def largest_step(steps: Steps, start: float) -> float:
    """Bytes that some step takes in every order: what it reads and makes, and what stays."""
    n = len(steps.made)
    entered = steps.maker < 0
    held = start - float(steps.size[entered & ~steps.stays].sum())
    counted = ~(entered & steps.stays)[steps.reads]
    reader = np.repeat(np.arange(n), np.diff(steps.read_ptr))
    read = np.bincount(reader[counted], weights=steps.size[steps.reads[counted]], minlength=n)
    end = held + float(steps.size[~entered & steps.stays].sum())
    return float(max(start, end, (held + read + steps.made).max(initial=0.0)))
