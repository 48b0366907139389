"""ONNX nodes of which each of several devices takes a part; weights and certain shapes.

Records say along which axis each tensor is cut. Whether the operator computes the parts of its
outputs from those parts of its inputs also depends on attributes, which records do not have: so
each operator is looked at again here, with the attributes of the node. One that does not fit says
why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

from dnnp.core.model.shards import WHOLE, axis_of, block_state, blocks_of
from dnnp.formats.onnx.read_graph import int64s
from dnnp.formats.onnx.scope import UNREPEATABLE, domain_of, reads, subgraphs, writes
from dnnp.formats.onnx.value_types import TensorType, describe, find_types, without_weights
from dnnp.formats.onnx.weights import Slice, slice_tensor

Shape = tuple[int, ...]


class UnfitError(Exception):
    """A reason why a node cannot run as its layout says; it runs whole."""


@dataclass(frozen=True)
class Sight:
    """A node with its layout: shapes and states by position, None for an input left out."""

    node: onnx.NodeProto
    shapes: tuple[Shape | None, ...]
    states: tuple[int, ...]
    """Of the inputs."""
    out: Shape
    axis: int
    """State of its first output."""
    ends: tuple[tuple[Shape | None, int], ...]
    """Shape and state of each output that is there."""
    reduced: bool
    devices: int
    opset: int
    values: Callable[[str], tuple[int, ...] | None]
    """Short integer vectors that the model holds, by name."""

    def attribute(self, name: str, default: Any) -> Any:
        """Value of an attribute."""
        found = (a for a in self.node.attribute if a.name == name)
        return next(map(onnx.helper.get_attribute_value, found), default)

    def shape(self, position: int) -> Shape:
        """Shape of an input that must be there."""
        found = self.shapes[position] if position < len(self.shapes) else None
        if found is None:
            raise UnfitError(f"its input {position} is missing")
        return found

    def require(self, *layouts: tuple[Sequence[int], int, bool]) -> int:
        """Position of the layout, of these, that the node has: states of its inputs, axis, reduced.

        States of further inputs are not looked at.
        """
        for i, (states, axis, reduced) in enumerate(layouts):
            mine = self.states[: len(states)], self.axis, self.reduced
            if mine == (tuple(states), axis, reduced):
                return i
        raise UnfitError("its attributes do not suit the axes")


class Change(NamedTuple):
    """Changes of the node of a device against the whole one."""

    attributes: Mapping[str, int | tuple[int, ...]] = {}
    vectors: Mapping[int, tuple[int, ...]] = {}
    """Inputs that are replaced by integer vectors."""
    once: frozenset[int] = frozenset()
    """Inputs that the first device alone has: they are added to a sum."""
    rows: bool = False
    """It takes rows of a table of which each device has some; those of others count as zeros."""


def change_of(sight: Sight) -> Change:
    """The rule that changes a node on each device.

    Raises
    ------
    UnfitError
        Parts of its inputs, as the layout says, do not make those parts of its outputs.
    """
    domain = domain_of(sight.node.domain)
    look = _LOOKS.get(f"{domain}:{sight.node.op_type}" if domain else sight.node.op_type)
    if look is None:
        raise UnfitError(f"nothing is known of {sight.node.op_type} on parts of tensors")
    if look is not _attended and len({*sight.ends}) > 1:
        raise UnfitError("its outputs are not alike")
    if len(sight.ends) > 1 and look not in (_taken_apart, _along_rows, _attended):
        raise UnfitError("it has several outputs")
    for shape, state in [*zip(sight.shapes, sight.states, strict=True), *sight.ends]:
        if state == WHOLE:
            continue
        axis, blocks = axis_of(state), blocks_of(state)
        if shape is None or axis >= len(shape) or shape[axis] < sight.devices * blocks:
            raise UnfitError("its shapes are not those of the layout")
        if blocks > 1 and (shape[axis] % (sight.devices * blocks) or look not in _IN_BLOCKS):
            raise UnfitError("it cannot be cut in blocks")
    if sight.reduced != (sight.axis == WHOLE):
        raise UnfitError("its output is neither cut nor a sum")
    if sight.reduced and look not in _SUMS:
        raise UnfitError("it makes no addends")
    return look(sight)


def _elementwise(sight: Sight) -> Change:
    """Along an axis of the output; what is broadcast along it is whole."""
    axis = axis_of(sight.axis)
    for shape, state in zip(sight.shapes, sight.states, strict=True):
        if shape is None:
            continue
        at = axis - len(sight.out) + len(shape)
        there = at >= 0 and shape[at] == sight.out[axis]
        if state != (at + sight.axis - axis if there else WHOLE):
            raise UnfitError("an input is not cut as the output is")
    return Change()


def _product(sight: Sight) -> Change:
    a, b = sight.shape(0), sight.shape(1)
    last, rank = len(a) - 1, len(sight.out)
    if min(len(a), len(b)) < 2:
        raise UnfitError("a vector is among its inputs")
    if len(b) == 2:
        more = sight.axis - axis_of(sight.axis) if sight.axis != WHOLE else 0
        sight.require(((WHOLE, 1 + more), rank - 1 + more, False), ((last, 0), WHOLE, True))
        return Change()
    axis = sight.axis
    sight.require(((axis, axis), axis, False))
    if not len(a) == len(b) == rank or axis >= rank - 2 or a[axis] != b[axis]:
        raise UnfitError("its matrices are not cut alike")
    return Change()


def _gemm(sight: Sight) -> Change:
    if sight.attribute("transA", 0):
        raise UnfitError("its first matrix is transposed")
    column = 0 if sight.attribute("transB", 0) else 1
    more = sight.axis - axis_of(sight.axis) if sight.axis != WHOLE else 0
    columns = (WHOLE, column + more), 1 + more, False
    way = sight.require(columns, ((1, 1 - column), WHOLE, True))
    if len(sight.states) > 2 and sight.shapes[2] is not None:
        bias = sight.shape(2)
        if way == 1 and sight.states[2] == WHOLE:
            return Change(once=frozenset((2,)))
        own = len(bias) - 1 + more if bias[-1:] == sight.out[1:] else WHOLE
        if way == 1 or sight.states[2] != own:
            raise UnfitError("its bias is not cut as the output is")
    return Change()


def _conv(sight: Sight) -> Change:
    group, x, w = sight.attribute("group", 1), sight.shape(0), sight.shape(1)
    biased = len(sight.states) > 2 and sight.shapes[2] is not None
    bias = (0,) * biased
    if group == 1:
        summed = (1, 1) + (WHOLE,) * biased
        way = sight.require(((WHOLE, 0, *bias), 1, False), (summed, WHOLE, True))
        return Change(once=frozenset((2,))) if way == 1 and biased else Change()
    sight.require(((1, 0, *bias), 1, False))
    if group % sight.devices or x[1] % group or w[0] % group:
        raise UnfitError(f"its {group} groups are not shared equally")
    return Change({"group": group // sight.devices})


def _by_channel(sight: Sight) -> Change:
    """Change operators that treat samples and channels apart; vectors go by channel."""
    trains = sight.attribute("training_mode", 0) or not sight.attribute("spatial", 1)
    if sight.axis > 1 or trains:
        raise UnfitError("it does not treat these parts apart")
    own = (0 if sight.axis else WHOLE,) * (len(sight.states) - 1)
    sight.require(((sight.axis, *own), sight.axis, False))
    return Change()


def _along_rows(sight: Sight) -> Change:
    """Change what normalises an axis, or all from it on, along one before it."""
    rank, sums = len(sight.out), sight.node.op_type.startswith("Skip")
    flat = sight.node.op_type == "LayerNormalization" or sight.opset < 13
    default = 1 if sight.node.op_type == "Softmax" and sight.opset < 13 else -1
    first = sight.attribute("axis", default) % rank
    touched = sight.axis >= first if flat else sight.axis == first
    if touched:
        raise UnfitError(f"it normalises axis {sight.axis}")
    own = (sight.axis,) * (1 + sums)
    sight.require(((*own, *(WHOLE,) * (len(sight.states) - len(own))), sight.axis, False))
    if sums and sight.shape(1) != sight.out:
        raise UnfitError("what it adds is not of one shape")
    return Change()


_ATTENDED = {
    "GroupQueryAttention": "hhhhhwwwwwm", "MultiHeadAttention": "hhhbwmhh", "Attention": "hhhmhhw",
}  # fmt: skip
"""Inputs of attention: by heads (h), whole (w), a bias of queries, keys and values (b), a mask that
heads may have of their own (m)."""
_HEADS = ("num_heads", "kv_num_heads", "q_num_heads")
_HEADS_AT = {3: 2, 4: 1, 5: 2}
"""Rank of what is by heads -> its axis."""


def _attended(sight: Sight) -> Change:
    """Change attention to the heads of a device, with their caches."""
    q, kinds = sight.shape(0), _ATTENDED[sight.node.op_type]
    counts = {name: sight.attribute(name, 0) for name in _HEADS}
    counts = {name: count for name, count in counts.items() if count}
    packed = len(q) == 3 and (*sight.shapes, None)[1] is None
    heads = {*counts.values()} or {q[1], sight.shape(1)[1]}
    if any(count % sight.devices for count in heads) or (packed and len(heads) > 1):
        raise UnfitError("its heads are not shared equally")
    for at, (shape, state) in enumerate(zip(sight.shapes, sight.states, strict=True)):
        kind = kinds[at : at + 1]
        apart = kind == "h" or (kind == "m" and shape is not None and (*shape, 1, 1)[1] > 1)
        right = WHOLE if kind != "b" else block_state(0, 3)
        if shape is not None and apart and len(shape) in _HEADS_AT:
            right = block_state(_HEADS_AT[len(shape)], 3 if packed and not at else 1)
        if shape is not None and (state != right or not kind):
            raise UnfitError(f"its input {at} is not cut by heads")
    if any(shape is None or state != _HEADS_AT.get(len(shape)) for shape, state in sight.ends):
        raise UnfitError("an output is not cut by heads")
    return Change({name: count // sight.devices for name, count in counts.items()})


def _rotated(sight: Sight) -> Change:
    """Change rotary embeddings to the heads of a device."""
    shape, stated = sight.shape(0), sight.attribute("num_heads", 0)
    heads = shape[1] if len(shape) == 4 else stated or shape[2] // (2 * sight.shape(2)[-1])
    if heads % sight.devices or sight.axis != _HEADS_AT.get(len(shape)):
        raise UnfitError("its heads are not shared equally")
    sight.require(((sight.axis, *(WHOLE,) * (len(sight.states) - 1)), sight.axis, False))
    return Change({"num_heads": heads // sight.devices} if stated else {})


def _block_product(sight: Sight) -> Change:
    """Change a product with a matrix of few bits, by column, or by row in whole blocks."""
    n, k = sight.attribute("N", 0), sight.attribute("K", 0)
    size, bits, t = sight.attribute("block_size", 1), sight.attribute("bits", 4), sight.devices
    last, more = len(sight.shape(0)) - 1, sight.axis - axis_of(sight.axis) if sight.axis >= 0 else 0
    parts, rows, whole = [], [], 4 in range(len(sight.shapes)) and sight.shapes[4] is not None
    for at, shape in enumerate(sight.shapes[1:], 1):
        there = shape is not None
        flat = block_state(0, n) if shape is not None and len(shape) == 1 else 1
        parts.append(more if there else WHOLE)
        rows.append((WHOLE if at > 3 else flat) if there else WHOLE)
    way = sight.require(
        ((WHOLE, *parts), len(sight.out) - 1 + more, False), ((last, *rows), WHOLE, True)
    )
    zeros = (*sight.shapes, None, None)[3]
    packed = zeros is not None and prod(zeros) < n * (k // size)
    if way and (k % (size * t) or (packed and k // size // t * bits % 8)):
        raise UnfitError("its blocks are not shared equally")
    if whole or n % t:
        raise UnfitError("its columns are not shared equally, or in an order of their own")
    return Change({"K": k // t}, once=frozenset((5,))) if way else Change({"N": n // t})


def _transposed(sight: Sight) -> Change:
    rank = len(sight.out)
    order = tuple(sight.attribute("perm", ())) or tuple(reversed(range(rank)))
    if order[sight.axis] != sight.states[0]:
        raise UnfitError("it takes the axis elsewhere")
    return Change()


def _gathered(sight: Sight) -> Change:
    """Rows of a table, by its width."""
    if sight.attribute("axis", 0) != 0:
        raise UnfitError("it does not take rows")
    if len(sight.shape(0)) != 2:
        raise UnfitError("it does not take rows of a table")
    way = sight.require(((1, WHOLE), len(sight.shape(1)), False), ((0, WHOLE), WHOLE, True))
    if way and sight.opset < 9:
        raise UnfitError(f"rows of others cannot be zeros with opset {sight.opset}")
    return Change(rows=way == 1)


def _cuts_alike(sight: Sight) -> None:
    """Refuse axes that equal parts do not cut at the same places in memory."""
    shape, given, axis, t = sight.shape(0), sight.states[0], sight.axis, sight.devices
    if given == WHOLE or prod(shape[:given]) != prod(sight.out[:axis]):
        raise UnfitError("it does not keep the axis")
    if (
        shape[given] % t
        or sight.out[axis] % t
        or 0 in sight.out
        or any(s != WHOLE for s in sight.states[1:])
    ):
        raise UnfitError("its parts are not equal")


def _reshaped(sight: Sight) -> Change:
    _cuts_alike(sight)
    target = list(sight.out)
    target[sight.axis] //= sight.devices
    return Change(vectors={1: tuple(target)})


def _taken_apart(sight: Sight) -> Change:
    """A Split into equal parts: each of them along its axis, or all along another one."""
    count, shape = len(sight.node.output), sight.shape(0)
    along = sight.attribute("axis", 0)
    along += len(shape) if along < 0 else 0
    if shape[along] != count * sight.out[along] or sight.axis == WHOLE:
        raise UnfitError("it does not split equally")
    if sight.axis != along:
        sight.require(((sight.axis,), sight.axis, False))
        return Change()
    sight.require(((block_state(along, count),), along, False))
    if sight.out[along] % sight.devices:
        raise UnfitError("its parts are not equal")
    sizes = (sight.out[along] // sight.devices,) * count
    if sight.opset < 13:
        return Change({"split": sizes} if sight.attribute("split", None) else {})
    return Change(vectors={1: sizes} if len(sight.node.input) > 1 and sight.node.input[1] else {})


def _flattened(sight: Sight) -> Change:
    _cuts_alike(sight)
    begins = sight.attribute("axis", 1)
    begins += len(sight.shape(0)) if begins < 0 else 0
    if (sight.states[0] >= begins) != (sight.axis == 1):
        raise UnfitError("it does not keep the axis")
    return Change()


def _squeezed(sight: Sight) -> Change:
    """Axes of size 1 come or go; which ones must be said, as parts may have others of size 1."""
    _cuts_alike(sight)
    given = sight.attribute("axes", None)
    if given is None and len(sight.node.input) > 1 and sight.node.input[1]:
        given = sight.values(sight.node.input[1])
    if given is None:
        raise UnfitError("its axes are not stated")
    grows = sight.node.op_type == "Unsqueeze"
    longer = len(sight.out) if grows else len(sight.shape(0))
    changed = {axis % longer for axis in given}
    kept = [axis for axis in range(longer) if axis not in changed]
    inside, outside = (sight.states[0], sight.axis) if grows else (sight.axis, sight.states[0])
    if not inside < len(kept) or kept[inside] != outside:
        raise UnfitError("it does not keep the axis")
    return Change()


_SAME = (
    "Abs", "Add", "And", "Cast", "Ceil", "Clip", "Cos", "Div", "Elu", "Equal", "Erf", "Exp",
    "Floor", "Gelu", "Greater", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Less", "Log",
    "Max", "Min", "Mish", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "Relu", "Round",
    "Sigmoid", "Sin", "Softplus", "Sqrt", "Sub", "Tanh", "Where", "com.microsoft:FastGelu",
    "com.microsoft:Gelu", "com.microsoft:QuickGelu",
)  # fmt: skip
_POOLS = ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "BatchNormalization")
_LOOKS: dict[str, Callable[[Sight], Change]] = {
    **dict.fromkeys(_SAME, _elementwise),
    **dict.fromkeys(_POOLS, _by_channel),
    "MatMul": _product,
    "Gemm": _gemm,
    "Conv": _conv,
    "Softmax": _along_rows,
    "LayerNormalization": _along_rows,
    "RMSNormalization": _along_rows,
    "SimplifiedLayerNormalization": _along_rows,
    "com.microsoft:SkipLayerNormalization": _along_rows,
    "com.microsoft:SkipSimplifiedLayerNormalization": _along_rows,
    "Attention": _attended,
    "com.microsoft:GroupQueryAttention": _attended,
    "com.microsoft:MultiHeadAttention": _attended,
    "RotaryEmbedding": _rotated,
    "com.microsoft:RotaryEmbedding": _rotated,
    "com.microsoft:MatMulNBits": _block_product,
    "Transpose": _transposed,
    "Gather": _gathered,
    "Reshape": _reshaped,
    "Flatten": _flattened,
    "Squeeze": _squeezed,
    "Unsqueeze": _squeezed,
    "Split": _taken_apart,
}
"""Sharding rule by operator; operators of other domains than the default one by `domain:type`."""
_IN_BLOCKS = (_elementwise, _product, _gemm, _taken_apart, _attended, _block_product)
"""Rules for results that are cut in blocks."""
_SUMS = (_product, _gemm, _conv, _gathered, _block_product)
"""Rules for results that are addends of a sum."""


_ZEROED = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)
"""Types of tables whose rows devices take apart."""


class Layout(NamedTuple):
    """The layout of a node on the devices of its stage."""

    inputs: Mapping[str, int]
    """Tensor -> its state: `WHOLE`, or the axis that it is cut along."""
    outputs: Mapping[str, int]
    reduced: bool

    @property
    def divided(self) -> bool:
        """True if devices do different parts of the work."""
        states = (*self.inputs.values(), *self.outputs.values())
        return self.reduced or any(state != WHOLE for state in states)


class Facts:
    """A model at the sizes that layouts are for.

    Parameters
    ----------
    source
        The model.
    makers
        Nodes that make weights.
    known
        Types of its tensors at these sizes.
    """

    def __init__(
        self, source: onnx.ModelProto, makers: Iterable[int], known: Mapping[str, TensorType]
    ) -> None:
        self.model = _bound(source, known)
        """The model with sizes for its inputs, without its large weights."""
        graph = self.model.graph
        self._known = known
        self._functions = {(domain_of(f.domain), f.name) for f in source.functions}
        self.stored = {tensor.name: tensor for tensor in source.graph.initializer}
        """Stored tensors of the model by name, constants among them."""
        for v in makers:
            self.stored |= _constant(graph.node[v])
        opsets = [entry.version for entry in source.opset_import if not domain_of(entry.domain)]
        self.opset = opsets[0] if opsets else 1
        self.names = {name for node in graph.node for name in (*reads(node), *writes(node))}
        self._types = find_types(_undeclared(self.model), sorted(self.names), known)

    def shape(self, name: str) -> Shape | None:
        """Shape of a tensor, where the model itself confirms what is known of it."""
        if name in self.stored:
            return tuple(self.stored[name].dims)
        if name not in self._types:
            return None
        shape, known = describe(self._types[name]).shape, self._known.get(name)
        if shape is None or known is None or shape != known.shape:
            return None
        sizes = tuple(size for size in shape if isinstance(size, int))
        return sizes if len(sizes) == len(shape) else None

    def dtype(self, name: str) -> str | None:
        """Element type of a tensor, if it is known."""
        return describe(self._types[name]).dtype if name in self._types else None

    def is_alone(self, node: onnx.NodeProto) -> bool:
        """True if one device has to run a node for all: it may give each something else, has
        bodies, or is about sequences."""
        # The first device runs what may give each something else, for all.
        if node.op_type in UNREPEATABLE or any(True for _ in subgraphs(node)):
            return True
        there = [name for name in (*reads(node), *writes(node)) if name in self._types]
        return any(not describe(self._types[name]).is_tensor for name in there)

    def change(self, node: onnx.NodeProto, layout: Layout, devices: int) -> Change:
        """Change the node of each device by a layout; raises `UnfitError`."""
        change = change_of(self._sight(node, layout, devices))
        if change.rows:
            table = self.stored.get(node.input[0])
            if table is None or table.data_type not in _ZEROED:
                raise UnfitError("its rows cannot be zeros")
        for name, state in layout.inputs.items():
            if state != WHOLE and name in self.stored:
                part = Slice(name, axis_of(state), ((0, 0),))
                if slice_tensor(self.stored[name], "", part) is None:
                    raise UnfitError(f"the elements of '{name}' share bytes")
        return change

    def _sight(self, node: onnx.NodeProto, layout: Layout, devices: int) -> Sight:
        if (domain_of(node.domain), node.op_type) in self._functions:
            raise UnfitError("it is a local function")
        shapes: list[Shape | None] = []
        for name in node.input:
            shapes.append(self.shape(name) if name else None)
            if name and shapes[-1] is None:
                raise UnfitError(f"the shape of '{name}' is not certain")
        ends = tuple((self.shape(x), layout.outputs.get(x, WHOLE)) for x in writes(node))
        out, axis = next(iter(ends), (None, WHOLE))
        if out is None:
            raise UnfitError("the shape of its output is not certain")
        return Sight(
            node=node,
            shapes=tuple(shapes),
            states=tuple(layout.inputs.get(name, WHOLE) for name in node.input),
            out=out,
            axis=axis,
            ends=ends,
            reduced=layout.reduced,
            devices=devices,
            opset=self.opset,
            values=lambda name: int64s(self.stored[name]) if name in self.stored else None,
        )


def _bound(model: onnx.ModelProto, known: Mapping[str, TensorType]) -> onnx.ModelProto:
    """The model with the known sizes of its inputs, without large weights.

    What it declares of other sizes goes where some were free.
    """
    bound = without_weights(model)
    stored = {tensor.name for tensor in bound.graph.initializer}
    free = False
    for value in bound.graph.input:
        kind, at = describe(value.type), known.get(value.name)
        if value.name in stored or kind.shape is None or at is None or at.shape is None:
            continue
        dims = value.type.tensor_type.shape.dim
        for dim, size in zip(dims, at.shape, strict=False):
            if isinstance(size, int) and not dim.HasField("dim_value"):
                dim.dim_value, free = size, True
    for value in bound.graph.value_info if free else ():
        value.type.tensor_type.ClearField("shape")
    return bound


def _undeclared(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy that declares no shapes of outputs."""
    light = onnx.ModelProto()
    light.CopyFrom(model)
    for value in light.graph.output:
        if value.type.WhichOneof("value") == "tensor_type":
            value.type.tensor_type.ClearField("shape")
    return light


def _constant(node: onnx.NodeProto) -> dict[str, onnx.TensorProto]:
    """The value of a node outside of all stages, by the name of its output."""
    if node.op_type != "Constant" or len(node.output) != 1:
        return {}
    for attribute in node.attribute:
        if attribute.name == "value":
            return {node.output[0]: attribute.t}
        if attribute.name in ("value_ints", "value_floats", "value_int", "value_float"):
            value = helper.get_attribute_value(attribute)
            kind = np.int64 if "int" in attribute.name else np.float32
            return {node.output[0]: numpy_helper.from_array(np.array(value, dtype=kind))}
    return {}
