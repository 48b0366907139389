"""One table of options: parsers, help, manual, completion and keywords of Python follow from it.

A class of `Options` has a row for each field; `function` and `step` make functions of Python that
take the rows as keywords. Commands start with this module, so that it imports little.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import update_wrapper, wraps
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    ParamSpec,
    Self,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
)

from dnnp.callbacks import CALLBACKS, Callbacks
from dnnp.core.model.errors import UsageError

if TYPE_CHECKING:
    from dnnp.formats.stream import Stream
    from dnnp.graph import Graph


WITH_ATTRIBUTES = ("csv", "dot", "graphml", "gml", "node-link")
"""Formats of graphs whose nodes and edges have attributes of any name."""
OWN_GRAPHS = (*WITH_ATTRIBUTES, "stg", "wfcommons", "dagbench")
"""Formats of graphs of named nodes and edges."""
MODEL_FORMATS = ("onnx", "msr-json", "piper", "costgraph", *OWN_GRAPHS)
IN_JSON = ("msr-json", "piper", "node-link", "wfcommons", "dagbench")
JSON = "json"
"""Stands for these, which are told apart by content."""
EXTENSIONS = {
    ".json": JSON,
    ".pbtxt": "costgraph",
    ".pbtext": "costgraph",
    ".textproto": "costgraph",
    ".csv": "csv",
    ".dot": "dot",
    ".gv": "dot",
    ".graphml": "graphml",
    ".gml": "gml",
    ".stg": "stg",
}
"""Ending of a file -> its format, where that is not ONNX."""

SHAPES = ("auto", "value-info", "infer", "symbolic", "run")
FAMILIES = ("erdos-renyi", "barabasi-albert", "watts-strogatz", "stochastic-block")
ANY_FAMILY = "regal"
READINGS = ("absolute", "cut-off", "own", "written", "normal")
"""Of what a paper says about costs of random graphs; the first unless told otherwise."""
LAYERED = "layered"

DEFAULT_RULES = "ort-cpu"
DEFAULT_SHARE = 0.02

DEFAULT_DEVICE = "cpu-core"
HERE = "cpu-here"
"""The class of this machine's processor, whose rates are measured at first use."""
PROFILE_MODES = ("analytic", "measure", "scaled")
MEASURED = "measured"
"""Stands for the only class which a graph prices."""

OPTIMIZERS = ("adam", "momentum", "sgd")
"""Optimizers that update the weights in training."""

RECOMPUTE = ("none", "full", "auto")
"""Stages that run their forward passes again."""
WEIGHT_SYNC = ("ring", "server")
"""Ways in which replicas add up gradients."""

PROVIDERS = ("cpu", "cuda")
WORKERS = ("thread", "process")
ENGINES = ("local", "ray")
FOLDERS = ("stages", "genai", "triton", "ort-layers", "onnx-devices")
"""Exports to a folder."""
TORCH = ("torch-csv", "torch-comms-csv", "torch-plan")
EXPORTS = (*FOLDERS, "subgraph", "msr-split", *TORCH, "torch")
VIEWS = {
    "text": (".txt",),
    "svg": (".svg",),
    "png": (".png",),
    "html": (".html", ".htm"),
    "dot": (".dot", ".gv"),
    "graphml": (".graphml",),
    "trace": (".json",),
    "onnx": (".onnx",),
    "csv": (".csv",),
    "tsv": (".tsv",),
    "md": (".md",),
}
"""View of dnnp-view -> endings of files that ask for it."""
VIEW_TABLES = (
    "stages", "nodes", "cuts", "bounds", "runs", "generation", "schedule", "plans", "tried",
)  # fmt: skip
VIEW_PICTURES = ("loads", "schedule", "graph")
VIEW_AXES = ("k", "method")
"""Axes of a chart of plans."""
OPTIMIZATIONS = ("disable", "basic", "extended", "all")

MAX_GAP = 1e-4
"""Gap up to which `auto` need not go on, unless another is asked for."""


P = ParamSpec("P")
T = TypeVar("T")


class _Row:
    """Takes fields as keywords."""

    def __init__(self, default: Any = None, flag: Any = None, **about: Any) -> None:
        self.__dict__.update(about, default=default, flag=flag)


@dataclass_transform()
def _typed(kind: type[T]) -> type[T]:
    return kind


