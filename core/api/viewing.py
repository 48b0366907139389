"""Show what a graph and its results look like."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol

from dnnp.core.model.errors import FormatError, InputFileError, UnavailableError, UsageError
from dnnp.options.run import TABULAR, ViewOptions
from dnnp.options.table import VIEWS, shown_as

if TYPE_CHECKING:
    from dnnp.core.view.facts import Facts
    from dnnp.formats.stream import Stream
    from dnnp.graph import Graph

P = ParamSpec("P")


class _Public(Protocol[P]):
    """Function of graphs and a file that takes options as keywords."""

    def __call__(
        self,
        graph: Graph | Sequence[Graph],
        path: str | os.PathLike[str] | None = None,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> bytes: ...


def _view(
    graph: Graph | Sequence[Graph],
    path: str | os.PathLike[str] | None = None,
    *,
    options: ViewOptions,
) -> bytes:
    """Show what a graph and its results look like, as the contents of a file.

    Parameters
    ----------
    graph
        The graph, or several to compare.
    path
        File to write as well, whose ending says what to make of it if `as_` does not.

    Raises
    ------
    UsageError
        An option makes no sense, or the graph does not hold what is to be shown.
    FormatError
        The graph is malformed.
    InputFileError
        A file cannot be read or written.
    UnavailableError
        PNG needs the package resvg-py, and fonts.
    """
    from dnnp.formats.files import whole_file
    from dnnp.graph import Graph

    graphs = [graph] if isinstance(graph, Graph) else list(graph)
    data = view_bytes([each.stream() for each in graphs], options)
    if path is not None:
        with whole_file(path) as file:
            file.write(data)
    return data


def _public(kind: Callable[P, ViewOptions]) -> _Public[P]:
    def call(graph: Any, path: Any = None, *args: P.args, **kwargs: P.kwargs) -> bytes:
        options = kind(*args, **kwargs)
        name = None if path is None else os.fspath(path)
        options = options.replaced(as_=kwargs.get("as_") or view_of(name, options.plot))
        options.check()
        return _view(graph, path, options=options)

    made: _Public[P] = shown_as(call, _view, kind)
    return made


view = _public(ViewOptions)


def columns(
    stream: Stream, name: str = "stages", digits: int | None = None
) -> dict[str, list[str | int | float | None]]:
    """A table as columns; see `Graph.table`."""
    from dnnp.core.view.tables import TABLES, table_of

    if digits is not None and (type(digits) is not int or digits < 1):
        raise UsageError(f"digits {digits!r}: must be a number of at least 1")
    if name not in TABLES:
        raise UsageError(f"table {name!r}: must be one of {', '.join(TABLES)}")
    found = table_of([read_facts(stream)], name, digits=digits)
    cells = zip(*found.rows, strict=True) if found.rows else [()] * len(found.header)
    return dict(zip(found.header, map(list, cells), strict=True))


def notebook(graph: Graph) -> str:
    """HTML of a graph: the loads of its stages and their table, or a line."""
    from html import escape

    said = f"<p>{escape(repr(graph))}</p>"
    if graph.plan is None or not graph.stages:
        return said
    picture = view(graph, as_="svg", picture="loads").decode()
    held = columns(graph.stream(), digits=4)
    used = {name: cells for name, cells in held.items() if any(cells) or name == "stage"}
    rows = ["".join(f"<th>{name}</th>" for name in used)]
    for row in zip(*used.values(), strict=True):
        shown = (int(x) if isinstance(x, float) and x.is_integer() else x for x in row)
        rows.append("".join(f"<td>{'' if x is None else escape(str(x))}</td>" for x in shown))
    table = f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"
    return f'{said}{picture}<div style="overflow-x:auto">{table}</div>'


def view_of(path: str | None, plot: str | None = None) -> str:
    """The view that a file's ending asks for; without an ending `svg` with `plot`, else text.

    Raises UsageError: no view has this ending.
    """
    from dnnp.core.model.text import instead

    ending = os.path.splitext(path or "")[1]
    if not ending:
        return "text" if plot is None else "svg"
    of_ending = {known: view for view, endings in VIEWS.items() for known in endings}
    found = of_ending.get(ending.lower())
    if found is None:
        hint = instead(ending, of_ending)
        raise UsageError(f"{path}: no view has the ending '{ending}' (--as names one){hint}")
    return found


def view_bytes(streams: Sequence[Stream], options: ViewOptions) -> bytes:
    """A view of streams; raises what `view` does."""
    if not streams:
        raise UsageError("there is nothing to show")
    if options.as_ in TABULAR:
        from dnnp.core.view.tables import draw, table_of

        chosen = options.table or ("stages" if len(streams) == 1 else "plans")
        columns = options.columns.split(",") if isinstance(options.columns, str) else None
        table = table_of(
            [read_facts(stream) for stream in streams], chosen, columns, options.digits
        )
        return draw(table, options.as_, options.raw)
    if options.plot is not None:
        from dnnp.core.view.compare import plot

        picture = plot([read_facts(stream) for stream in streams], options.plot)
        return _rastered(picture) if options.as_ == "png" else picture
    if options.as_ == "text":
        return _text([read_facts(stream) for stream in streams], options)
    if options.as_ == "html" and len(streams) == 2:
        return _html(read_facts(streams[0]), options, read_facts(streams[1]))
    if len(streams) > 1:
        others, most = ", ".join(("text", *TABULAR)), ", or two" if options.as_ == "html" else ""
        wrong = f"--as {options.as_} shows one stream{most}; several are for {others} or --plot"
        raise UsageError(wrong)
    return _DRAWN[options.as_](read_facts(streams[0]), options)


def read_facts(stream: Stream) -> Facts:
    """Read what a stream says, for all views, if dnnp-check finds nothing wrong with it.

    Raises FormatError: the stream is malformed, or says what dnnp-check refuses.
    """
    from dnnp.checking import check_stream
    from dnnp.core.view.facts import facts_of
    from dnnp.options.run import CheckOptions
    from dnnp.workload import Workload

    work = Workload(stream) if stream.rows("node") else None
    plan = None if work is None else work.plan
    found = check_stream(stream, CheckOptions())
    if not found.holds:
        wrong = [v for v in found.violations if v.kind != "unchecked"]
        raise FormatError(f"{wrong[0]}; dnnp-check says more", stream.name)
    if work is None:
        return facts_of(stream, None, None, None)
    graph, units = work.graph, work.units
    if plan is not None:
        from dnnp.core.cost.rates import planned

        graph, units = planned(*work.priced_on(plan.devices), plan.options)
    return facts_of(stream, graph, units, plan)


def _text(streams: Sequence[Facts], options: ViewOptions) -> bytes:
    from dnnp.core.view import compare, text
    from dnnp.core.view.facts import Page

    page = Page(options.width, options.plain, options.color, options.verbose)
    return text.draw(streams[0], page) if len(streams) == 1 else compare.draw(streams, page)


def _svg(facts: Facts, options: ViewOptions) -> bytes:
    from dnnp.core.view.svg import draw

    return draw(facts, options.picture or "all")


def _png(facts: Facts, options: ViewOptions) -> bytes:
    return _rastered(_svg(facts, options))


_SCALE = 2
"""Pixels of a picture for each unit of its SVG."""

_SIDE = 16000
"""Most pixels of a side."""


def _rastered(picture: bytes) -> bytes:
    """A PNG of an SVG.

    UnavailableError: resvg-py is missing, or there are no fonts: resvg would leave out all texts.
    """
    try:
        from resvg_py import svg_to_bytes
    except ModuleNotFoundError:
        raise UnavailableError("PNG needs resvg-py: pip install 'dnnp[png]'") from None
    from dnnp.core.view.drawing import FONT

    text = picture.decode()
    head = text[: text.index(">") + 1]
    bare, lettered = (svg_to_bytes(f"{head}{x}</svg>") for x in ("", '<text y="20">dnnp</text>'))
    if bytes(bare) == bytes(lettered):
        fonts = ", ".join(part.strip(" '") for part in FONT.split(",")[:-1])
        raise UnavailableError(f"PNG needs one of these fonts: {fonts}")
    width, height = (float(x) for x in re.findall(r' (?:width|height)="([0-9.]+)"', head))
    scale = min(_SCALE, _SIDE / max(width, height))
    return bytes(svg_to_bytes(text, background="white", width=int(width * scale)))


def _html(facts: Facts, options: ViewOptions, other: Facts | None = None) -> bytes:
    """A page; of two plans if `other` has one of the same graph, else raises UsageError."""
    from dnnp.core.view import compare, page

    both = [facts] if other is None else [facts, other]
    graphs = {(f.graph.node_names, f.graph.in_idx.tobytes()) for f in both if f.graph is not None}
    if other is not None and ([len(f) for f in compare.families(both)], len(graphs)) != ([2], 1):
        raise UsageError("--as html shows two streams only if they have plans of the same graph")
    folder = Path(page.__file__).with_name("web")
    files = {name: (folder / name).read_text("utf-8") for name in page.FILES}
    return page.draw(_with_attributes(facts, options), files, other)


def _with_attributes(facts: Facts, options: ViewOptions) -> Facts:
    """Facts with the attributes of nodes, if the model is where the stream or `--model` says."""
    from dnnp.callbacks import open_source
    from dnnp.formats.onnx.value_types import attribute_words

    try:
        model, _, _ = open_source(options.caller, facts.stream, options.model, light=True)
    except (FormatError, InputFileError):
        if options.model is not None:
            raise
        return facts
    nodes = enumerate(model.graph.node)
    found = {v: tuple(map(attribute_words, node.attribute)) for v, node in nodes}
    return replace(facts, attributes=found)


def _graph(facts: Facts, options: ViewOptions) -> bytes:
    from dnnp.core.view.graphs import dot, graphml

    return dot(facts) if options.as_ == "dot" else graphml(facts)


def _trace(facts: Facts, _: ViewOptions) -> bytes:
    import io

    from dnnp.core.model.text import shown_seconds
    from dnnp.core.view.graphs import NANO, scale_of, timeline_of
    from dnnp.formats.trace_events import write_trace

    file = io.BytesIO()
    timeline, scale = timeline_of(facts), scale_of(facts)
    times = "predicted"
    if not facts.seconds or scale != NANO:
        unit = "1 s" if facts.seconds else "1, without a unit,"
        times += f"; {unit} is shown as {shown_seconds(scale / NANO)}"
    write_trace(file, timeline, {"model": facts.model, "times": times})
    return file.getvalue()


def _onnx(facts: Facts, options: ViewOptions) -> bytes:
    """The model with what is known of its nodes; weights that lie in other files stay there."""
    from dnnp.callbacks import open_source
    from dnnp.core.view.graphs import nodes_of, shown_number
    from dnnp.formats.export.annotated import add_view
    from dnnp.formats.plan import refuse_training

    known = {
        number: {
            name: value if isinstance(value, str) else shown_number(value)
            for name, value in values.items()
            if name not in ("name", "op")
        }
        for number, _, values in nodes_of(facts)
    }
    if facts.graph is not None:
        refuse_training(facts.graph)
    model, path, _ = open_source(options.caller, facts.stream, options.model)
    add_view(model, known)
    if any(tensor.external_data for tensor in model.graph.initializer):
        options.caller.note(f"weights in files beside {path} are named, not copied")
    data: bytes = model.SerializeToString()
    return data


_DRAWN: dict[str, Callable[[Facts, ViewOptions], bytes]] = {
    "svg": _svg, "png": _png, "html": _html, "dot": _graph, "graphml": _graph, "trace": _trace,
    "onnx": _onnx,
}  # fmt: skip
"""View of one stream -> the function that makes it."""
