"""Element types and shapes of named tensors of an ONNX graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import onnx
import onnx.inliner
import onnx.shape_inference

from dnnp.core.model.errors import FormatError
from dnnp.formats.fields import MAX_NUMBER
from dnnp.formats.onnx.dims import MAX_DIMENSION, Dimensions
from dnnp.formats.onnx.guard import guarded
from dnnp.formats.onnx.scope import copy_fields, nested_nodes, reads, writes
from dnnp.formats.stream import Stream

CONTAINERS = ("sequence", "optional", "map", "opaque")
"""Types that cannot be bound as one buffer."""


@dataclass(frozen=True)
class TensorType:
    """Element type and shape of a tensor, as far as they are known."""

    dtype: str | None
    """`float32`, ..., or `sequence`, `optional`, `map`, `sparse`; None: unknown."""
    shape: tuple[int | str | None, ...] | None
    """Sizes; a name for a symbolic one, None for an unknown one. None: unknown rank."""
    element: str | None = None
    """Element type of the tensors of a sequence or optional; `sequence(float32)`: of an optional
    sequence."""

    @property
    def is_tensor(self) -> bool:
        """True if the value is an ordinary tensor, which can be bound."""
        return self.dtype is not None and self.dtype not in (*CONTAINERS, "sparse")


def dtype_name(elem_type: int) -> str | None:
    """Name of an ONNX element type, as in the stream: `float32` for FLOAT; None if undefined."""
    if elem_type == onnx.TensorProto.UNDEFINED or elem_type not in _ELEMENT_NAMES:
        return None
    return _ELEMENT_NAMES[elem_type]


_ELEMENT_NAMES = {
    number: {"FLOAT": "float32", "DOUBLE": "float64"}.get(name, name.lower())
    for name, number in onnx.TensorProto.DataType.items()
}
_ELEMENT_TYPES: dict[str | None, int] = {
    name: number for number, name in _ELEMENT_NAMES.items() if number
}


def element_type(dtype: str | None) -> int:
    """`TensorProto.DataType` of a dtype of the stream; 0 for an unknown one or a container."""
    return _ELEMENT_TYPES.get(dtype, 0)


def attribute_words(attribute: onnx.AttributeProto) -> str:
    """Name and value of an attribute, `axis = 1`; of a tensor its element type and dimensions."""
    if attribute.HasField("f"):
        return f"{attribute.name} = {attribute.f:.7g}"
    if attribute.HasField("t"):
        dims = " x ".join(map(str, attribute.t.dims)) or "scalar"
        return f"{attribute.name} = {dtype_name(attribute.t.data_type)} {dims}"
    return str(onnx.helper.printable_attribute(attribute))


def describe(proto: onnx.TypeProto) -> TensorType:
    """A type in words."""
    kind = proto.WhichOneof("value")
    if kind == "tensor_type":
        tensor = proto.tensor_type
        shape = None
        if tensor.HasField("shape"):
            shape = tuple(_size(dim) for dim in tensor.shape.dim)
        return TensorType(dtype_name(tensor.elem_type), shape)
    if kind is None:
        return TensorType(None, None)
    element = None
    if kind in ("sequence_type", "optional_type"):
        held = describe(getattr(proto, kind).elem_type)
        element = held.dtype if held.is_tensor else f"sequence({held.element})"
    return TensorType(kind.removesuffix("_tensor_type").removesuffix("_type"), None, element)


def _size(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value >= 0 else None
    # Text that is not UTF-8 comes as bytes; some exporters write a size as text.
    name = dim.dim_param if dim.dim_param and isinstance(dim.dim_param, str) else None
    return int(name) if name and name.isdecimal() else name


def find_types(
    model: onnx.ModelProto, names: Iterable[str], known: Mapping[str, TensorType] | None = None
) -> dict[str, onnx.TypeProto]:
    """Types of the named tensors; names whose element type stays unknown are left out.

    Looks at what the model declares, then at ONNX inference, then at inference with local
    functions inlined, then at `known`, which gives element type and rank: its sizes may belong
    to one choice of symbolic dimensions. If an input of the model has a free size, a
    declared number counts only where inference confirms it: declarations go stale when people
    make a dimension free, and a wrong number makes a stage refuse its input. If none has, and no
    operator makes shapes of values, sizes from `known` count too: without them ONNX Runtime
    misses fusions behind a tensor that crosses stages.
    """
    wanted = list(dict.fromkeys(names))
    found = _declared(model)
    if any(not _complete(found.get(name)) for name in wanted):
        light = without_weights(model)
        _merge(found, _inferred(light))
        if model.functions and any(_untyped(found.get(name)) for name in wanted):
            _merge(found, _inferred(inlined(light)))
    if _has_free_sizes(model):
        sources = {value.name for value in model.graph.input}
        sources.update(tensor.name for tensor in model.graph.initializer)
        confirmed = _inferred(_undeclared(without_weights(model)))
        for name in wanted:
            if name in found and name not in sources:
                _keep_confirmed(found[name], confirmed.get(name))
    certain = not (_has_free_sizes(model) or depends_on_values(model))
    one_run = shaped_by_values(model)[1]
    for name in wanted:
        if known and name in known:
            kind, proto = known[name], found.setdefault(name, onnx.TypeProto())
            if name in one_run and kind.shape is not None:
                if len(kind.shape) != len(proto.tensor_type.shape.dim):
                    proto.tensor_type.ClearField("shape")
                kind = replace(kind, shape=None)
            _fill(proto, kind, certain)
    return {name: found[name] for name in wanted if not _untyped(found.get(name))}


def types_of(stream: Stream) -> dict[str, TensorType]:
    """Types of the tensors of a stream, by name."""
    return {
        r["name"]: TensorType(r.get("dtype"), tuple(r["shape"]) if "shape" in r else None)
        for r in stream.get("tensor")
    }


def known_shapes(stream: Stream, kind: str | None = None) -> dict[str, list[int]]:
    """Shapes of tensors as they were imported, where they are known; of one kind, or of all."""
    found = (r for r in stream.get("tensor") if "shape" in r)
    return {r["name"]: r["shape"] for r in found if kind in (None, r["kind"])}


def require_type(types: Mapping[str, onnx.TypeProto], name: str) -> onnx.TypeProto:
    """The type of a tensor that is handed from stage to stage.

    Raises
    ------
    FormatError
        It is unknown, or no ordinary tensor and so cannot be handed over.
    """
    if name not in types:
        raise FormatError(
            f"the element type of '{name}', which crosses stages, cannot be inferred; "
            "dnnp-import --shapes run finds it"
        )
    kind = describe(types[name])
    if not kind.is_tensor:
        raise FormatError(f"'{name}' crosses stages, but a {kind.dtype} cannot be handed over")
    return types[name]


def _untyped(proto: onnx.TypeProto | None) -> bool:
    return proto is None or describe(proto).dtype is None


def _complete(proto: onnx.TypeProto | None) -> bool:
    """True if inference can add nothing: element type and rank are there."""
    if proto is None:
        return False
    kind = describe(proto)
    return kind.dtype is not None and (not kind.is_tensor or kind.shape is not None)


def _declared(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    graph = model.graph
    found: dict[str, onnx.TypeProto] = {}
    for tensor in graph.initializer:
        found[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    for value in (*graph.value_info, *graph.output, *graph.input):
        _merge(found, {value.name: value.type})
    return found


def _has_free_sizes(model: onnx.ModelProto) -> bool:
    """True if some input of the model has no fixed shape."""
    stored = {tensor.name for tensor in model.graph.initializer}
    kinds = [describe(value.type) for value in model.graph.input if value.name not in stored]
    return any(k.shape is None or not all(isinstance(d, int) for d in k.shape) for k in kinds)


def _undeclared(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model (changed in place) without declared shapes past its inputs."""
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    return model


