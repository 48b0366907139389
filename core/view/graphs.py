"""The graph and the timeline of a stream for other programs: GraphML, DOT, trace events.

Nodes are those of the stream, edges the tensors that go from one to another, each once however
often a node reads it; inputs and outputs of the model are left out, and parameters count as memory
of every node that reads them. Attributes are called as `dnnp-import` reads them (`formats/drawn`).
A timeline shows what a schedule, or a plan for latency, predicts, not what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

import numpy as np

from dnnp.core.model.errors import UsageError
from dnnp.core.model.graph import PARAMETER, Graph
from dnnp.core.model.text import operator_name, printable
from dnnp.core.view.drawing import PALETTE
from dnnp.core.view.facts import Facts, working
from dnnp.formats.stream import Record
from dnnp.formats.trace_events import Edge, Move, Timeline, Times, Work

Values = Mapping[str, str | float]
"""Attributes by name; those that are not known are left out."""


class TensorEdge(NamedTuple):
    """A tensor that a node reads: ids of both nodes, and what is known of the tensor."""

    tail: int
    head: int
    values: Values


def nodes_of(facts: Facts) -> Iterator[tuple[int, int, Values]]:
    """Id of each node, its stage (-1: none), and what is known of it."""
    graph, units = _graph(facts), facts.units
    time = "time_s" if facts.seconds else "time"
    held = _parameters(graph)
    label = [] if units is None else units.label.tolist()
    stage_of = facts.stage_of.tolist()
    for v, record in enumerate(facts.stream.get("node")):
        unit = label[v]
        number = stage_of[unit]
        values: dict[str, str | float] = {
            "name": record["name"],
            "op": operator_name(record["op"], record.get("domain", "")),
        }
        if facts.layers[unit]:
            values["layer"] = facts.layers[unit]
        if number >= 0:
            values |= {"stage": number, "device": facts.parts[number].stage.device}
        values |= {f"{time}:{name}": each for name, each in record.get("time_s", {}).items()}
        if "memory_bytes" in record or held[v]:
            values["memory_bytes"] = record.get("memory_bytes", held[v])
        values |= {name: record[name] for name in ("flop", "bytes") if name in record}
        if record.get("backward"):
            values["backward"] = "true"
        if "color" in record:
            values["color_class"] = str(record["color"])
        yield record["id"], number, values


def edges_of(facts: Facts) -> Iterator[TensorEdge]:
    """Every tensor that a node makes, once for each node that reads it."""
    graph = _graph(facts)
    ids, producer = graph.node_ids.tolist(), graph.producer.tolist()
    reader, transfer = graph.use_idx.tolist(), graph.transfer_s.tolist()
    for t, (a, b) in enumerate(pairwise(graph.use_ptr.tolist())):
        if producer[t] < 0:
            continue
        values: dict[str, str | float] = {
            "tensor": graph.tensor_names[t], "size_bytes": float(graph.tensor_bytes[t]),
        }  # fmt: skip
        if not math.isnan(transfer[t]):
            values["transfer_s" if facts.seconds else "transfer"] = transfer[t]
        for v in reader[a:b]:
            yield TensorEdge(ids[producer[t]], ids[v], values)


def graphml(facts: Facts) -> bytes:
    """GraphML, with a key for each attribute.

    Raises `UsageError` if the stream has no graph.
    """
    nodes, edges = list(nodes_of(facts)), list(edges_of(facts))
    keys: dict[tuple[str, str], str] = {}
    body = []
    for number, _, values in nodes:
        body += [f'<node id="n{number}">', *_data(keys, "node", values), "</node>"]
    for edge in edges:
        body.append(f'<edge source="n{edge.tail}" target="n{edge.head}">')
        body += [*_data(keys, "edge", edge.values), "</edge>"]
    declared = [
        f'<key id="{key}" for="{what}" attr.name={quoteattr(printable(name))} '
        f'attr.type="{_KINDS.get(name, "double")}"/>'
        for (what, name), key in keys.items()
    ]
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">',
        *declared,
        f'<graph id={quoteattr(printable(facts.model))} edgedefault="directed">',
        *body,
        "</graph>",
        "</graphml>",
    ]
    return "\n".join([*lines, ""]).encode()


_KINDS = {
    "name": "string", "op": "string", "layer": "string", "device": "string", "stage": "long",
    "tensor": "string", "backward": "boolean", "color_class": "string",
}  # fmt: skip
"""Types of attributes that are no costs."""


def _data(keys: dict[tuple[str, str], str], what: str, values: Values) -> Iterator[str]:
    """Elements of attributes; new ones are added to `keys`."""
    for name, value in values.items():
        key = keys.setdefault((what, name), f"d{len(keys)}")
        text = escape(printable(value)) if isinstance(value, str) else shown_number(value)
        yield f'<data key="{key}">{text}</data>'


def dot(facts: Facts) -> bytes:
    """DOT of Graphviz: stages are boxes around their nodes, and colours.

    Raises `UsageError` if the stream has no graph.
    """
    by_stage: dict[int, list[str]] = {}
    for number, stage, values in nodes_of(facts):
        fill = {} if stage < 0 else {"fillcolor": PALETTE[stage % len(PALETTE)] + "80"}
        shown = {"label": f"{values['op']}", **fill, **values}
        by_stage.setdefault(stage, []).append(f"n{number} [{_attributes(shown)}];")
    lines = [
        f"digraph {_quoted(facts.model)} {{",
        "  node [shape=box, style=filled, fillcolor=white, fontsize=10];",
    ]
    for stage in sorted(by_stage):
        indent = "  "
        if stage >= 0:
            device = facts.parts[stage].stage.device
            lines.append(f"  subgraph cluster_{stage} {{")
            lines.append(f"    label={_quoted(f'stage {stage}: {device}')};")
            indent = "    "
        lines += [indent + text for text in by_stage[stage]]
        lines += ["  }"] if stage >= 0 else []
    lines += [
        f"  n{edge.tail} -> n{edge.head} [{_attributes(edge.values)}];" for edge in edges_of(facts)
    ]
    return "\n".join([*lines, "}", ""]).encode()


def _attributes(values: Values) -> str:
    return ", ".join(f"{_identifier(name)}={_identifier(each)}" for name, each in values.items())


def _identifier(value: str | float) -> str:
    """An identifier of DOT: a number without exponent, a name, or a string."""
    text = value if isinstance(value, str) else shown_number(value)
    plain = text.isidentifier() and text.isascii() and text.lower() not in _KEYWORDS
    number = not isinstance(value, str) and not set(text) - set("-.0123456789")
    return text if plain or number else _quoted(text)


_KEYWORDS = frozenset(("node", "edge", "graph", "digraph", "subgraph", "strict"))


def _quoted(text: str) -> str:
    """A string of DOT: what is not printable as escapes, no escapes of its own."""
    return '"' + printable(text).replace("\\", "\\\\").replace('"', '\\"') + '"'


def shown_number(value: float) -> str:
    """All digits; whole numbers without a point."""
    return (
        str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))
    )


def _graph(facts: Facts) -> Graph:
    if facts.graph is None:
        raise UsageError("there is nothing to write: the stream has no graph")
    return facts.graph


def _parameters(graph: Graph) -> list[float]:
    """Bytes of parameters that each node reads."""
    sizes = np.where(graph.tensor_kind == PARAMETER, graph.tensor_bytes, 0.0)
    read = np.repeat(sizes, np.diff(graph.use_ptr))
    found: list[float] = np.bincount(graph.use_idx, read, graph.n).tolist()
    return found


NANO = 1e9
"""Nanoseconds of a second; a time without a unit is shown as one second."""
EXACT = float(2**53)
"""Nanoseconds up to which all programs tell two apart."""


def scale_of(facts: Facts) -> float:
    """Nanoseconds that a unit of time is shown as: those of a second, or of a thousandth or less
    of it, where the timeline would be too long."""
    longest = facts.plan.value if facts.plan is not None else 0.0
    if facts.schedule is not None:
        longest = facts.schedule["makespan_s"]
    scale = NANO
    while longest * scale > EXACT:
        scale /= 1000
    return scale


def timeline_of(facts: Facts) -> Timeline:
    """Timeline of a schedule, a sample a micro-batch, or of a plan for latency.

    Raises `UsageError` if there is neither.
    """
    if facts.schedule is not None:
        return _of_schedule(facts.schedule, facts.stream.get("block"), scale_of(facts))
    if facts.plan is None or facts.plan.objective != "latency":
        raise UsageError(
            "there is no timeline: the stream has neither a schedule (dnnp-schedule) nor a plan "
            "for latency; dnnp-run --trace has that of a run"
        )
    return _of_latency(facts)


def _of_schedule(record: Record, blocks: list[Record], scale: float) -> Timeline:
    """Every pass is a work, on each of its units; arrows lead to the first of these."""
    passes, count = record["passes"], record["micro_batches"]
    starts = np.zeros((len(passes), count), dtype=np.int64)
    ends = np.zeros_like(starts)
    for block in blocks:
        at = block["pass"], block["micro_batch"]
        starts[at], ends[at] = round(block["start_s"] * scale), round(block["end_s"] * scale)
    works: list[Work] = []
    first: list[int] = []
    for number, one in enumerate(passes):
        first.append(len(works))
        homes = [one["homes"][n % len(one["homes"])] for n in range(count)]
        for part in range(min(map(len, homes))):
            tracks = np.array([home[part] for home in homes], dtype=np.int64)
            works.append(Work(one["name"], tracks, starts[number], ends[number]))
    edges = [
        Edge(first[before["pass"]], first[number])
        for number, one in enumerate(passes)
        for before in one["after"]
    ]
    done = ends.max(axis=0, initial=0)
    return Timeline([unit["name"] for unit in record["units"]], works, edges, done)


def _of_latency(facts: Facts) -> Timeline:
    """Every task is a work of one sample; transfers are on links.

    A device that is invoked several times has several stages.
    """
    scale = scale_of(facts)

    def ns(time: float) -> Times:
        return np.array([round(time * scale)], dtype=np.int64)

    works: list[Work] = []
    moves: list[Move] = []
    tracks = list(dict.fromkeys(part.stage.device for part in facts.parts))
    for number, part in enumerate(facts.parts):
        track = tracks.index(part.stage.device)
        for name, start, end in _tasks(facts, number):
            works.append(Work(name, np.array([track]), ns(start), ns(end)))
        for sent in part.stage.receives or ():
            name = f"{sent.source} to {part.stage.device}"
            moves.append(Move(name, ns(sent.start_s), ns(sent.end_s)))
    last = max((int(work.end_ns[0]) for work in works), default=0)
    return Timeline(tracks, works, (), np.array([last]), moves=moves)


def _tasks(facts: Facts, number: int) -> Iterator[tuple[str, float, float]]:
    """Name, start and end of what a stage of a plan for latency computes."""
    part, graph = facts.parts[number], facts.unit_graph
    names = [f"stage {number}"]
    if part.stage.starts_s is not None and graph is not None:
        names = [graph.node_names[unit] for unit in part.units.tolist()]
    for name, (start, end) in zip(names, working(part), strict=False):
        yield name, start, end
