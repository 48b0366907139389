"""Sharding rules by operator: the part of its tensors on each of t devices.

A tensor is whole (each device has all of it) or split along an axis (each has 1/t of it, in order).
A rule that leaves a sum of t addends ends with an all-reduce. Whole tensors may be read as split
ones, and parameters may be stored either way. Column and row products, and tables by vocabulary,
are those of Shoeybi et al. 2019 ("Megatron-LM"). An axis that t does not divide is not split, or
unequally if that is allowed and it is long; operators without a rule are repeated on all devices.

A tensor that a later Split takes apart, as queries, keys and values of one product, is split in
blocks: each device has 1/t of each of so many equal parts of the axis (`block_state`).

For training alone there are more: sums that are left split, reductions along other axes, and
experts of a mixture: each device may have experts of its own (Shazeer et al. 2017, "Outrageously
large neural networks"). Operators and tensors of an expert are on one device then, with the time
and memory of the average device, and the outputs of experts are summed up once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from dnnp.core.model.shards import WHOLE, axis_of, block_state, cut

LONG = 64
"""Rows of each part from which on an axis may be split unequally."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Rule:
    """A way to run a node on t devices."""

    inputs: tuple[int, ...]
    """State that it needs of each input."""
    outputs: tuple[int, ...]
    """State of each output when it has run, its all-reduce included."""
    divided: bool = True
    """True if each device does 1/t of the arithmetic, rather than all of it."""
    reduced: bool = False
    """True if an all-reduce sums the outputs over the devices."""


@dataclass(frozen=True)
class Operator:
    """A node as rules see it."""

    op: str
    inputs: tuple[Shape | None, ...]
    """Shapes; None where unknown."""
    outputs: tuple[Shape | None, ...]
    stored: tuple[bool, ...]
    """Of each input whether it is a parameter or a constant."""
    blocks: tuple[int, ...] = ()
    """Numbers of equal parts that its outputs may be split in besides, see `block_state`."""
    unequal: int = 0
    """Rows of each part from which on parts may differ by one; 0: never."""

    def splits(self, size: int, t: int) -> bool:
        """True if an axis may be split."""
        return size > 0 and (size % t == 0 or 0 < self.unequal * t <= size)


ELEMENTWISE = frozenset((
    "Abs", "Add", "Cast", "Ceil", "Clip", "Cos", "Div", "Elu", "Erf", "Exp", "FastGelu", "Floor",
    "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Log", "Max", "Min", "Mish", "Mul",
    "Neg", "Pow", "QuickGelu", "Reciprocal", "Relu", "Round", "Sigmoid", "Sin", "Softplus", "Sqrt",
    "Sub", "Tanh", "Where", "And", "Or", "Not", "Equal", "Greater", "Less",
))  # fmt: skip
"""Operators that work element by element."""
_RESHAPED = frozenset(("Reshape", "Squeeze", "Unsqueeze", "Flatten"))
_BY_CHANNEL = frozenset((
    "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "BatchNormalization",
))  # fmt: skip
_NORMALISED = (
    "LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization",
    "SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "Softmax",
)  # fmt: skip
ATTENTION = ("Attention", "GroupQueryAttention", "MultiHeadAttention")
"""Attention to caches of its own."""


def rules(node: Operator, t: int) -> tuple[Rule, ...]:
    """All ways to run a node on `t` devices; the first repeats it on each."""
    repeated = Rule((WHOLE,) * len(node.inputs), (WHOLE,) * len(node.outputs), divided=False)
    find = _FINDERS.get(node.op)
    if find is None or None in node.outputs or not node.outputs or t == 1:
        return (repeated,)
    return (repeated, *find(node, t))


def _axes(node: Operator, shape: Shape, t: int) -> Iterator[int]:
    return (a for a, size in enumerate(shape) if node.splits(size, t))


def _in_blocks(node: Operator, size: int, t: int) -> Iterator[int]:
    """Addends to a state of an axis of `size`, for every number of blocks that it may have."""
    wanted = (b for b in node.blocks if size > 0 and size % (t * b) == 0)
    return (block_state(0, b) for b in (*[1] * node.splits(size, t), *wanted))


def _known(shape: Shape | None) -> Shape:
    return () if shape is None else shape


