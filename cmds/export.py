"""dnnp-export: write a plan for others: stage models as ONNX, or splits in other formats."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from dnnp.cmds.cli import Command
from dnnp.cmds.context import Context, counted
from dnnp.core.model.errors import FormatError, UsageError

if TYPE_CHECKING:
    from dnnp.core.model.graph import Graph
    from dnnp.core.model.plan import Plan
    from dnnp.formats.onnx_weights import Placed
    from dnnp.formats.stream import Stream

FORMATS = ("stages", "msr-split")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of dnnp-export."""
    parser.add_argument(
        "--to", choices=FORMATS, required=True,
        help="stages: one ONNX model a stage, and a manifest; "
        "msr-split: the split as JSON, in the format of the 2020 device-placement paper",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", default="-", metavar="PATH",
        help="with --to stages the folder to write (required), empty or from an earlier export; "
        "otherwise the file to write (default: standard output)",
    )  # fmt: skip
    parser.add_argument(
        "--model", metavar="PATH", help="the ONNX model, if it is not where the stream says"
    )
    parser.add_argument(
        "--copy-weights", action="store_true",
        help="copy external weight files into the folder instead of making hard links to them",
    )  # fmt: skip


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
            copy_weights=args.copy_weights,
        )
    except FormatError as error:
        raise FormatError(error.reason, error.file or str(source)) from None
    for weight in weights:
        _report(context, weight, args.output)
    context.note(f"wrote {counted(len(stages), 'stage')} to {args.output}")


def _report(context: Context, weight: Placed, folder: str) -> None:
    """Say what became of a weight file."""
    if weight.how == "missing":
        context.warn(
            f"{weight.source}: no such file; the stages expect it at {folder}/{weight.file}"
        )
    elif weight.how == "link":
        context.note(
            f"{weight.source}: hard-linked to {folder}/{weight.file}, for ONNX Runtime; while the "
            "link is there, onnx.load refuses the stages and the original (--copy-weights copies)"
        )
    else:
        context.note(f"{weight.source}: copied to {folder}/{weight.file}")


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
