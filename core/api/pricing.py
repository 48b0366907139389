"""Price the nodes and groups of a stream, and say what a graph costs in a few lines."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dnnp.callbacks import Callbacks
from dnnp.core.model.errors import FormatError, UsageError
from dnnp.core.model.text import counted, operator_name, shown_seconds

if TYPE_CHECKING:
    from dnnp.core.model.graph import Bools, Clustering, Floats, Graph, Ints
    from dnnp.core.profile.kernels import Kernels
    from dnnp.core.profile.work import Work
    from dnnp.formats.inputs.devices import DeviceSpec
    from dnnp.formats.rows import Rows
    from dnnp.formats.stream import Record, Stream

_NAMED = 12
"""Operator types that a warning lists."""

_BY_RATES = ("analytic", "scaled")
"""Ways to price that go by what device files say."""

Times = Mapping[str, Sequence[float]]
"""Device class -> seconds, by position of the record."""


def price_analytic(stream: Stream, devices: Sequence[DeviceSpec], caller: Callbacks) -> None:
    """Price every node and group by the roofline of each device; one warning at most."""
    check_units(stream)
    from dnnp.core.profile.work import group_traffic, work_by_columns
    from dnnp.formats.graph import clustering_of, graph_of
    from dnnp.formats.rows import columns

    graph = graph_of(stream)
    groups = clustering_of(stream, graph, priced=False)
    told = columns(stream.rows("node"), {"flop": math.nan, "bytes": math.nan, "partial": False})
    dtypes = columns(stream.rows("tensor"), {"dtype": ""})["dtype"]
    work = work_by_columns(graph, told["flop"], told["bytes"], told["partial"], dtypes)
    found = {d.name: analytic_times(stream, graph, groups, work, d) for d in devices}
    times = {name: nodes.tolist() for name, (nodes, _) in found.items()}
    _warn_unknown(stream, work, times, caller)
    note_unfitted(devices, caller)
    group_costs: dict[str, list[float]] | None = None
    if groups is not None:
        group_costs = {name: t.tolist() for name, (_, t) in found.items() if t is not None}
        stated = np.nan_to_num(told["flop"])
        flop = np.bincount(groups.label, weights=stated, minlength=groups.g)
        moved = group_traffic(graph, work, groups.label, groups.g)
        for record, f, b in zip(stream.get("group"), flop.tolist(), moved.tolist(), strict=True):
            record["flop"], record["bytes"] = f, b
    write_costs(stream, devices, times, group_costs, "analytic", caller)


class _Quiet(Callbacks):
    """Callbacks that tell nothing again of a phase that was told of another."""

    def warn(self, message: str) -> None:
        """Told what the user must know."""


def price_phases(
    stream: Stream,
    price: Callable[[Stream, Callbacks], None],
    caller: Callbacks,
    *,
    aloud: bool = False,
) -> None:
    """Price the graph of a stream, in each of its phases if it has any.

    `aloud`: all of them are told of.
    """
    from dnnp.formats.phases import priced_view, put_times

    price(stream, caller)
    for i, record in enumerate(stream.get("phase")[1:], 1):
        view = priced_view(stream, i)
        price(view, caller if aloud else _Quiet())
        put_times(record, view)


def note_unfitted(devices: Sequence[DeviceSpec], caller: Callbacks) -> None:
    """Say which devices are priced by their vendors' figures alone."""
    unfitted = [device.name for device in devices if not device.is_fitted]
    if unfitted:
        caller.note(
            f"{', '.join(unfitted)}: priced by stated rates, not by rates fitted to operators that "
            "ran there (python -m dnnp.samples.fit_device)"
        )


def check_units(stream: Stream) -> None:
    """Refuse to mix seconds with costs whose unit is unknown.

    Raises UsageError: the stream has costs of its own in an unknown unit.
    """
    if stream.in_seconds:
        return
    from dnnp.formats.rows import has

    if has(stream.rows("node"), "time_s") or has(stream.rows("tensor"), "transfer_s"):
        raise UsageError(
            "the stream has costs of its own, in an unknown unit of time; seconds would not fit "
            "them (use them as they are, or import the model again)"
        )


