"""dnnp-import: turn an ONNX model, a published workload or a random graph into a stream."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from dnnp.cmds.shell.arguments import count, seconds
from dnnp.cmds.shell.cli import Command
from dnnp.cmds.shell.context import Context
from dnnp.cmds.shell.limits import limit_options, set_limits
from dnnp.core.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onnx import ModelProto

    from dnnp.formats.onnx_prices import Price
    from dnnp.formats.stream import Stream

FORMATS = ("onnx", "msr-json", "costgraph")
SHAPES = ("value-info", "infer", "symbolic", "run")
FAMILIES = ("erdos-renyi", "barabasi-albert", "watts-strogatz", "stochastic-block")
ANY_FAMILY = "regal"
LAYERED, LAYERED_NODES = "layered", 200
"""Another generator, and the nodes of its graphs if nothing is said."""
EXTENSIONS = {
    ".json": "msr-json",
    ".pbtxt": "costgraph",
    ".pbtext": "costgraph",
    ".textproto": "costgraph",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of dnnp-import."""
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="file to import; - is standard input, but not for ONNX",
    )
    parser.add_argument(
        "--from",
        dest="kind",
        choices=FORMATS,
        help="format of MODEL: ONNX, the JSON of the 2020 device-placement workloads, or a "
        "TensorFlow CostGraphDef as text (default: by extension: .json, .pbtxt, else onnx)",
    )
    parser.add_argument(
        "--dim",
        dest="dims",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="size of a symbolic dimension, or of INPUT:AXIS; repeatable",
    )
    parser.add_argument(
        "--shapes",
        choices=SHAPES,
        default="symbolic",
        help="last step allowed for finding tensor shapes: what the model declares, ONNX shape "
        "inference, symbolic inference, or one run on random inputs; steps are skipped when "
        "nothing is missing (default: %(default)s)",
    )
    parser.add_argument(
        "--name",
        metavar="NAME",
        help="model name (default: from the file name, or family, size and seed)",
    )
    limit_options(parser, "limits of --shapes run")
    random = parser.add_argument_group("random graphs")
    random.add_argument(
        "--synthetic",
        nargs="?",
        const=ANY_FAMILY,
        choices=(ANY_FAMILY, *FAMILIES, LAYERED),
        metavar="FAMILY",
        help="no MODEL, but a random graph with costs, like those of REGAL: erdos-renyi, "
        "barabasi-albert, watts-strogatz, stochastic-block, or regal: one of them by the seed "
        "(default without FAMILY: regal); or layered: layers of operators, priced on four devices "
        "of unequal speed",
    )
    random.add_argument(
        "--nodes",
        type=count,
        metavar="N",
        help="number of nodes (default: from 50 to 200, by the seed; layered: 200)",
    )
    random.add_argument(
        "--ratio",
        type=seconds,
        metavar="X",
        help="layered: mean transfer time over mean compute time (default: 1)",
    )
    random.add_argument("--seed", type=count, metavar="N", help="seed of the graph (default: 0)")


def run(args: argparse.Namespace, context: Context) -> int:
    """Import MODEL, or generate a graph, and write the stream."""
    _check_usage(args)
    for text in (args.model or "", args.name or ""):
        if text != text.encode(errors="replace").decode():
            raise UsageError(f"{text!a} is not UTF-8, so a stream cannot hold it; rename the file")
    kind = "synthetic" if args.synthetic else args.kind or _kind_of(args.model)
    if kind == "synthetic":
        stream = _generate(args)
    elif kind == "onnx":
        if args.model == "-":
            raise UsageError(
                "an ONNX model must be a file: later commands open it again; "
                "for other formats on standard input give --from"
            )
        from pathlib import Path

        from dnnp.cmds.source import spare_model
        from dnnp.formats.onnx_dims import parse_dimensions
        from dnnp.formats.onnx_load import load_with_hash

        if args.shapes == "run":
            set_limits(args)
        stream = load_onnx(args.model, parse_dimensions(args.dims), args.shapes, args.name)
        if os.path.exists(args.output):
            spare_model(context, load_with_hash(args.model)[0], Path(args.model))
    else:
        if args.dims:
            raise UsageError(f"--dim is for ONNX models, not for {kind}")
        data = context.read_input(args.model)
        if kind == "msr-json":
            from dnnp.formats.msr_json import read_workload

            stream = read_workload(data, args.model, args.name)
        else:
            from dnnp.formats.costgraph import read_costgraph

            stream = read_costgraph(data, args.model, args.name)
    for message in stream.warnings:
        context.warn(message)
    context.elapsed("imported the model")
    context.write(stream)
    return 0


