"""Group operators into the units that a split moves."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise

import numpy as np

from dnnp.callbacks import Callbacks, check_nodes, open_source
from dnnp.core.coarsen.coarsen import Coarsening, mirror_nodes, mirrored
from dnnp.core.coarsen.coarsen import coarsen as group_nodes
from dnnp.core.coarsen.layers import Given, paths_of
from dnnp.core.model.graph import Graph
from dnnp.core.model.rules import RuleSet
from dnnp.core.model.search_context import Progress
from dnnp.core.model.text import counted
from dnnp.formats.fields import MAX_NUMBER
from dnnp.formats.graph import graph_of, shapes_of
from dnnp.formats.rows import columns, uncollected
from dnnp.formats.stream import Record, Stream, forward_pass
from dnnp.options.graph import CoarsenOptions
from dnnp.options.table import step


def coarsen_stream(stream: Stream, options: CoarsenOptions) -> None:
    """Group operators into the units that a split moves.

    Groups that the graph already has are replaced, and what was made from them is dropped.

    Raises
    ------
    UsageError
        Options that make no sense, or do not go together.
    FormatError
        A rule file, or the graph, is malformed; the model is not the one that was imported.
    """
    if options.rule_set is not None:
        _doubt_rules(options.rule_set, options.caller, own=options.own_rules)
    with uncollected(), options.caller.progress("grouping") as bar:
        _coarsen(stream, options, lambda share: bar.update(Progress("grouping", share=share)))


coarsen = step("dnnp-coarsen", CoarsenOptions)(coarsen_stream)


def _coarsen(stream: Stream, options: CoarsenOptions, told: Callable[[float], None]) -> None:
    caller, share, chains = options.caller, options.max_share, options.chain_share
    whole = graph_of(stream)
    mirror = mirror_nodes(stream.get("node")) if whole.backward.any() else None
    part = stream if mirror is None else forward_pass(stream)
    graph = whole if mirror is None else graph_of(part)
    given = _fused_by_ort(part, options) if options.rules == "ort" else None
    paths = paths_of(part.get("node"), graph, options.depth) if options.layers else None
    if paths is not None and not any(paths):
        caller.warn("no node has a name scope or a layer: --layers groups nothing")
    shapes = shapes_of(part)
    told(0.4)
    result = group_nodes(
        graph,
        shapes,
        options.rule_set,
        chains,
        paths,
        given,
        options.to,
        math.inf if share is None or share >= 1 else share,
    )
    told(0.7)
    if given is not None:
        others = chains is not None or paths is not None or options.to is not None
        _report_cuts(given, result, others, caller)
    if options.to is not None and result.clustering.g != options.to:
        caller.warn(_why_not(options, graph.n, result))
    if mirror is not None:
        result = mirrored(whole, mirror, result)
    if stream.rows("group"):
        caller.note(f"replacing {counted(len(stream.rows('group')), 'group')}")
    dropped = stream.replace("group", _records(stream, whole, result))
    if dropped:
        caller.note(f"dropping what was made from the old groups: {', '.join(dropped)}")
    caller.note(_summary(whole.n, result))


def _doubt_rules(rules: RuleSet, caller: Callbacks, *, own: bool) -> None:
    """Say which operators of a user's rules are unknown, and where ONNX Runtime is installed in a
    version that rules were not compared with."""
    if own:
        from dnnp.formats.inputs.rules import unknown_operators

        for rule, op in unknown_operators(rules):
            caller.warn(
                f"rule '{rule}' of {rules.name}: there is no operator '{op}' in ONNX or ONNX "
                "Runtime; it matches custom operators only"
            )
    installed = installed_version() if rules.versions else ""
    if installed and ".".join(installed.split(".")[:2]) not in rules.versions:
        caller.note(
            f"rules {rules.name} were compared with ONNX Runtime {', '.join(rules.versions)}; "
            f"{installed} is installed: --rules ort asks it what it fuses"
        )


def installed_version() -> str:
    """Version of ONNX Runtime by the folder beside it, without importing it; empty: not known.

    importlib.metadata would say the same, and take longer to import than small graphs to group.
    """
    from importlib.util import find_spec

    spec = find_spec("onnxruntime")
    if spec is None or not spec.origin:
        return ""
    with suppress(OSError):
        for name in sorted(os.listdir(os.path.dirname(os.path.dirname(spec.origin)))):
            package, _, version = name.removesuffix(".dist-info").partition("-")
            if package.partition("_")[0] == "onnxruntime" and version:
                return version
    return ""


def _fused_by_ort(stream: Stream, options: CoarsenOptions) -> Given:
    """Find what ONNX Runtime fuses in the stream's model, by node positions.

    FormatError: the file is not the model that was imported, or its nodes are not the stream's.
    """
    from dnnp.core.runtime.model.fusions import fused_groups, title
    from dnnp.formats.onnx.value_types import types_of

    caller = options.caller
    model, path, _ = open_source(caller, stream, options.model)
    check_nodes(stream, model, path)
    nodes = stream.get("node")
    fusions = fused_groups(model, path.parent, options.provider or "cpu", types_of(stream))
    position = {record["id"]: i for i, record in enumerate(nodes)}
    groups = [[position[v] for v in group if v in position] for group in fusions.groups]
    again = [v for v in fusions.duplicates if v in position]
    if again:
        caller.note(
            f"ONNX Runtime computes {counted(len(again), 'node')} only once, with an equal one: "
            + _some([nodes[position[v]]["name"] or str(v) for v in again])
        )
    rules = [f"ort:{title(ops)}" if ops else "ort" for ops in fusions.operators]
    kept = [i for i, group in enumerate(groups) if len(group) > 1]
    return Given([groups[i] for i in kept], [rules[i] for i in kept])


def _report_cuts(given: Given, result: Coarsening, others: bool, caller: Callbacks) -> None:
    """Say which fused groups had to be cut, and which filled, where that can still be told."""
    label, sizes = result.clustering.label, np.diff(result.clustering.member_ptr)
    cut = [
        rule
        for group, rule in zip(given.groups, given.rules, strict=True)
        if len({int(label[v]) for v in group}) > 1
    ]
    filled = [
        rule
        for group, rule in zip(given.groups, given.rules, strict=True)
        if len({int(label[v]) for v in group}) == 1 and sizes[label[group[0]]] > len(group)
    ]
    if filled and not others:
        caller.note(
            f"{counted(len(filled), 'fused group')} also holds what lies between its operators: "
            + _some(filled)
        )
    if cut:
        caller.warn(
            f"{counted(len(cut), 'fused group')} cut, for device classes, passes, colours or a "
            f"cycle: {_some(cut)}"
        )


def _some(names: list[str]) -> str:
    """The first few of some names."""
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _why_not(options: CoarsenOptions, n: int, result: Coarsening) -> str:
    """Say why there are not as many groups as asked for."""
    g, wanted = result.clustering.g, options.to
    if not result.stuck:
        what = f"the graph has {counted(n, 'node')}" if g == n else "the other options left no more"
        return f"--to {wanted}: only {counted(g, 'group')}; {what}"
    limits = "device classes, passes and colours"
    if options.max_share is not None and options.max_share < 1:
        limits += f" and --max-share {options.max_share:g}"
    return f"--to {wanted}: {counted(g, 'group')}; {limits} keep them apart"


def _records(stream: Stream, graph: Graph, result: Coarsening) -> list[Record]:
    """Group records; costs are sums over the members."""
    clustering = result.clustering
    ids = graph.node_ids.tolist()
    times = {c: t.tolist() for c, t in clustering.times.items()}
    work = columns(stream.rows("node"), {"flop": None, "bytes": None})
    ptr, flat = clustering.member_ptr.tolist(), clustering.member_idx.tolist()
    records: list[Record] = []
    for g, (start, end) in enumerate(pairwise(ptr)):
        members = flat[start:end]
        record: Record = {
            "type": "group",
            "id": g,
            "name": clustering.names[g],
            "nodes": [ids[v] for v in members],
        }
        if result.rules[g]:
            record["rule"] = result.rules[g]
        if times:
            record["time_s"] = {
                c: min(t[g], MAX_NUMBER) for c, t in times.items() if t[g] != math.inf
            }
            record["cost"] = "summed"
        for field, column in work.items():
            values = [column[v] for v in members]
            if None not in values:
                record[field] = min(sum(values), MAX_NUMBER)
        records.append(record)
    return records


def _summary(n: int, result: Coarsening) -> str:
    """Count the groups, and those of each rule, in words."""
    counts = Counter(rule for rule in result.rules if rule)
    parts = ", ".join(f"{count} {rule}" for rule, count in counts.most_common())
    found = f"{counted(n, 'node')} -> {counted(result.clustering.g, 'group')}"
    return found + (f" ({parts})" if parts else "")