# No `dataclass` here and below: its module takes longer to import than `--help` to print.
@_typed
class Option(_Row):
    """A row of the table: an option of a command, and a keyword of Python."""

    default: Any = None
    """Its value where nothing is said."""
    flag: str | None = None
    """Its long form; None: the field's name with hyphens; empty: the command has none."""
    short: str = ""
    """Its form of one letter, such as `-n`."""
    choices: tuple[str, ...] = ()
    """Values that a text may have."""
    several: bool = False
    """Several of them may be given, between commas."""
    least: float | None = None
    above: float | None = None
    most: float | None = None
    """The range of a number."""
    unit: str = ""
    """Numbers that may be text too, which `formats.inputs.amounts.parse_UNIT` reads."""
    each: bool = False
    """It may be given again, for single devices as `DEVICE=NUMBER`; all are one text then."""
    words: tuple[str, ...] = ()
    """Words that may stand in place of a number."""
    const: Any = None
    """Its value where it is given without one; None: it must have one."""
    json: bool = False
    """A list is one argument, which the command takes from a file."""
    needs: tuple[str, ...] = ()
    """Of these one must be given too: a flag, and after it the values of which it must have one."""
    apart: str = ""
    """Of options that have the same here only one may be given."""
    show: Callable[[Any, Any], str] | None = None
    """The command prints this text, made from parser and value, and does nothing else."""
    metavar: str | None = None
    """Name of its value; None: its choices."""
    group: str | None = None
    """Heading in help; None: that of the option before."""
    page: bool = False
    """It is on the page of `--help`, with its help up to the first semicolon or parenthesis."""
    tuning: bool = False
    """Commands take it as `--set KEY=VALUE`; `--help-all` does not list its flag."""
    help: str = ""
    """Its purpose; starts small, without full stop."""
    name: str = ""
    type: str = ""
    """Field and annotation, from the class; the next three follow from them."""
    kind: str = ""
    """The first of its types: int, float, str, bool, Sequence (it may be repeated), ..."""
    flags: tuple[str, ...] = ()
    """Names by which the command takes it."""
    key: str = ""
    """The flag without hyphens in front, as `--set` names it."""

    def amount(self, text: str) -> Any:
        """Read a number with its unit; ValueError: it is none."""
        if text in self.words:
            return text
        from dnnp.formats.inputs import amounts

        if self.each and "=" in text:
            amounts.parse_limits(text, self.amount)
            return text
        return getattr(amounts, f"parse_{self.unit}")(text)

    def given(self, value: Any) -> bool:
        """True if a value is another than the default."""
        if value is self.default or (value == [] and self.kind == "Sequence"):
            return False
        return self.default is None or bool(value != self.default)

    def check(self, value: Any) -> None:
        """Refuse a value of another type, that is none of the choices, or out of range.

        Raises UsageError: the message names the option.
        """
        if value is self.default or (isinstance(value, str) and value in self.words):
            return
        if not _fits(value, eval(self.type, None, _TYPES)):
            meant = self.type.replace("Sequence", "list")
            raise UsageError(f"{self.flag or self.name} {value!r:.40}: must be {meant}")
        if self.choices:
            for word in value.split(",") if self.several else [value]:
                if word not in self.choices:
                    known = ", ".join(self.choices)
                    raise UsageError(f"{self.flag} {word!r}: must be one of {known}")
        limits = self.least, self.above, self.most
        if limits == (None, None, None) or (self.each and isinstance(value, str)):
            return
        if isinstance(value, str):
            others = "".join(f" or {word}" for word in self.words)
            raise UsageError(f"{self.flag} {value!r}: must be a number{others}")
        if self.least is not None and not value >= self.least:
            raise UsageError(f"{self.flag} {value}: must be at least {self.least:g}")
        if self.above is not None and not value > self.above:
            raise UsageError(f"{self.flag} {value}: must be above {self.above:g}")
        if self.most is not None and not value <= self.most:
            raise UsageError(f"{self.flag} {value}: must be at most {self.most:g}")


_TYPES = {"Any": Any, "Callable": Callable, "Mapping": Mapping, "Sequence": Sequence, "os": os}


