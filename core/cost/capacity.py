"""Memory that no split can have: what follows from sums alone, before any search.

Every unit is in some stage, and a replica of a stage holds all of it. So the stages of a split hold
each node's memory (`sum`), or each distinct parameter and constant (`peak`), at least once between
them; a unit is never divided. Where that is more than the devices have, no split of any validity
fits. Units that may run where there is no limit, such as on CPUs, are left out of the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np

from dnnp.core.cost.load import node_memory, stage_load
from dnnp.core.cost.load_formula import MARGIN
from dnnp.core.cost.machine import Given
from dnnp.core.model.device import DeviceClass, offered
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.graph import PARAMETER, Floats, Graph, Ints, distinct, totals
from dnnp.core.model.text import shown_bytes


def over_capacity(given: Given) -> InfeasibleError | None:
    """Why no split of units over devices fits; None: sums do not tell. Takes O(n + m)."""
    graph, units = given.graph, given.units
    devices = [d for d in given.devices if d.count > 0]
    if given.options.memory_mode != "hard" or not graph.n or not devices:
        return None
    nowhere = np.full(units.g, np.inf)
    runs = np.isfinite(np.stack([units.times.get(d.name, nowhere) for d in devices]))
    room = np.array([np.inf if d.is_cpu else d.memory_bytes for d in devices])
    summed, what = given.options.memory_model == "sum", "the nodes"
    if summed:
        least = totals(units.label, node_memory(graph), units.g)
    else:
        least = np.zeros(units.g)
        np.maximum.at(least, units.label, _own_activations(graph))
        reader = units.label[np.repeat(np.arange(graph.n), np.diff(graph.in_ptr))]
        static = graph.tensor_kind[graph.in_idx] >= PARAMETER
        pairs = distinct(reader[static] * graph.m + graph.in_idx[static])
        least += totals(pairs // graph.m, graph.tensor_bytes[pairs % graph.m], units.g)
    large = np.flatnonzero(~(runs & (least <= room[:, None] * (1 + MARGIN))).any(axis=0))
    if len(large):
        able = [d for d, fits in zip(devices, runs[:, large[0]], strict=True) if fits]
        return unplaceable_nodes(given, np.flatnonzero(units.label == large[0]), able)
    bound = ~(runs & np.isinf(room)[:, None]).any(axis=0)
    sizes = least[bound]
    if not summed:
        what = "the weights, each counted once,"
        sizes = graph.tensor_bytes[distinct(pairs[bound[pairs // graph.m]] % graph.m)]
    return shortage(float(sizes.sum()), what, devices)


def _own_activations(graph: Graph) -> Floats:
    """Activations that each node reads and writes, which are live while it runs; f64[n], bytes."""
    live = np.where(graph.tensor_kind < PARAMETER, graph.tensor_bytes, 0.0)
    own = np.zeros(graph.n)
    for ptr, idx in ((graph.in_ptr, graph.in_idx), (graph.out_ptr, graph.out_idx)):
        own += totals(np.repeat(np.arange(graph.n), np.diff(ptr)), live[idx], graph.n)
    return own


def shortage(need: float, what: str, devices: Sequence[DeviceClass]) -> InfeasibleError | None:
    """Why devices cannot hold so many bytes between them; None: they can."""
    limited = [d for d in devices if not d.is_cpu and np.isfinite(d.memory_bytes)]
    there = sum(d.count * d.memory_bytes for d in limited)
    if not limited or need <= there * (1 + MARGIN):
        return None
    most = max(d.memory_bytes for d in limited)
    count = ceil(need / most * (1 - MARGIN)) if most else 0
    least = f"; at least {count} devices of {shown_bytes(most, 6)} hold them" if most else ""
    return InfeasibleError(
        f"infeasible: {what} need {shown_bytes(need, 6)}; all devices together have "
        f"{shown_bytes(there, 6)} ({offered(limited)}){least}"
    )


def unplaceable_nodes(given: Given, nodes: Ints, runs: Sequence[DeviceClass]) -> InfeasibleError:
    """Say that nodes which belong together fit none of the devices that run them."""
    graph = given.graph
    name = f"node {graph.node_ids[nodes[0]]} ('{graph.node_names[nodes[0]]}')"
    if len(nodes) > 1:
        name = f"{name} and {len(nodes) - 1} more that belong with it"
    if not runs:
        return InfeasibleError(f"infeasible: {name} cannot run on any device offered")
    need = stage_load(graph, given.units, nodes, runs[0], given.options).memory_bytes
    most = max(d.memory_bytes for d in runs)
    needed, there = shown_bytes(need, 6), shown_bytes(most, 6)
    return InfeasibleError(f"infeasible: {name} needs {needed}; the largest device has {there}")
