"""Operators that ONNX Runtime fuses: its optimised graph, mapped back to the model.

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

ONNX Runtime refuses some fusions where a tensor is an output of the graph, and a tensor that
crosses stages is one. So each fused group is made a model of its own and optimised; groups of one
structure are tried once. If the fused operators do not come out, the group takes in what reads one
of its outputs, or all, if that helps (`tightened`).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, helper

from dnnp.core.model.errors import InputFileError, UnavailableError
from dnnp.core.runtime.model.providers import PROVIDERS, SessionConfig, require_provider
from dnnp.core.runtime.model.session import open_session
from dnnp.core.runtime.model.weights import absent_files
from dnnp.formats.files import scratch_folder
from dnnp.formats.onnx.scope import UNREPEATABLE, copy_fields, domain_of, reads, subgraphs, writes
from dnnp.formats.onnx.value_types import TensorType, bytes_of, dtype_name, element_type

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
    source, clusters, regions, folded = _regions(model, optimised)
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
    """Name of each node of the optimised graph -> nodes of the model that it replaces.

    What an optimised node writes is a key too: ONNX Runtime calls nodes by it that it makes later.
    """
    _, clusters, regions, _ = _regions(model, optimised)
    found: dict[str, tuple[int, ...]] = {}
    for cluster, region in zip(clusters, regions, strict=True):
        for name in (*cluster.names, *sorted(cluster.written)):
            if name and region:
                found.setdefault(name, tuple(region))
    return found


def _regions(
    model: ModelProto, optimised: ModelProto
) -> tuple[_Source, list[_Cluster], list[list[int]], frozenset[int]]:
    """Clusters of the optimised graph, the region of each in the model, and folded nodes."""
    source = _Source(model)
    clusters = _clusters(source, optimised)
    alive = {name for cluster in clusters for name in cluster.written}
    folded = source.folded(alive)
    return source, clusters, [_region(source, c, alive, folded) for c in clusters], folded


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
        """Name -> first name of a tensor of equal value; names of unique values are missing."""

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
                original = seen.setdefault(key, (name,))[0]
                if original != name:
                    first[name] = original
        for v, node in enumerate(self.nodes):
            key = self._value_of(node, first)
            originals = seen.setdefault(key, self.writes[v]) if key is not None else ()
            if len(originals) == len(self.writes[v]):
                for name, original in zip(self.writes[v], originals, strict=True):
                    if original != name:
                        first[name] = original
        return first

    def _value_of(self, node: NodeProto, first: Mapping[str, str]) -> object | None:
        """Key that equal nodes share; None for what must run by itself."""
        if node.op_type == "Constant" and len(node.attribute) == 1:
            return _content(node.attribute[0].t)
        if node.op_type in UNREPEATABLE or any(True for _ in subgraphs(node)):
            return None
        given = _attributes(node)
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


def _attributes(node: NodeProto) -> tuple[bytes, ...]:
    """Attributes of a node in an order of their own."""
    return tuple(sorted(a.SerializeToString(deterministic=True) for a in node.attribute))


def _content(tensor: TensorProto) -> object | None:
    """Key of a small constant by its value; None for others."""
    if prod(tensor.dims) > _SHARED_ELEMENTS or tensor.external_data or not tensor.data_type:
        return None
    fields = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
    data = tensor.raw_data or tuple(tuple(getattr(tensor, name)) for name in fields)
    return tensor.data_type, tuple(tensor.dims), data


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
        both = ins & outs if len(part) == 1 else set[str]()
        ops = tuple(nodes[i].op_type for i in part)
        called = tuple(nodes[i].name for i in part)
        result.append(_Cluster(ops, frozenset(ins - both), frozenset(outs - both), called))
    return result


def _region(
    source: _Source, cluster: _Cluster, alive: set[str], folded: frozenset[int]
) -> list[int]:
    """Nodes of the model that a cluster replaces, ascending.

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
                original = source.first.get(name, name)
                if name not in source.maker or original in cluster.read:
                    continue
                if source.maker[name] in folded:
                    continue
                if original in alive and original not in cluster.written:
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


MAX_READERS = 4
"""A group that more others read does not grow: it would tie large parts of a model together."""


def fused_groups(
    model: ModelProto,
    folder: Path,
    provider: str = "cpu",
    types: Mapping[str, TensorType] | None = None,
) -> Fusions:
    """Groups of nodes that ONNX Runtime runs as one; errors as for `optimised_model`.

    They stay fused when a split cuts at their borders, as far as the `types` of the tensors
    there are known (see `tightened`).
    """
    fusions = mapped_back(model, optimised_model(model, folder, provider))
    return tightened(model, folder, provider, fusions, types or {})