def _elementwise(node: Operator, t: int) -> Iterator[Rule]:
    """Each output along an axis; inputs that are broadcast along it stay whole."""
    (shape, *others) = node.outputs
    if shape is None or others or None in node.inputs:
        return
    for axis in _axes(node, shape, t):
        for more in _in_blocks(node, shape[axis], t):
            states = []
            for given in map(_known, node.inputs):
                at = axis - len(shape) + len(given)
                states.append(at + more if at >= 0 and given[at] == shape[axis] else WHOLE)
            yield Rule(tuple(states), (axis + more,))


def _product(node: Operator, t: int) -> Iterator[Rule]:
    """MatMul: by column or by row of a matrix, or along what both have in common.

    Not by sample with a whole matrix, which is data parallelism and divides no weights.
    """
    if len(node.inputs) < 2:  # one tensor twice
        return
    a, b, out = node.inputs[0], node.inputs[1], node.outputs[0]
    if a is None or b is None or out is None or min(len(a), len(b)) < 2:
        return
    rank, last = len(out), len(a) - 1
    if len(b) == 2 and len(a) == rank:
        for more in _in_blocks(node, b[1], t):
            yield Rule((WHOLE, 1 + more), (rank - 1 + more,))
        if node.splits(b[0], t):
            yield Rule((last, 0), (WHOLE,), reduced=True)
    elif len(a) == len(b) == rank:
        for axis in _axes(node, out[:-2], t):
            if a[axis] == b[axis]:
                yield Rule((axis, axis), (axis,))


def _gemm(node: Operator, t: int) -> Iterator[Rule]:
    """Gemm: by column or by row of its matrix.

    Whether the matrix is transposed follows from shapes; a square one costs the same either way.
    """
    if len(node.inputs) < 2:  # one tensor twice
        return
    a, b, out = node.inputs[0], node.inputs[1], node.outputs[0]
    if a is None or b is None or out is None or not node.stored[1] or a[0] != out[0]:
        return
    column = 1 if b == (a[1], out[1]) else 0
    if sorted(b) != sorted((a[1], out[1])):
        return
    bias = node.inputs[2:]
    for more in _in_blocks(node, out[1], t):
        own = (len(_known(c)) - 1 + more if _known(c)[-1:] == out[1:] else WHOLE for c in bias)
        yield Rule((WHOLE, column + more, *own), (1 + more,))
    if node.splits(a[1], t):
        yield Rule((1, 1 - column, *(WHOLE for _ in bias)), (WHOLE,), reduced=True)


def _conv(node: Operator, t: int) -> Iterator[Rule]:
    """Conv: by output channel, by input channel, or by group."""
    if len(node.inputs) < 2:  # one tensor twice
        return
    x, w, out = node.inputs[0], node.inputs[1], node.outputs[0]
    if x is None or w is None or out is None or not node.stored[1] or len(x) < 3:
        return
    bias = len(node.inputs) - 2
    groups = x[1] // max(w[1], 1)
    if groups > 1:
        if groups % t == 0 and w[0] % t == 0:
            yield Rule((1, 0, *(0,) * bias), (1,))
        return
    if node.splits(w[0], t):
        yield Rule((WHOLE, 0, *(0,) * bias), (1,))
    if node.splits(x[1], t):
        yield Rule((1, 1, *(WHOLE,) * bias), (WHOLE,), reduced=True)


def _by_channel(node: Operator, t: int) -> Iterator[Rule]:
    """Operators that treat samples and channels apart; vectors go by channel."""
    shape = node.inputs[0]
    if shape is None or len(shape) < 3 or len(node.outputs) > 1:
        return
    vectors = len(node.inputs) - 1
    for axis in _axes(node, shape[:2], t):
        yield Rule((axis, *(0 if axis else WHOLE,) * vectors), (axis,))


def _along_rows(node: Operator, t: int) -> Iterator[Rule]:
    """Operators that normalise the last axis, of a sum of two tensors or of one: along any other.

    Records do not state the axis of a Softmax; it is taken to be the last one.
    """
    shape = node.inputs[0]
    if shape is None or set(node.outputs) != {shape} or len(shape) < 2:
        return
    rows = [given == shape for given in node.inputs]
    if any(not same and _known(c) != shape[-1:] for same, c in zip(rows, node.inputs, strict=True)):
        return
    for axis in _axes(node, shape[:-1], t):
        yield Rule(tuple(axis if same else WHOLE for same in rows), (axis,) * len(node.outputs))


