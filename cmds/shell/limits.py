"""Options that limit what running a model may take."""

from __future__ import annotations

import argparse

from dnnp.cmds.shell.arguments import seconds, size


def limit_options(parser: argparse.ArgumentParser, title: str = "limits") -> None:
    """Declare the options; `set_limits` puts them into force."""
    limits = parser.add_argument_group(title)
    limits.add_argument(
        "--stage-timeout",
        type=seconds,
        metavar="SECONDS",
        help="end with status 5 when one run of a stage, or of the model, or the making of its "
        "session takes longer; 0: never (default: 600)",
    )
    limits.add_argument(
        "--max-memory",
        type=size,
        metavar="BYTES",
        help="end with status 5 when more memory is needed (suffixes K, M, G, Ki..; default: 90 %% "
        "of what is free)",
    )


def set_limits(args: argparse.Namespace) -> None:
    """Limit this process from now on."""
    from dnnp.core.runtime import limits

    limits.set_limits(args.stage_timeout, args.max_memory)
