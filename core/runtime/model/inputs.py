"""Inputs of models: what operators bear of values, how they are checked, and random ones."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dnnp.core.model.errors import DnnpError, FormatError, UsageError
from dnnp.core.runtime.limits import require_memory

if TYPE_CHECKING:
    from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TypeProto

RANGE_KEY = "dnnp.input_range."
"""Model metadata: `dnnp.input_range.NAME` = "LOW,HIGH", both included."""

# Operators that hand values on unchanged, and which of their inputs (None: all).
_SAME_VALUES: dict[str, tuple[int, ...] | None] = {
    "Cast": (0,), "Unsqueeze": (0,), "Squeeze": (0,), "Reshape": (0,), "Identity": (0,),
    "Flatten": (0,), "Transpose": (0,), "Expand": (0,), "Slice": (0,), "Split": (0,),
    "Gather": (0,), "Tile": (0,), "Concat": None, "Where": (1, 2), "Add": None, "Pad": (0,),
    "ReduceMax": (0,), "ReduceMin": (0,), "Max": None, "Min": None, "Sum": None, "Clip": (0,),
}  # fmt: skip
# Operators besides them that make numbers other than 0 of such.
_POSITIVE = {"Mul": None, "Abs": (0,), "Neg": (0,), "ReduceSum": (0,), "ReduceProd": (0,)}
# Operators that count with an input: shapes, lengths, repeats.
_COUNTS = {
    "Reshape": (1,), "Expand": (1,), "Tile": (1,), "ConstantOfShape": (0,), "Range": (1, 2),
    "TopK": (1,), "OneHot": (1,), "Slice": (2, 3, 4), "Resize": (2, 3), "Upsample": (1,),
    "LSTM": (4,), "GRU": (4,), "RNN": (4,), "Split": (1,), "Pad": (1,),
    "ReverseSequence": (1,), "DynamicQuantizeLSTM": (4,), "DFT": (1,),
    "SplitToSequence": (1,), "CenterCropPad": (1,), "STFT": (1, 3), "CropAndResize": (3,),
}  # fmt: skip
_SCALE, _NONE, _SHARE = (0.01, 0.1), (0, 0), (0, 1)
# Other operators that bear a range of an input: scales, variances, probabilities, positions.
_BORNE: dict[tuple[str, int], tuple[float, float]] = {
    ("QuantizeLinear", 1): _SCALE, ("DequantizeLinear", 1): _SCALE,
    ("BatchNormalization", 4): (0.5, 1.5), ("Bernoulli", 0): _SHARE, ("Dropout", 1): (0, 0.5),
    ("NonMaxSuppression", 2): (1, 9), ("NonMaxSuppression", 3): _SHARE, ("Range", 0): _NONE,
    ("Slice", 1): _NONE, ("SequenceAt", 1): _NONE, ("SequenceErase", 1): _NONE,
    ("SequenceInsert", 2): _NONE, ("TensorScatter", 2): _NONE, ("MaxUnpool", 1): _NONE,
    ("MaxRoiPool", 1): _NONE, ("Loop", 0): (1, 3), ("Loop", 1): (1, 1),
}  # fmt: skip
# Operators with an input of axes: which.
_AXES = {"Squeeze": 1, "Unsqueeze": 1, "CumSum": 1, "Slice": 3, "Pad": 3}
# Domain, operator and the input that indexes: which input is the table, by what attribute or axis.
_INDEXING: dict[tuple[str, str, int], tuple[int, str | int]] = {
    **{("", op, 1): (0, "axis") for op in ("Gather", "GatherElements", "ScatterElements")},
    **{("", op, 1): (0, "all") for op in ("GatherND", "ScatterND")},
    **{("", f"{op}Loss", 1): (0, 1) for op in ("NegativeLogLikelihood", "SoftmaxCrossEntropy")},
    ("", "RoiAlign", 2): (0, 0),
    ("com.microsoft", "CropAndResize", 2): (0, 0),
    ("ai.onnx.ml", "ArrayFeatureExtractor", 1): (0, -1),
    ("", "RotaryEmbedding", 3): (1, 0),
    ("com.microsoft", "RotaryEmbedding", 1): (2, 0),
    ("com.microsoft", "GatherND", 1): (0, "all"),
    ("com.microsoft", "GatherBlockQuantized", 1): (0, "gather_axis"),
    ("com.microsoft", "EmbedLayerNormalization", 0): (2, 0),
    ("com.microsoft", "EmbedLayerNormalization", 1): (4, 0),
    ("com.microsoft", "EmbedLayerNormalization", 8): (3, 0),
}
# Domain, operator and the input that says how much of keys and values counts.
_LENGTHS = {
    ("", "Attention", 6), ("com.microsoft", "GroupQueryAttention", 5),
    ("com.microsoft", "GroupQueryAttention", 6), ("com.microsoft", "Attention", 3),
    ("com.microsoft", "MultiHeadAttention", 4),
}  # fmt: skip
_FLOATS = (1, 10, 11, 16)
"""ONNX element types: float, float16, double, bfloat16."""
_LARGEST = 2**63 - 1
"""Limits from metadata end where int64 does."""


Limits: TypeAlias = tuple[float, float]
Recipe: TypeAlias = "Callable[[int], list[int]]"


class ValueRanges(NamedTuple):
    """Values of inputs that the operators which use them can bear."""

    ranges: dict[str, Limits]
    """Input -> its least and largest value, where something is known of them."""
    exact: dict[str, Recipe]
    """Input of shape, sizes, axes or boxes -> its values for a given count."""


def integer_ranges(
    model: ModelProto,
    inputs: Sequence[str],
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> ValueRanges:
    """Read off a model which values its operators can bear in its inputs.

    The model's metadata decides; otherwise inputs used as indices stay inside the indexed
    axis, inputs used as counts are 1, divisors are above 0, axes differ, shapes hold what there
    is, and lengths that attention takes are those there are.

    `shapes`: shapes of tensors of the main graph, beyond those that the model has.
    """
    uses = _IndexUses(model, inputs, shapes or {})
    ranges: dict[str, Limits] = {}
    for name, found in uses.ranges.items():
        low = max(limits[0] for limits in found)
        ranges[name] = (low, max(low, min(limits[1] for limits in found)))
    for entry in model.metadata_props:
        if entry.key.startswith(RANGE_KEY):
            name = entry.key[len(RANGE_KEY) :]
            low_text, _, high_text = entry.value.partition(",")
            try:
                least, most = int(low_text), int(high_text)
            except ValueError:
                raise FormatError(
                    f"metadata '{entry.key}': {entry.value!r} is not 'LOW,HIGH'"
                ) from None
            if least > most:
                raise FormatError(f"metadata '{entry.key}': {entry.value!r} is empty")
            ranges[name] = max(least, -_LARGEST - 1), min(most, _LARGEST)
            uses.exact.pop(name, None)
    return ValueRanges(ranges, uses.exact)


def branch_inputs(model: ModelProto, inputs: Sequence[str]) -> list[str]:
    """Inputs whose values, not shapes alone, reach the condition of an If."""
    from dnnp.formats.onnx.scope import subgraphs

    found: set[str] = set()
    functions = {(f.domain, f.name): f for f in model.functions}
    seen: set[object] = set()

    def follow(nodes: Sequence[NodeProto], known: dict[str, frozenset[str]]) -> None:
        for node in nodes:
            handed = tuple(known.get(name, frozenset()) for name in node.input)
            read = frozenset[str]().union(*handed)
            if node.op_type == "If":
                found.update(read)
            for body in subgraphs(node):
                inner = known | {value.name: read for value in body.input}
                follow(body.node, inner)
                read = read.union(*(inner.get(value.name, ()) for value in body.output))
            function = functions.get((node.domain, node.op_type))
            key = (node.domain, node.op_type, handed)
            if function is not None and key not in seen:
                seen.add(key)
                follow(function.node, dict(zip(function.input, handed, strict=False)))
            if read and node.op_type not in ("Shape", "Size"):
                known.update(dict.fromkeys(node.output, read))

    if inputs:
        follow(model.graph.node, {name: frozenset([name]) for name in inputs})
    return [name for name in inputs if name in found]


class _IndexUses:
    """Follows integer inputs through a model to the operators that index or count with them."""

    def __init__(
        self, model: ModelProto, inputs: Sequence[str], shapes: Mapping[str, Sequence[int]]
    ) -> None:
        self.ranges: dict[str, list[Limits]] = defaultdict(list)
        self.exact: dict[str, Recipe] = {}
        self._alone: dict[str, str] = {name: name for name in inputs}
        """Tensors that are an input as it is, but for its type."""
        self._positive: dict[str, tuple[str, ...]] = {}
        """Tensors that are above 0 where these inputs are."""
        self._floats = {
            i.name for i in model.graph.input if i.type.tensor_type.elem_type in _FLOATS
        }
        """Tensors of such types, of those that are followed."""
        self._functions = {(f.domain, f.name): f for f in model.functions}
        self._depth = 0
        self._seen: set[tuple[str, str, str, str]] = set()
        """Calls already followed: functions that call each other often are walked once."""
        sources: dict[str, tuple[str, ...]] = {name: (name,) for name in inputs}
        self._counted: dict[str, tuple[str, ...]] = {}
        """Names of sums of inputs, such as the length that a mask leaves."""
        self._walk_graph(model.graph, sources, {k: tuple(v) for k, v in shapes.items()})

    def _walk_graph(
        self,
        graph: GraphProto,
        sources: dict[str, tuple[str, ...]],
        shapes: dict[str, tuple[int, ...]],
    ) -> None:
        shapes = dict(shapes)
        for value in (*graph.value_info, *graph.input):
            dims = value.type.tensor_type.shape.dim
            if value.type.HasField("tensor_type") and all(d.HasField("dim_value") for d in dims):
                shapes[value.name] = tuple(int(d.dim_value) for d in dims)
        shapes.update((t.name, tuple(t.dims)) for t in graph.initializer)
        self._walk(graph.node, sources, shapes)

    def _walk(
        self,
        nodes: Sequence[NodeProto],
        sources: dict[str, tuple[str, ...]],
        shapes: dict[str, tuple[int, ...]],
    ) -> None:
        for node in nodes:
            for index, name in enumerate(node.input):
                for source in sources.get(name, ()):
                    limits = _limits(node, index, shapes)
                    if limits is not None:
                        self.ranges[source].append(limits)
                divides = node.op_type in ("Div", "Mod") and index == 1 and name not in self._floats
                if divides or (node.op_type.startswith("QLinear") and name in self._floats):
                    for source in sources.get(name) or self._positive.get(name, ()):
                        self.ranges[source].append((1, 9) if divides else _SCALE)
                recipe = _recipe(node, index, shapes) if name in self._alone else None
                if recipe is not None:
                    self.exact.setdefault(self._alone[name], recipe)
                if (node.domain, node.op_type, index) in _LENGTHS:
                    for source in self._counted.get(name, ()):
                        self.ranges[source].append((1, 1))
            self._count(node, sources)
            self._hand_on(node, sources)
            handed = _SAME_VALUES.get(node.op_type, ())
            names = [x for i, x in enumerate(node.input) if handed is None or i in handed]
            found = [source for name in names for source in sources.get(name, ())]
            if found:
                for name in node.output:
                    sources[name] = tuple(dict.fromkeys(found))
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    self._enter(node, attribute.g, sources, shapes)
            function = self._functions.get((node.domain, node.op_type))
            if function is not None:
                self._call(function, node, sources, shapes)

    def _enter(
        self,
        node: NodeProto,
        body: GraphProto,
        sources: dict[str, tuple[str, ...]],
        shapes: dict[str, tuple[int, ...]],
    ) -> None:
        """Follow inputs into the body of an If, Loop or Scan, and out of it."""
        inner = dict(sources)
        for formal, actual in zip(body.input, node.input, strict=False):
            inner.pop(formal.name, None)
            if actual in sources:
                inner[formal.name] = sources[actual]
            if actual in self._floats:
                self._floats.add(formal.name)
        self._walk_graph(body, inner, shapes)
        # A Loop's body says first whether to go on.
        for made, name in zip(reversed(body.output), reversed(node.output), strict=False):
            found = (*sources.get(name, ()), *inner.get(made.name, ()))
            if found:
                sources[name] = tuple(dict.fromkeys(found))

    def _hand_on(self, node: NodeProto, sources: Mapping[str, tuple[str, ...]]) -> None:
        """Follow what is known of inputs besides where they come from."""
        op, names = node.op_type, list(node.input)
        to = next((a.i for a in node.attribute if a.name == "to"), 0) if op == "Cast" else 0
        floats = to in _FLOATS if to else bool(names) and names[0] in self._floats
        if floats:
            self._floats.update(node.output)
        if op in ("Cast", "Identity") and names[0] in self._alone:
            self._alone[node.output[0]] = self._alone[names[0]]
        handed = {**_SAME_VALUES, **_POSITIVE}.get(op, ())
        names = [x for i, x in enumerate(names) if handed is None or i in handed]
        found = [s for x in names for s in sources.get(x) or self._positive.get(x, ())]
        if found:
            self._positive.update(dict.fromkeys(node.output, tuple(dict.fromkeys(found))))

    def _count(self, node: NodeProto, sources: Mapping[str, tuple[str, ...]]) -> None:
        """Follow the sum of an input to where it is used as a length."""
        if not node.input:
            return
        found = self._counted.get(node.input[0], ())
        if node.op_type == "ReduceSum":
            found = sources.get(node.input[0], ())
        elif node.op_type != "Sub" and node.op_type not in _SAME_VALUES:
            return
        if found:
            self._counted.update(dict.fromkeys(node.output, found))

    def _call(
        self,
        function: FunctionProto,
        node: NodeProto,
        sources: dict[str, tuple[str, ...]],
        shapes: dict[str, tuple[int, ...]],
    ) -> None:
        pairs = list(zip(function.input, node.input, strict=False))
        inner = {formal: sources[actual] for formal, actual in pairs if actual in sources}
        known = {formal: shapes[actual] for formal, actual in pairs if actual in shapes}
        key = (
            function.domain,
            function.name,
            repr(sorted(inner.items())),
            repr(sorted(known.items())),
        )
        if inner and key not in self._seen and self._depth < 100:
            self._seen.add(key)
            self._depth += 1
            self._walk(function.node, inner, known)
            self._depth -= 1
        for formal, actual in zip(function.output, node.output, strict=False):
            if formal in inner:
                sources[actual] = inner[formal]


def _recipe(node: NodeProto, index: int, shapes: Mapping[str, tuple[int, ...]]) -> Recipe | None:
    """Values of input `index` for a given count, if it is a shape, sizes or axes."""
    op, data, made = node.op_type, shapes.get(node.input[0]), shapes.get(node.output[0])
    if index == _AXES.get(op, 1 if op.startswith("Reduce") else None):
        single = [i for i, d in enumerate(data or ()) if d == 1] if op == "Squeeze" else []
        return lambda n: single[:n] if len(single) >= n else list(range(n))
    if op in ("Split", "SplitToSequence") and index == 1 and data:
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        whole = data[axis] if -len(data) <= axis < len(data) else 0
        return lambda n: [whole // n] * (n - 1) + [whole - whole // n * (n - 1)]
    if (op, index) == ("RoiAlign", 1):
        return lambda n: [0, 0, 1, 1] * (n // 4)
    if (op, index) in (("Expand", 1), ("ConstantOfShape", 0)) and made:
        return lambda n: list(made) if len(made) == n else [1] * n
    if (op, index) != ("Reshape", 1):
        return None

    def reshaped(n: int) -> list[int]:
        if not data or 0 in data:
            return [-1, *[1] * (n - 1)][:n]
        if made and len(made) == n and math.prod(made) == math.prod(data):
            return list(made)
        sizes = [*data, *[1] * n]
        return [*sizes[: n - 1], math.prod(sizes[n - 1 :])][:n]

    return reshaped


def _limits(node: NodeProto, index: int, shapes: Mapping[str, tuple[int, ...]]) -> Limits | None:
    """Range that input `index` of a node must stay in, or None."""
    op = node.op_type
    if index in _COUNTS.get(op, ()):
        return (1, 1)
    if (op, index) in _BORNE:
        return _BORNE[op, index]
    domain = "" if node.domain == "ai.onnx" else node.domain
    if (domain, op, index) in _LENGTHS:
        return _lengths(node, index, shapes)
    if op == "RotaryEmbedding" and len(shapes.get(node.input[index], ())) == 1:
        return (0, 0)  # where the first of the positions is
    table, axis = _INDEXING.get((domain, op, index), (None, 0))
    if table is None:
        return None
    data = shapes.get(node.input[table], ()) if table < len(node.input) else ()
    if not data:
        return (0, 0)
    if axis == "all":
        return (0, max(min(data) - 1, 0))
    if isinstance(axis, str):
        axis = next((int(a.i) for a in node.attribute if a.name == axis), 0)
    if not -len(data) <= axis < len(data):
        return (0, 0)
    return (0, max(data[axis] - 1, 0))


def _lengths(node: NodeProto, index: int, shapes: Mapping[str, tuple[int, ...]]) -> Limits | None:
    """Lengths of keys that attention accepts; None for a mask that has an element for each."""

    def size(i: int, axis: int, default: int) -> int:
        shape = shapes.get(node.input[i], ()) if i < len(node.input) else ()
        return shape[axis] if -len(shape) <= axis < len(shape) else default

    if node.op_type == "GroupQueryAttention":
        total = size(0, 1, 1) + size(3, 2, 0)
        return (total - 6 + index, total - 6 + index)
    if node.op_type == "Attention" and not node.domain:
        return (1, max(size(1, -2, 1), 1))
    if len(shapes.get(node.input[index], ())) != 1:
        return None
    keys = 1 if node.op_type == "MultiHeadAttention" else 0
    return (1, max(size(keys, 1, 1), 1))


Array = NDArray[Any]


class Sample(dict[str, Any]):
    """Input name -> array, or list of arrays for a sequence."""

    source = ""
    """The file it was read from; empty: none."""
    switches: Sequence[str] = ()
    """Inputs drawn at random that choose a branch."""


def blamed(error: DnnpError, sample: Mapping[str, Any]) -> DnnpError:
    """The error of a sample, with its file or the random inputs that may explain it."""
    source = getattr(sample, "source", "")
    if source:
        return type(error)(f"{source}: {error}")
    advice = "".join(f" --set-input {n}=VALUE" for n in getattr(sample, "switches", ()))
    why = "; a branch depends on an input that was drawn at random: dnnp-import"
    return type(error)(f"{error}{why}{advice}") if advice else error


@contextmanager
def blaming(sample: Mapping[str, Any]) -> Iterator[None]:
    """Raise errors as `blamed` words them."""
    try:
        yield
    except DnnpError as error:
        raise blamed(error, sample) from None


_GIVEN = ("tensor", "sequence")
"""Kinds of input that can be drawn or read from a file."""


@dataclass(frozen=True)
class InputSpec:
    """One input that a model must be given."""

    name: str
    kind: str
    """`tensor`, `sequence`, `optional` of unknown content, or another ONNX type that cannot be made
    here."""
    elem_type: int
    """ONNX element type."""
    shape: tuple[int | str | None, ...] | None
    """Numbers, symbols, None for an unknown dimension; None: unknown rank."""
    may_miss: bool = False
    """True for an optional type, which need not be given."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """numpy element type; object for strings."""
        from onnx import helper

        return np.dtype(helper.tensor_dtype_to_np_dtype(self.elem_type))


def shown_shape(shape: Sequence[int | str | None] | None) -> str:
    """A shape for messages."""
    if shape is None:
        return "any"
    return "[" + ", ".join("?" if d is None else str(d) for d in shape) + "]"


def input_specs(model: ModelProto) -> list[InputSpec]:
    """Inputs of the main graph that are not initializers, in order."""
    stored = {t.name for t in model.graph.initializer}
    stored.update(t.values.name for t in model.graph.sparse_initializer)
    return [_spec(i.name, i.type) for i in model.graph.input if i.name not in stored]


def _spec(name: str, declared: TypeProto) -> InputSpec:
    from onnx import helper

    kind = declared.WhichOneof("value") or "untyped"
    inner = declared
    optional = kind == "optional_type"
    if optional:
        inner = declared.optional_type.elem_type
        kind = inner.WhichOneof("value") or "untyped"
    if kind == "sequence_type":
        inner = inner.sequence_type.elem_type
    kind = kind.removesuffix("_type")
    if inner.WhichOneof("value") != "tensor_type":
        return InputSpec(name, kind if kind != "tensor" else "untyped", 0, None)
    tensor = inner.tensor_type
    if tensor.elem_type not in helper.get_all_tensor_dtypes():
        return InputSpec(name, "untyped", 0, None)
    shape: tuple[int | str | None, ...] | None = None
    if tensor.HasField("shape"):
        shape = tuple(
            int(d.dim_value)
            if d.HasField("dim_value") and d.dim_value >= 0
            else d.dim_param or None
            for d in tensor.shape.dim
        )
    return InputSpec(name, kind, tensor.elem_type, shape, optional)


def check_sample(sample: Mapping[str, Any], specs: Sequence[InputSpec], source: str) -> Sample:
    """Return the sample in the model's order, after checking names, types and shapes.

    Raises `FormatError` if an input is unknown or missing, or has another type or shape than the
    model declares.
    """
    names = [s.name for s in specs]
    for name in sample:
        if name not in names:
            known = ", ".join(names) or "none"
            raise FormatError(f"the model has no input '{name}' (inputs: {known})", source)
    symbols: dict[str, tuple[int, str]] = {}
    checked = Sample()
    checked.source = source
    for spec in specs:
        optional = spec.may_miss or spec.kind == "optional"
        if spec.name not in sample and not optional:
            raise FormatError(f"input '{spec.name}' is missing", source)
        value = sample.get(spec.name)
        if optional and (value is None or spec.kind == "optional"):
            checked[spec.name] = value
            continue
        if spec.kind not in _GIVEN:
            reason = f"input '{spec.name}' is of type {spec.kind}, which cannot be given"
            raise FormatError(reason, source)
        if spec.kind == "sequence":
            if not isinstance(value, list):
                raise FormatError(f"input '{spec.name}' must be a sequence", source)
            # ONNX Runtime takes elements of any shape.
            item = replace(spec, shape=None)
            checked[spec.name] = [_check_array(np.asarray(x), item, {}, source) for x in value]
            continue
        if isinstance(value, list) and spec.may_miss and len(value) == 1:
            value = value[0]  # an optional in a file looks like a sequence
        checked[spec.name] = _check_array(np.asarray(value), spec, symbols, source)
    return checked


def _check_array(
    array: Array, spec: InputSpec, symbols: dict[str, tuple[int, str]], source: str
) -> Array:
    expected = spec.dtype
    text = expected.kind == "O" and array.dtype.kind in "UO"
    if array.dtype.kind == "V" and array.dtype.itemsize == expected.itemsize:
        array = array.view(expected)
    if array.dtype != expected and not text:
        shown = "string" if expected.kind == "O" else str(expected)
        raise FormatError(f"input '{spec.name}': dtype {array.dtype}, expected {shown}", source)
    _check_shape(array.shape, spec, symbols, source)
    # Only now, as the array may stand for one that is too large.
    return array.astype(object, copy=False) if text else array


def _check_shape(
    got: tuple[int, ...], spec: InputSpec, symbols: dict[str, tuple[int, str]], source: str
) -> None:
    """Check a shape against the declared one, and its symbols against those of other inputs."""
    if spec.shape is None:
        return
    fits = len(got) == len(spec.shape) and all(
        not isinstance(want, int) or want == size
        for want, size in zip(spec.shape, got, strict=True)
    )
    if not fits:
        raise FormatError(
            f"input '{spec.name}': shape {shown_shape(got)}, expected {shown_shape(spec.shape)}",
            source,
        )
    for symbol, size in zip(spec.shape, got, strict=True):
        if isinstance(symbol, str):
            value, owner = symbols.setdefault(symbol, (size, spec.name))
            if value != size:
                raise FormatError(
                    f"input '{spec.name}': dimension '{symbol}' is {size}, "
                    f"but {value} in input '{owner}'",
                    source,
                )


def bind_names(
    values: Mapping[str, Any] | Sequence[Any], specs: Sequence[InputSpec], source: str
) -> Sample:
    """Name the tensors of a file without names, in the order of the model's inputs.

    Names in a file that fit none of the inputs, as ONNX test data have them, do not count when
    there are as many tensors as inputs.

    Raises `FormatError` if tensors and inputs differ in number, or as `check_sample`.
    """
    names = [s.name for s in specs]
    if isinstance(values, Mapping):
        if len(values) != len(names) or set(values) & set(names) or source.endswith(".npz"):
            return check_sample(values, specs, source)
        values = list(values.values())
    if len(values) != len(names):
        wanted = ", ".join(names) or "none"
        raise FormatError(
            f"{len(values)} tensors without names, but the model has {len(names)} "
            f"inputs ({wanted})",
            source,
        )
    return check_sample(dict(zip(names, values, strict=True)), specs, source)


def random_inputs(
    model: ModelProto,
    seed: int | Sequence[int],
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Sample:
    """Draw one sample of inputs.

    Numbers are standard normal (half of the variance in patches of 32, so that samples differ
    after averaging too); masks are ones, then zeros; integers lie in the range
    that the model's metadata gives, or that the operators reading them can bear. A dimension
    without a number takes it from `shapes` (by tensor), from `dims` (by symbol), or is 1.

    Raises
    ------
    UsageError
        An input of a type that cannot be drawn, such as a map.
    LimitError
        An input that is larger than the memory that may be used.
    """
    rng = np.random.default_rng(seed)
    specs = input_specs(model)
    known = shapes or {}
    ranges = integer_ranges(model, [s.name for s in specs], known)
    sample = Sample(
        (s.name, _draw_input(s, rng, ranges, dims or {}, known.get(s.name))) for s in specs
    )
    single = [n for n, v in sample.items() if getattr(v, "size", 0) == 1 and v.dtype.kind != "O"]
    sample.switches = branch_inputs(model, single)
    return sample


def _draw_input(
    spec: InputSpec,
    rng: np.random.Generator,
    ranges: ValueRanges,
    dims: Mapping[str, int],
    known: Sequence[int] | None,
) -> Any:
    if spec.kind not in _GIVEN:
        raise UsageError(f"input '{spec.name}' is of type {spec.kind}; give it with --inputs")
    shape = []
    declared = spec.shape if spec.shape is not None else tuple(known or ())
    for axis, d in enumerate(declared):
        if isinstance(d, int):
            shape.append(d)
        elif known is not None and len(known) == len(declared):
            shape.append(int(known[axis]))
        else:
            shape.append(int(dims.get(d, 1)) if d is not None else 1)
    needed = math.prod(shape) * spec.dtype.itemsize
    require_memory(needed, f"input '{spec.name}' of shape {shown_shape(shape)}")
    try:
        if spec.name in ranges.exact and spec.dtype.kind in "iuf":
            values = ranges.exact[spec.name](math.prod(shape))
            array = np.array(values).astype(spec.dtype).reshape(shape)
        else:
            array = np.asarray(_draw_array(spec, tuple(shape), rng, ranges.ranges.get(spec.name)))
    except ValueError as error:
        raise UsageError(
            f"input '{spec.name}' of shape {shown_shape(shape)} cannot be drawn: {error}"
        ) from None
    return [array] if spec.kind == "sequence" else array


def _draw_array(
    spec: InputSpec,
    shape: tuple[int, ...],
    rng: np.random.Generator,
    limits: Limits | None,
) -> Array:
    dtype = spec.dtype
    if dtype.kind == "O":
        return rng.integers(0, 10, shape).astype(str).astype(object)
    if limits is None and "mask" in spec.name.lower():
        return _mask(rng, shape).astype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < (0.5 if limits is None else limits[0])
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        low, high = limits if limits is not None else (0, 1)
        if limits is None and info.bits == 8:
            low, high = int(info.min), int(info.max)
        low, high = (min(max(int(x), int(info.min)), int(info.max)) for x in (low, high))
        return rng.integers(low, high, shape, dtype=dtype, endpoint=True)
    if limits is not None and dtype.kind == "f":
        return (limits[0] + (limits[1] - limits[0]) * rng.random(shape)).astype(dtype)
    if dtype.kind == "c":
        return (_normal(rng, shape) + 1j * _normal(rng, shape)).astype(dtype)
    if dtype.kind == "f" or dtype.itemsize == 2:
        return _normal(rng, shape).astype(dtype)
    return rng.integers(0, 2, shape).astype(dtype)


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Standard normal numbers, half of the variance in patches along the inner axes."""
    coarse = rng.standard_normal(
        [d if axis < 2 else -(-d // 32) for axis, d in enumerate(shape)], dtype=np.float32
    )
    for axis in range(2, len(shape)):
        coarse = np.repeat(coarse, 32, axis=axis).take(range(shape[axis]), axis=axis)
    if len(shape) < 3:
        return coarse
    mixed = (coarse + rng.standard_normal(shape, dtype=np.float32)) * np.float32(0.5**0.5)
    return mixed.astype(np.float32)


def _mask(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Ones for the first half of the last axis at least, then zeros."""
    if not shape:
        return np.ones((), dtype=np.int64)
    width = shape[-1]
    kept = rng.integers((width + 1) // 2, width, (*shape[:-1], 1), endpoint=True)
    return (np.arange(width) < kept).astype(np.int64)
