"""dnnp-coarsen: group operators into the units that a split moves."""

from __future__ import annotations

import argparse
import gc
import math
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

from dnnp.cmds.shell.cli import Command
from dnnp.cmds.shell.context import Context, counted
from dnnp.core.model.errors import UsageError

if TYPE_CHECKING:
    from dnnp.core.coarsen.coarsen import Coarsening
    from dnnp.core.coarsen.given import Given
    from dnnp.core.coarsen.scopes import Path
    from dnnp.core.model.graph import Graph
    from dnnp.core.model.rules import RuleSet
    from dnnp.formats.stream import Record, Stream

DEFAULT_RULES = "ort-cpu"
DEFAULT_SHARE = 0.02


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of dnnp-coarsen."""
    group = parser.add_argument_group(
        "what to group",
        f"Without any of these: --rules {DEFAULT_RULES} --chains --max-share {DEFAULT_SHARE}. "
        "Several are applied in this order. Groups that the stream already has are replaced.",
    )
    group.add_argument(
        "--rules",
        metavar="RULES",
        help="fuse operators by a rule file: ort-cpu or ort-cuda (what ONNX Runtime fuses on a CPU "
        "or with CUDA), moirai (Table I of the paper), none, or the path of a rule file; ort: what "
        "ONNX Runtime itself makes of this very model",
    )
    group.add_argument(
        "--model",
        metavar="PATH",
        help="with --rules ort: the ONNX model, if it is not where the stream says",
    )
    group.add_argument(
        "--provider",
        choices=("cpu", "cuda"),
        help="with --rules ort: execution provider to optimise for (default: cpu)",
    )
    group.add_argument(
        "--chains",
        action="store_true",
        help="contract series: join two groups when one is all that reads the other, which is "
        "all that it waits for",
    )
    group.add_argument(
        "--max-share",
        type=float,
        metavar="X",
        help="with --chains or --to: a group may hold this share of the model's work besides its "
        "heaviest part, so that a long series stays divisible (default: 1, no limit); work is "
        "time, or bytes read and written while there are no costs",
    )
    group.add_argument(
        "--layers",
        action="store_true",
        help="join what lies in the same layer, by the scopes in the names of the nodes",
    )
    group.add_argument(
        "--depth",
        type=int,
        metavar="N",
        help="with --layers: number of scope components that tell layers apart (default: up to "
        "the innermost numbered component whose instances follow one another)",
    )
    group.add_argument(
        "--to",
        type=int,
        metavar="N",
        help="join groups of about equal work along the largest tensors until there are N",
    )


def run(args: argparse.Namespace, context: Context) -> int:
    """Read a stream, coarsen it, write it with its groups."""
    _check(args)
    # Records and units are many and make no cycles: collections would only look at them.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _run(args, context)
    finally:
        if collecting:
            gc.enable()


def _run(args: argparse.Namespace, context: Context) -> int:
    name, share = args.rules, args.max_share
    chains = (1.0 if share is None else share) if args.chains else None
    if name is None and not args.chains and not args.layers and args.to is None:
        name, chains = DEFAULT_RULES, DEFAULT_SHARE

    from dnnp.core.coarsen.coarsen import coarsen
    from dnnp.formats.graph import graph_of
    from dnnp.formats.rules import bundled, load_rules

    rules = load_rules(name) if name not in (None, "none", "ort") else None
    if rules is not None and name not in bundled():
        _doubt_operators(rules, context)
    stream = context.read(args.stream)
    graph = graph_of(stream)
    given = _fused_by_ort(stream, args, context) if name == "ort" else None
    paths = _paths(stream, graph, args.depth) if args.layers else None
    if paths is not None and not any(paths):
        context.warn("no node has a name scope or a layer: --layers groups nothing")
    shapes = [tuple(r["shape"]) if "shape" in r else None for r in stream.get("tensor")]
    result = coarsen(
        graph,
        shapes,
        rules,
        chains,
        paths,
        given,
        args.to,
        math.inf if share is None or share >= 1 else share,
    )
    if given is not None:
        others = chains is not None or paths is not None or args.to is not None
        _report_cuts(given, result, others, context)
    if args.to is not None and result.clustering.g != args.to:
        context.warn(_why_not(args, graph.n, result))
    if stream.get("group"):
        context.note(f"replacing {counted(len(stream.get('group')), 'group')}")
    dropped = stream.replace("group", _records(stream, graph, result))
    if dropped:
        context.note(f"dropping what was made from the old groups: {', '.join(dropped)}")
    context.note(_summary(graph.n, result))
    context.write(stream)
    return 0


def _check(args: argparse.Namespace) -> None:
    """Refuse options that make no sense."""
    if args.depth is not None and not args.layers:
        raise UsageError("--depth needs --layers")
    if args.depth is not None and args.depth < 1:
        raise UsageError(f"--depth {args.depth}: must be at least 1")
    if args.to is not None and args.to < 1:
        raise UsageError(f"--to {args.to}: must be at least 1")
    if args.max_share is not None:
        if not args.chains and args.to is None:
            raise UsageError("--max-share needs --chains or --to")
        if not args.max_share >= 0:
            raise UsageError(f"--max-share {args.max_share}: must be at least 0")
    for option in ("model", "provider"):
        if getattr(args, option) is not None and args.rules != "ort":
            raise UsageError(f"--{option} needs --rules ort")


def _doubt_operators(rules: RuleSet, context: Context) -> None:
    """Say which operators of a user's rules nobody knows."""
    from dnnp.formats.rule_checks import unknown_operators

    for rule, op in unknown_operators(rules):
        context.warn(
            f"rule '{rule}' of {rules.name}: there is no operator '{op}' in ONNX or ONNX Runtime; "
            "it matches custom operators only"
        )