def _keep_confirmed(proto: onnx.TypeProto, confirmed: onnx.TypeProto | None) -> None:
    """Forget sizes that inference does not confirm."""
    if proto.WhichOneof("value") != "tensor_type":
        return
    dims = proto.tensor_type.shape.dim
    sure = confirmed.tensor_type.shape.dim if confirmed is not None else []
    for i, dim in enumerate(dims):
        if dim.HasField("dim_value") and not (
            len(sure) == len(dims)
            and sure[i].HasField("dim_value")
            and sure[i].dim_value == dim.dim_value
        ):
            dim.Clear()


def _merge(found: dict[str, onnx.TypeProto], more: Mapping[str, onnx.TypeProto]) -> None:
    """Let `more` fill in what `found` lacks; what is there stays."""
    for name, proto in more.items():
        old = found.get(name)
        if old is None or _untyped(old):
            if proto.WhichOneof("value") is not None:
                found[name] = onnx.TypeProto()
                found[name].CopyFrom(proto)
        elif not _complete(old) and describe(old).dtype == describe(proto).dtype:
            old.tensor_type.shape.CopyFrom(proto.tensor_type.shape)
            if not proto.tensor_type.HasField("shape"):
                old.tensor_type.ClearField("shape")


def _fill(proto: onnx.TypeProto, known: TensorType, certain: bool) -> None:
    """Add element type and rank, and the sizes if they are `certain`."""
    if describe(proto).dtype is None and element_type(known.dtype):
        proto.tensor_type.elem_type = element_type(known.dtype)
    rank = None if known.shape is None else len(known.shape)
    # A declared rank that import found to be wrong counts no more.
    stale = rank not in (None, len(proto.tensor_type.shape.dim))
    if (
        known.shape is not None
        and describe(proto).dtype == known.dtype
        and (stale or not _complete(proto))
    ):
        proto.tensor_type.ClearField("shape")
        proto.tensor_type.shape.SetInParent()
        for _ in known.shape:
            proto.tensor_type.shape.dim.add()
    dims = proto.tensor_type.shape.dim
    if certain and known.shape is not None and len(known.shape) == len(dims):
        for dim, size in zip(dims, known.shape, strict=True):
            if isinstance(size, int) and not dim.HasField("dim_value"):
                dim.dim_value = size