def _attended(node: Operator, t: int) -> Iterator[Rule]:
    """Attention by heads, as many queries a head of keys on each device, with its caches.

    Heads are an axis of their own, or follow from the present keys, [batch, heads, length, width].
    What is packed is split in three blocks, if there are as many heads of keys as of queries.
    """
    q, out, present = node.inputs[0], node.outputs[0], _known((*node.outputs, None)[1])
    if q is None or out is None or len(q) not in (3, 4, 5) or None in (*node.inputs, *node.outputs):
        return
    keys = _known((*node.inputs, None)[1]) if len(q) == 4 else present
    if len(keys) != 4 or not keys[3]:
        return
    wide, grouped, each = keys[3], keys[1], _known((*node.outputs, None, None)[2])[-1:] or keys[3:]
    heads = q[1] if len(q) == 4 else q[2] if len(q) == 5 else out[2] // max(*each, 1)
    if heads % t or grouped % t or not heads * grouped:
        return
    widths = {heads * wide, grouped * wide, grouped * each[0]}
    states = []
    for at, given in enumerate(map(_known, node.inputs)):
        if given[-1:] == (3 * heads * wide,) and heads == grouped and (not at or len(given) == 1):
            states.append(block_state(len(given) - 1, 3))
        elif len(given) == 5 or (len(given) == 3 and at < 3 and given[2] in widths):
            states.append(2)
        elif len(given) == 4 and given[1] in (heads, grouped):
            states.append(1)
        elif not at or (len(given) == 4 and given[1] > 1):
            return
        else:
            states.append(WHOLE)
    yield Rule(tuple(states), tuple(_HEADS_AT[len(_known(made))] for made in node.outputs))


_HEADS_AT = {3: 2, 4: 1, 5: 2}
"""Rank of queries, keys or values -> the axis that heads are along."""


def _rotated(node: Operator, t: int) -> Iterator[Rule]:
    """Rotary embeddings by heads: an axis of their own, or twice as wide as a row of the tables."""
    shape, tables = node.inputs[0], [_known(c) for c in node.inputs[1:]]
    halves = [c[-1] for c in tables if len(c) > 1 and c[-1] and tables.count(c) > 1]
    if shape is None or len(node.outputs) > 1 or len(shape) not in (3, 4):
        return
    heads = shape[1] if len(shape) == 4 else shape[2] // (2 * min(halves, default=shape[2]))
    if heads and heads % t == 0:
        axis = _HEADS_AT[len(shape)]
        yield Rule((axis, *(WHOLE,) * len(tables)), (axis,))


def _block_product(node: Operator, t: int) -> Iterator[Rule]:
    """MatMulNBits: by column [N], or by row in whole blocks [N, K / block, bytes].

    Scales, zero points and a bias may be flat: by row they are cut in N blocks then.
    """
    a, b, out = node.inputs[0], (*node.inputs, None)[1], node.outputs[0]
    if not a or b is None or not out or None in node.inputs or len(b) != 3 or out[-1] != b[0]:
        return
    last, (n, blocks, held), more = len(a) - 1, b, node.inputs[2:]
    if n % t == 0:
        for parts in _in_blocks(node, n, t):
            yield Rule((WHOLE, *(parts,) * (len(more) + 1)), (len(out) - 1 + parts,))
    if blocks % t or a[-1] not in {8 * blocks * held // bits for bits in (2, 4, 8)}:
        return
    states = []
    for given in map(_known, more):
        row = prod(given) // n  # packed zero points of a row must end with a byte on each device
        if given == (n,):
            states.append(WHOLE)
        elif row % t or (row < blocks and row * a[-1] != blocks * held * blocks):
            return
        else:
            states.append(1 if len(given) == 2 else block_state(0, n))
    yield Rule((last, 1, *states), (WHOLE,), reduced=True)


def _reshaped(node: Operator, t: int) -> Iterator[Rule]:
    """Axes with the same extent before them, which t parts cut at the same places."""
    shape, out = node.inputs[0], node.outputs[0]
    if shape is None or out is None or prod(shape) != prod(out) or not prod(out):
        return
    before = {prod(out[:b]): b for b in _axes(node, out, t)}
    for axis in _axes(node, shape, t):
        at = before.get(prod(shape[:axis]))
        if at is not None and not (shape[axis] % t or out[at] % t):
            yield Rule((axis, *(WHOLE,) * (len(node.inputs) - 1)), (at,))


def _transposed(node: Operator, t: int) -> Iterator[Rule]:
    """Axes of a unique size, which identifies them."""
    shape, out = node.inputs[0], node.outputs[0]
    if shape is None or out is None or sorted(shape) != sorted(out):
        return
    for axis in _axes(node, shape, t):
        if shape.count(shape[axis]) == 1:
            yield Rule((axis,), (out.index(shape[axis]),))


def _gathered(node: Operator, t: int) -> Iterator[Rule]:
    """Rows of a stored table: by its width, or by rows, where others than one's own are zero."""
    if len(node.inputs) < 2:  # one tensor twice
        return
    table, at, out = node.inputs[0], node.inputs[1], node.outputs[0]
    if table is None or at is None or out is None or len(table) != 2 or not node.stored[0]:
        return
    if out != (*at, table[1]) or out == (table[0], *at):
        return
    if node.splits(table[1], t):
        yield Rule((1, WHOLE), (len(out) - 1,))
    if node.splits(table[0], t):
        yield Rule((0, WHOLE), (WHOLE,), divided=False, reduced=True)


def _taken_apart(node: Operator, t: int) -> Iterator[Rule]:
    """Split into equal parts: each of them along the axis, or all along another one."""
    shape, parts = node.inputs[0], node.outputs
    out, others = parts[0], (WHOLE,) * (len(node.inputs) - 1)
    if shape is None or out is None or set(parts) != {out} or len(shape) != len(out):
        return
    for axis in _axes(node, out, t):
        if shape[axis] == out[axis]:
            yield Rule((axis, *others), (axis,) * len(parts))
        elif shape[axis] == out[axis] * len(parts) and out[axis] % t == 0:
            yield Rule((block_state(axis, len(parts)), *others), (axis,) * len(parts))


_FINDERS: dict[str, Callable[[Operator, int], Iterator[Rule]]] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(_RESHAPED, _reshaped),
    **dict.fromkeys(_BY_CHANNEL, _by_channel),
    "MatMul": _product,
    "Gemm": _gemm,
    "Conv": _conv,
    **dict.fromkeys(_NORMALISED, _along_rows),
    **dict.fromkeys(ATTENTION, _attended),
    "RotaryEmbedding": _rotated,
    "MatMulNBits": _block_product,
    "Transpose": _transposed,
    "Gather": _gathered,
    "Split": _taken_apart,
    "Loss": _elementwise,
}


