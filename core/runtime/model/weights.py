"""Weights of a model: stored elsewhere, in parts, or drawn at random.

A model whose weights are all one number (made by `ConstantOfShape`) computes almost the same
for every input, so comparing two runs of it proves little. Random weights of sensible size in
their place make a comparison mean something; so are weights filled in whose file is absent.
"""

from __future__ import annotations

import math
import os
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dnnp.core.model.errors import InputFileError
from dnnp.core.model.text import shown_bytes

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto

    from dnnp.formats.onnx.weights import Slice, Span


def absent_files(model: ModelProto, folder: Path, given: Iterable[str] = ()) -> dict[str, str]:
    """Weight files that a model names but its folder lacks: location -> one tensor in it.

    Weights in `given` need no file.
    """
    from dnnp.formats.onnx.scope import held_tensors
    from dnnp.formats.onnx.weights import external_fields

    known = set(given)
    absent: dict[str, str] = {}
    for tensor in held_tensors(model):
        fields = external_fields(tensor)
        location = fields.get("location", "")
        if fields and tensor.name not in known and not os.path.isfile(folder / location):
            absent.setdefault(location, tensor.name)
    return absent


def supplied_weights(
    model: ModelProto, folder: Path, weights: Mapping[str, NDArray[np.generic]]
) -> dict[str, NDArray[np.generic]]:
    """Weights that a model needs; raises `InputFileError` if others are missing."""
    wanted = {t.name for t in model.graph.initializer}
    supplied = {name: value for name, value in weights.items() if name in wanted}
    absent = absent_files(model, folder, supplied)
    if absent:
        location, tensor = next(iter(absent.items()))
        raise _no_file(folder / location, tensor)
    return supplied


def _no_file(path: Path, tensor: str) -> InputFileError:
    return InputFileError(
        f"{path}: no such file; it holds weights of the model ('{tensor}'); dnnp-run "
        "--random-weights SEED draws others, not with --generate"
    )


def shard_weights(
    model: ModelProto,
    slices: Mapping[str, Slice],
    folder: Path,
    weights: Mapping[str, NDArray[np.generic]],
) -> dict[str, NDArray[np.generic]]:
    """Parts of weights that a session cannot take directly from a file.

    Raises `InputFileError` if a file is missing, too short, or cannot be read.

    Parameters
    ----------
    model
        A model with such parts among its initializers.
    slices
        What each of them is part of.
    folder
        Where the external data are.
    weights
        Whole weights that take the place of what is stored.
    """
    from dnnp.formats.onnx.weights import span_of

    found: dict[str, NDArray[np.generic]] = {}
    for tensor in model.graph.initializer:
        part = slices.get(tensor.name)
        if part is not None and part.source in weights:
            found[tensor.name] = part.of(weights[part.source])
        elif (span := span_of(tensor)) is not None and span.rows > 1:
            found[tensor.name] = read_weight(tensor, span, folder / span.location)
    return found


def read_weight(tensor: TensorProto, span: Span, path: Path) -> NDArray[np.generic]:
    """A weight or the rows of a part of one; the file is not read as a whole."""
    from onnx import helper

    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
    try:
        length = span.end - span.offset
        raw = np.memmap(path, dtype=np.uint8, mode="r", offset=span.offset, shape=(length,))
    except FileNotFoundError:
        raise _no_file(path, tensor.name) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "too short for the weights"
        raise InputFileError(f"{path}: {reason}") from None
    rows = np.lib.stride_tricks.as_strided(
        raw, shape=(span.rows, span.row_bytes), strides=(span.stride, 1), writeable=False
    )
    return np.ascontiguousarray(rows).reshape(-1).view(dtype).reshape(tuple(tensor.dims))


Weights = dict[str, NDArray[np.generic]]

_SAME_VALUES = frozenset({"Unsqueeze", "Squeeze", "Reshape", "Identity", "Flatten", "Transpose"})
"""Operators through which a weight reaches the operator that uses it."""
_POOLS = frozenset({"MaxPool", "AveragePool", "GlobalAveragePool", "Dropout", "LRN", "Concat"})
_RECTIFIERS = frozenset({"Relu", "LeakyRelu", "PRelu", "Clip"})
_MATRIX = {"Conv": (1,), "ConvTranspose": (1,), "Gemm": (0, 1), "MatMul": (0, 1)}
_NORMS = {
    "BatchNormalization": ("scale", "shift", "shift", "variance"),
    "InstanceNormalization": ("scale", "shift"),
    "LayerNormalization": ("scale", "shift"),
    "GroupNormalization": ("scale", "shift"),
    "SimplifiedLayerNormalization": ("scale",),
    "RMSNormalization": ("scale",),
}
_SHIFTS = {
    "Conv": (2,), "ConvTranspose": (2,), "Gemm": (2,), "Add": (0, 1), "Sub": (0, 1),
    "Sum": tuple(range(8)), "LSTM": (3, 5, 6), "GRU": (3, 5), "RNN": (3, 5),
}  # fmt: skip
_RECURRENT = {"LSTM": (1, 2), "GRU": (1, 2), "RNN": (1, 2)}


