"""From the options of a command to those of the step that it calls."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from dnnp.cmds.shell.context import Context
    from dnnp.step import Options

O = TypeVar("O", bound="Options")  # noqa: E741


def options_of(kind: type[O], args: argparse.Namespace, context: Context) -> O:
    """The options of a step, checked.

    Raises
    ------
    UsageError
        They make no sense.
    """
    given = vars(args)
    names = [each.name for each in fields(kind) if each.name in given]
    options = kind(caller=context, **{name: given[name] for name in names})
    options.check()
    return options
