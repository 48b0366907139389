"""Show what a graph and its results look like."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dnnp.caller import CALLER, Caller
from dnnp.choices import VIEWS
from dnnp.core.model.errors import InputFileError, UsageError
from dnnp.step import Options, option

if TYPE_CHECKING:
    from dnnp.core.view.facts import Facts
    from dnnp.formats.stream import Stream
    from dnnp.graph import Graph


@dataclass(frozen=True, kw_only=True)
class ViewOptions(Options):
    """What is shown."""

    as_: str = option("text", "--as", choices=tuple(VIEWS))
    """`text`: tables and charts for a terminal."""
    width: int = option(100, least=40)
    """Columns of a text."""


def view(
    graph: Graph | Sequence[Graph],
    path: str | os.PathLike[str] | None = None,
    *,
    as_: str | None = None,
    width: int = 100,
    caller: Caller = CALLER,
) -> bytes:
    """Show what a graph and its results look like.

    Parameters
    ----------
    graph
        The graph, or several to compare.
    path
        File to write as well.
    as_
        What to make of it, one of `dnnp.choices.VIEWS`; None: by the ending of `path`, else text.
    width
        Columns of a text.

    Returns
    -------
    What a file of this kind holds.

    Raises
    ------
    UsageError
        An option makes no sense, or the graph does not hold what is to be shown.
    FormatError
        The graph is malformed.
    InputFileError
        A file cannot be read or written.
    """
    from dnnp.formats.unfinished import atomic_output
    from dnnp.graph import Graph

    name = None if path is None else os.fspath(path)
    options = ViewOptions(as_=as_ or view_of(name), width=width, caller=caller)
    options.check()
    graphs = [graph] if isinstance(graph, Graph) else list(graph)
    data = view_bytes([each.stream() for each in graphs], options)
    if name is not None:
        try:
            with atomic_output(name) as file:
                file.write(data)
        except OSError as error:
            raise InputFileError(f"{name}: {error.strerror or error}") from None
    return data


def view_of(path: str | None) -> str:
    """The view that a file's ending asks for; text, if none does."""
    ending = os.path.splitext(path or "")[1].lower()
    return next((view for view, endings in VIEWS.items() if ending in endings), "text")


def view_bytes(streams: Sequence[Stream], options: ViewOptions) -> bytes:
    """A view of streams; raises what `view` does."""
    if len(streams) != 1:
        raise UsageError("give one stream")
    return _DRAWN[options.as_](read_facts(streams[0]), options)


def read_facts(stream: Stream) -> Facts:
    """What a stream says, for all views; raises what `view` does."""
    from dnnp.core.view.facts import facts_of
    from dnnp.formats.graph import graph_of, units_of
    from dnnp.read_plan import read_plan

    if not stream.get("node"):
        return facts_of(stream, None, None, None)
    graph = graph_of(stream)
    return facts_of(stream, graph, units_of(stream, graph), read_plan(stream, graph))


def _text(facts: Facts, options: ViewOptions) -> bytes:
    from dnnp.core.view.text import draw

    return draw(facts, options.width)


_DRAWN = {"text": _text}
"""What makes each view."""