@dataclass(frozen=True)
class _Role:
    """Use of a weight: `matrix`, `scale`, `shift`, `variance` or `table`."""

    kind: str
    fan_in: float = 1.0
    gain: float = 1.0


def random_weights(model: ModelProto, seed: int, folder: str | Path = "") -> Weights:
    """Draw the constant and absent weights of `model`, whose external data are in `folder`.

    Matrices get variance 1 / fan-in, twice that behind a rectifier (He et al. 2015, Eq. 10),
    and a quarter of the deviation where they end a residual branch or feed a softmax. Scales
    lie in [0.8, 1.2], variances in [0.5, 1.5], shifts are small. The statistics of a
    BatchNormalization behind such a weight are drawn too, because the old ones do not fit.
    Weights without a known role, and those that are not floating point, keep their values.
    Every weight has a generator of its own, seeded with `seed` and its name.

    Raises
    ------
    InputFileError
        The weights would not fit into this machine's memory.
    FormatError
        The place of external data is not UTF-8.
    """
    from onnx import helper

    from dnnp.formats.onnx.weights import external_fields

    absent = absent_files(model, Path(folder))
    missing = [
        tensor
        for tensor in model.graph.initializer
        if external_fields(tensor).get("location") in absent
    ]
    wanted = dict(_constant_weights(model))
    for tensors in (missing, _unfit_statistics(model, wanted)):
        wanted |= {tensor.name: (tuple(tensor.dims), tensor.data_type) for tensor in tensors}
    kinds = {name: np.dtype(helper.tensor_dtype_to_np_dtype(t)) for name, (_, t) in wanted.items()}
    size = sum(math.prod(dims) * kinds[name].itemsize for name, (dims, _) in wanted.items())
    _check_memory(size)
    users = _Users(model)
    weights: Weights = {}
    for name, (dims, _) in wanted.items():
        role = users.role(name, dims)
        if role is not None and kinds[name].kind in "fV":
            weights[name] = _draw(role, dims, seed, name).astype(kinds[name], copy=False)
    return weights


def use_weights(model: ModelProto, weights: Mapping[str, NDArray[np.generic]]) -> ModelProto:
    """Return a copy of `model` that takes `weights` from outside.

    The nodes that made them are gone; each becomes an initializer declared as external data,
    to be supplied when the session is made.
    """
    from onnx import ModelProto, TensorProto, helper

    result = ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    made = [n for n in graph.node if n.op_type == "ConstantOfShape" and _first(n.output) in weights]
    stored = {t.name: t for t in graph.initializer}
    for node in made:
        graph.node.remove(node)
        name = node.output[0]
        element = helper.np_dtype_to_tensor_dtype(weights[name].dtype)
        tensor = TensorProto(name=name, data_type=element, dims=weights[name].shape)
        stored[name] = graph.initializer.add()
        stored[name].CopyFrom(tensor)
    for name in weights:
        if name in stored:
            tensor = stored[name]
            tensor.ClearField("external_data")
            tensor.data_location = TensorProto.EXTERNAL
            place = {"location": "weights", "offset": 0, "length": weights[name].nbytes}
            for key, value in place.items():
                tensor.external_data.add(key=key, value=str(value))
    return result


def _constant_weights(model: ModelProto) -> Iterator[tuple[str, tuple[tuple[int, ...], int]]]:
    """(name, (dims, element type)) of what `ConstantOfShape` nodes make of static shapes."""
    from onnx import TensorProto

    from dnnp.formats.onnx.read_graph import int64s

    graph = model.graph
    shapes = {t.name: t for t in graph.initializer if t.data_type == TensorProto.INT64}
    for node in graph.node:
        if node.op_type == "Constant" and not node.domain and node.output:
            for attribute in node.attribute:
                if attribute.name == "value" and attribute.t.data_type == TensorProto.INT64:
                    shapes[node.output[0]] = attribute.t
    for node in graph.node:
        if node.op_type != "ConstantOfShape" or node.domain or not node.output:
            continue
        dims = int64s(shapes[node.input[0]]) if _first(node.input) in shapes else None
        if dims is None or any(d < 0 for d in dims):
            continue
        element = TensorProto.FLOAT
        for attribute in node.attribute:
            if attribute.name == "value":
                element = attribute.t.data_type
        yield node.output[0], (dims, element)


def _unfit_statistics(model: ModelProto, drawn: Collection[str]) -> Iterator[TensorProto]:
    """Initializers of each BatchNormalization behind an operator whose weight is drawn."""
    stored = {t.name: t for t in model.graph.initializer}
    behind = {
        name
        for node in model.graph.node
        if node.op_type in _MATRIX and any(x in drawn for x in node.input)
        for name in node.output
    }
    for node in model.graph.node:
        if node.op_type == "BatchNormalization" and _first(node.input) in behind:
            yield from (stored[x] for x in node.input[1:] if x in stored and x not in drawn)


def _check_memory(size: int) -> None:
    try:
        available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return
    if size > available // 2:
        raise InputFileError(
            f"random weights would take {shown_bytes(size)} of this machine's "
            f"{shown_bytes(available)} of memory"
        )