def write_costs(
    stream: Stream,
    devices: Sequence[DeviceSpec],
    node_costs: Times,
    group_costs: Times | None,
    how: str,
    caller: Callbacks,
) -> None:
    """Put costs on nodes and groups, with a device record for each class.

    Parameters
    ----------
    how
        `cost` of the groups: `analytic`, `measured`, `scaled` or `summed`.

    Raises FormatError: A time lies beyond what a record may hold.
    """
    from dnnp.formats.edited_costs import basis_of, forget_old_costs, work_of
    from dnnp.formats.fields import MAX_NUMBER
    from dnnp.formats.inputs.devices import class_record

    for name, values in node_costs.items():
        largest = max(values, default=0.0)
        if not largest <= MAX_NUMBER:
            raise FormatError(f"a node takes {largest} s on '{name}'; the limit is {MAX_NUMBER}")
    forget_old_costs(stream, node_costs)
    _put(stream, "node", node_costs)
    dropped = stream.replace("cost", stream.rows("node"))
    _put_memory(stream, on_cpu=all(d.provider == "cpu" for d in devices))
    if group_costs is not None:
        _put(stream, "group", group_costs)
        node = {record["id"]: record for record in stream.get("node")}
        for record in stream.get("group"):
            record["cost"] = how
            if how != "summed":
                record["basis"] = basis_of([node[v] for v in record["nodes"]])
    counts = {r["class"]: r["count"] for r in stream.get("device") if "count" in r}
    stream.replace(
        "device",
        [
            {
                **class_record(d),
                **({"count": counts[d.name]} if d.name in counts else {}),
                **({"fitted": True} if d.is_fitted and how in _BY_RATES else {}),
            }
            for d in devices
        ],
    )
    stream.header = {**stream.header, "units": {**stream.header["units"], "time": "s"}}
    if how in _BY_RATES:
        stream.header["work"] = work_of(stream.rows("node"))
    if dropped:
        caller.note(f"dropped what the old costs led to: {', '.join(dropped)} records")


def _put_memory(stream: Stream, *, on_cpu: bool) -> None:
    """Say what tensors take in memory, and which nodes are folded, where ONNX Runtime is known."""
    from dnnp.core.model.rules import Fold
    from dnnp.core.profile.residence import folded_nodes, resident_bytes
    from dnnp.formats.inputs.rules import load_rules
    from dnnp.formats.rows import columns
    from dnnp.options.table import DEFAULT_RULES

    folded: set[int] = set()
    resident: dict[int, float] = {}
    if on_cpu and not columns(stream.rows("node"), {"backward": False})["backward"].any():
        nodes, tensors = stream.get("node"), stream.get("tensor")
        fold = next(r for r in load_rules(DEFAULT_RULES).rules if isinstance(r, Fold))
        folded, renamed = folded_nodes(nodes, tensors, fold.excluded)
        resident = resident_bytes(nodes, tensors, folded) | dict.fromkeys(renamed, 0.0)
    stream.drop("node", ("folded",))
    stream.drop("tensor", ("memory_bytes",))
    for kind, field, values in (
        ("node", "folded", dict.fromkeys(folded, True)),
        ("tensor", "memory_bytes", resident),
    ):
        for record in stream.get(kind) if values else ():
            if record["id"] in values:
                record[field] = values[record["id"]]


def _put(stream: Stream, kind: str, costs: Times) -> None:
    """Give the records of a kind their times."""
    arrays = {name: np.array(values, dtype=np.float64) for name, values in costs.items()}
    stated = np.ones(len(stream.rows(kind)), dtype=np.bool_)
    stream.put(
        kind,
        "time_s",
        lambda i: {name: values[i] for name, values in costs.items()},
        (stated, arrays),
    )


def _warn_unknown(stream: Stream, work: Work, times: Times, caller: Callbacks) -> None:
    """Count the nodes of unknown work, by operator, and say what they weigh."""
    if work.known.all():
        return
    nodes = stream.rows("node")
    name, seconds = next(iter(times.items()))
    whole = math.fsum(seconds) or 1.0
    rough = [(r, t) for r, t, known in zip(nodes, seconds, work.known, strict=True) if not known]
    for partial, why in (
        (False, "the bytes they move only, as the work of their operators or a shape is unknown"),
        (True, "a part of their work, such as one trip of a loop whose number of trips is unknown"),
    ):
        found = [(r, t) for r, t in rough if bool(r.get("partial")) == partial]
        if found:
            share = math.fsum(t for _, t in found) / whole
            caller.warn(
                f"{len(found)} of {len(nodes)} nodes, {share:.1%} of the time on {name}, are "
                f"priced by {why}: {_types([r for r, _ in found])}"
            )


