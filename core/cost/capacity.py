"""Bounds from sums alone, before any search: memory that no split can have, and work spread.

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
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.device import DeviceClass, offered
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.graph import PARAMETER, Floats, Graph, Ints, distinct, totals
from dnnp.core.model.text import shown_bytes

STEPS = 300
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
    for step in range(STEPS if len(counts) > 1 else 1):
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
        np.maximum.at(least, units.label, _own_activations(graph))
        reader = units.label[np.repeat(np.arange(graph.n), np.diff(graph.in_ptr))]
        static = graph.tensor_kind[graph.in_idx] >= PARAMETER
        pairs = distinct(reader[static] * graph.m + graph.in_idx[static])
        least += totals(pairs // graph.m, graph.tensor_bytes[pairs % graph.m], units.g)
    large = np.flatnonzero(~(runs & (least <= room[:, None] * (1 + MARGIN))).any(axis=0))
    if len(large):
        able = [d for d, fits in zip(devices, runs[:, large[0]], strict=True) if fits]
        return unplaceable_nodes(problem, np.flatnonzero(units.label == large[0]), able)
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
    """The reason why devices cannot hold so many bytes between them; None: they can."""
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


def unplaceable_nodes(
    problem: SplitProblem, nodes: Ints, runs: Sequence[DeviceClass]
) -> InfeasibleError:
    """Say that nodes which belong together fit none of the devices that run them."""
    graph = problem.graph
    name = f"node {graph.node_ids[nodes[0]]} ('{graph.node_names[nodes[0]]}')"
    if len(nodes) > 1:
        name = f"{name} and {len(nodes) - 1} more that belong with it"
        tie = tied_by(graph, nodes)[0]
        name += f", as {tie}," if tie else ""
    if not runs:
        return InfeasibleError(f"infeasible: {name} cannot run on any device offered")
    need = stage_load(graph, problem.units, nodes, runs[0], problem.options).memory_bytes
    most = max(d.memory_bytes for d in runs)
    needed, there = shown_bytes(need, 6), shown_bytes(most, 6)
    return InfeasibleError(f"infeasible: {name} needs {needed}; the largest device has {there}")


def tied_by(graph: Graph, nodes: Ints) -> tuple[str, bool, int]:
    """What joins the nodes of a colour that are farthest apart, in words.

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