def _first(names: Sequence[str]) -> str:
    """The first input or output of a node; empty where a malformed node has none."""
    return names[0] if names else ""


class _Users:
    """Readers and makers of each tensor of a model's main graph."""

    def __init__(self, model: ModelProto) -> None:
        from dnnp.formats.onnx.read_graph import int64s

        self.readers: dict[str, list[tuple[NodeProto, int]]] = defaultdict(list)
        self.makers: dict[str, NodeProto] = {}
        self.dims = {t.name: tuple(t.dims) for t in model.graph.initializer}
        self.targets: dict[str, tuple[int, ...]] = {}
        """Values of short integer initializers, which may be shapes."""
        for node in model.graph.node:
            for index, name in enumerate(node.input):
                self.readers[name].append((node, index))
            for name in node.output:
                self.makers[name] = node
        for tensor in model.graph.initializer:
            if (values := int64s(tensor)) is not None:
                self.targets[tensor.name] = values

    def role(self, name: str, dims: tuple[int, ...]) -> _Role | None:
        """Role of a weight by the first reader with a known role."""
        for node, index in self.readers[name]:
            if node.op_type in _SAME_VALUES and index == 0:
                role = self.role(_first(node.output), self._after(node, dims))
            else:
                role = self._role_in(node, index, dims)
            if role is not None:
                return role
        return None

    def _after(self, node: NodeProto, dims: tuple[int, ...]) -> tuple[int, ...]:
        """Shape behind a Reshape or Transpose, as far as it is known."""
        if node.op_type == "Reshape" and len(node.input) > 1 and node.input[1] in self.targets:
            given = self.targets[node.input[1]]
            target = [dims[i] if d == 0 and i < len(dims) else d for i, d in enumerate(given)]
            rest = math.prod(d for d in target if d > 0)
            return tuple(math.prod(dims) // max(rest, 1) if d < 0 else d for d in target)
        return dims[::-1] if node.op_type == "Transpose" else dims

    def _role_in(self, node: NodeProto, index: int, dims: tuple[int, ...]) -> _Role | None:
        op = node.op_type
        if index in _MATRIX.get(op, ()) and len(dims) >= 2:
            gain = 0.25 if self._ends_branch(_first(node.output)) else 1.0
            gain *= math.sqrt(2.0) if self._rectified(_first(node.input[1 - index :])) else 1.0
            return _Role("matrix", self._fan_in(node, index, dims), gain)
        if index in _RECURRENT.get(op, ()) and len(dims) == 3:
            return _Role("matrix", float(dims[2]))
        if op in _NORMS and 0 < index <= len(_NORMS[op]):
            return _Role(_NORMS[op][index - 1])
        if index in _SHIFTS.get(op, ()):
            return _Role("shift")
        if op == "Mul":
            return _Role("scale")
        if op == "Gather" and index == 0:
            return _Role("table")
        return None

    @staticmethod
    def _fan_in(node: NodeProto, index: int, dims: tuple[int, ...]) -> float:
        """Number of products that add up in one output element."""
        if node.op_type == "Conv":
            return float(math.prod(dims[1:]))
        if node.op_type == "ConvTranspose":
            return float(math.prod(dims[:1] + dims[2:]))
        flipped = any(a.name == ("transA", "transB")[index] and a.i == 1 for a in node.attribute)
        axis = -1 if (index == 0) != flipped else -2
        return float(dims[axis])

    def _rectified(self, name: str) -> bool:
        """True if a tensor comes from a rectifier, through pooling and the like at most."""
        for _ in range(6):
            node = self.makers.get(name)
            if node is None or node.op_type in _RECTIFIERS:
                return node is not None
            if node.op_type not in _SAME_VALUES | _POOLS:
                return False
            name = _first(node.input)
        return False

    def _ends_branch(self, name: str) -> bool:
        """True if a tensor soon meets a softmax, or is added to another activation."""
        for _ in range(4):
            if len(self.readers[name]) != 1:
                return False
            node, _index = self.readers[name][0]
            if node.op_type in ("Add", "Sum"):
                others = [x for x in node.input if x != name]
                return any(
                    x in self.makers
                    and self.makers[x].op_type != "ConstantOfShape"
                    and self.makers[x].op_type not in _SAME_VALUES
                    for x in others
                )
            if node.op_type == "Softmax":
                return True
            if node.op_type not in {"BatchNormalization", "Mul", "Relu"} | _SAME_VALUES | _POOLS:
                return False
            name = _first(node.output)
        return False


def _draw(role: _Role, dims: tuple[int, ...], seed: int, name: str) -> NDArray[np.float32]:
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    if role.kind in ("scale", "variance"):
        low, high = (0.8, 1.2) if role.kind == "scale" else (0.5, 1.5)
        return (low + (high - low) * rng.random(dims, dtype=np.float32)).astype(np.float32)
    deviation = {"shift": 0.05, "table": 1.0}.get(role.kind)
    if deviation is None:
        deviation = role.gain / math.sqrt(max(role.fan_in, 1.0))
    values = rng.standard_normal(dims, dtype=np.float32)
    values *= np.float32(deviation)
    return values
