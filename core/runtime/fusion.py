"""Which operators of a model ONNX Runtime fuses: its optimised graph, mapped back.

Tensors keep their names where they survive. So a node of the optimised graph stands for the
nodes of the model that lie between the tensors it reads and those it writes: a search backwards
from what it writes, up to what it reads. Nodes that pass tensors with new names to each other
(`Reshape`, `Gemm`, `Reshape` in place of `MatMul`, `Add`) stand for one such region together.

What ONNX Runtime removes otherwise is no part of a fusion:

- what it computes in advance (constant folding) joins the fused node that alone reads it;
- what it computes once instead of twice (common subexpressions) stays by itself;
- a no-op with several readers joins its producer;
- a DequantizeLinear with several readers is copied for each, and stays by itself.

Other operators that several fused nodes take in, such as a Transpose in front of two products,
join all of these into one group, since a split between them would lose a fusion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dnnp.formats.onnx_scope import UNREPEATABLE, domain_of, reads, subgraphs, writes

if TYPE_CHECKING:
    from onnx import AttributeProto, ModelProto, NodeProto, TensorProto


_CAST_PREFIX = "InsertedPrecisionFreeCast_"
"""ONNX Runtime gives this to a tensor that it computes in another precision."""
_NO_OPS = frozenset({"Identity", "Dropout"})
_COPIED = frozenset({"DequantizeLinear"})
_SHAPES = frozenset({"Shape", "Size"})
PLUMBING = frozenset({"Cast", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Identity"})
"""Operators that move or convert data; they say little about a fusion."""
_SHARED_ELEMENTS = 8
"""ONNX Runtime makes equal constants of at most this size one."""
_MAX_NAMED = 3


@dataclass(frozen=True)
class Fusions:
    """Groups of nodes of a model's main graph, by index."""

    groups: tuple[tuple[int, ...], ...]
    """Groups of at least two nodes, ascending; by their first node."""
    operators: tuple[tuple[str, ...], ...]
    """For each group the operators that run in its place; empty where nothing but constants
    and no-ops joined operators that stay as they are."""
    duplicates: tuple[int, ...]
    """Nodes whose result ONNX Runtime takes from an equal one."""
    folded: tuple[int, ...]
    """Nodes that it computes in advance."""


def title(operators: Sequence[str]) -> str:
    """Operators of a fused node in a few words, without those that only move data.

    >>> title(("Reshape", "Gemm", "Reshape"))
    'Gemm'
    """
    distinct = list(dict.fromkeys(operators))
    shown = [op for op in distinct if op not in PLUMBING] or distinct
    return "+".join(shown[:_MAX_NAMED]) + ("+..." if len(shown) > _MAX_NAMED else "")


def mapped_back(model: ModelProto, optimised: ModelProto) -> Fusions:
    """Map the nodes of an optimised model back to those of the model."""
    source = _Source(model)
    clusters = _clusters(source, optimised)
    alive = {name for cluster in clusters for name in cluster.written}
    folded = source.folded(alive)
    regions = [_region(source, cluster, alive, folded) for cluster in clusters]
    held = Counter(v for region in regions for v in region)
    # Copies and no-ops that serve several fusions belong to none.
    regions = [
        [v for v in region if held[v] == 1 or source.ops[v] not in _COPIED | _NO_OPS]
        for region in regions
    ]
    sets = _Sets(len(source.nodes))
    for region in regions:
        for v in region[1:]:
            sets.join(region[0], v)
    for v, op in enumerate(source.ops):
        if op in _NO_OPS and held[v] != 1:
            maker = source.maker.get(source.reads[v][0], v) if source.reads[v] else v
            sets.join(maker, v)
    for v in reversed(range(len(source.nodes))):
        if v in folded:
            readers = {sets.find(u) for t in source.writes[v] for u in source.readers[t]}
            if len(readers) == 1:
                sets.join(readers.pop(), v)
    return _result(source, sets, clusters, regions, held, folded)


