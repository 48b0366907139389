"""Peak memory of every device of a free split."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnp.core.kernels.kernel import callee, plain
from dnnp.core.model.graph import CONSTANT, PARAMETER, Floats, Graph, Ints, csr_rows
from dnnp.core.model.plan import CostOptions


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