def unpriced(stream: Stream) -> str:
    """Types of the operators whose work is not known, or in part, with their numbers."""
    return _types([r for r in stream.get("node") if "flop" not in r or r.get("partial")])


def _types(records: Sequence[Record]) -> str:
    """Types of the operators of some nodes, with their numbers, the most frequent first."""
    found = Counter(map(operator_of, records))
    listed = [f"{op} ({count})" for op, count in found.most_common(_NAMED)]
    more = len(found) - len(listed)
    return ", ".join(listed) + (f" and {more} more" if more > 0 else "")


HEAVIEST = 4
"""Types of operators that are named."""

NODES = 10
"""Nodes that verbose output names."""


def describe_costs(stream: Stream, caller: Callbacks) -> None:
    """Say what the graph takes on each class, and what takes most on the first one."""
    from dnnp.formats.rows import times_of

    nodes, groups = stream.rows("node"), stream.rows("group")
    _, times = times_of(nodes)
    if not times or not stream.in_seconds:
        return
    units = counted(len(nodes), "node") + (f" in {counted(len(groups), 'group')}" if groups else "")
    every = times_of(groups)[1] if groups else times
    totals = (f"{shown_seconds(_total(every.get(name)))} on {name}" for name in times)
    caller.note(f"{units}, one after the other: {', '.join(totals)}")
    name, found = next(iter(times.items()))
    whole = _total(found)
    if whole == 0:
        return
    seconds = np.nan_to_num(found)
    caller.note(f"heaviest on {name}: {_heaviest_types(nodes, seconds, whole)}")
    for v in np.argsort(-seconds, kind="stable")[:NODES].tolist():
        record, time = nodes[v], float(seconds[v])
        caller.detail(
            f"{record['name']} ({operator_of(record)}): {shown_seconds(time)}, {time / whole:.1%}"
        )


def _heaviest_types(nodes: list[Record] | Rows, seconds: Floats, whole: float) -> str:
    """Types of operators with their shares of the whole and their numbers."""
    from dnnp.formats.rows import columns

    times: dict[str, list[float]] = {}
    found = columns(nodes, {"op": "", "domain": ""})
    for op, domain, time in zip(found["op"], found["domain"], seconds.tolist(), strict=True):
        times.setdefault(operator_name(op, domain), []).append(time)
    total = Counter({kind: math.fsum(each) for kind, each in times.items()})
    rows = [
        f"{kind} {time / whole:.1%} ({len(times[kind])})"
        for kind, time in total.most_common(HEAVIEST)
    ]
    more = f" and {len(times) - len(rows)} more" if len(times) > len(rows) else ""
    return ", ".join(rows) + more


def operator_of(record: Record) -> str:
    """Type of the operator of a node record."""
    return operator_name(record["op"], record.get("domain", ""))


def _total(times: Floats | None) -> float:
    """Sum of times, without those of what cannot run there."""
    return 0.0 if times is None else math.fsum(np.nan_to_num(times).tolist())


_WHOLE = "ort"
"""Beginning of the rules of groups that are known to run as one operator."""


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
    """Find the units that ONNX Runtime fuses on a CPU, by its rules; see `fused_units`."""
    from dnnp.core.coarsen.coarsen import fused_units, mirror_nodes, mirrored_units
    from dnnp.core.model.rules import Fold
    from dnnp.formats.graph import graph_of, shapes_of
    from dnnp.formats.inputs.rules import load_rules
    from dnnp.formats.stream import forward_pass
    from dnnp.options.table import DEFAULT_RULES

    mirror = mirror_nodes(stream.get("node")) if graph.backward.any() else None
    part = stream if mirror is None else forward_pass(stream)
    shapes = shapes_of(part)
    rules = load_rules(DEFAULT_RULES)
    if stream.get("phase") or "phases" in stream.header:  # the runtime finds shapes in each pass
        kept = (replace(r, shape_ops=()) if isinstance(r, Fold) else r for r in rules.rules)
        rules = replace(rules, rules=tuple(kept))
    if mirror is None:
        return fused_units(graph, shapes, rules)
    forward = graph_of(part)
    unit, formed, constant = fused_units(forward, shapes, rules)
    known = np.isin(graph.tensor_ids, forward.tensor_ids[constant])
    return *mirrored_units(graph, mirror, unit, formed), known


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
