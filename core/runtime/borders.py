"""Groups that keep their fusion when a split cuts at their borders, by the optimised model.

ONNX Runtime refuses some fusions where a tensor is an output of the graph, and a tensor that
crosses stages is one. So each fused group is made a model of its own and optimised; groups of
one structure are tried once. If the fused operators do not come out, the group takes in what reads
one of its outputs, or all, if that helps.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dnnp.core.model.errors import InputFileError, UnavailableError
from dnnp.core.runtime.fusion import PLUMBING, Fusions, mapped_back
from dnnp.core.runtime.model_files import absent_files
from dnnp.core.runtime.providers import PROVIDERS, first_line, not_started, ort_errors
from dnnp.formats.files import scratch_folder
from dnnp.formats.onnx_scope import copy_fields, reads, writes
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


LAYOUT_PASSES = frozenset(
    {"TransposeOptimizer", "NchwcTransformer", "NhwcTransformer"}
    | {f"TransposeOptimizer_{provider}" for provider in PROVIDERS.values()}
)
"""Optimisers that move data into another order: they fuse nothing, and rename what they pass.

ONNX Runtime runs the transpose optimiser once for all providers and once for each.
"""

_SILENT = 4
_ZEROS = "zeros"


def optimised_model(
    model: ModelProto, folder: Path, provider: str = "cpu", level: str = "EXTENDED"
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
        A key of `session.PROVIDERS`.
    level
        Optimisation level, without `ORT_ENABLE_`.

    Raises
    ------
    UnavailableError
        ONNX Runtime or the provider is missing, or the provider does not start.
    InputFileError
        ONNX Runtime cannot load the model, or the temporary folder is full.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise UnavailableError(f"onnxruntime cannot be imported: {error}") from None
    from dnnp.core.runtime.providers import require_provider

    require_provider(provider)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _SILENT
    onnxruntime.set_default_logger_severity(_SILENT)
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    # Nothing runs: weights need no common block of memory, and no copy in another layout.
    options.enable_mem_pattern = options.enable_cpu_mem_arena = False
    options.graph_optimization_level = getattr(
        onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}"
    )
    options.add_session_config_entry("session.disable_prepacking", "1")
    names = [PROVIDERS["cpu"]] if provider == "cpu" else [PROVIDERS[provider], PROVIDERS["cpu"]]
    try:
        with scratch_folder() as scratch, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a provider that is absent: checked below
            if absent_files(model, folder):
                model, folder = _with_zeros(model, Path(scratch)), Path(scratch)
            options.optimized_model_filepath = path = os.path.join(scratch, "optimised.onnx")
            options.add_session_config_entry(
                "session.model_external_initializers_file_folder_path", os.path.realpath(folder)
            )
            session = onnxruntime.InferenceSession(
                model.SerializeToString(),
                options,
                providers=names,
                disabled_optimizers=set(LAYOUT_PASSES),
                enable_fallback=0,
            )
            used = session.get_providers()[0]
            del session
            result = _without_weights(path)
    except ort_errors() as error:
        if provider != "cpu" and any(word in str(error) for word in ("CUDA", "cuda", "cudnn")):
            raise not_started(provider, first_line(error)) from None
        raise InputFileError(f"ONNX Runtime cannot load the model: {first_line(error)}") from None
    except OSError as error:
        raise InputFileError(f"{error.filename or 'temporary folder'}: {error.strerror}") from None
    if used != PROVIDERS[provider]:
        raise not_started(provider, f"ONNX Runtime uses {used} instead")
    return result


def _with_zeros(model: ModelProto, scratch: Path) -> ModelProto:
    """A copy of `model` whose external weights are all zeros, in a sparse file."""
    from math import prod

    from onnx import ModelProto, TensorProto

    from dnnp.formats.onnx_scope import held_tensors
    from dnnp.formats.onnx_sizes import bytes_of
    from dnnp.formats.onnx_types import dtype_name

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
    import onnx

    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for field in ("raw_data", "float_data", "int32_data", "int64_data", "external_data"):
            tensor.ClearField(field)
    return model
