"""Safe ranges of integer inputs, read off the operators that use them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dnnp.core.model.errors import FormatError

if TYPE_CHECKING:
    from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

RANGE_KEY = "dnnp.input_range."
"""Model metadata: `dnnp.input_range.NAME` = "LOW,HIGH", both included."""

# Operators that hand values on unchanged, and which of their inputs (None: all).
_SAME_VALUES: dict[str, tuple[int, ...] | None] = {
    "Cast": (0,), "Unsqueeze": (0,), "Squeeze": (0,), "Reshape": (0,), "Identity": (0,),
    "Flatten": (0,), "Transpose": (0,), "Expand": (0,), "Slice": (0,), "Split": (0,),
    "Gather": (0,), "Tile": (0,), "Concat": None, "Where": (1, 2), "Add": None, "Pad": (0,),
    "ReduceMax": (0,), "ReduceMin": (0,), "Max": None, "Min": None,
}  # fmt: skip
# Operators that count with an input: shapes, lengths, repeats.
_COUNTS = {
    "Reshape": (1,), "Expand": (1,), "Tile": (1,), "ConstantOfShape": (0,), "Range": (0, 1, 2),
    "TopK": (1,), "Slice": (1, 2, 3, 4), "Resize": (3,), "LSTM": (4,), "GRU": (4,), "RNN": (4,),
    "Split": (1,), "Pad": (1,), "ReverseSequence": (1,), "DynamicQuantizeLSTM": (4,),
}  # fmt: skip
# Domain, operator and the input that indexes: which input is the table, by what attribute or axis.
_INDEXING: dict[tuple[str, str, int], tuple[int, str | int]] = {
    **{("", op, 1): (0, "axis") for op in ("Gather", "GatherElements", "ScatterElements")},
    **{("", op, 1): (0, "all") for op in ("GatherND", "ScatterND")},
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
_LARGEST = 2**63 - 1
"""Limits from metadata end where int64 does."""


def integer_ranges(
    model: ModelProto,
    inputs: Sequence[str],
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, tuple[int, int]]:
    """Least and largest safe value of each integer input about which something is known.

    The model's metadata decides; otherwise inputs used as indices stay inside the indexed
    axis, inputs used as counts are 1, and lengths that attention takes are those there are.

    Parameters
    ----------
    shapes
        Shapes of tensors of the main graph, beyond those that the model has.
    """
    uses = _IndexUses(model, inputs, shapes or {})
    ranges: dict[str, tuple[int, int]] = {}
    for name, found in uses.ranges.items():
        low = max(limits[0] for limits in found)
        ranges[name] = (low, max(low, min(limits[1] for limits in found)))
    for entry in model.metadata_props:
        if entry.key.startswith(RANGE_KEY):
            name = entry.key[len(RANGE_KEY) :]
            low_text, _, high_text = entry.value.partition(",")
            try:
                low, high = int(low_text), int(high_text)
            except ValueError:
                raise FormatError(
                    f"metadata '{entry.key}': {entry.value!r} is not 'LOW,HIGH'"
                ) from None
            if low > high:
                raise FormatError(f"metadata '{entry.key}': {entry.value!r} is empty")
            ranges[name] = max(low, -_LARGEST - 1), min(high, _LARGEST)
    return ranges


class _IndexUses:
    """Follows integer inputs through a model to the operators that index or count with them."""

    def __init__(
        self, model: ModelProto, inputs: Sequence[str], shapes: Mapping[str, Sequence[int]]
    ) -> None:
        self.ranges: dict[str, list[tuple[int, int]]] = defaultdict(list)
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
                if (node.domain, node.op_type, index) in _LENGTHS:
                    for source in self._counted.get(name, ()):
                        self.ranges[source].append((1, 1))
            self._count(node, sources)
            handed = _SAME_VALUES.get(node.op_type, ())
            names = [x for i, x in enumerate(node.input) if handed is None or i in handed]
            found = [source for name in names for source in sources.get(name, ())]
            if found:
                for name in node.output:
                    sources[name] = tuple(dict.fromkeys(found))
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    self._walk_graph(attribute.g, dict(sources), shapes)
            function = self._functions.get((node.domain, node.op_type))
            if function is not None:
                self._call(function, node, sources, shapes)

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


def _limits(
    node: NodeProto, index: int, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[int, int] | None:
    """Range that input `index` of a node must stay in, or None."""
    op = node.op_type
    if index in _COUNTS.get(op, ()):
        return (1, 1)
    if op == "Loop" and index == 0:
        return (1, 3)
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


def _lengths(
    node: NodeProto, index: int, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[int, int] | None:
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
