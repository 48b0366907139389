"""Times by what a device file says, on one device or on several at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from dnnp.core.model.cluster import Clustering
    from dnnp.core.model.graph import Bools, Floats, Graph, Ints
    from dnnp.core.profile.kernels import Kernels
    from dnnp.core.profile.work import Work
    from dnnp.formats.inputs.devices import DeviceSpec
    from dnnp.formats.stream import Stream


_WHOLE = "ort"
"""How rules of groups begin that are known to run as one operator."""


def analytic_times(
    stream: Stream, graph: Graph, groups: Clustering | None, work: Work, device: DeviceSpec
) -> tuple[Floats, Floats | None]:
    """Seconds of the nodes, f64[n], and of the groups, f64[g], if there are any, on a device."""
    from dnnp.core.profile.kernels import kernel_times
    from dnnp.core.profile.work import group_times, node_times

    if not device.operators:
        grouped = (
            None if groups is None else group_times(graph, work, groups.label, groups.g, device)
        )
        return node_times(work, device), grouped
    units = fused(stream, graph)
    alone = np.arange(graph.n, dtype=np.int64)
    nodes = kernel_times(kernels_by(stream, graph, work, alone, units), device)
    if groups is None:
        return nodes, None
    kernels, group = kernels_in(stream, graph, groups, work, units)
    times = kernel_times(kernels, device)
    together: Floats = np.bincount(group, weights=times, minlength=groups.g).astype(np.float64)
    return nodes, together


def fused(stream: Stream, graph: Graph) -> tuple[Ints, tuple[str, ...], Bools]:
    """What `fused_units` finds by the rules of ONNX Runtime on a CPU."""
    from dnnp.core.coarsen.coarsen import fused_units
    from dnnp.core.coarsen.mirror import mirrored_units, twins_of
    from dnnp.formats.graph import graph_of
    from dnnp.formats.inputs.rules import load_rules
    from dnnp.formats.stream import forward_pass
    from dnnp.options.choices import DEFAULT_RULES

    twins = twins_of(stream.get("node"))
    part = stream if twins is None else forward_pass(stream)
    shapes = [tuple(r["shape"]) if "shape" in r else None for r in part.get("tensor")]
    rules = load_rules(DEFAULT_RULES)
    if twins is None:
        return fused_units(graph, shapes, rules)
    forward = graph_of(part)
    unit, formed, constant = fused_units(forward, shapes, rules)
    known = np.isin(graph.tensor_ids, forward.tensor_ids[constant])
    return *mirrored_units(graph, twins, unit, formed), known


def kernels_by(
    stream: Stream,
    graph: Graph,
    work: Work,
    label: Ints,
    units: tuple[Ints, tuple[str, ...], Bools],
) -> Kernels:
    """Kernels of the nodes with equal labels, 0..q-1; one that is a whole unit has its rule."""
    from dnnp.core.profile.kernels import kernels_of

    unit, rules, constant = units
    _, first, size = np.unique(label, return_index=True, return_counts=True)
    whole = np.bincount(unit, minlength=graph.n)[unit[first]] == size
    named = [rules[unit[v]] if all_ else "" for v, all_ in zip(first, whole, strict=True)]
    return kernels_of(graph, work, stream.get("tensor"), label, named, constant)


def kernels_in(
    stream: Stream,
    graph: Graph,
    groups: Clustering,
    work: Work,
    units: tuple[Ints, tuple[str, ...], Bools],
) -> tuple[Kernels, Ints]:
    """Kernels of the groups of a stream, and group of each kernel, i64[q]."""
    kernel, group = _within(units[0], stream, groups)
    return kernels_by(stream, graph, work, kernel, units), group


def _within(unit: Ints, stream: Stream, groups: Clustering) -> tuple[Ints, Ints]:
    """Kernel of each node, i64[n], and group of each kernel, i64[q].

    Fused operators are kernels as far as they lie in one group, and so are groups that are known to
    run as one.
    """
    label = groups.label
    one = np.array([str(r.get("rule", "")).startswith(_WHOLE) for r in stream.get("group")])
    key = np.where(one[label], 0, unit + 1)
    pairs, kernel = np.unique(label * (len(unit) + 1) + key, return_inverse=True)
    return kernel.reshape(-1), pairs // (len(unit) + 1)


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
    from dnnp.core.tensor_parallel.rules import part

    return weighted((size, part(state, t)) for size, state in ends)


def weighted(ends: Iterable[tuple[float, float]]) -> float:
    """Mean share of tensors, by their size: `ends` are size and share of each."""
    known = list(ends)
    whole = sum(size for size, _ in known)
    return sum(size * share for size, share in known) / whole if whole else 1.0


def _factors(nodes: Sequence[dict[str, Any]], units: Clustering, name: str) -> list[float]:
    """Time of the group of each node over that of its nodes; 1 where that says nothing."""
    import numpy as np

    from dnnp.core.model.graph import totals

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