def regions_by_name(model: ModelProto, optimised: ModelProto) -> dict[str, tuple[int, ...]]:
    """Nodes of a model that each node of its optimised graph stands for, by the name of that.

    What an optimised node writes is a key too: ONNX Runtime calls nodes by it that it makes later.
    """
    source = _Source(model)
    clusters = _clusters(source, optimised)
    alive = {name for cluster in clusters for name in cluster.written}
    folded = source.folded(alive)
    found: dict[str, tuple[int, ...]] = {}
    for cluster in clusters:
        region = tuple(_region(source, cluster, alive, folded))
        for name in (*cluster.names, *sorted(cluster.written)):
            if name and region:
                found.setdefault(name, region)
    return found


@dataclass(frozen=True)
class _Cluster:
    """Nodes of the optimised graph joined by tensors that the model does not have."""

    ops: tuple[str, ...]
    read: frozenset[str]
    written: frozenset[str]
    """Tensors of the model, each by the first name of equal ones."""
    names: tuple[str, ...] = ()


class _Sets:
    """Disjoint sets of nodes."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def find(self, v: int) -> int:
        while self._parent[v] != v:
            self._parent[v] = v = self._parent[self._parent[v]]
        return v

    def join(self, u: int, v: int) -> None:
        u, v = self.find(u), self.find(v)
        self._parent[max(u, v)] = min(u, v)


class _Source:
    """Lookup tables of the model."""

    def __init__(self, model: ModelProto) -> None:
        graph = model.graph
        self.nodes = list(graph.node)
        self.ops = [node.op_type for node in self.nodes]
        self.reads = [reads(node) for node in self.nodes]
        self.writes = [writes(node) for node in self.nodes]
        self.maker = {name: v for v, made in enumerate(self.writes) for name in made}
        self.readers: dict[str, list[int]] = {name: [] for name in self.maker}
        for v, read in enumerate(self.reads):
            for name in read:
                if name in self.readers:
                    self.readers[name].append(v)
        self.stored = {t.name: t for t in graph.initializer}
        self.names = {*self.maker, *self.stored, *(value.name for value in graph.input)}
        self.first = self._first_names()
        """Name -> first name of a tensor of equal value; names without a twin are missing."""

    def known(self, name: str) -> str:
        """The model's name for a tensor of the optimised graph; the name itself if it has none."""
        plain = name.removeprefix(_CAST_PREFIX)
        if name not in self.names and plain in self.names:
            name = plain
        return self.first.get(name, name)

    def _first_names(self) -> dict[str, str]:
        """Number values: equal operators on equal operands give equal results."""
        first: dict[str, str] = {}
        seen: dict[object, Sequence[str]] = {}
        for name, tensor in self.stored.items():
            key = _content(tensor)
            if key is not None:
                twin = seen.setdefault(key, (name,))[0]
                if twin != name:
                    first[name] = twin
        for v, node in enumerate(self.nodes):
            key = self._value_of(node, first)
            twins = seen.setdefault(key, self.writes[v]) if key is not None else ()
            if len(twins) == len(self.writes[v]):
                for name, twin in zip(self.writes[v], twins, strict=True):
                    if twin != name:
                        first[name] = twin
        return first

    def _value_of(self, node: NodeProto, first: Mapping[str, str]) -> object | None:
        """What makes two nodes equal; None for what must run by itself."""
        if node.op_type == "Constant" and len(node.attribute) == 1:
            return _content(node.attribute[0].t)
        if node.op_type in UNREPEATABLE or any(True for _ in subgraphs(node)):
            return None
        given = tuple(sorted(map(_text_of, node.attribute)))
        operands = tuple(first.get(name, name) for name in node.input)
        return node.op_type, domain_of(node.domain), operands, given, tuple(map(bool, node.output))

    def folded(self, alive: frozenset[str] | set[str]) -> frozenset[int]:
        """Nodes whose values are known in advance and that the optimised graph lacks."""
        constant = set(self.stored)
        found: set[int] = set()
        for v, node in enumerate(self.nodes):
            if any(self.first.get(name, name) in alive for name in self.writes[v]):
                continue
            if node.op_type in _SHAPES or (
                node.op_type not in UNREPEATABLE | _COPIED
                and constant.issuperset(self.reads[v])
                and not any(True for _ in subgraphs(node))
            ):
                found.add(v)
                constant.update(self.writes[v])
        return frozenset(found)


