"""Functions of Python from steps: those of a command, with its options as keywords."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import update_wrapper
from inspect import Parameter, Signature, signature
from typing import Any, Concatenate, ParamSpec, TypeVar

from dnnp.callbacks import CALLER, Caller
from dnnp.formats.header import stamped
from dnnp.formats.stream import Stream
from dnnp.graph import Graph
from dnnp.options.table import Options

P = ParamSpec("P")
O = TypeVar("O", bound="Options")  # noqa: E741


def json_in(
    value: str | os.PathLike[str] | Sequence[Any], flag: str, caller: Caller
) -> tuple[bytes, str]:
    """What is in the JSON file that an option names, or a list as JSON; and a name of it."""
    if isinstance(value, str | os.PathLike):
        return caller.read_input(os.fspath(value)), os.fspath(value)
    import orjson

    return orjson.dumps(list(value), option=orjson.OPT_SERIALIZE_NUMPY), flag


def step(
    tool: str, options: Callable[P, O]
) -> Callable[[Callable[[Stream, O], object]], Callable[Concatenate[Graph, P], Graph]]:
    """Make what changes a stream, by the options of a command, a function of Python.

    That takes the graph and the options as keywords, leaves the graph alone and returns another.
    The provenance names the command that does the same.
    """

    def public(work: Callable[[Stream, O], object]) -> Callable[Concatenate[Graph, P], Graph]:
        def call(graph: Graph, *args: P.args, **kwargs: P.kwargs) -> Graph:
            asked = options(*args, **kwargs)
            asked.check()
            return changed(tool, work, graph.stream(), asked)

        return shown_as(call, work, options, Graph)

    return public


def changed(tool: str, work: Callable[[Stream, O], object], stream: Stream, asked: O) -> Graph:
    """The graph of a stream that a step has changed, which is stamped into its header."""
    work(stream, asked)
    stream.header = stamped(stream.header, tool, asked.words())
    return Graph(stream)


def shown_as(call: Any, work: Callable[..., Any], options: Any, returns: Any) -> Any:
    """The same function with the docstring of `work`, and all options in its signature."""
    first = [p for p in signature(call).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    update_wrapper(call, work, assigned=("__module__", "__doc__"), updated=())
    call.__name__ = call.__qualname__ = work.__name__.removesuffix("_stream")
    rows = [(row.name, row.default, row.type) for row in options.rows.values()]
    keywords = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=type_)
        for name, default, type_ in [("caller", CALLER, "Caller"), *rows]
    ]
    call.__signature__ = Signature([*first, *keywords], return_annotation=returns)
    del call.__wrapped__
    return call