def without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose large initializers have a type and a shape but no data."""
    light = onnx.ModelProto()
    copy_fields(model, light, without=("graph", "training_info"))
    copy_fields(model.graph, light.graph, without=("initializer",))
    for tensor in model.graph.initializer:
        if tensor.ByteSize() <= SMALL:
            light.graph.initializer.append(tensor)
        else:
            light.graph.initializer.add(
                name=tensor.name,
                dims=tensor.dims,
                data_type=tensor.data_type,
                data_location=onnx.TensorProto.EXTERNAL,
            )
    return light


def _inferred(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """Types that ONNX inference finds; nothing if it gives up."""
    found: dict[str, onnx.TypeProto] = {}
    request = model.SerializeToString()
    for with_values in (False, True):
        data = guarded(infer_apart, request, with_values)
        if data is None:
            return found
        graph = onnx.GraphProto.FromString(data)
        found = {v.name: v.type for v in (*graph.value_info, *graph.output)}
        held = (*found.values(), *(value.type for value in graph.input))
        if any(is_long_vector(proto) for proto in held):
            break
    return found


def infer_apart(data: bytes, with_values: bool) -> bytes:
    """The graph of a serialized model after inference; for a process that may crash."""
    model = onnx.ModelProto.FromString(data)
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=with_values)
    return inferred.graph.SerializeToString()


_BY_VALUES = frozenset(
    {"Compress", "If", "Loop", "NonMaxSuppression", "NonZero", "Scan", "StringSplit", "Unique"}
)
"""Operators whose outputs may differ in shape from one sample to the next."""

_SHAPE_OPERANDS: dict[str, tuple[int, ...]] = {
    "Reshape": (1,), "Expand": (1,), "Range": (0, 1, 2), "Slice": (1, 2, 3, 4), "Tile": (1,),
    "ConstantOfShape": (0,), "Resize": (2, 3), "Upsample": (1,), "Pad": (1, 3), "TopK": (1,),
    "OneHot": (1,), "Split": (1,), "CenterCropPad": (1,), "AffineGrid": (1,), "Unsqueeze": (1,),
    "Squeeze": (1,), "DFT": (1, 2), "STFT": (1, 3), "MelWeightMatrix": (0, 1),
    "BlackmanWindow": (0,), "HannWindow": (0,), "HammingWindow": (0,), "MaxUnpool": (2,),
    "Col2Im": (1, 2), "ImageDecoder": (0,),
}  # fmt: skip
"""Operators, and their inputs whose values decide a shape."""

_OF_SHAPES = ("Shape", "Size")
"""Operators that look at shapes only."""

_RANKS = ("ConstantOfShape", "Expand", "If", "Reshape", "Squeeze", "Unsqueeze")
"""Operators, besides reductions and bodies with such, whose outputs may differ in rank from one
sample to the next."""


def _shaped_by(node: onnx.NodeProto) -> tuple[int, ...]:
    """Inputs of a node whose values decide a shape."""
    return _SHAPE_OPERANDS.get(node.op_type, (1,) if node.op_type.startswith("Reduce") else ())


def shaped_by_values(model: onnx.ModelProto) -> tuple[set[str], set[str]]:
    """Tensors of the main graph whose shape, and whose rank, may depend on values of inputs."""
    stored = {t.name for t in model.graph.initializer}
    stored.update(t.values.name for t in model.graph.sparse_initializer)
    varying = {value.name for value in model.graph.input} - stored
    sized, ranked = set[str](), set[str]()
    for node in model.graph.node:
        kind, read, made = node.op_type, set(reads(node)), writes(node)
        by = {name for i, name in enumerate(node.input) if i in _shaped_by(node)}
        by = read if kind in _BY_VALUES else by
        if kind in _BY_VALUES or not (sized.isdisjoint(read) and varying.isdisjoint(by)):
            sized.update(made)
        kinds = [inner.op_type for inner in nested_nodes([node])]
        of_rank = any(k in _RANKS or k.startswith("Reduce") for k in kinds)
        if not ranked.isdisjoint(read) or (of_rank and not varying.isdisjoint(by)):
            ranked.update(made)
        if not varying.isdisjoint(read) and kind not in _OF_SHAPES:
            varying.update(made)
    return sized, ranked


def depends_on_values(model: onnx.ModelProto) -> bool:
    """True if the shape of some tensor may depend on the values of the model's inputs.

    True as well where that is not looked into: in local functions, and for operators of other
    domains.
    """
    known = ("", "ai.onnx", "com.microsoft")
    if model.functions or any(node.domain not in known for node in model.graph.node):
        return True
    return bool(shaped_by_values(model)[0])


SMALL = 1024
"""Weights up to this many bytes keep their values during inference: they may be shapes."""

LONGEST_VECTOR = 10_000
"""Elements of a vector above which ONNX inference runs without values: it copies each one."""

FAILURES = (
    onnx.shape_inference.InferenceError,
    onnx.checker.ValidationError,
    RuntimeError,
    ValueError,
    TypeError,
    IndexError,
    KeyError,
    AttributeError,
    ArithmeticError,
)
"""Errors that ONNX raises on models that contradict an operator's definition."""