def _content(tensor: TensorProto) -> object | None:
    """Key of a small constant by its value; None for others."""
    elements = 1
    for d in tensor.dims:
        elements *= d
    if elements > _SHARED_ELEMENTS or tensor.external_data or not tensor.data_type:
        return None
    fields = (
        tensor.float_data,
        tensor.int32_data,
        tensor.int64_data,
        tensor.double_data,
        tensor.uint64_data,
        tensor.string_data,
    )
    data = tensor.raw_data or tuple(tuple(f) for f in fields)
    return tensor.data_type, tuple(tensor.dims), data


def _text_of(attribute: AttributeProto) -> bytes:
    data: bytes = attribute.SerializeToString(deterministic=True)
    return data


def _clusters(source: _Source, optimised: ModelProto) -> list[_Cluster]:
    """Nodes of the optimised graph, those joined that pass tensors with new names."""
    nodes = list(optimised.graph.node)
    read = [[source.known(name) for name in reads(node)] for node in nodes]
    written = [[source.known(name) for name in writes(node)] for node in nodes]
    sets = _Sets(len(nodes))
    maker = {n: i for i, names in enumerate(written) for n in names if n not in source.names}
    for i, names in enumerate(read):
        for name in names:
            if name in maker:
                sets.join(maker[name], i)
    members: dict[int, list[int]] = {}
    for i in range(len(nodes)):
        members.setdefault(sets.find(i), []).append(i)
    result = []
    for part in members.values():
        ins = {name for i in part for name in read[i] if name in source.names}
        outs = {name for i in part for name in written[i] if name in source.maker}
        # A cast in front of an operator reads and writes one tensor of the model.
        ops = tuple(nodes[i].op_type for i in part)
        called = tuple(nodes[i].name for i in part)
        result.append(_Cluster(ops, frozenset(ins - outs), frozenset(outs - ins), called))
        if len(part) > 1 and outs & ins:
            result[-1] = _Cluster(ops, frozenset(ins), frozenset(outs), called)
    return result


def _region(
    source: _Source, cluster: _Cluster, alive: set[str], folded: frozenset[int]
) -> list[int]:
    """Nodes of the model that a cluster stands for, ascending.

    A tensor that still exists, but that the cluster does not read, was passed by: its maker
    is part of a fusion and also runs by itself for others.
    """
    inside: dict[int, None] = {}

    def search(names: Iterable[str]) -> list[str]:
        passed: list[str] = []
        todo = list(names)
        while todo:
            v = source.maker[todo.pop()]
            if v in inside:
                continue
            inside[v] = None
            for name in source.reads[v]:
                twin = source.first.get(name, name)
                if name not in source.maker or twin in cluster.read:
                    continue
                if source.maker[name] in folded:
                    continue
                if twin in alive and twin not in cluster.written:
                    passed.append(name)
                else:
                    todo.append(name)
        return passed

    passed = search(sorted(cluster.written))
    ops = Counter(source.ops[v] for v in inside)
    if passed and Counter(cluster.ops) - ops:
        while passed:
            passed = search(passed)
    return sorted(inside)


def _result(
    source: _Source,
    sets: _Sets,
    clusters: Sequence[_Cluster],
    regions: Sequence[Sequence[int]],
    held: Mapping[int, int],
    folded: frozenset[int],
) -> Fusions:
    members: dict[int, list[int]] = {}
    for v, op in enumerate(source.ops):
        if op != "Constant":
            members.setdefault(sets.find(v), []).append(v)
    ops: dict[int, list[str]] = {}
    changed: set[int] = set()
    for cluster, region in zip(clusters, regions, strict=True):
        if region:
            root = sets.find(region[0])
            ops.setdefault(root, []).extend(cluster.ops)
            mine = Counter(source.ops[v] for v in region)
            if mine != Counter(cluster.ops):
                changed.add(root)
    groups = {root: tuple(part) for root, part in members.items() if len(part) > 1}
    duplicates = (
        v
        for v, names in enumerate(source.writes)
        if not held.get(v)
        and v not in folded
        and source.ops[v] != "Constant"
        and any(name in source.first for name in names)
    )
    return Fusions(
        groups=tuple(groups.values()),
        operators=tuple(tuple(ops[root]) if root in changed else () for root in groups),
        duplicates=tuple(duplicates),
        folded=tuple(sorted(v for v in folded if source.ops[v] != "Constant")),
    )
