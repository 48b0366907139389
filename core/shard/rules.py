"""By operator: which parts of its tensors each of t devices takes.

A tensor is whole (each device has all of it) or split along an axis (each has 1/t of it, in order).
A rule that leaves a sum of t addends ends with an all-reduce. What is whole may be taken as split,
and parameters may be stored either way. Column and row products are those of Shoeybi et al. 2019
("Megatron-LM"). An axis that t does not divide is not split; what no rule knows is done by all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

WHOLE = -1
"""State of a tensor that each device has all of; others are the axis that it is split along."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Rule:
    """A way to run a node on t devices."""

    inputs: tuple[int, ...]
    """State that it needs of each input."""
    outputs: tuple[int, ...]
    """State of each output when it has run, its all-reduce included."""
    divided: bool = True
    """Whether each device does 1/t of the arithmetic, rather than all of it."""
    reduced: bool = False
    """Whether the outputs are summed over the devices, by an all-reduce."""


@dataclass(frozen=True)
class Operator:
    """A node as rules see it."""

    op: str
    inputs: tuple[Shape | None, ...]
    """Shapes; None where unknown."""
    outputs: tuple[Shape | None, ...]
    stored: tuple[bool, ...]
    """Of each input whether it is a parameter or a constant."""


_SAME = frozenset((
    "Abs", "Add", "Cast", "Ceil", "Clip", "Cos", "Div", "Elu", "Erf", "Exp", "FastGelu", "Floor",
    "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Log", "Max", "Min", "Mish", "Mul",
    "Neg", "Pow", "QuickGelu", "Reciprocal", "Relu", "Round", "Sigmoid", "Sin", "Softplus", "Sqrt",
    "Sub", "Tanh", "Where", "And", "Or", "Not", "Equal", "Greater", "Less",
))  # fmt: skip
_RESHAPED = frozenset(("Reshape", "Squeeze", "Unsqueeze", "Flatten"))
_BY_CHANNEL = frozenset((
    "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "BatchNormalization",
))  # fmt: skip


def rules(node: Operator, t: int) -> tuple[Rule, ...]:
    """All ways to run a node on `t` devices; the first repeats it on each."""
    repeated = Rule((WHOLE,) * len(node.inputs), (WHOLE,) * len(node.outputs), divided=False)
    find = _FINDERS.get(node.op)
    if find is None or None in node.outputs or not node.outputs or t == 1:
        return (repeated,)
    return (repeated, *find(node, t))


def _axes(shape: Shape, t: int) -> Iterator[int]:
    return (a for a, size in enumerate(shape) if size > 0 and size % t == 0)


def _known(shape: Shape | None) -> Shape:
    return () if shape is None else shape


def _elementwise(node: Operator, t: int) -> Iterator[Rule]:
    """Each output along an axis; inputs that are broadcast along it stay whole."""
    (shape, *others) = node.outputs
    if shape is None or others or None in node.inputs:
        return
    for axis in _axes(shape, t):
        states = []
        for given in map(_known, node.inputs):
            at = axis - len(shape) + len(given)
            states.append(at if at >= 0 and given[at] == shape[axis] else WHOLE)
        yield Rule(tuple(states), (axis,))


def _product(node: Operator, t: int) -> Iterator[Rule]:
    """MatMul: by column or by row of a matrix, or along what both have in common.

    Not by sample with a whole matrix, which is data parallelism and divides no weights.
    """
    a, b, out = node.inputs[0], node.inputs[1], node.outputs[0]
    if a is None or b is None or out is None or min(len(a), len(b)) < 2:
        return
    rank, last = len(out), len(a) - 1
    if len(b) == 2 and len(a) == rank:
        if b[1] % t == 0:
            yield Rule((WHOLE, 1), (rank - 1,))
        if b[0] % t == 0:
            yield Rule((last, 0), (WHOLE,), reduced=True)
    elif len(a) == len(b) == rank:
        for axis in _axes(out[:-2], t):
            if a[axis] == b[axis]:
                yield Rule((axis, axis), (axis,))