def _fused_by_ort(stream: Stream, args: argparse.Namespace, context: Context) -> Given:
    """What ONNX Runtime fuses in the stream's model, by node positions.

    Raises
    ------
    FormatError
        The file is not the model that was imported, or its nodes are not the stream's.
    """
    from dnnp.cmds.source import open_source
    from dnnp.core.coarsen.given import Given
    from dnnp.core.runtime.borders import fused_groups
    from dnnp.core.runtime.fusion import title
    from dnnp.formats.onnx_types import types_of

    model, path, _ = open_source(context, stream, args.model)
    nodes = stream.get("node")
    for i, record in enumerate(nodes):
        v = record["id"]
        if v >= len(model.graph.node) or model.graph.node[v].op_type != record["op"]:
            raise stream.fault_at("node", i, "id", f"{path} has no {record['op']} there")
    fusions = fused_groups(model, path.parent, args.provider or "cpu", types_of(stream))
    position = {record["id"]: i for i, record in enumerate(nodes)}
    groups = [[position[v] for v in group if v in position] for group in fusions.groups]
    again = [v for v in fusions.duplicates if v in position]
    if again:
        context.note(
            f"ONNX Runtime computes {counted(len(again), 'node')} only once, with an equal one: "
            + _some([nodes[position[v]]["name"] or str(v) for v in again])
        )
    rules = [f"ort:{title(ops)}" if ops else "ort" for ops in fusions.operators]
    kept = [i for i, group in enumerate(groups) if len(group) > 1]
    return Given([groups[i] for i in kept], [rules[i] for i in kept])


def _report_cuts(given: Given, result: Coarsening, others: bool, context: Context) -> None:
    """Say which fused groups had to be cut, and which filled, where that can still be told."""
    import numpy as np

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
        context.note(
            f"{counted(len(filled), 'fused group')} also holds what lies between its operators: "
            + _some(filled)
        )
    if cut:
        context.warn(
            f"{counted(len(cut), 'fused group')} cut, for device classes, passes, colours or a "
            f"cycle: {_some(cut)}"
        )


def _some(names: list[str]) -> str:
    """The first few of some names."""
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _why_not(args: argparse.Namespace, n: int, result: Coarsening) -> str:
    """Why there are not as many groups as asked for."""
    g, wanted = result.clustering.g, args.to
    if not result.stuck:
        what = f"the graph has {counted(n, 'node')}" if g == n else "the other options left no more"
        return f"--to {wanted}: only {counted(g, 'group')}; {what}"
    limits = "device classes, passes and colours"
    if args.max_share is not None and args.max_share < 1:
        limits += f" and --max-share {args.max_share:g}"
    return f"--to {wanted}: {counted(g, 'group')}; {limits} keep them apart"


def _paths(stream: Stream, graph: Graph, depth: int | None) -> list[Path]:
    """Layer of each node: its layer field, else its scope, else what its name implies."""
    from dnnp.core.coarsen.layers import levels
    from dnnp.core.coarsen.scopes import layer_paths, scope_of_name, scope_path

    nodes = stream.get("node")
    scopes = [scope_path(r.get("scope") or scope_of_name(r["name"])) for r in nodes]
    paths = layer_paths(scopes, levels(graph), depth)
    return [(r["layer"],) if r.get("layer") else p for r, p in zip(nodes, paths, strict=True)]


def _records(stream: Stream, graph: Graph, result: Coarsening) -> list[Record]:
    """Group records; costs are sums over the members."""
    from dnnp.formats.fields import MAX_NUMBER

    clustering = result.clustering
    ids = graph.node_ids.tolist()
    times = {c: t.tolist() for c, t in clustering.times.items()}
    work = {
        field: [record.get(field) for record in stream.get("node")] for field in ("flop", "bytes")
    }
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
    """How many groups, and how many by each rule."""
    counts = Counter(rule for rule in result.rules if rule)
    parts = ", ".join(f"{count} {rule}" for rule, count in counts.most_common())
    found = f"{counted(n, 'node')} -> {counted(result.clustering.g, 'group')}"
    return found + (f" ({parts})" if parts else "")


COMMAND = Command(
    "dnnp-coarsen", "group operators into the units that a split moves", add_arguments, run
)


def main() -> int:
    """Entry point."""
    return COMMAND.main()
