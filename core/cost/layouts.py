"""Memory and exchanges of nodes on several devices at once, by their layouts.

Where a graph has states or phases, nodes state those of a pass as imported: these follow from the
sequences under way and the passes that a plan is for. Parts are equal: 1 / t of what is split.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dnnp.core.cost.load_formula import ALL_GATHER, ALL_REDUCE
from dnnp.core.model.graph import PARAMETER, Graph
from dnnp.core.model.shards import WHOLE, Collective


def is_sized(graph: Graph) -> bool:
    """True if sizes are a matter of plans, as the graph has states or phases."""
    return graph.states is not None or graph.phases is not None


def laid_out(graph: Graph) -> Graph:
    """The graph with what its shards hold and exchange at its sizes, if these are of a plan."""
    shards = graph.shards
    if shards is None or not is_sized(graph):
        return graph
    held, moved, found = graph.in_memory, graph.tensor_bytes, list[Collective]()
    shape = len(shards.degrees), graph.m
    state, gathered = np.full(shape, WHOLE), np.tile(graph.is_output, (shape[0], 1))
    for i, v, _, outputs, _ in shards.shares:
        state[i, graph.writes(v)] = outputs
    for i, v, inputs, _, _ in shards.shares:
        gathered[i, graph.reads(v)[state[i, graph.reads(v)] != inputs]] = True
    gathered &= state != WHOLE
    state[gathered], memory = WHOLE, shards.plain.memory.copy()
    for i, v, inputs, _, reduced in shards.shares:
        made, ends = graph.writes(v), np.append(graph.reads(v), graph.writes(v))
        cut = np.append(inputs, state[i, made]) != WHOLE
        kept = (held.tensor_kind[ends] >= PARAMETER) ^ (np.arange(len(ends)) >= len(inputs))
        parts = held.tensor_bytes[ends] / np.where(cut, shards.degrees[i], 1)
        memory[i, v] = 0.0 if graph.folded[v] else parts[kept].sum()
        summed = [(ALL_REDUCE, x) for x in made if reduced]
        summed += [(ALL_GATHER, x) for x in made if gathered[i, x]]
        found += [Collective(i, v, kind, float(moved[x])) for kind, x in summed]
    share = (shards.degrees - 1) / shards.degrees
    out = np.where(state != WHOLE, moved * share[:, None], 0.0)
    plain = shards.plain._replace(memory=memory)
    changed = replace(shards, plain=plain, collectives=tuple(found), out_bytes=out)
    return replace(graph, shards=changed)