def _gemm(node: Operator, t: int) -> Iterator[Rule]:
    """Gemm: by column or by row of its matrix.

    Shapes tell whether the matrix is transposed; a square one costs the same either way.
    """
    a, b, out = node.inputs[0], node.inputs[1], node.outputs[0]
    if a is None or b is None or out is None or not node.stored[1] or a[0] != out[0]:
        return
    column = 1 if b == (a[1], out[1]) else 0
    if sorted(b) != sorted((a[1], out[1])):
        return
    bias = node.inputs[2:]
    if out[1] % t == 0:
        own = tuple(len(_known(c)) - 1 if _known(c)[-1:] == out[1:] else WHOLE for c in bias)
        yield Rule((WHOLE, column, *own), (1,))
    if a[1] % t == 0:
        yield Rule((1, 1 - column, *(WHOLE for _ in bias)), (WHOLE,), reduced=True)


def _conv(node: Operator, t: int) -> Iterator[Rule]:
    """Conv: by output channel, by input channel, or by group."""
    x, w, out = node.inputs[0], node.inputs[1], node.outputs[0]
    if x is None or w is None or out is None or not node.stored[1] or len(x) < 3:
        return
    bias = len(node.inputs) - 2
    groups = x[1] // max(w[1], 1)
    if groups > 1:
        if groups % t == 0 and w[0] % t == 0:
            yield Rule((1, 0, *(0,) * bias), (1,))
        return
    if w[0] % t == 0:
        yield Rule((WHOLE, 0, *(0,) * bias), (1,))
    if x[1] % t == 0:
        yield Rule((1, 1, *(WHOLE,) * bias), (WHOLE,), reduced=True)


def _by_channel(node: Operator, t: int) -> Iterator[Rule]:
    """What treats samples and channels apart; vectors go by channel."""
    shape = node.inputs[0]
    if shape is None or len(shape) < 3 or len(node.outputs) > 1:
        return
    vectors = len(node.inputs) - 1
    for axis in _axes(shape[:2], t):
        yield Rule((axis, *(0 if axis else WHOLE,) * vectors), (axis,))


def _along_rows(node: Operator, t: int) -> Iterator[Rule]:
    """What normalises the last axis: along any other.

    Records do not state the axis of a Softmax; it is taken to be the last one.
    """
    shape = node.inputs[0]
    if shape is None or len(node.outputs) > 1 or len(shape) < 2:
        return
    if node.op == "LayerNormalization" and any(c != shape[-1:] for c in node.inputs[1:]):
        return
    for axis in _axes(shape[:-1], t):
        yield Rule((axis, *(WHOLE,) * (len(node.inputs) - 1)), (axis,))


def _reshaped(node: Operator, t: int) -> Iterator[Rule]:
    """Axes with the same extent before them, which t parts cut at the same places."""
    shape, out = node.inputs[0], node.outputs[0]
    if shape is None or out is None or prod(shape) != prod(out) or not prod(out):
        return
    before = {prod(out[:b]): b for b in _axes(out, t)}
    for axis in _axes(shape, t):
        at = before.get(prod(shape[:axis]))
        if at is not None:
            yield Rule((axis, *(WHOLE,) * (len(node.inputs) - 1)), (at,))


def _transposed(node: Operator, t: int) -> Iterator[Rule]:
    """Axes that their size tells, since it is there once."""
    shape, out = node.inputs[0], node.outputs[0]
    if shape is None or out is None or sorted(shape) != sorted(out):
        return
    for axis in _axes(shape, t):
        if shape.count(shape[axis]) == 1:
            yield Rule((axis,), (out.index(shape[axis]),))


def _gathered(node: Operator, t: int) -> Iterator[Rule]:
    """Rows of a stored table: by its width."""
    table, at, out = node.inputs[0], node.inputs[1], node.outputs[0]
    if table is None or at is None or out is None or len(table) != 2 or not node.stored[0]:
        return
    if out == (*at, table[1]) and out != (table[0], *at) and table[1] % t == 0:
        yield Rule((1, WHOLE), (len(out) - 1,))


_FINDERS: dict[str, Callable[[Operator, int], Iterator[Rule]]] = {
    **dict.fromkeys(_SAME, _elementwise),
    **dict.fromkeys(_RESHAPED, _reshaped),
    **dict.fromkeys(_BY_CHANNEL, _by_channel),
    "MatMul": _product,
    "Gemm": _gemm,
    "Conv": _conv,
    "LayerNormalization": _along_rows,
    "Softmax": _along_rows,
    "Transpose": _transposed,
    "Gather": _gathered,
}


def part(state: int, t: int) -> float:
    """Share of a tensor that each of `t` devices has."""
    return 1.0 if state == WHOLE else 1.0 / t


def all_rules(nodes: Sequence[Operator], t: int) -> list[tuple[Rule, ...]]:
    """Ways to run each node."""
    return [rules(node, t) for node in nodes]
