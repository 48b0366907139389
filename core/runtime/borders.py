"""Groups that keep their fusion when a split cuts at their borders.

ONNX Runtime refuses some fusions where a tensor is an output of the graph, and a tensor that
crosses stages is one. So each fused group is made a model of its own and optimised; groups of
one structure are tried once. If the fused operators do not come out, the group takes in what reads
one of its outputs, or all, if that helps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dnnp.core.model.errors import InputFileError
from dnnp.core.runtime.fusion import PLUMBING, Fusions, mapped_back
from dnnp.core.runtime.optimised import optimised_model
from dnnp.formats.onnx_copy import copy_fields
from dnnp.formats.onnx_scope import reads, writes
from dnnp.formats.onnx_types import element_type

if TYPE_CHECKING:
    from onnx import ModelProto, TypeProto

    from dnnp.formats.onnx_types import TensorType

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
    """Let groups grow until ONNX Runtime fuses them by themselves too.

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
    """Whether the operators come out when the part is a model of its own."""
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
        """What runs in place of each group of several nodes."""

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
            attributes = tuple(
                sorted(a.SerializeToString(deterministic=True) for a in node.attribute)
            )
            parts.append((node.op_type, tuple(map(number.get, self._reads[v])), attributes))
            for i, name in enumerate(node.output):
                number[name] = (len(parts), i)
        return tuple(parts), tuple(map(number.get, given))

    def model_of(self, groups: Sequence[int]) -> ModelProto | None:
        """Groups as one model; None where a type is missing."""
        from onnx import ModelProto, ValueInfoProto

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
    from onnx import helper

    for tensor in model.graph.initializer:
        yield tensor.name, helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    for name, kind in known.items():
        if element_type(kind.dtype):
            yield name, helper.make_tensor_type_proto(element_type(kind.dtype), kind.shape)
    for value in (*model.graph.value_info, *model.graph.output, *model.graph.input):
        if value.type.WhichOneof("value") is not None:
            yield value.name, value.type
