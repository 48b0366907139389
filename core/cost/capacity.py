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

from dnnp.core.cost.combine import MARGIN
from dnnp.core.cost.load import node_memory, stage_load
from dnnp.core.cost.machine import Given
from dnnp.core.model.device import DeviceClass, offered
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.graph import PARAMETER, Bools, Floats, Graph, Ints, distinct, totals
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
    summed = given.options.memory_model == "sum"
    need = node_memory(graph) if summed else _own_activations(graph)
    least = totals(units.label, need, units.g)
    if not summed:
        least = np.zeros(units.g)
        np.maximum.at(least, units.label, need)
        static = _static_reads(graph, np.ones(graph.n, dtype=np.bool_))
        pairs = distinct(units.label[static[0]] * graph.m + static[1])
        least += totals(pairs // graph.m, graph.tensor_bytes[pairs % graph.m], units.g)
    fits = runs & (least <= room[:, None] * (1 + MARGIN))
    large = np.flatnonzero(~fits.any(axis=0))
    if len(large):
        nodes = np.flatnonzero(units.label == large[0])
        return unplaceable_nodes(
            given, nodes, [devices[c] for c in np.flatnonzero(runs[:, large[0]])]
        )
    bound = ~(runs & np.isinf(room)[:, None]).any(axis=0)
    if summed:
        return shortage(float(least[bound].sum()), "the nodes", devices)
    read = distinct(_static_reads(graph, bound[units.label])[1])
    return shortage(
        float(graph.tensor_bytes[read].sum()), "the weights, each counted once,", devices
    )


def _static_reads(graph: Graph, chosen: Bools) -> tuple[Ints, Ints]:
    """Chosen nodes with the parameters and constants that they read: nodes and tensors, i64[p]."""
    reader = np.repeat(np.arange(graph.n), np.diff(graph.in_ptr))
    static = chosen[reader] & (graph.tensor_kind[graph.in_idx] >= PARAMETER)
    return reader[static], graph.in_idx[static]


def _own_activations(graph: Graph) -> Floats:
    """Activations that each node reads and writes, which are live while it runs; f64[n], bytes."""
    reader = np.repeat(np.arange(graph.n), np.diff(graph.in_ptr))
    writer = np.repeat(np.arange(graph.n), np.diff(graph.out_ptr))
    live = np.where(graph.tensor_kind < PARAMETER, graph.tensor_bytes, 0.0)
    own = totals(reader, live[graph.in_idx], graph.n)
    return own + totals(writer, live[graph.out_idx], graph.n)


def shortage(need: float, what: str, devices: Sequence[DeviceClass]) -> InfeasibleError | None:
    """Why devices cannot hold so many bytes between them; None: they can."""
    limited = [d for d in devices if not d.is_cpu and np.isfinite(d.memory_bytes)]
    there = sum(d.count * d.memory_bytes for d in limited)
    if not limited or need <= there * (1 + MARGIN):
        return None
    least = ""
    most = max((d.memory_bytes for d in limited), default=0.0)
    if most > 0:
        count = ceil(need / most * (1 - MARGIN))
        least = f"; at least {count} devices of {shown_bytes(most, 6)} hold them"
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