def _fits(value: Any, kind: Any) -> bool:
    """True if a value is of a type, for which paths are texts, and numbers of numpy numbers."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return any(_fits(value, part) for part in parts)
    if origin is Mapping:
        return isinstance(value, Mapping) and all(_fits(v, parts[1]) for v in value.values())
    if origin is Sequence:
        listed = isinstance(value, Sequence) and not isinstance(value, str | bytes)
        return listed and all(_fits(item, parts[0]) for item in value)
    if kind in (int, float):
        number = hasattr(value, "__index__" if kind is int else "__float__")
        return number and not isinstance(value, bool)
    if kind is str or origin is os.PathLike:
        return isinstance(value, str | os.PathLike)
    return kind is not NoneType


def _untyped(row: Callable[P, Option]) -> Callable[P, Any]:
    return row


option = _untyped(Option)
"""A row, as the value of a field of any type."""


@dataclass_transform(kw_only_default=True, frozen_default=True)
class _Table:
    """Makes rows of the fields of its subclasses, and a frozen class of each."""

    rows: ClassVar[dict[str, Option]] = {}
    """Field -> row."""

    def __init_subclass__(cls, *, first: bool = False) -> None:
        """`first`: its rows come before those of the base class."""
        rows: dict[str, Option] = {}
        for name, type_ in cls.__annotations__.items():
            row = vars(cls).get(name)
            if isinstance(row, Option):
                rows[name], row.name, row.type = row, name, type_
                row.kind = type_.partition(" | ")[0].partition("[")[0]
                if row.flag is None:
                    row.flag = f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}"
                row.flags = (row.short, row.flag) if row.short else (row.flag,)
                row.key = row.flag.lstrip("-")
                setattr(cls, name, row.default)
        cls.rows = rows | cls.rows if first else cls.rows | rows

    def __init__(self, **given: Any) -> None:
        for name, value in given.items():
            row = self.rows.get(name)
            if row is None and name != "caller":
                from dnnp.core.model.text import did_you_mean

                hint = did_you_mean(name, [*self.rows, "caller"])
                raise TypeError(f"{type(self).__name__}: unknown option {name!r}{hint}")
            if getattr(value, "ndim", None) == 0:
                value = value.item()  # a number of numpy
            if row is not None and (row.several or row.each) and isinstance(value, Sequence):
                value = value if isinstance(value, str) else ",".join(map(str, value))
            if row is not None and row.unit and isinstance(value, str):
                try:
                    value = row.amount(value)
                except ValueError as error:
                    raise UsageError(f"{row.flag}: {error}") from None
            self.__dict__[name] = value

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"cannot assign to field {name!r}")


class Options(_Table):
    """Base of the options of a step; each is named as that of the command which does the same."""

    caller: Callbacks = CALLBACKS
    """Callbacks of the step."""

    def check(self) -> None:
        """Refuse options that make no sense, before there is any work.

        Raises UsageError: A value is out of its range, or options exclude each other; the message
        names them.
        """
        apart: dict[str, str] = {}
        for row in self.rows.values():
            value = getattr(self, row.name)
            row.check(value)
            if row.needs and row.given(value) and not any(map(self._meets, row.needs)):
                needed = " or ".join(need.replace("|", " or ") for need in row.needs)
                raise UsageError(f"{row.flag} is for {needed}")
            if row.apart and row.given(value):
                other = apart.setdefault(row.apart, str(row.flag))
                if other != row.flag:
                    raise UsageError(f"give {other} or {row.flag}, not both")

    def _meets(self, need: str) -> bool:
        """True if a flag is given, with one of the values after it if there are any."""
        flag, _, words = need.partition(" ")
        row = next(row for row in self.rows.values() if row.flag == flag)
        value = getattr(self, row.name)
        if not words:
            return row.given(value)
        found = value.split(",") if isinstance(value, str) else value or ()
        return not {*words.split("|")}.isdisjoint(found)

    def replaced(self, **changes: Any) -> Self:
        """The same options but for some."""
        mine = {name: value for name, value in vars(self).items() if name in (*self.rows, "caller")}
        return type(self)(**{**mine, **changes})

    def words(self) -> list[str]:
        """The arguments by which the command does the same."""
        words: list[str] = []
        for row in self.rows.values():
            value, flag = getattr(self, row.name), row.flag
            if not flag or not row.given(value):
                continue
            if value is True:
                words.append(flag)
            elif row.json and not isinstance(value, str | os.PathLike):
                words += [flag, str(list(value))]
            elif isinstance(value, str | os.PathLike | int | float):
                words += [flag, _text(value)]
            else:
                items = value.items() if isinstance(value, Mapping) else value
                for item in items:
                    parts = item if isinstance(item, tuple) else [item]
                    words += [flag, "=".join(map(_text, parts))]
        return words


def _text(value: Any) -> str:
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


A = TypeVar("A")
R = TypeVar("R")
O = TypeVar("O", bound=Options)  # noqa: E741


def function(
    options: Callable[P, O],
) -> Callable[[Callable[[A, O], R]], Callable[Concatenate[A, P], R]]:
    """Make a function of something and of options one that takes the options as keywords."""

    def public(work: Callable[[A, O], R]) -> Callable[Concatenate[A, P], R]:
        wanted = next(iter(work.__annotations__.values()), "")

        def call(first: A, *args: P.args, **kwargs: P.kwargs) -> R:
            if wanted.startswith("Graph") and not hasattr(first, "stream") and first is not None:
                given = type(first).__name__
                raise TypeError(f"{call.__name__}: a dnnp.Graph is needed, not '{given}'")
            if args:
                raise TypeError(f"{call.__name__}: options have names, as in k=2")
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
    from dnnp.formats.header import stamped
    from dnnp.graph import Graph

    work(stream, asked)
    stream.header = stamped(stream.header, tool, asked.words())
    return Graph(stream)


def shown_as(call: Any, work: Callable[..., Any], options: Any) -> Any:
    """Give a function the docstring of `work`, and all options in its signature."""
    from inspect import Parameter, signature

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
