"""dnnp-export: write a plan for others: stage models as ONNX, or splits in other formats."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from dnnp.cmds.shell.cli import Command
from dnnp.cmds.shell.context import Context, counted
from dnnp.core.model.errors import FormatError, UsageError

if TYPE_CHECKING:
    from dnnp.core.model.graph import Graph
    from dnnp.core.model.plan import Plan
    from dnnp.formats.stage_folder import Weights
    from dnnp.formats.stream import Stream

FORMATS = ("stages", "msr-split")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of dnnp-export."""
    parser.add_argument(
        "--to",
        choices=FORMATS,
        required=True,
        help="stages: a folder with an ONNX model for each stage, and a manifest; "
        "msr-split: the split as JSON, in the format of the 2020 device-placement paper",
    )
    parser.add_argument(
        "-o",
        "--output",
        default="-",
        metavar="PATH",
        help="with --to stages the folder to write (required), empty or from an earlier export; "
        "otherwise the file to write (default: standard output)",
    )
    parser.add_argument(
        "--model", metavar="PATH", help="the ONNX model, if it is not where the stream says"
    )
    parser.add_argument(
        "--link-weights",
        action="store_true",
        help="make hard links to the external weight files instead of copying into the folder of "
        "each stage what it reads",
    )


def run(args: argparse.Namespace, context: Context) -> int:
    """Export the plan of a stream."""
    if args.to == "stages" and args.output == "-":
        raise UsageError("--to stages writes several files: name a folder with -o DIR")
    from dnnp.cmds.read_plan import read_plan
    from dnnp.formats.graph import graph_of
    from dnnp.formats.msr_split import write_split

    stream = context.read(args.stream)
    graph = graph_of(stream)
    plan = read_plan(stream, graph)
    if plan is None:
        raise UsageError(f"{stream.name}: no plan to export; run dnnp-partition first")
    if args.to == "stages":
        _write_stages(args, context, stream, plan, graph)
    else:
        with context.open_output() as file:
            file.write(write_split(plan))
    return 0


def _write_stages(
    args: argparse.Namespace, context: Context, stream: Stream, plan: Plan, graph: Graph
) -> None:
    """Write the stage models and say what became of the weights."""
    from pathlib import Path

    from dnnp.cmds.source import open_source
    from dnnp.formats.onnx_plan import check_runnable
    from dnnp.formats.onnx_stages import split_model
    from dnnp.formats.onnx_types import types_of
    from dnnp.formats.stage_folder import write_stages

    model, source, digest = open_source(context, stream, args.model)
    check_runnable(plan, graph, "export one of dnnp-partition --validity ordered")
    parts = [stage for stage in plan.stages if stage.nodes]
    about: dict[str, Any] = {
        "model": stream.header["model"],
        "source": {"path": str(source), "sha256": digest},
        "plan": {
            "digest": plan.digest,
            "k": plan.k,
            "method": plan.method,
            "objective": plan.objective,
            "value": plan.value,
        },
    }
    try:
        stages = split_model(model, [stage.nodes for stage in parts], types_of(stream))
        weights = write_stages(
            stages,
            model,
            source,
            Path(args.output),
            about=about,
            devices=[stage.device for stage in parts],
            replicas=[stage.replicas for stage in parts],
            link_weights=args.link_weights,
        )
    except FormatError as error:
        raise FormatError(error.reason, error.file or str(source)) from None
    _report(context, weights, args)
    context.note(f"wrote {counted(len(stages), 'stage')} to {args.output}")


def _report(context: Context, weights: Weights, args: argparse.Namespace) -> None:
    """Say what became of the weight files."""
    for source, files in _by_source(weights, "missing").items():
        others = len(files) - 1
        likewise = f", and likewise in the {counted(others, 'other folder')}" if others else ""
        context.warn(
            f"{source}: no such file; the stages expect it at {args.output}/{files[0]}{likewise}"
        )
    for source in _by_source(weights, "link"):
        context.note(
            f"{source}: hard-linked to the folders of the stages; while the links are there, "
            "onnx.load refuses the stages and the original"
        )
    copies = _by_source(weights, "copy")
    if copies and args.link_weights:
        context.warn(
            f"{', '.join(copies)}: no hard link to {args.output} is possible; what the stages read "
            "is copied"
        )
    if copies:
        shared = weights.repeated_bytes
        again = f", {shared} of them again, as stages share parameters" if shared else ""
        context.note(f"copied {weights.copied_bytes} bytes of weights{again}")


def _by_source(weights: Weights, how: str) -> dict[str, list[str]]:
    """Files of one kind in the export, for each file of the model that their bytes are from."""
    found: dict[str, list[str]] = {}
    for file in weights.files:
        for source in file.sources if file.how == how else ():
            found.setdefault(str(source), []).append(file.file)
    return found


COMMAND = Command(
    "dnnp-export",
    "write the stages of a plan as ONNX models, or a plan in another tool's format",
    add_arguments,
    run,
    writes_file=False,
    writes_stream=False,
)


def main() -> int:
    """Entry point."""
    return COMMAND.main()
