"""What prices are given for: groups, or nodes where there are no groups."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dnnp.core.check.tables import Tables
from dnnp.core.model.cluster import Clustering
from dnnp.core.model.graph import Graph
from dnnp.core.model.plan import Stage


@dataclass(frozen=True)
class Units:
    """The units of a stream, in lists."""

    what: str
    of_node: list[int]
    ids: list[int]
    times: Mapping[str, list[float]]
    backward: list[bool]
    """Whether all members belong to the backward pass."""


def units_of(graph: Graph, clustering: Clustering | None, tables: Tables) -> Units:
    """Copy the groups, or the nodes, with their times."""
    if clustering is None:
        times = {name: array.tolist() for name, array in graph.times.items()}
        return Units("node", list(range(tables.n)), tables.ids, times, tables.backward)
    times = {name: array.tolist() for name, array in clustering.times.items()}
    of_node = clustering.label.tolist()
    backward = [True] * clustering.g
    for node, group in enumerate(of_node):
        backward[group] &= tables.backward[node]
    return Units("group", of_node, clustering.group_ids.tolist(), times, backward)


def compute_of(
    units: Units, stage: Stage, block: list[int]
) -> tuple[tuple[float, float], list[str]]:
    """Compute time of a stage, forward and backward, and why it is infinite, if it is.

    A group counts once in every stage that holds a member.
    """
    held = sorted({units.of_node[node] for node in block})
    times = units.times.get(stage.device_class)
    if times is None:
        times = [math.inf] * len(units.ids)
        unsupported = [f"nothing is priced for device class '{stage.device_class}'"]
    else:
        unsupported = [
            f"{units.what} {units.ids[unit]} cannot run on '{stage.device_class}'"
            for unit in held
            if math.isinf(times[unit])
        ]
    early = math.fsum(times[unit] for unit in held if not units.backward[unit])
    late = math.fsum(times[unit] for unit in held if units.backward[unit])
    return (early, late), unsupported
