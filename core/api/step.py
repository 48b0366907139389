"""What the steps have in common: options that are those of a command, and a graph to change."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import update_wrapper
from inspect import Parameter, Signature, signature
from typing import Any, Concatenate, ParamSpec, TypeVar

from dnnp.caller import CALLER, Caller
from dnnp.core.model.errors import UsageError
from dnnp.formats.header import stamped
from dnnp.formats.stream import Stream
from dnnp.graph import Graph

P = ParamSpec("P")
O = TypeVar("O", bound="Options")  # noqa: E741


def option(
    default: Any = None,
    flag: str | None = None,
    *,
    choices: tuple[str, ...] = (),
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    json: bool = False,
) -> Any:
    """A field of `Options`.

    Parameters
    ----------
    default
        Its value where nothing is said.
    flag
        The option of the command; None: the field's name with hyphens; empty: it has none.
    choices
        What a text may be.
    least, above, most
        The range of a number.
    json
        A list is one argument, which the command takes from a file.
    """
    limits = {"choices": choices, "least": least, "above": above, "most": most}
    return field(default=default, metadata={"flag": flag, "json": json, **limits})


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base of the options of a step; each is named as that of the command which does the same."""

    caller: Caller = field(default=CALLER, repr=False, compare=False)
    """Whom the step tells what it does."""

    def check(self) -> None:
        """Refuse options that make no sense, before there is any work.

        Raises
        ------
        UsageError
            A value is out of its range; the message names the option.
        """
        for each in self._own():
            value = getattr(self, each.name)
            if value is None:
                continue
            _check_range(flag_of(each), value, each.metadata)

    def words(self) -> list[str]:
        """The arguments by which the command does the same."""
        words: list[str] = []
        for each in self._own():
            value, flag = getattr(self, each.name), flag_of(each)
            if not flag or value is False or value == _default(each):
                continue
            if value is True:
                words.append(flag)
            elif each.metadata["json"] and not isinstance(value, str | os.PathLike):
                words += [flag, str(list(value))]
            elif isinstance(value, str | os.PathLike | int | float):
                words += [flag, _text(value)]
            else:
                items = value.items() if isinstance(value, Mapping) else value
                for item in items:
                    words += [
                        flag,
                        "=".join(map(_text, item if isinstance(item, tuple) else [item])),
                    ]
        return words

    def _own(self) -> list[Field[Any]]:
        return [each for each in fields(self) if each.metadata]


def json_in(
    value: str | os.PathLike[str] | Sequence[Any], flag: str, caller: Caller
) -> tuple[bytes, str]:
    """What is in the JSON file that an option names, or a list as JSON; and a name of it."""
    if isinstance(value, str | os.PathLike):
        return caller.read_input(os.fspath(value)), os.fspath(value)
    import orjson

    return orjson.dumps(list(value), option=orjson.OPT_SERIALIZE_NUMPY), flag


def flag_of(each: Field[Any]) -> str:
    """The option of the command that a field is; empty if there is none."""
    flag = each.metadata["flag"]
    if flag is not None:
        return str(flag)
    return f"-{each.name}" if len(each.name) == 1 else f"--{each.name.replace('_', '-')}"


def _check_range(flag: str, value: Any, limits: Mapping[str, Any]) -> None:
    choices, least, above, most = (limits[k] for k in ("choices", "least", "above", "most"))
    if choices and value not in choices:
        raise UsageError(f"{flag} {value!r}: must be one of {', '.join(choices)}")
    if (least, above, most) == (None, None, None):
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{flag} {value!r}: must be a number")
    if least is not None and not value >= least:
        raise UsageError(f"{flag} {value}: must be at least {least:g}")
    if above is not None and not value > above:
        raise UsageError(f"{flag} {value}: must be above {above:g}")
    if most is not None and not value <= most:
        raise UsageError(f"{flag} {value}: must be at most {most:g}")


def _default(each: Field[Any]) -> Any:
    return None if each.default is MISSING else each.default


def _text(value: Any) -> str:
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


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
    update_wrapper(call, work, assigned=("__module__", "__doc__"), updated=())
    call.__name__ = call.__qualname__ = work.__name__.removesuffix("_stream")
    graph = Parameter("graph", Parameter.POSITIONAL_OR_KEYWORD, annotation=Graph)
    keywords = signature(options).parameters.values()
    call.__signature__ = Signature([graph, *keywords], return_annotation=returns)
    del call.__wrapped__
    return call