def is_long_vector(proto: onnx.TypeProto) -> bool:
    """True if ONNX would follow the values of a tensor one by one, and too many of them."""
    dims = proto.tensor_type.shape.dim
    return len(dims) == 1 and dims[0].dim_value > LONGEST_VECTOR


def inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with local functions inlined; itself if that fails or there are none."""
    if not model.functions:
        return model
    try:
        return onnx.inliner.inline_local_functions(model)
    except FAILURES:
        return model


_BITS = {
    "float32": 32, "float64": 64, "float16": 16, "bfloat16": 16, "complex64": 64,
    "complex128": 128, "bool": 8, "uint8": 8, "int8": 8, "uint16": 16, "int16": 16,
    "int32": 32, "uint32": 32, "int64": 64, "uint64": 64, "uint4": 4, "int4": 4,
    "float4e2m1": 4, "uint2": 2, "int2": 2, "float6e2m3": 6, "float6e3m2": 6,
    "string": 256,
}  # fmt: skip
"""Bits an element takes; those below 8 are packed. A string counts as the object that ONNX
Runtime keeps for it, 32 bytes. The float8 types, all of 8 bits, are not listed."""

SUB_BYTE = frozenset(name for name, bits in _BITS.items() if bits < 8)
"""Element types of which several share a byte."""


class ValueType(NamedTuple):
    """Type of a value, as far as it is known."""

    dtype: str | None
    """`float32`, ..., or `sequence`, `optional`, `map`, `opaque`; None: unknown."""
    shape: tuple[int, ...] | None
    """Sizes; None: not all of them are known."""
    size_bytes: float | None
    """None: unknown. A sequence counts as one element."""

    @property
    def settled(self) -> bool:
        """True if no inference could add anything."""
        return self.size_bytes is not None or self.dtype in CONTAINERS


UNKNOWN = ValueType(None, None, None)


def tensor_type(elem_type: int, shape: tuple[int, ...] | None) -> ValueType:
    """The type of a dense tensor.

    Raises
    ------
    FormatError
        A negative dimension, or more bytes than a stream holds.
    """
    dtype = dtype_name(elem_type)
    if shape is None:
        return ValueType(dtype, None, None)
    if shape and (min(shape) < 0 or max(shape) > MAX_DIMENSION):
        wrong = min(shape) if min(shape) < 0 else max(shape)
        raise FormatError(f"a dimension of {wrong}; they lie between 0 and {MAX_DIMENSION}")
    return ValueType(dtype, shape, None if dtype is None else bytes_of(dtype, prod(shape)))


def bytes_of(dtype: str, elements: int) -> float:
    """Bytes of a number of elements; integers where they are exact as JSON numbers."""
    size = (elements * _BITS.get(dtype, 8) + 7) // 8
    if size <= MAX_DIMENSION:
        return size
    if size > MAX_NUMBER:
        raise FormatError(f"a tensor of more than {MAX_NUMBER} bytes")
    return float(size)


class TypeReader:
    """Reads types with symbolic dimensions filled in; equal types are decoded once."""

    def __init__(self, dimensions: Dimensions) -> None:
        self._dimensions = dimensions
        self._memo: dict[bytes, ValueType] = {}

    def read(self, proto: onnx.TypeProto) -> ValueType:
        """Read a type."""
        key = proto.SerializeToString()
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = self._decode(proto)
        return found

    def read_all(self, values: Iterable[onnx.ValueInfoProto]) -> dict[str, ValueType]:
        """Types by name; errors name the value."""
        return {value.name: self.read_value(value.name, value.type) for value in values}

    def read_value(self, name: str, proto: onnx.TypeProto) -> ValueType:
        """Read the type of a named value; errors name the value."""
        try:
            return self.read(proto)
        except FormatError as error:
            raise FormatError(f"value '{name}': {error.reason}") from None

    def _decode(self, proto: onnx.TypeProto) -> ValueType:
        kind = proto.WhichOneof("value")
        if kind == "tensor_type" or kind == "sparse_tensor_type":
            tensor = getattr(proto, kind)
            sizes: list[int | None] = [None]
            if tensor.HasField("shape"):
                sizes = [self._dimensions.size(dim) for dim in tensor.shape.dim]
            shape = tuple(size for size in sizes if size is not None)
            return tensor_type(tensor.elem_type, shape if len(shape) == len(sizes) else None)
        if kind == "sequence_type" or kind == "optional_type":
            element = self._decode(getattr(proto, kind).elem_type)
            return ValueType(kind.removesuffix("_type"), None, element.size_bytes)
        return UNKNOWN if kind is None else ValueType(kind.removesuffix("_type"), None, None)
