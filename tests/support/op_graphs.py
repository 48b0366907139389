"""Small graphs written as text, for tests of rules."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from dnnp.core.coarsen.coarsen import Coarsening, coarsen
from dnnp.core.model.graph import Graph
from dnnp.core.model.rules import RuleSet
from dnnp.formats.graph import graph_of
from dnnp.formats.stream import Stream
from support import graphs
from support.graphs import header

LINE = re.compile(r"([\w, ]+) = (\w+)\(([^)]*)\)")


def op_stream(
    *lines: str,
    outputs: str = "",
    shapes: Mapping[str, Sequence[int]] | None = None,
    nodes: Mapping[str, Mapping[str, object]] | None = None,
) -> Stream:
    """A stream of lines such as `y = Conv(x, w)`.

    A node has the name of its first output. Names that no line makes are parameters if they
    start with `w`, else inputs. `outputs` names the outputs of the model, `shapes` the shapes
    of tensors, `nodes` further fields of nodes.
    """
    tensors: dict[str, dict] = {}
    records: list[dict] = []

    def tensor(name: str, kind: str) -> int:
        if name not in tensors:
            tensors[name] = graphs.tensor(len(tensors), kind, 4, name=name)
        return tensors[name]["id"]

    parsed = []
    for line in lines:
        made, op, read = LINE.fullmatch(line).groups()
        parsed.append((_words(made), op, _words(read)))
    made_here = {name for made, _, _ in parsed for name in made}
    for made, op, read in parsed:
        kinds = {r: "parameter" if r.startswith("w") else "input" for r in read}
        inputs = [tensor(r, "activation" if r in made_here else kinds[r]) for r in read]
        outputs_here = [tensor(m, "activation") for m in made]
        fields = {"name": made[0], **(nodes or {}).get(made[0], {})}
        reads = list(dict.fromkeys(inputs))
        records.append(graphs.node(len(records), op, reads, outputs_here, **fields))
    for name in _words(outputs):
        tensors[name]["output"] = True
    for name, shape in (shapes or {}).items():
        tensors[name]["shape"] = list(shape)
    return Stream(header=header(), records={"tensor": list(tensors.values()), "node": records})


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def shapes_of(stream: Stream) -> list[tuple[int, ...] | None]:
    """Shape of each tensor of a stream."""
    return [tuple(r["shape"]) if "shape" in r else None for r in stream.get("tensor")]


def groups_by(stream: Stream, rules: RuleSet | None, **options: object) -> dict[str, str]:
    """Groups of several nodes: their names joined by blanks -> rule."""
    graph = graph_of(stream)
    result = coarsen(graph, shapes_of(stream), rules, **options)  # type: ignore[arg-type]
    return named_groups(graph, result)


def named_groups(graph: Graph, result: Coarsening) -> dict[str, str]:
    """Groups of several nodes: their names joined by blanks -> rule."""
    clustering = result.clustering
    names = [
        " ".join(graph.node_names[v] for v in clustering.members(g).tolist())
        for g in range(clustering.g)
    ]
    return {name: rule for name, rule in zip(names, result.rules, strict=True) if " " in name}


def assert_valid(graph: Graph, result: Coarsening) -> None:
    """Every node in one group, members in topological order, and an acyclic quotient graph."""
    clustering = result.clustering
    members = [clustering.members(g).tolist() for g in range(clustering.g)]
    assert sorted(v for group in members for v in group) == list(range(graph.n))
    place = {v: i for i, v in enumerate(graph.order.tolist())}
    label = {}
    for g, group in enumerate(members):
        assert group
        assert group == sorted(group, key=place.__getitem__)
        label.update(dict.fromkeys(group, g))
    edges = {
        (label[int(graph.producer[t])], label[v])
        for v in range(graph.n)
        for t in graph.reads(v).tolist()
        if graph.producer[t] >= 0
    }
    waiting = {g: {a for a, b in edges if b == g and a != g} for g in range(len(members))}
    while waiting:
        free = {g for g, before in waiting.items() if not before}
        assert free, "the quotient graph has a cycle"
        waiting = {g: before - free for g, before in waiting.items() if g not in free}