def part(state: int, t: int, shape: Shape | None = None) -> float:
    """Largest share of a tensor on one of `t` devices; without a shape parts are equal."""
    if state == WHOLE:
        return 1.0
    size = 0 if shape is None else shape[axis_of(state)]
    if size % t == 0:
        return 1.0 / t
    begin, end = cut(size, t)[0]
    return (end - begin) / size


def with_blocks(
    nodes: Sequence[Operator], reads: Sequence[Sequence[int]], writes: Sequence[Sequence[int]]
) -> list[Operator]:
    """Nodes with the numbers of parts into which later Splits, or attention, take their outputs.

    Parameters
    ----------
    nodes
        In topological order.
    reads, writes
        Tensors of each.
    """
    wanted: dict[int, set[int]] = {}
    found = []
    for node, before, after in zip(reversed(nodes), reversed(reads), reversed(writes), strict=True):
        if node.op == "Split" and len(after) > 1:
            wanted.setdefault(before[0], set()).add(len(after))
        q, out = (*node.inputs, None)[0], (*node.outputs, None)[0]
        if node.op in ATTENTION and q and out and len(q) == 3 and q[2] == 3 * out[-1]:
            wanted.setdefault(before[0], set()).add(3)
        known = set().union(*(wanted.get(x, set()) for x in after))
        if node.op in ELEMENTWISE:
            for x in before:
                wanted.setdefault(x, set()).update(known)
        found.append(replace(node, blocks=tuple(sorted(known))) if known else node)
    return found[::-1]


ADDED, OWNED = -2, -3
"""States of tensors: each device has an addend of it; one device has it, others have those of their
own experts."""

ON_ALL = (WHOLE, ADDED)
"""States of which the gradient is whole on every device."""

_REDUCED = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceSumSquare")
_JOIN = "ScatterND"
_EXPERT = re.compile(r"(.*?experts?)[./](\d+)(?:/.*)?")


def share_of(state: int, t: int) -> float:
    """Share of a tensor that each of `t` devices has."""
    return 1.0 if state == ADDED else part(state, t)


