"""dnnp-check: validate a stream and recompute what its plan promises."""

from __future__ import annotations

import argparse
from typing import Any

from dnnp.cmds.shell.cli import Command
from dnnp.cmds.shell.context import Context, options_of
from dnnp.core.model.errors import FormatError
from dnnp.core.model.text import counted
from dnnp.options.run import CheckOptions
from dnnp.options.table import Options, option

SHOWN = 20
"""Violations that are printed without --verbose."""


def _schema(*_: object) -> str:
    import json

    from dnnp.formats.records import json_schema

    return json.dumps(json_schema(), indent=1) + "\n"


class _Printed(Options):
    """Options of what is printed."""

    # fmt: off
    json: bool = option(
        False, page=True, help="print one JSON object that sums up the findings")
    schema: bool = option(False, show=_schema, help="print the JSON Schema of a record and exit")
    # fmt: on


def run(args: argparse.Namespace, context: Context) -> int:
    """Check a stream; see `dnnp.checking.Findings.status`."""
    from dnnp.checking import Findings, check_stream
    from dnnp.core.check.violation import Violation

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
    "dnnp-check", "validate a stream and recompute its plan", run, CheckOptions, _Printed,
    writes_stream=False,
    examples=(
        "dnnp-check --certificate bounded.dnnp",
        "dnnp-check --max-gap 0.05 --max-memory 0.9 bounded.dnnp",
    ),
)  # fmt: skip
main = COMMAND.main
