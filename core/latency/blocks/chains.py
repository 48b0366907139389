"""Chains of items contracted, as a restriction and as a relaxation of a split into blocks.

In a chain u, v, ... each item makes one flow, which the next item alone reads, and reads no other.
A restricted split keeps chains together: it has fewer items, and few ideals. In a relaxed one the
*tail* of a chain, all of it but u, is free in part:

    in a block    time and memory of the tail count if a reader of the chain is in the block
    in the pool   readers in the pool wait for the tail, or for two moves if these take less time
    between       other readers wait for u alone; a move is the least of the chain

Every split has a relaxed one that takes no longer: each chain is where u was. If a reader is in the
block of u, the whole chain is there in both, at the same price. Else the block of u wrote a flow of
the chain, other blocks read one, and the tail is no longer theirs; and where u and a reader are in
the pool but part of the tail was not, that part was read and written between them.

So the time from an ideal to the end is at least that from the ideal of the chains whose u it holds,
with as many blocks before it or fewer. All this also holds from chains to longer chains.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dnnp.core.cost.latency import LatencyProblem
from dnnp.core.kernels.kernel import plain
from dnnp.core.latency.blocks.items import BlockItems, block_items
from dnnp.core.model.graph import Bools, Floats, Ints, csr
from dnnp.core.split.ideals.lattice import make_lattice


class Tails(NamedTuple):
    """Costs of the tails of items where they count; see above."""

    time: Floats
    """f64[a, c], seconds."""
    memory: Floats
    """f64[c], bytes."""
    pool_only: Bools
    """bool[n]: readers in blocks do not wait for the task."""


class Chains(NamedTuple):
    """Items after chains are contracted."""

    items: BlockItems
    """Chains are kept together."""
    relaxed: BlockItems
    """The tails of chains are free; they are in `tails`."""
    tails: Tails
    head: Ints
    """i64[n], first task of the chain of each task that is in one, else the task."""


def no_tails(items: BlockItems) -> Tails:
    """Tails of items that are no chains."""
    return Tails(
        np.zeros((len(items.devices), items.size)),
        np.zeros(items.size),
        np.zeros(len(items.label), dtype=np.bool_),
    )


def join_losses(items: BlockItems) -> Floats:
    """Loss of joining each item to the one before it, f64[c]; inf where that is not allowed.

    It is the share of the item in all time plus that in all memory.
    """
    before, after = np.diff(items.before_ptr), np.diff(items.after_ptr)
    alone = (np.diff(items.member_ptr) == 1) & ~items.mixed & items.pooled
    alone &= np.diff(items.group_ptr)[items.group] == 1
    alone &= np.isfinite(items.time).all(axis=0) & (np.diff(items.out_ptr) == 1) & (after > 0)
    spent = items.time.min(axis=0, initial=np.inf)
    whole = max(float(spent[np.isfinite(spent)].sum()), 1e-300)
    loss = spent / whole + items.memory / max(float(items.capacity.sum()), 1e-300)
    for v in range(items.size):
        u = int(items.before_idx[items.before_ptr[v]]) if before[v] == 1 else v
        joins = alone[u] and alone[v] and u < v and after[u] == 1 and items.late[u] == items.late[v]
        flows = items.in_idx[items.in_ptr[v] : items.in_ptr[v + 1]]
        if not joins or len(flows) != 1 or items.leaves[flows[0]]:
            loss[v] = np.inf
    return loss


def joins_of(items: BlockItems, most: int) -> Bools | None:
    """The cheapest joins that leave at most `most` ideals, bool[c]; None: there are none."""
    loss = join_losses(items)
    limits = np.unique(loss[np.isfinite(loss)])
    low, high = 0, len(limits)
    while low < high:
        middle = (low + high) // 2
        if _few_ideals(items, loss <= limits[middle], most):
            high = middle
        else:
            low = middle + 1
    return loss <= limits[low] if low < len(limits) else None


def _few_ideals(items: BlockItems, joined: Bools, most: int) -> bool:
    """True if chains of joined items have at most `most` ideals."""
    number = (np.cumsum(~joined) - 1)[_heads(items, joined)]
    tail = number[np.repeat(np.arange(items.size), np.diff(items.after_ptr))]
    head = number[items.after_idx]
    apart = tail != head
    return make_lattice(int(number.max()) + 1, tail[apart], head[apart], most) is not None


def _heads(items: BlockItems, joined: Bools) -> Ints:
    """First item of the chain of each item."""
    head = np.arange(items.size)
    for v in np.flatnonzero(joined).tolist():
        head[v] = head[items.before_idx[items.before_ptr[v]]]
    return head


def contract_chains(problem: LatencyProblem, items: BlockItems, joined: Bools) -> Chains:
    """Contract the chains that joined items make."""
    task = items.member_idx[items.member_ptr[:-1]]
    first = _heads(items, joined)
    head = np.arange(len(items.label))
    head[task[joined]] = task[first[joined]]
    tied = problem.tasks.together.copy()
    tied[task[joined]] = tied[task[first[joined]]]
    coarse = block_items(replace(problem, tasks=replace(problem.tasks, together=tied)))
    tails = no_tails(coarse)
    time, memory, move, pool = plain(coarse.time, coarse.memory, coarse.move, coarse.pool)
    for u in np.unique(first[joined]).tolist():
        rest = np.flatnonzero((first == u) & joined)
        c = coarse.label[task[u]]
        time[:, c], memory[c] = items.time[:, u], items.memory[u]
        tails.time[:, c] = items.time[:, rest].sum(axis=1)
        tails.memory[c] = items.memory[rest].sum()
        tails.pool_only[task[rest]] = True
        made = items.out_idx[items.out_ptr[np.append(rest, u)]]
        least = items.move[:, made].min(axis=1)
        move[:, coarse.out_idx[coarse.out_ptr[c]]] = least
        spent = min(pool[task[rest]].sum(), 2 * least.min(initial=np.inf))
        pool[task[rest]] = 0.0
        pool[task[rest[0]]] = spent
    relaxed = coarse._replace(time=time, memory=memory, move=move, pool=pool)
    return Chains(coarse, _reading_heads(relaxed, tails.pool_only, head), tails, head)


def _reading_heads(items: BlockItems, pool_only: Bools, head: Ints) -> BlockItems:
    """Add an edge from the first task of a chain to each reader of the chain."""
    count = len(head)
    maker = np.repeat(np.arange(count), np.diff(items.task_after_ptr))
    reader = items.task_after_idx
    last = pool_only[maker] & (items.label[maker] != items.label[reader])
    maker, reader = np.append(maker, head[maker[last]]), np.append(reader, reader[last])
    before_ptr, before = csr(reader, maker, count)
    after_ptr, after = csr(maker, reader, count)
    return items._replace(
        task_before_ptr=before_ptr,
        task_before_idx=before,
        task_after_ptr=after_ptr,
        task_after_idx=after,
    )