def tightened(
    model: ModelProto,
    folder: Path,
    provider: str,
    fusions: Fusions,
    types: Mapping[str, TensorType],
) -> Fusions:
    """Extend groups until ONNX Runtime fuses them as models of their own.

    Parameters
    ----------
    model, folder, provider
        As for `optimised_model`.
    fusions
        The groups as they were mapped back.
    types
        Types of tensors; groups with a border of unknown type are left as they are.
    """
    parts = _Parts(model, types, fusions)
    holds: dict[object, bool] = {}

    def stays(groups: Sequence[int]) -> bool:
        key = parts.structure(groups)
        if key not in holds:
            part = parts.model_of(groups)
            wanted = [op for g in groups for op in parts.operators.get(g, ())]
            holds[key] = part is None or _fuses(part, folder, provider, wanted)
        return holds[key]

    for group in sorted(parts.operators):
        if parts.operators.get(group) and not stays([group]):
            for readers in parts.readers(group):
                if stays([group, *readers]):
                    parts.join([group, *readers])
                    break
    return parts.result(fusions)


def _fuses(part: ModelProto, folder: Path, provider: str, wanted: Sequence[str]) -> bool:
    """True if the operators come out when the part is a model of its own."""
    try:
        found = optimised_model(part, folder, provider)
    except InputFileError:
        return True
    have = Counter(node.op_type for node in found.graph.node)
    return not Counter(op for op in wanted if op not in PLUMBING) - have


class _Parts:
    """The groups, single nodes among them, by the least index of a node."""

    def __init__(
        self, model: ModelProto, types: Mapping[str, TensorType], fusions: Fusions
    ) -> None:
        self._model = model
        self._nodes = list(model.graph.node)
        self._stored = {t.name: t for t in model.graph.initializer}
        self._types = dict(_type_protos(model, types))
        self._reads = [reads(node) for node in self._nodes]
        self._kept = {value.name for value in model.graph.output}
        self._users: dict[str, list[int]] = {}
        for v, names in enumerate(self._reads):
            for name in names:
                self._users.setdefault(name, []).append(v)
        self._constants = {
            n.output[0]: v for v, n in enumerate(self._nodes) if n.op_type == "Constant"
        }
        self._members = {group[0]: group for group in fusions.groups}
        self._owner = {v: group[0] for group in fusions.groups for v in group}
        self.operators = {
            group[0]: ops for group, ops in zip(fusions.groups, fusions.operators, strict=True)
        }
        """Operators that replace each group of several nodes."""

    def readers(self, group: int) -> list[list[int]]:
        """Other groups that read an output of a group, output by output; then those of any."""
        inside = set(self._members.get(group, (group,)))
        found = []
        for v in sorted(inside):
            users = {u for name in writes(self._nodes[v]) for u in self._users.get(name, ())}
            found.append({self._owner.get(u, u) for u in users - inside})
        found.append(set().union(*found))
        return [sorted(some) for some in found if 0 < len(some) <= MAX_READERS]

    def join(self, groups: Sequence[int]) -> None:
        """Make one group of several."""
        members = self._union(groups)
        operators: list[str] = []
        for g in groups:
            alone = (self._nodes[g].op_type,) if g not in self._members else ()
            operators += self.operators.pop(g, ()) or alone
            self._members.pop(g, None)
        self._members[members[0]] = members
        self.operators[members[0]] = tuple(operators)
        self._owner.update(dict.fromkeys(members, members[0]))

    def _union(self, groups: Sequence[int]) -> tuple[int, ...]:
        return tuple(sorted(v for g in groups for v in self._members.get(g, (g,))))

    def _borders(self, members: Sequence[int]) -> tuple[list[str], list[str]]:
        """Tensors that nodes take from outside, stored ones among them, and hand out."""
        made = {name for v in members for name in writes(self._nodes[v])}
        taken = dict.fromkeys(name for v in members for name in self._reads[v] if name not in made)
        inside = set(members)
        given = [
            name
            for v in members
            for name in writes(self._nodes[v])
            if name in self._kept or not inside.issuperset(self._users.get(name, ()))
        ]
        return list(taken), given

    def structure(self, groups: Sequence[int]) -> object:
        """Equal for groups, made one, that differ in names and values only."""
        members = self._union(groups)
        taken, given = self._borders(members)
        number: dict[str, object] = {}
        for name in taken:
            kind = self._types.get(name)
            stored = name in self._stored or name in self._constants
            text = b"" if kind is None else kind.SerializeToString(deterministic=True)
            number[name] = (len(number), stored, text)
        parts = []
        for v in members:
            node = self._nodes[v]
            operands = tuple(map(number.get, self._reads[v]))
            parts.append((node.op_type, operands, _attributes(node)))
            for i, name in enumerate(node.output):
                number[name] = (len(parts), i)
        return tuple(parts), tuple(map(number.get, given))

    def model_of(self, groups: Sequence[int]) -> ModelProto | None:
        """Groups as one model; None where a type is missing."""
        members = self._union(groups)
        taken, given = self._borders(members)
        part = ModelProto()
        copy_fields(self._model, part, without=("graph", "training_info"))
        graph = part.graph
        graph.name = "group"
        for name in taken:
            if name in self._stored:
                graph.initializer.append(self._stored[name])
            elif name in self._constants:
                graph.node.append(self._nodes[self._constants[name]])
            elif name in self._types:
                graph.input.append(ValueInfoProto(name=name, type=self._types[name]))
            else:
                return None
        graph.node.extend(self._nodes[v] for v in members)
        graph.output.extend(ValueInfoProto(name=n, type=self._types.get(n)) for n in given)
        return part

    def result(self, fusions: Fusions) -> Fusions:
        groups = sorted(self._members)
        return Fusions(
            groups=tuple(self._members[g] for g in groups),
            operators=tuple(self.operators[g] for g in groups),
            duplicates=fusions.duplicates,
            folded=fusions.folded,
        )


