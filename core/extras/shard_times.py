"""Times of nodes on several devices at once, by what device files say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from dnnp.core.model.graph import Clustering, Graph, totals
from dnnp.core.profile.work import Work
from dnnp.core.tensor_parallel.rules import part
from dnnp.formats.inputs.devices import DeviceSpec


@dataclass(frozen=True, eq=False)
class ShardTimes:
    """Nodes on `t` devices of some classes."""

    nodes: Sequence[dict[str, Any]]
    """Their records."""
    devices: Sequence[DeviceSpec]
    arithmetic: Sequence[Sequence[float]]
    """Of each class and node the seconds of its arithmetic alone."""
    traffic: Sequence[float]
    """Bytes that nodes move."""
    factor: Sequence[float]
    """Time of the group of each node over that of its nodes, on the first class: a layout is chosen
    for groups, whose nodes run together."""
    t: int

    @classmethod
    def of(
        cls,
        nodes: Sequence[dict[str, Any]],
        units: Clustering,
        work: Work,
        devices: Sequence[DeviceSpec],
        t: int,
    ) -> ShardTimes:
        """From the groups and the work of all nodes."""
        from dnnp.core.profile.work import compute_times

        arithmetic = [compute_times(work, device).tolist() for device in devices]
        factor = _factors(nodes, units, devices[0].name)
        return cls(nodes, devices, arithmetic, work.bytes.tolist(), factor, t)

    def whole(self, v: int) -> list[float]:
        """Seconds of a node that each device runs, by class."""
        return [float(self.nodes[v]["time_s"][device.name]) for device in self.devices]

    def shared(self, v: int, moved: float, share: float | None = None) -> list[float]:
        """Seconds of a node that devices share, by class.

        `moved` is the share of the bytes of its tensors that each moves, `share` that of the
        arithmetic; None: 1 / t.
        """
        mine = 1 / self.t if share is None else share
        found = []
        for whole, device, compute in zip(
            self.whole(v), self.devices, self.arithmetic, strict=True
        ):
            before = _roofline(compute[v], self.traffic[v], device)
            after = _roofline(compute[v] * mine, self.traffic[v] * moved, device)
            found.append(whole * after / before if before else whole)
        return found


def ends_of(graph: Graph) -> tuple[list[list[int]], list[list[int]]]:
    """Tensors that each node reads, and that it writes."""
    sides = []
    for ptr, idx in ((graph.in_ptr, graph.in_idx), (graph.out_ptr, graph.out_idx)):
        at = ptr.tolist()
        sides.append([idx[a:b].tolist() for a, b in pairwise(at)])
    return sides[0], sides[1]


def moved_share(ends: Iterable[tuple[float, int]], t: int) -> float:
    """Share of the bytes of tensors that each of `t` devices moves.

    `ends`: size and state of each tensor.
    """
    return weighted((size, part(state, t)) for size, state in ends)


def weighted(ends: Iterable[tuple[float, float]]) -> float:
    """Mean share of tensors, by their size: `ends` are size and share of each."""
    known = list(ends)
    whole = sum(size for size, _ in known)
    return sum(size * share for size, share in known) / whole if whole else 1.0


def _factors(nodes: Sequence[dict[str, Any]], units: Clustering, name: str) -> list[float]:
    """Time of the group of each node over that of its nodes; 1 where that says nothing."""
    own = np.array([record["time_s"][name] for record in nodes], dtype=np.float64)
    summed = totals(units.label, own, units.g)
    stated = units.times.get(name, summed)
    usable = (summed > 0) & np.isfinite(stated)
    factor = np.divide(stated, summed, out=np.ones(units.g), where=usable)
    return [float(f) for f in factor[units.label]]


def _roofline(compute_s: float, bytes_: float, device: DeviceSpec) -> float:
    import numpy as np

    from dnnp.core.profile.work import roofline

    return float(roofline(np.array([compute_s]), np.array([bytes_]), device)[0])
