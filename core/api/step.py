"""Functions of Python from steps: those of a command, with its options as keywords."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import update_wrapper, wraps
from inspect import Parameter, signature
from typing import Any, Concatenate, ParamSpec, TypeVar

from dnnp.callbacks import CALLBACKS, Callbacks
from dnnp.formats.header import stamped
from dnnp.formats.stream import Stream
from dnnp.graph import Graph
from dnnp.options.table import Options

P = ParamSpec("P")
A = TypeVar("A")
R = TypeVar("R")
O = TypeVar("O", bound="Options")  # noqa: E741


def json_in(
    value: str | os.PathLike[str] | Sequence[Any], flag: str, caller: Callbacks
) -> tuple[bytes, str]:
    """Read the JSON file that an option names, or make JSON of a list; with a name for messages."""
    if isinstance(value, str | os.PathLike):
        return caller.read_input(os.fspath(value)), os.fspath(value)
    import orjson

    return orjson.dumps(list(value), option=orjson.OPT_SERIALIZE_NUMPY), flag


def function(
    options: Callable[P, O],
) -> Callable[[Callable[[A, O], R]], Callable[Concatenate[A, P], R]]:
    """Make a function of something and of options one that takes the options as keywords."""

    def public(work: Callable[[A, O], R]) -> Callable[Concatenate[A, P], R]:
        def call(first: A, *args: P.args, **kwargs: P.kwargs) -> R:
            asked = options(*args, **kwargs)
            asked.check()
            return work(first, asked)

        return shown_as(call, work, options)

    return public


def step(
    tool: str, options: Callable[P, O]
) -> Callable[[Callable[[Stream, O], object]], Callable[Concatenate[Graph, P], Graph]]:
    """Make a function that changes a stream, by the options of a command, one of Python.

    That takes the graph and the options as keywords, leaves the graph alone and returns another.
    The provenance names the command that does the same.
    """

    def public(work: Callable[[Stream, O], object]) -> Callable[Concatenate[Graph, P], Graph]:
        @wraps(work, assigned=("__module__", "__name__", "__doc__"))
        def changing(graph: Graph, asked: O) -> Graph:
            return changed(tool, work, graph.stream(), asked)

        del changing.__wrapped__
        return function(options)(changing)

    return public


def changed(tool: str, work: Callable[[Stream, O], object], stream: Stream, asked: O) -> Graph:
    """Change a stream by a step, and stamp that into the header."""
    work(stream, asked)
    stream.header = stamped(stream.header, tool, asked.words())
    return Graph(stream)


def shown_as(call: Any, work: Callable[..., Any], options: Any) -> Any:
    """Give a function the docstring of `work`, and all options in its signature."""
    update_wrapper(call, work, assigned=("__module__", "__doc__"), updated=())
    call.__name__ = call.__qualname__ = work.__name__.removesuffix("_stream").strip("_")
    shown = signature(work)
    rows = [(row.name, row.default, row.type) for row in options.rows.values()]
    keywords = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=type_)
        for name, default, type_ in [("caller", CALLBACKS, "Callbacks"), *rows]
    ]
    *first, _ = shown.parameters.values()  # the last one is the options
    call.__signature__ = shown.replace(parameters=[*first, *keywords])
    del call.__wrapped__
    return call
