"""Every method by name: what it is, what may be asked of it, and where it stands.

Options, help, manual pages, methods.md and dispatch follow from these tables. They import nothing,
so that help and completion come at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple


class Method(NamedTuple):
    """A method of a command: whatever `--method` names."""

    name: str
    help: str
    """One line, which starts small and has no full stop; names that users type stand between
    backticks."""
    where: str | Mapping[str, str] = ""
    """`module:function`, or one for each of its kinds; empty: it stands for others of its table."""
    kinds: tuple[str, ...] = ()
    """Kinds of answers: validities of splits that it finds or bounds, the first is its own;
    for latency, executions."""
    heeds: tuple[str, ...] = ()
    """Options that it makes use of and others of its table do not, without dashes in front."""
    source: str = ""
    """The paper, and where in it; empty: ours, or common knowledge."""
    more: str = ""
    """Further sentences for the manual page."""
    share: float = 0.0
    """Of bounds: it solves integer programs, in this share of the time left for them."""

    def place(self, kind: str = "") -> str:
        """`module:function` of what does the work, for one of its kinds."""
        return self.where if isinstance(self.where, str) else self.where[kind]

    def function(self, kind: str = "") -> Callable[..., Any]:
        """Import the function of the method, for one of its kinds; raises as `imported`."""
        return imported(self.place(kind))


def imported(place: str) -> Callable[..., Any]:
    """Import a function by its place, `module:function`.

    ModuleNotFoundError: its module, such as one of `samples/papers`, or a library is missing.
    """
    module, _, name = place.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found


def by_name(*methods: Method) -> dict[str, Method]:
    """A table, in the order in which the methods are listed everywhere."""
    return {method.name: method for method in methods}


def lines(methods: Mapping[str, Method]) -> str:
    """A line for each method, in two columns, for `--help`."""
    width = max(map(len, methods)) + 2
    return "\n".join(f"{m.name:{width}}{plain(m.help)}" for m in methods.values())


def plain(text: str) -> str:
    """A text without its backticks."""
    return text.replace("`", "")
