"""Times by what a device file says: a roofline, or rates of families of operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from dnnp.core.model.cluster import Clustering
    from dnnp.core.model.graph import Bools, Floats, Graph, Ints
    from dnnp.core.profile.kernels import Kernels
    from dnnp.core.profile.work import Work
    from dnnp.formats.devices import DeviceSpec
    from dnnp.formats.stream import Stream

_WHOLE = "ort"
"""How rules of groups begin that are known to run as one operator."""


def analytic_times(
    stream: Stream, graph: Graph, groups: Clustering | None, work: Work, device: DeviceSpec
) -> tuple[Floats, Floats | None]:
    """Seconds of the nodes, f64[n], and of the groups, f64[g], if there are any, on a device."""
    from dnnp.core.profile.kernels import kernel_times
    from dnnp.core.profile.roofline import group_times, node_times

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
    from dnnp.choices import DEFAULT_RULES
    from dnnp.core.coarsen.coarsen import fused_units
    from dnnp.core.coarsen.mirror import mirrored_units, twins_of
    from dnnp.formats.graph import graph_of
    from dnnp.formats.rules import load_rules
    from dnnp.formats.stream import forward_pass

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
