"""dnnp-import: turn a model, a workload, a graph of your own or a random one into a stream."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from dnnp.choices import ANY_FAMILY, FAMILIES, LAYERED, MODEL_FORMATS, OPTIMIZERS, READINGS, SHAPES
from dnnp.cmds.shell.arguments import count, limit_options, seconds, set_limits
from dnnp.cmds.shell.cli import Command
from dnnp.cmds.shell.context import Context
from dnnp.core.model.errors import UsageError


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
        choices=MODEL_FORMATS,
        help="format of MODEL: ONNX, the JSON of the 2020 device-placement workloads, a "
        "TensorFlow CostGraphDef as text, or a graph of your own as CSV, in Graphviz' DOT or in "
        "GraphML (default: by extension: .json, .pbtxt, .csv, .dot, .gv, .graphml, else onnx)",
    )
    parser.add_argument(
        "--edges",
        metavar="FILE",
        help="csv: the list of edges; MODEL is the list of nodes",
    )
    parser.add_argument(
        "--one-tensor",
        action="store_true",
        help="costgraph: a node makes one tensor, its first output; who reads another, reads that",
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
        "--set-input",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="give an input of one element a value for good, true, false or a number: what follows "
        "is folded, and an If gives way to the branch that it takes; repeatable",
    )
    parser.add_argument(
        "--shapes",
        choices=SHAPES,
        default="auto",
        help="last step allowed for finding tensor shapes: what the model declares (value-info), "
        "ONNX shape inference (infer), that of ONNX Runtime (symbolic), or one run; auto: a run "
        "if the model is small; steps are skipped when nothing is missing (default: %(default)s)",
    )
    parser.add_argument(
        "--inputs",
        metavar="FILE",
        help="inputs of an ONNX model, .npz, .npy, .pb or a folder of input_0.pb, ...: give sizes "
        "of symbolic dimensions, and are what the model is run on if it is run (default: random)",
    )
    parser.add_argument(
        "--name",
        metavar="NAME",
        help="model name (default: from the file name, or family, size, seed and reading)",
    )
    training = parser.add_argument_group("training")
    training.add_argument(
        "--training",
        action="store_true",
        help="add the backward pass of an ONNX model, for planning: a node for each gradient, and "
        "the memory that training takes",
    )
    training.add_argument(
        "--optimizer",
        choices=OPTIMIZERS,
        help="what updates the weights: it keeps two numbers for each of them (adam), one "
        "(momentum) or none (sgd), besides the gradients (default: adam)",
    )
    training.add_argument(
        "--mixed-precision",
        action="store_true",
        help="compute in float16 what the model computes in float32; weights are kept in both",
    )
    training.add_argument(
        "--loss",
        metavar="OUTPUT",
        action="append",
        default=[],
        help="output of the model that is trained for; repeatable (default: all that have a "
        "gradient)",
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
    random.add_argument(
        "--reading",
        choices=READINGS,
        help="how the 2024 paper is read where it says what a node costs, r being N(0, 0.1): "
        "absolute: what it reads and writes plus |r| of all tensors; cut-off: plus r of them, at "
        "least 0; own: what it reads and writes, times 1 + r; written: what it writes, times "
        "1 + r; normal: N(50, 10), while four nodes of five make no tensor, and a last node reads "
        "what nobody reads; not for layered (default: absolute)",
    )
    random.add_argument("--seed", type=count, metavar="N", help="seed of the graph (default: 0)")


def run(args: argparse.Namespace, context: Context) -> int:
    """Import MODEL, or generate a graph, and write the stream."""
    from dnnp.cmds.shell.context import options_of
    from dnnp.loading import GenerateOptions, ImportOptions, generate_stream, import_stream, kind_of

    _check_usage(args)
    if args.synthetic:
        stream = generate_stream(options_of(GenerateOptions, args, context))
    else:
        options = options_of(ImportOptions, args, context)
        if args.shapes == "run":
            set_limits(args)
        stream = import_stream(args.model, options)
        if (args.kind or kind_of(args.model)) == "onnx" and os.path.exists(args.output):
            from dnnp.caller import spare_model
            from dnnp.formats.onnx_load import load_with_hash

            spare_model(context, load_with_hash(args.model)[0], Path(args.model))
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
        for option in ("nodes", "seed", "ratio", "reading"):
            if getattr(args, option) is not None:
                raise UsageError(f"--{option} is for --synthetic, not for a file")
        return
    if args.model is not None:
        raise UsageError(f"give MODEL or --synthetic, not both ('{args.model}' and a random graph)")
    if args.ratio is not None and args.synthetic != LAYERED:
        raise UsageError(f"--ratio is for --synthetic {LAYERED}")
    given = {
        "--from": args.kind, "--edges": args.edges, "--one-tensor": args.one_tensor,
        "--dim": args.dims, "--set-input": args.set_input, "--inputs": args.inputs,
    }  # fmt: skip
    for option, value in given.items():
        if value:
            raise UsageError(f"{option} is for files, not for --synthetic")


COMMAND = Command(
    "dnnp-import",
    "turn an ONNX model, a published workload, a graph of your own or a random one into a stream",
    add_arguments, run, reads_stream=False,
)  # fmt: skip
main = COMMAND.main