def _type_protos(
    model: ModelProto, known: Mapping[str, TensorType]
) -> Iterator[tuple[str, TypeProto]]:
    """Types of tensors: what the model declares, then what is known of its tensors."""
    for tensor in model.graph.initializer:
        yield tensor.name, helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    for name, kind in known.items():
        if element_type(kind.dtype):
            yield name, helper.make_tensor_type_proto(element_type(kind.dtype), kind.shape)
    for value in (*model.graph.value_info, *model.graph.output, *model.graph.input):
        if value.type.WhichOneof("value") is not None:
            yield value.name, value.type


LAYOUT_PASSES = frozenset(
    {"TransposeOptimizer", "NchwcTransformer", "NhwcTransformer"}
    | {f"TransposeOptimizer_{provider}" for provider in PROVIDERS.values()}
)
"""Optimisers that move data into another order: they fuse nothing, and rename what they pass.

ONNX Runtime runs the transpose optimiser once for all providers and once for each.
"""

_ZEROS = "zeros"


def optimised_model(
    model: ModelProto, folder: Path, provider: str = "cpu", level: str = "extended"
) -> ModelProto:
    """Return the graph that ONNX Runtime runs in place of `model`, weights left out.

    At ORT_ENABLE_EXTENDED: the level holds every fusion of operators. The next one changes
    data layouts and, on the CPU, adds only fusions that depend on them.

    External weights stay in their files, which ONNX Runtime maps and reads where it folds
    constants. If a file is absent, all of them count as zeros, in one sparse file as large as
    the largest: fusions ask for the shapes of weights, and for the values of scalars only.

    Parameters
    ----------
    model
        The model; external data need not exist.
    folder
        Where its external data would be.
    provider
        Short name of an execution provider.
    level
        A key of `session.OPTIMIZATIONS`.

    Raises
    ------
    UnavailableError
        ONNX Runtime or the provider is missing, or the provider does not start.
    InputFileError
        ONNX Runtime cannot load the model, or the temporary folder is full.
    """
    try:
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise UnavailableError(f"onnxruntime cannot be imported: {error}") from None
    try:
        with scratch_folder() as scratch:
            path = os.path.join(scratch, "optimised.onnx")

            def tune(options: Any) -> None:
                # Nothing runs: weights need no common block of memory, and no copy in another
                # layout.
                options.enable_mem_pattern = options.enable_cpu_mem_arena = False
                options.add_session_config_entry("session.disable_prepacking", "1")
                options.optimized_model_filepath = path

            require_provider(provider)
            if absent_files(model, folder):
                model, folder = _with_zeros(model, Path(scratch)), Path(scratch)
            config = SessionConfig(provider, level, pin=False, allow_fallback=True)
            data = model.SerializeToString()
            open_session(data, folder, config, tune=tune, without=LAYOUT_PASSES)
            return _without_weights(path)
    except OSError as error:
        raise InputFileError(f"{error.filename or 'temporary folder'}: {error.strerror}") from None


def _with_zeros(model: ModelProto, scratch: Path) -> ModelProto:
    """A copy of `model` whose external weights are all zeros, in a sparse file."""
    from dnnp.formats.onnx.scope import held_tensors

    result = ModelProto()
    result.CopyFrom(model)
    largest = 1
    for tensor in held_tensors(result):
        if tensor.data_location == TensorProto.EXTERNAL:
            dtype = dtype_name(tensor.data_type) or "float64"
            size = int(bytes_of(dtype, prod(tensor.dims)))
            largest = max(largest, size)
            tensor.ClearField("external_data")
            for key, value in (("location", _ZEROS), ("offset", 0), ("length", size)):
                tensor.external_data.add(key=key, value=str(value))
    with open(scratch / _ZEROS, "wb") as file:
        file.truncate(largest)
    return result


def _without_weights(path: str) -> ModelProto:
    """Read a model and drop the data of what is stored in it."""
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for field in ("raw_data", "float_data", "int32_data", "int64_data", "external_data"):
            tensor.ClearField(field)
    return model