def _check_usage(args: argparse.Namespace) -> None:
    """One thing to import, and no option of the other."""
    if args.synthetic is None:
        if args.model is None:
            raise UsageError("nothing to import: give MODEL or --synthetic")
        for option in ("nodes", "seed", "ratio"):
            if getattr(args, option) is not None:
                raise UsageError(f"--{option} is for --synthetic, not for a file")
        return
    if args.model is not None:
        raise UsageError(f"give MODEL or --synthetic, not both ('{args.model}' and a random graph)")
    if args.ratio is not None and args.synthetic != LAYERED:
        raise UsageError(f"--ratio is for --synthetic {LAYERED}")
    if args.kind is not None or args.dims:
        option = "--from" if args.kind is not None else "--dim"
        raise UsageError(f"{option} is for files, not for --synthetic")


def _generate(args: argparse.Namespace) -> Stream:
    """The stream of a random graph."""
    from dnnp.core.synthetic.regal import regal_graph
    from dnnp.formats.synthetic import synthetic_stream

    seed = args.seed or 0
    if args.synthetic == LAYERED:
        from dnnp.core.synthetic.layered import layered_graph

        nodes, ratio = args.nodes, 1.0 if args.ratio is None else args.ratio
        made = layered_graph(LAYERED_NODES if nodes is None else nodes, ratio, seed)
        name = args.name or f"{LAYERED}-{made.n}-ratio{ratio:g}-seed{seed}"
        return synthetic_stream(name, made.tail, made.head, made.size, made.times)
    family = None if args.synthetic == ANY_FAMILY else args.synthetic
    graph = regal_graph(family, args.nodes, seed)
    name = f"{graph.family}-{graph.n}-seed{seed}" if args.name is None else args.name
    return synthetic_stream(name, graph.tail, graph.head, graph.size, graph.cost)


def load_onnx(
    path: str,
    dims: Mapping[str, int] | None = None,
    shapes: str = "symbolic",
    name: str | None = None,
) -> Stream:
    """Import an ONNX model with prices and the whole shape chain at hand."""
    from dnnp.core.runtime.run_shapes import shapes_by_running
    from dnnp.core.runtime.symbolic_shapes import symbolic_shapes
    from dnnp.formats.onnx_import import Helpers, import_onnx

    helpers = Helpers(pricer, symbolic_shapes, shapes_by_running)
    return import_onnx(path, dims, shapes, name, helpers)


def pricer(model: ModelProto) -> Price:
    """A price function for the nodes of a model."""
    from functools import partial

    from dnnp.core.profile.bodies import ModelFacts
    from dnnp.core.profile.ops import node_cost

    return partial(node_cost, facts=ModelFacts.of(model))


def _kind_of(path: str) -> str:
    """Format by extension."""
    if path == "-":
        return "onnx"
    return next((k for ending, k in EXTENSIONS.items() if path.lower().endswith(ending)), "onnx")


COMMAND = Command(
    "dnnp-import", "turn an ONNX model, a published workload or a random graph into a stream",
    add_arguments, run, reads_stream=False,
)  # fmt: skip


def main() -> int:
    """Entry point."""
    return COMMAND.main()
