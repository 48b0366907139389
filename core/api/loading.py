"""Read a graph from a file: a stream, a model, a workload, one's own; or draw one at random."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import orjson

from dnnp.core.methods import imported
from dnnp.core.model.errors import FormatError, UsageError
from dnnp.core.model.text import counted
from dnnp.formats.header import new_header, stamped
from dnnp.formats.records import FORMAT, VERSION
from dnnp.formats.rows import uncollected
from dnnp.formats.stream import Stream, read_bytes
from dnnp.graph import Graph
from dnnp.options.graph import GenerateOptions, ImportOptions, TrainingOptions, check_text
from dnnp.options.table import (
    ANY_FAMILY,
    EXTENSIONS,
    IN_JSON,
    JSON,
    LAYERED,
    MODEL_FORMATS,
    OPTIMIZERS,
    OWN_GRAPHS,
    READINGS,
    WITH_ATTRIBUTES,
    function,
)

if TYPE_CHECKING:
    from onnx import ModelProto

    from dnnp.formats.onnx.import_model import Price


@runtime_checkable
class DirectedGraph(Protocol):
    """Interface of a graph of networkx, which need not be installed."""

    nodes: Any
    edges: Any

    def is_directed(self) -> bool:
        """True if its edges have directions."""


LAYERED_NODES = 200
"""Nodes of a layered graph if nothing is said."""

LONGEST_HEADER = 1 << 20
"""Bytes of the first line of a file in which a stream is looked for."""


Source: TypeAlias = str | os.PathLike[str] | IO[bytes] | DirectedGraph


@function(ImportOptions)
def load(file: Source, options: ImportOptions) -> Graph:
    """Read a stream that a command or `Graph.save` has written, an ONNX model, or a workload.

    Parameters
    ----------
    file
        Its path; or an open file, which cannot be an ONNX model, as later steps open that
        again; or a `networkx.DiGraph` or `MultiDiGraph`, whose attributes mean what they mean
        in the other graphs of your own (man page of dnnp-import). Its nodes are called by `str`
        of their keys unless they have a `name`; of the options below only `name` fits it.

    Raises
    ------
    InputFileError
        The file cannot be read.
    UsageError
        Options that make no sense or do not fit the file, or a dimension without a size.
    FormatError
        The file is malformed.
    """
    if isinstance(file, DirectedGraph):
        return _of_networkx(file, options)
    path = "-"
    data: bytes | None = None
    if not isinstance(file, str | os.PathLike):
        if not hasattr(file, "read"):
            raise TypeError(f"load: a path or an open file is needed, not '{type(file).__name__}'")
        data = file.read()
        if options.kind is None:
            return _of_stream(data, "<stream>", options)
    else:
        path = os.fspath(file)
        if options.kind is None and _is_stream(path):
            return _of_stream(options.caller.read_input(path), path, options)
    return _imported(import_stream(path, options, data), options, path)


def generate(
    family: str = ANY_FAMILY,
    *,
    nodes: int | None = None,
    ratio: float | None = None,
    seed: int = 0,
    reading: str | None = None,
    name: str | None = None,
) -> Graph:
    """Draw a random graph with costs, like those of REGAL.

    Parameters
    ----------
    family
        `erdos-renyi`, `barabasi-albert`, `watts-strogatz` or `stochastic-block`; `regal`: one of
        them by the seed; `layered`: layers of operators, priced on four devices of unequal speed.
    nodes
        Their number; None: from 50 to 200, by the seed; layered: 200.
    ratio
        Layered: mean transfer time over mean compute time; None: 1.
    reading
        Of what the 2024 paper says about costs: `absolute`, `cut-off`, `own`, `written` or `normal`
        (man page of dnnp-import); None: `absolute`. Not for `layered`.
    name
        Name of the graph; None: from family, size, seed and reading.

    Raises UsageError: options that make no sense.
    """
    options = GenerateOptions(
        synthetic=family, nodes=nodes, ratio=ratio, seed=seed, reading=reading, name=name
    )
    options.check()
    made = generate_stream(options)
    made.header = stamped(made.header, "dnnp-import", options.words())
    return Graph(made)


@uncollected()
def import_stream(path: str, options: ImportOptions, data: bytes | None = None) -> Stream:
    """The stream of a model or a workload; its warnings are for the user.

    Parameters
    ----------
    path
        The file; `-`: none that could be opened again.
    data
        Its contents, where they were read already.
    """
    check_text(path)
    kind = options.kind or kind_of(path)
    _refuse_strangers(kind, options)
    if kind == JSON:
        from dnnp.formats.workloads.json_graphs import kind_of_json

        data = options.caller.read_input(path) if data is None else data
        kind = kind_of_json(data, path)
        _refuse_strangers(kind, options)
    if kind == "onnx":
        if path == "-":
            raise UsageError(
                "an ONNX model must be a file: later commands open it again; "
                "for other formats on standard input give --from"
            )
        from dnnp.core.model.search_context import Progress

        with options.caller.progress("importing") as bar, _named_formats(path, options):
            told = partial(Progress, "importing")
            stream = load_onnx(path, options, lambda share: bar.update(told(share=share)))
        if options.training:
            add_training(stream, options)
        return stream
    edges = _edges(options)
    data = options.caller.read_input(path) if data is None else data
    if kind in OWN_GRAPHS:
        return read_own(kind, data, path, options.name, edges, options.ours)
    from dnnp.formats.workloads.costgraph import read_costgraph
    from dnnp.formats.workloads.msr import read_workload
    from dnnp.formats.workloads.piper import read_piper

    if kind == "costgraph":
        return read_costgraph(data, path, options.name, options.one_tensor)
    read = read_piper if kind == "piper" else read_workload
    return read(data, path, options.name)


@contextmanager
def _named_formats(path: str, options: ImportOptions) -> Iterator[None]:
    """Add the formats that are read to the refusal of a file whose ending names none of them."""
    try:
        yield
    except FormatError as error:
        named = options.kind is not None or path.lower().endswith(".onnx")
        if named or not error.reason.startswith("not an ONNX model"):
            raise
        endings = {
            k: [e for e, kind in EXTENSIONS.items() if kind == (JSON if k in IN_JSON else k)]
            for k in MODEL_FORMATS
        }
        endings["onnx"] = [".onnx"]
        read = ", ".join(f"{k} ({', '.join(e)})" if e else k for k, e in endings.items())
        reason = f"{error.reason}; read are {read}, by ending or --from NAME"
        raise FormatError(reason, error.file) from None


def _refuse_strangers(kind: str, options: ImportOptions) -> None:
    """Refuse options that are for another format."""
    attributed = (*WITH_ATTRIBUTES, JSON)
    others = {"one_tensor": ("costgraph",), "edges": ("csv",), "attribute": attributed}
    for name in (
        "training",
        "set_input",
        "keep_outputs",
        "state",
        "phase",
        "dims",
        "inputs",
        *others,
    ):
        fits = others.get(name, ("onnx",))
        if getattr(options, name) and kind not in fits:
            what = ", ".join(fits) if name in others else "ONNX models"
            raise UsageError(f"{options.rows[name].flag} is for {what}, not for {kind}")


def _edges(options: ImportOptions) -> tuple[str, bytes] | None:
    """Path of the list of edges, and the list."""
    if options.edges is None:
        return None
    path = os.fspath(options.edges)
    check_text(path)
    return path, options.caller.read_input(path)


def generate_stream(options: GenerateOptions) -> Stream:
    """The stream of a random graph."""
    from dnnp.formats.workloads.synthetic import synthetic_stream

    seed, nodes, name = options.seed or 0, options.nodes, options.name
    if options.synthetic == LAYERED:
        from dnnp.core.synthetic import layered_graph

        ratio = 1.0 if options.ratio is None else options.ratio
        made = layered_graph(LAYERED_NODES if nodes is None else nodes, ratio, seed)
        name = name or f"{LAYERED}-{made.n}-ratio{ratio:g}-seed{seed}"
        return synthetic_stream(name, made.tail, made.head, made.size, made.times)
    family = None if options.synthetic == ANY_FAMILY else options.synthetic
    reading = options.reading or READINGS[0]
    graph = imported("dnnp.samples.papers.regal:regal_graph")(family, nodes, seed, reading)
    if name is None:
        name = f"{graph.family}-{graph.n}-seed{seed}"
        name += "" if reading == READINGS[0] else f"-{reading}"
    return synthetic_stream(name, graph.tail, graph.head, graph.size, graph.cost)


def load_onnx(
    path: str,
    options: ImportOptions | None = None,
    told: Callable[[float], None] = lambda share: None,
) -> Stream:
    """Import an ONNX model with prices and the whole shape chain at hand; `told` is told how far it
    is."""
    from dnnp.core.runtime.model import shapes as ways
    from dnnp.core.runtime.model.kernels import lacking_kernels
    from dnnp.formats.onnx.dims import parse_dimensions
    from dnnp.formats.onnx.import_model import Helpers, import_onnx

    asked = options or ImportOptions()
    inputs = asked.inputs
    helpers = Helpers(pricer, ways.symbolic_shapes, lacking=lacking_kernels, told=told)
    if asked.shapes in ("auto", "run"):
        run = ways.shapes_if_small if asked.shapes == "auto" else ways.shapes_by_running
        helpers = helpers._replace(run=run)
    if inputs is not None:
        helpers = helpers._replace(read_inputs=lambda model: _read_inputs(inputs, model))
    return import_onnx(
        path, parse_dimensions(list(asked.sizes)), asked.shapes, asked.name, helpers, asked.values,
        asked.keep_outputs, asked.states, asked.phase,
    )  # fmt: skip


def _read_inputs(inputs: str | os.PathLike[str], model: ModelProto) -> Mapping[str, Any]:
    """Inputs of a model from a file or folder, by name."""
    from dnnp.core.runtime.model.inputs import bind_names, input_specs
    from dnnp.formats.tensors import read_inputs

    file = os.fspath(inputs)
    bind = partial(bind_names, specs=input_specs(model), source=file)
    return bind(read_inputs(file, admit=bind))


def pricer(model: ModelProto) -> Price:
    """A price function for the nodes of a model."""
    from dnnp.core.profile.ops import ModelFacts, node_cost

    return partial(node_cost, facts=ModelFacts.of(model))


def _imported(made: Stream, options: ImportOptions, *words: str) -> Graph:
    """The graph of a stream that was made by these options."""
    for message in made.warnings:
        options.caller.warn(message)
    made.header = stamped(made.header, "dnnp-import", [*options.words(), *words])
    return Graph(made)


def _of_networkx(graph: DirectedGraph, options: ImportOptions) -> Graph:
    """Read a graph in memory; options for files do not fit it."""
    words = options.replaced(name=None).words()
    if words:
        raise UsageError(f"a graph of networkx: {words[0]} is for files")
    return _imported(read_networkx(graph, options.name), options)


def _of_stream(data: bytes, name: str, options: ImportOptions) -> Graph:
    """Read a stream; options for models do not fit it."""
    if options.words():
        raise UsageError(f"{name} is a stream: {options.words()[0]} is for models")
    stream = read_bytes(data, name)
    for message in stream.warnings:
        options.caller.warn(message)
    return Graph(stream)


def _is_stream(path: str) -> bool:
    """True if a file begins like a stream; one that cannot be read does not."""
    try:
        with open(path, "rb") as file:
            first = file.readline(LONGEST_HEADER)
    except (OSError, ValueError):
        return False
    try:
        record = orjson.loads(first)
    except orjson.JSONDecodeError:
        return False
    return isinstance(record, dict) and record.get("type") == "header"


def kind_of(path: str) -> str:
    """Format by extension."""
    if path == "-":
        return "onnx"
    return next((k for ending, k in EXTENSIONS.items() if path.lower().endswith(ending)), "onnx")


def read_own(
    kind: str,
    data: bytes,
    path: str,
    name: str | None,
    edges: tuple[str, bytes] | None = None,
    ours: Mapping[str, str] | None = None,
) -> Stream:
    """The stream of a graph as one of `table.OWN_GRAPHS`.

    Parameters
    ----------
    data, path
        The file, and its name (`-` for standard input).
    name
        Model name for the header; None: the file's name without its ending.
    edges
        `csv`: path of the list of edges, and the list.
    ours
        Attribute of ours -> what the graph calls it; for `table.WITH_ATTRIBUTES`.

    Raises
    ------
    UsageError
        `ours` names no attribute of ours, or one of the graph that no node or edge has.
    FormatError
        Not such a graph; the message names file, line and attribute.
    """
    import hashlib

    from dnnp.formats.workloads.drawn import drawn_stream
    from dnnp.formats.workloads.json_graphs import read_gml, read_json_graph, read_stg
    from dnnp.formats.workloads.own_csv import Table, read_tables
    from dnnp.formats.workloads.own_dot import read_dot
    from dnnp.formats.workloads.own_graphml import read_graphml

    file, ours = _shown(path), ours or {}
    header = new_header(kind, path, hashlib.sha256(data).hexdigest(), name, "s")
    if edges is not None:
        digest = hashlib.sha256(edges[1]).hexdigest()
        header["source"]["edges"] = {"path": edges[0], "sha256": digest}
    with_attributes = {"dot": read_dot, "graphml": read_graphml, "gml": read_gml}
    if kind == "csv":
        listed = None if edges is None else Table(edges[1], _shown(edges[0]))
        drawn = read_tables(Table(data, file), listed, ours)
    elif kind == "stg":
        drawn = read_stg(data, file)
    elif kind in with_attributes:
        drawn = with_attributes[kind](data, file, ours)
    else:
        drawn = read_json_graph(kind, data, file, ours)
    return drawn_stream(drawn, header)


def _shown(path: str) -> str:
    """A path for messages."""
    return "<stdin>" if path == "-" else path


def read_networkx(graph: DirectedGraph, name: str | None) -> Stream:
    """The stream of a graph in memory; it has no source.

    Raises FormatError: its edges have no directions, or its attributes are wrong.
    """
    from dnnp.formats.workloads.drawn import Drawn, drawn_stream
    from dnnp.formats.workloads.json_graphs import drawn_of

    if not graph.is_directed():
        raise FormatError("an undirected graph; its edges need directions, as in networkx.DiGraph")
    called = name or getattr(graph, "name", "") or "graph"
    header = {
        "type": "header", "format": FORMAT, "version": VERSION, "model": str(called),
        "provenance": [],
    }  # fmt: skip
    return drawn_stream(drawn_of(graph, Drawn("<graph>")), header)


def add_training(stream: Stream, options: TrainingOptions) -> None:
    """Add the backward pass to a model that has just been imported.

    Raises UsageError: there is nothing to train.
    """
    from dnnp.core.training import Optimizer, in_half_precision, train

    if stream.get("phase"):
        raise UsageError("--training: a training step has no phases: no --phase")
    if stream.get("state"):
        raise UsageError("--training: the model carries state from pass to pass; see --state none")
    tensors = stream.get("tensor")
    if options.mixed_precision:
        tensors = in_half_precision(tensors)
    optimizer = Optimizer(options.optimizer or OPTIMIZERS[0])
    made = train(tensors, stream.get("node"), optimizer, options.loss)
    stream.records |= {"tensor": made.tensors, "node": made.nodes}
    stream.lines.clear()
    stream.header["training"] = True
    caller = options.caller
    losses = ", ".join(made.losses[:3]) + (", ..." if len(made.losses) > 3 else "")
    gradients = sum(bool(node.get("backward")) for node in made.nodes)
    caller.note(
        f"training: {counted(gradients, 'backward node')} for "
        f"{counted(made.parameters, 'parameter')}; trained for {losses}"
    )
    if made.unruled:
        names = ", ".join(f"{op} ({count})" for op, count in made.unruled.items())
        caller.warn(f"no rule for gradients of {names}: taken as twice the forward pass")