def more_rules(node: Operator, own: Sequence[Rule], t: int) -> Iterator[Rule]:
    """Further rules of a node that has some.

    A rule that ends with a sum may leave it split along an axis but the last. Reductions may be
    split along another axis, by their shapes.
    """
    for rule in own:
        for shape in node.outputs if rule.reduced and len(node.outputs) == 1 else ():
            yield from (
                replace(rule, outputs=(axis,)) for axis in _divisible((shape or ())[:-1], t)
            )
    if node.op in _REDUCED and len(node.outputs) == 1:
        shape, out = node.inputs[0], node.outputs[0]
        if shape is None or out is None or len(shape) != len(out):
            return
        others = (WHOLE,) * (len(node.inputs) - 1)
        for axis in _divisible(out, t):
            if shape[axis] == out[axis]:
                yield Rule((axis, *others), (axis,))


def _divisible(shape: Shape, t: int) -> list[int]:
    return [axis for axis, size in enumerate(shape) if size > 0 and size % t == 0]


class _Expert(NamedTuple):
    """The expert that an operator belongs to."""

    mixture: str
    number: int


class Mixtures:
    """Experts that may be divided among devices, by their name scopes (`.../experts.3/...`).

    A mixture is one if its experts do the same, as many for each device, and none reads what
    another makes, but to add to it.
    """

    def __init__(
        self,
        nodes: Sequence[tuple[str, Operator]],
        reads: Sequence[Sequence[int]],
        writes: Sequence[Sequence[int]],
        t: int,
    ) -> None:
        """Find them; `nodes`: name scope and operator of each, in topological order."""
        self._reads = reads
        self._ops = [operator.op for _, operator in nodes]
        self._stored = [operator.stored for _, operator in nodes]
        found = {i: one for i, (scope, _) in enumerate(nodes) if (one := _expert_of(scope))}
        self._maker = {x: i for i, given in enumerate(writes) for x in given}
        self._of = _even(found, [operator for _, operator in nodes], t)
        broken = {self._of[i].mixture for i in self._of if self._depends(i)}
        self._of = {i: one for i, one in self._of.items() if one.mixture not in broken}
        self._readers: dict[int, set[_Expert | None]] = {}
        for i, taken in enumerate(reads):
            for x in taken:
                self._readers.setdefault(x, set()).add(self._of.get(i))

    def __bool__(self) -> bool:
        return bool(self._of)

    def _depends(self, i: int) -> bool:
        """True if a node of an expert reads what another expert makes, but to add to it."""
        own = self._of[i]
        for position, x in enumerate(self._reads[i]):
            other = self._of.get(self._maker.get(x, -1))
            if other is None or other.mixture != own.mixture or other == own:
                continue
            joins = self._ops[self._maker[x]] == _JOIN == self._ops[i] and position == 0
            if not joins:
                return True
        return False

    def rules(self, i: int, outputs: int) -> Iterator[Rule]:
        """The rule of a node of an expert, if it is one."""
        own = self._of.get(i)
        if own is None:
            return
        joins = self._ops[i] == _JOIN
        states = []
        for position, x in enumerate(self._reads[i]):
            maker = self._maker.get(x)
            if joins and position == 0:
                states.append(ADDED)
            elif maker is None:
                alone = self._stored[i][position] and self._readers[x] == {own}
                states.append(OWNED if alone else WHOLE)
            else:
                mine = self._of.get(maker) == own and self._ops[maker] != _JOIN
                states.append(OWNED if mine else WHOLE)
        yield Rule(tuple(states), (ADDED if joins else OWNED,) * outputs)

    def balanced(self, rules: Sequence[Rule]) -> bool:
        """True if all experts of each mixture run alike, so that devices have as much to do."""
        ways: dict[_Expert, list[bool]] = {}
        for i, one in self._of.items():
            ways.setdefault(one, []).append(rules[i].outputs[:1] in ((ADDED,), (OWNED,)))
        alike: dict[str, list[bool]] = {}
        return all(alike.setdefault(one.mixture, way) == way for one, way in ways.items())


def _expert_of(scope: str) -> _Expert | None:
    match = _EXPERT.fullmatch(scope)
    return None if match is None else _Expert(match[1], int(match[2]))


def _even(found: Mapping[int, _Expert], nodes: Sequence[Operator], t: int) -> dict[int, _Expert]:
    """Experts of mixtures with equal experts, as many on each device."""
    work: dict[str, dict[int, list[tuple[str, tuple[Shape | None, ...]]]]] = {}
    for i, (mixture, number) in found.items():
        work.setdefault(mixture, {}).setdefault(number, []).append((nodes[i].op, nodes[i].outputs))
    even = {
        mixture
        for mixture, experts in work.items()
        if len(experts) % t == 0
        and all(one == next(iter(experts.values())) for one in experts.values())
    }
    return {i: one for i, one in found.items() if one.mixture in even}
