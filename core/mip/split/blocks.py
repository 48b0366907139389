"""Between places of items and blocks of nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dnnp.core.mip.split.draft import Draft
from dnnp.core.mip.split.shape import by_work
from dnnp.core.mip.split.task import Place
from dnnp.core.model.graph import Graph, Ints, csr, distinct
from dnnp.core.model.plan import Block


def blocks_of(graph: Graph, draft: Draft, at: Ints) -> list[Block]:
    """Blocks of an assignment (place of every item, i64[items]), by place."""
    line = draft.task.line
    place_of_node = np.repeat(at, np.diff(line.node_ptr))
    blocks = []
    for i in distinct(at).tolist():
        nodes = line.nodes[place_of_node == i]
        place = draft.places[i]
        nodes = nodes[np.argsort(graph.rank[nodes])]
        blocks.append(Block(nodes, draft.task.devices[place.device], place.replicas))
    return blocks


def places_of_blocks(draft: Draft, item_of_node: Ints, blocks: Sequence[Block]) -> Ints | None:
    """Place of every item for given blocks, numbered as the program wants it; None: no fit."""
    names = [d.name for d in draft.task.devices]
    block_of_item = np.full(draft.task.line.n, -1, dtype=np.int64)
    for b, block in enumerate(blocks):
        block_of_item[item_of_node[block.nodes]] = b
    for b, block in enumerate(blocks):
        if block.device.name not in names or (block_of_item[item_of_node[block.nodes]] != b).any():
            return None
    if draft.task.ordered:
        order = _pipeline(draft, block_of_item, len(blocks))
    else:
        order = list(dict.fromkeys(int(block_of_item[v]) for v in by_work(draft)))
    if order is None:
        return None
    at = np.full(draft.task.line.n, -1, dtype=np.int64)
    free = list(range(len(draft.places)))
    for step, b in enumerate(order):
        kind = Place(
            names.index(blocks[b].device.name),
            blocks[b].replicas,
            step if draft.task.ordered else -1,
        )
        i = next((i for i in free if draft.places[i] == kind), None)
        if i is None:
            return None
        free.remove(i)
        at[block_of_item == b] = i
    return at


def _pipeline(draft: Draft, block_of_item: Ints, count: int) -> list[int] | None:
    """An order of the blocks that keeps the precedence of items; None if there is none."""
    tail, head = block_of_item[draft.task.line.tail], block_of_item[draft.task.line.head]
    apart = tail != head
    pairs = distinct(tail[apart] * count + head[apart])
    ptr, after = csr(pairs // count, pairs % count, count)
    waiting = np.bincount(pairs % count, minlength=count).tolist()
    ready = [b for b in range(count) if not waiting[b]]
    order: list[int] = []
    while ready:
        order.append(ready.pop(0))
        for b in after[ptr[order[-1]] : ptr[order[-1] + 1]].tolist():
            waiting[b] -= 1
            if not waiting[b]:
                ready.append(b)
    return order if len(order) == count else None
