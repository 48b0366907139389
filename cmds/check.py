"""dnnp-check: validate a stream and recompute what its plan promises."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from dnnp.cmds.shell.arguments import duration, frequency, share, share_or_size
from dnnp.cmds.shell.cli import Command
from dnnp.cmds.shell.context import Context
from dnnp.core.model.errors import FormatError
from dnnp.core.model.text import counted

SHOWN = 20
"""Violations that are printed without --verbose."""


class _Schema(argparse.Action):
    """`--schema`."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> NoReturn:
        import json

        from dnnp.formats.records import json_schema

        parser.exit(0, json.dumps(json_schema(), indent=1) + "\n")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of dnnp-check."""
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object that sums up the findings"
    )
    parser.add_argument(
        "--certificate",
        action="store_true",
        help="verify that the bound is one, exactly, from its certificate",
    )
    parser.add_argument(
        "--schema", action=_Schema, nargs=0, help="print the JSON Schema of a record and exit"
    )
    gates = parser.add_argument_group("gates (status 8 where one does not hold)")
    gates.add_argument(
        "--max-gap",
        type=share,
        metavar="X",
        help="the largest gap of the plan, such as 0.05 for 5 %%; with --certificate of the gap "
        "that is proven",
    )
    gates.add_argument(
        "--max-memory",
        type=share_or_size,
        metavar="X|BYTES",
        help="the most that a device may need: up to 1 a share of its memory, such as 0.9 for "
        "90 %%; above that bytes, such as 14Gi",
    )
    gates.add_argument(
        "--min-throughput",
        type=frequency,
        metavar="R",
        help="the fewest samples a second, such as 100/s, by the plan, or by its schedule if there "
        "is one",
    )
    gates.add_argument(
        "--max-latency",
        type=duration,
        metavar="T",
        help="the longest time of one sample, such as 50ms, by the same",
    )
    gates.add_argument(
        "--measured",
        action="store_true",
        help="throughput and latency (its 99th percentile) are those that the last run measured",
    )


def run(args: argparse.Namespace, context: Context) -> int:
    """Check a stream; see `dnnp.checking.Findings.status`."""
    from dnnp.checking import Findings, check_stream
    from dnnp.cmds.shell.context import options_of
    from dnnp.core.check.violation import Violation
    from dnnp.gates import CheckOptions

    options = options_of(CheckOptions, args, context)
    try:
        found = check_stream(context.read(args.stream), options)
    except FormatError as error:
        if args.json:
            fault = Violation("format", "stream", str(error))
            _print(context, Findings([fault], {}).summary())
        raise
    context.elapsed("checked the stream")
    if args.json:
        _print(context, found.summary())
    shown = found.violations if context.verbose else found.violations[:SHOWN]
    for violation in shown:
        context.warn(str(violation))
    more = len(found.violations) - len(shown)
    if more:
        context.warn(f"and {more} more; --verbose or --json show all")
    if not found.holds:
        context.note(counted(len(found.violations), "violation"))
        return found.status
    context.note(f"{'ok' if found.ok else 'not verified, all else holds'}: {found.described()}")
    if found.ok:
        found.judge()
    return found.status


def _print(context: Context, summary: dict[str, Any]) -> None:
    import orjson

    with context.open_output() as file:
        file.write(orjson.dumps(summary) + b"\n")


COMMAND = Command(
    "dnnp-check", "validate a stream and recompute its plan", add_arguments, run,
    writes_stream=False,
)  # fmt: skip
main = COMMAND.main
