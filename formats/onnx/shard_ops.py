"""ONNX nodes of which each of several devices takes a part; weights and certain shapes.

Records say along which axis each tensor is cut. Whether the operator computes the parts of its
outputs from those parts of its inputs also depends on attributes, which records do not have: so
each operator is looked at again here, with the attributes of the node. One that does not fit says
why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

from dnnp.core.model.shards import WHOLE, axis_of, blocks_of
from dnnp.core.tensor_parallel.rules import ELEMENTWISE, Operator, rules
from dnnp.formats.onnx.read_graph import int64s
from dnnp.formats.onnx.scope import UNREPEATABLE, domain_of, reads, subgraphs, writes
from dnnp.formats.onnx.value_types import TensorType, describe, find_types, without_weights
from dnnp.formats.onnx.weights import Slice, slice_tensor

Shape = tuple[int, ...]


FREE = -1
"""Size of an axis that differs from run to run."""


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
    _check_rule(sight)
    return look(sight)


def _check_rule(sight: Sight) -> None:
    """Refuse a layout that is none of the rules for the operator at its shapes."""
    given = dict(zip(sight.node.input, zip(sight.shapes, sight.states, strict=True), strict=True))
    ends = [*zip(*(end for name, end in given.items() if name), strict=True)] or [(), ()]
    made = [*zip(*sight.ends, strict=True)]
    blocks = () if sight.axis == WHOLE else (blocks_of(sight.axis),)
    stored = (True,) * len(ends[0])
    node = Operator(sight.node.op_type, ends[0], made[0], stored, blocks, unequal=1)
    known = ((r.inputs, r.outputs, r.reduced) for r in rules(node, sight.devices))
    if sight.devices > 1 and (ends[1], made[1], sight.reduced) not in known:
        raise UnfitError("its attributes do not suit the axes")


def _unchanged(_: Sight) -> Change:
    return Change()


def _gemm(sight: Sight) -> Change:
    column = 0 if sight.attribute("transB", 0) else 1
    if sight.attribute("transA", 0) or axis_of(sight.states[1]) != column ^ sight.reduced:
        raise UnfitError("its attributes do not suit the axes")
    return Change(once=frozenset((2,)) if sight.reduced else frozenset())


def _conv(sight: Sight) -> Change:
    group = sight.attribute("group", 1)
    if group % sight.devices and group > 1:
        raise UnfitError(f"its {group} groups are not shared equally")
    once = frozenset((2,)) if sight.reduced else frozenset[int]()
    return Change({"group": group // sight.devices} if group > 1 else {}, once=once)


def _by_channel(sight: Sight) -> Change:
    """Change operators that treat samples and channels apart; vectors go by channel."""
    if sight.attribute("training_mode", 0) or not sight.attribute("spatial", 1):
        raise UnfitError("it does not treat these parts apart")
    return Change()


def _along_rows(sight: Sight) -> Change:
    """Change what normalises an axis, or all from it on, along one before it."""
    rank = len(sight.out)
    flat = sight.node.op_type == "LayerNormalization" or sight.opset < 13
    default = 1 if sight.node.op_type == "Softmax" and sight.opset < 13 else -1
    first = sight.attribute("axis", default) % rank
    touched = sight.axis >= first if flat else sight.axis == first
    if touched:
        raise UnfitError(f"it normalises axis {sight.axis}")
    return Change()


_ATTENDED = {"Attention": 7, "GroupQueryAttention": 11, "MultiHeadAttention": 8}
"""Inputs of attention that are known."""


def _attended(sight: Sight) -> Change:
    """Change attention to the heads of a device, with their caches."""
    op, names = sight.node.op_type, [name for name in sight.node.input if name]
    biased = op == "MultiHeadAttention" and sight.shapes[3:4] not in ((), (None,))
    strange = len(sight.node.input) > _ATTENDED[op] or len({*names}) < len(names)
    if strange or (biased and sight.states[3] == WHOLE):
        raise UnfitError("not all of its inputs are known on heads apart")
    counts = {n: sight.attribute(n, 0) for n in ("num_heads", "kv_num_heads", "q_num_heads")}
    return Change({name: count // sight.devices for name, count in counts.items() if count})


def _rotated(sight: Sight) -> Change:
    """Change rotary embeddings to the heads of a device."""
    heads = sight.attribute("num_heads", 0)
    if heads % sight.devices:
        raise UnfitError("its heads are not shared equally")
    return Change({"num_heads": heads // sight.devices} if heads else {})


def _block_product(sight: Sight) -> Change:
    """Change a product with a matrix of few bits, by column, or by row in whole blocks."""
    n, k, t = sight.attribute("N", 0), sight.attribute("K", 0), sight.devices
    zeros, order = (sight.shapes[at : at + 1] not in ((), (None,)) for at in (3, 4))
    whole = sight.reduced and zeros and sight.states[3] == WHOLE
    if order or whole or k % (sight.attribute("block_size", 1) * (t if sight.reduced else 1)):
        raise UnfitError("its parts are not equal, or its rows in an order of their own")
    if sight.reduced:
        return Change({"K": k // t}, once=frozenset((5,)))
    return Change({"N": n // t})


def _transposed(sight: Sight) -> Change:
    rank = len(sight.out)
    order = tuple(sight.attribute("perm", ())) or tuple(reversed(range(rank)))
    if order[sight.axis] != sight.states[0]:
        raise UnfitError("it takes the axis elsewhere")
    return Change()


def _gathered(sight: Sight) -> Change:
    """Rows of a table, by its width, or by rows."""
    if sight.attribute("axis", 0) != 0:
        raise UnfitError("it does not take rows")
    if sight.reduced and sight.opset < 9:
        raise UnfitError(f"rows of others cannot be zeros with opset {sight.opset}")
    return Change(rows=sight.reduced)


def _reshaped(sight: Sight) -> Change:
    target = list(sight.out)
    if FREE in target:  # 0 and -1 stand for such sizes
        target = list(sight.values(sight.node.input[1]) or ())
        if not target or 0 in target[sight.states[0] :]:
            raise UnfitError("what it makes has free sizes")
    target[sight.axis] = sight.out[sight.axis] // sight.devices
    return Change(vectors={1: tuple(target)})


def _taken_apart(sight: Sight) -> Change:
    """A Split into equal parts: each of them along its axis, or all along another one."""
    count, shape = len(sight.node.output), sight.shape(0)
    along = sight.attribute("axis", 0)
    along += len(shape) if along < 0 else 0
    if shape[along] != count * sight.out[along]:
        raise UnfitError("it does not split equally")
    if sight.axis != along:
        return Change()
    sizes = (sight.out[along] // sight.devices,) * count
    if sight.opset < 13:
        return Change({"split": sizes} if sight.attribute("split", None) else {})
    return Change(vectors={1: sizes} if len(sight.node.input) > 1 and sight.node.input[1] else {})


def _flattened(sight: Sight) -> Change:
    begins = sight.attribute("axis", 1)
    begins += len(sight.shape(0)) if begins < 0 else 0
    if (sight.states[0] >= begins) != (sight.axis == 1):
        raise UnfitError("it does not keep the axis")
    return Change()


def _squeezed(sight: Sight) -> Change:
    """Axes of size 1 come or go; which ones must be said, as parts may have others of size 1."""
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


_POOLS = ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "BatchNormalization")
_LOOKS: dict[str, Callable[[Sight], Change]] = {
    **dict.fromkeys((*ELEMENTWISE, "MatMul"), _unchanged),
    **{f"com.microsoft:{op}": _unchanged for op in ("FastGelu", "Gelu", "QuickGelu")},
    **dict.fromkeys(_POOLS, _by_channel),
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
"""Change by operator; operators of other domains than the default one by `domain:type`."""


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
    free
        True if it runs at other sizes too: those that `known` has not, and that it names.
    """

    def __init__(
        self,
        source: onnx.ModelProto,
        makers: Iterable[int],
        known: Mapping[str, TensorType],
        free: bool = False,
    ) -> None:
        self.model, self._free = _bound(source, {} if free else known), free
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
        if shape is None or known is None or known.shape is None:
            return None
        if self._free and len(shape) == len(known.shape):
            pairs = zip(shape, known.shape, strict=True)
            return tuple(b if isinstance(b, int) and a in (b, None) else FREE for a, b in pairs)
        if shape != known.shape:
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
