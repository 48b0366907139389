"""Needs and costs of the gradient of each operator: one table.

A kind of operator says three things of its backward pass. Which inputs have a gradient: those of
floating-point elements, or some of them only. What the forward pass has to keep for it: nothing,
what the operator reads, or what it writes. And what it does: a product for each factor of a matrix
product, as much again as the forward pass, or less. Work is counted as dnnp counts it in the
forward pass, so that a device's rates hold for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

READS, WRITES = "reads", "writes"
"""Tensors kept for the backward pass: those that the operator reads, or writes."""


class Rule(NamedTuple):
    """The backward pass of a kind of operator."""

    keeps: frozenset[str] = frozenset({READS})
    """Needs of the forward pass: `READS`, `WRITES`, or neither."""
    positions: tuple[int, ...] | None = None
    """Inputs that have a gradient if they are of floating-point elements; None: all."""
    product: bool = False
    """A product with each input that has a gradient; a vector of addends costs but its sums."""
    work: float = 1.0
    """Other operators: operations over those of the forward pass."""
    free: bool = False
    """Nothing is done: the gradient is passed on as it is, or seen in another shape."""
    sums: bool = False
    """Gradients of inputs that were repeated over the output are summed up, others passed on."""
    scatters: bool = False
    """The gradient goes to the elements that were read, of which the forward pass keeps where they
    are: all that is read but the first input."""


_NOTHING: frozenset[str] = frozenset()
_KINDS: tuple[tuple[str, Rule], ...] = (
    (
        "MatMul Gemm FusedMatMul FusedGemm TransposeMatMul Einsum Conv FusedConv ConvTranspose "
        "DeformConv MatMulNBits",
        Rule(product=True),
    ),
    ("LSTM GRU RNN Attention MultiHeadAttention GroupQueryAttention MoE", Rule(work=2.0)),
    (
        "LayerNormalization SimplifiedLayerNormalization RMSNormalization SkipLayerNormalization "
        "SkipSimplifiedLayerNormalization InstanceNormalization GroupNormalization GroupNorm "
        "LpNormalization MeanVarianceNormalization LRN EmbedLayerNormalization",
        Rule(work=2.0),
    ),
    ("BatchNormalization", Rule(positions=(0, 1, 2), work=2.0)),
    ("Softmax LogSoftmax Sigmoid Tanh Exp Sqrt Reciprocal", Rule(frozenset({WRITES}))),
    ("Relu", Rule(frozenset({WRITES}))),
    ("Add Sub Sum Mean BiasAdd", Rule(_NOTHING, sums=True)),
    ("Reshape Flatten Squeeze Unsqueeze Identity", Rule(_NOTHING, positions=(0,), free=True)),
    ("Neg Cast CastLike Transpose Split Slice Pad Tile Expand ReverseSequence Resize Upsample "
     "DepthToSpace SpaceToDepth Trilu CumSum",
     Rule(_NOTHING, positions=(0,))),
    ("Concat", Rule(_NOTHING)),
    ("ReduceSum ReduceMean AveragePool GlobalAveragePool", Rule(_NOTHING, positions=(0,))),
    ("Dropout", Rule(frozenset({WRITES}), positions=(0,))),
    ("Gather GatherND GatherElements", Rule(positions=(0,), scatters=True)),
    ("Clip Pow", Rule(positions=(0,))),
    ("TopK", Rule(frozenset({WRITES}), positions=(0,))),
    ("MaxPool Where GridSample RoiAlign ScatterND ScatterElements Scatter", Rule()),
)  # fmt: skip

RULES = {op: rule for ops, rule in _KINDS for op in ops.split()}
"""Rules by operator type of the default domain and of ONNX Runtime's."""

_ELEMENTWISE = """
    Mul Div Abs Max Min LeakyRelu PRelu HardSigmoid HardSwish Softplus Softsign Mish Sin Cos Tan Erf
    Log Elu Selu Celu Gelu BiasGelu FastGelu QuickGelu Swish LpPool GlobalMaxPool ReduceMax
    ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum ReduceLogSumExp
"""
RULES |= dict.fromkeys(_ELEMENTWISE.split(), Rule())

_STOPS = """
    Shape Size Constant ConstantOfShape Range EyeLike ArgMax ArgMin NonZero Equal Greater
    GreaterOrEqual Less LessOrEqual And Or Not Xor IsNaN IsInf Floor Ceil Round Sign OneHot Hardmax
    Unique NonMaxSuppression Compress Mod BitShift RandomNormal RandomNormalLike RandomUniform
    RandomUniformLike Multinomial Bernoulli QuantizeLinear DequantizeLinear DynamicQuantizeLinear
    QLinearMatMul QLinearConv QLinearAdd ConvInteger MatMulInteger DynamicQuantizeMatMul
    StringNormalizer TfIdfVectorizer
"""
STOPS = frozenset(_STOPS.split())
"""Operators without a gradient: the way of gradients ends there."""

OTHERS = Rule(frozenset({READS, WRITES}), work=2.0)
"""Operators that have no rule: all is kept, and twice the work is done."""


def rule_of(op: str) -> Rule | None:
    """The rule of an operator type; None: it has no gradient."""
    return None if op in STOPS else RULES.get(op, OTHERS)


def is_known(op: str) -> bool:
    """True if an operator type has a rule of its own."""
    return op in STOPS or op in RULES


class Operand(NamedTuple):
    """A tensor that an operator reads."""

    size: float
    """Elements; 0: not known."""
    gradient: bool
    """True if it has one."""


def backward_flop(
    rule: Rule, flop: float | None, operands: Sequence[Operand], out: float
) -> float | None:
    """Operations of a backward pass.

    Parameters
    ----------
    flop
        Operations of the forward pass; None: unknown.
    operands
        What the operator reads, those of floating-point elements.
    out
        Elements that it writes.

    Returns
    -------
    Operations; None: unknown.
    """
    if rule.free:
        return 0.0
    if rule.sums:
        return sum(out for each in operands if each.gradient and 0 < each.size < out)
    if flop is None:
        return None
    if not rule.product:
        return rule.work * flop
    factors = [each for each in operands[:2] if each.gradient]
    addends = [each for each in operands[2:] if each.gradient]
    return len(factors) * flop + out * len(addends)


OPTIMIZERS = {"adam": 2, "momentum": 1, "sgd": 0}
"""Optimiser -> numbers that it keeps for each weight, in float32."""

BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of an element of types that have gradients."""
MASTER_BYTES = 4
"""Bytes of a weight, and of a number of the optimiser, as it is updated."""


@dataclass(frozen=True)
class Optimizer:
    """The optimiser, which updates the weights."""

    name: str = "adam"
    """One of `OPTIMIZERS`."""

    def kept_bytes(self, tensor: Mapping[str, Any]) -> float:
        """Bytes that training keeps for a parameter besides the weights that the passes read.

        Its gradient, in the precision of the passes; the optimiser's numbers; and the weights
        themselves in float32, if the passes read them in fewer bits (as Micikevicius et al. 2018,
        "Mixed precision training").
        """
        size = float(tensor["size_bytes"])
        each = BYTES[tensor["dtype"]]
        count = size / each
        master = MASTER_BYTES if each < MASTER_BYTES else 0
        return size + count * (master + MASTER_BYTES * OPTIMIZERS[self.name])


def in_half_precision(tensors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tensor records with float16 in the place of float32."""
    return [
        {**record, "dtype": "float16", "size_bytes": record["size_bytes"] / 2}
        if record.get("dtype") == "float32"
        else record
        for record in tensors
    ]
