"""The list of commands."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dnnp.cmds.shell.cli import Command

COMMANDS = {
    "import": "import_",
    "profile": "profile",
    "coarsen": "coarsen",
    "partition": "partition",
    "bound": "bound",
    "export": "export",
    "schedule": "schedule",
    "run": "run",
    "view": "view",
    "check": "check",
}
"""Every command without `dnnp-`, in the order in which they are listed -> its module in `cmds`."""


def command(name: str) -> Command:
    """The command `dnnp-NAME`; its module is imported now."""
    found: Command = import_module(f"dnnp.cmds.{COMMANDS[name]}").COMMAND
    return found


def summaries() -> dict[str, str]:
    """Name of every command -> one line about it. All of them are imported."""
    return {name: command(name).summary for name in COMMANDS}
