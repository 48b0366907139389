"""Families of operators that run alike: what a device file states efficiencies for."""

from __future__ import annotations

from collections.abc import Sequence

from dnnp.core.profile.elementwise import ERF_GELU, SIGMOID, TANH_GELU

Shape = Sequence[int] | None

VIEW, FREE = "view", "free"
"""Families that move nothing: one is started all the same, one is gone before the model runs."""

_OPERATORS = {
    "product": "MatMul Gemm FusedMatMul FusedGemm TransposeMatMul QLinearMatMul MatMulInteger "
    "MatMulInteger16 MatMulIntegerToFloat DynamicQuantizeMatMul QGemm GemmFastGelu MatMulNBits "
    "Einsum",
    "conv": "Conv FusedConv NhwcConv NhwcFusedConv QLinearConv ConvInteger DeformConv",
    "conv-transpose": "ConvTranspose ConvTransposeWithDynamicPads",
    "recurrent": "LSTM GRU RNN DynamicQuantizeLSTM",
    "attention": "Attention MultiHeadAttention GroupQueryAttention QAttention PackedAttention",
    "experts": "MoE QMoE",
    "pool": "MaxPool AveragePool LpPool QLinearAveragePool NhwcMaxPool",
    "reduce": "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 "
    "ReduceSumSquare ReduceLogSum ReduceLogSumExp ArgMax ArgMin GlobalAveragePool GlobalMaxPool "
    "GlobalLpPool QLinearGlobalAveragePool QLinearReduceMean CumSum",
    "softmax": "Softmax LogSoftmax BiasSoftmax QLinearSoftmax Hardmax",
    "norm": "LayerNormalization SimplifiedLayerNormalization RMSNormalization LpNormalization",
    "norm-sum": "SkipLayerNormalization SkipSimplifiedLayerNormalization EmbedLayerNormalization",
    "image-norm": "InstanceNormalization GroupNormalization GroupNorm BatchNormalization "
    "MeanVarianceNormalization",
    "norm-window": "LRN",
    "arithmetic": "Add Sub Mul Neg Abs Relu Clip Max Min Sum Mean LeakyRelu And Or Not Xor Sign "
    "BiasAdd HardSigmoid HardSwish PRelu Floor Ceil Round QLinearAdd QLinearMul",
    "divide": "Div Sqrt Reciprocal Mod Softsign",
    "power": "Pow",
    "select": "Where Equal Greater GreaterOrEqual Less LessOrEqual IsNaN IsInf Trilu",
    "cast": "Cast CastLike",
    "quantise": "QuantizeLinear DequantizeLinear DynamicQuantizeLinear",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid QuickGelu Swish QLinearSigmoid",
    "erf": "Erf",
    "exp": "Exp Log Softplus Mish Sin Cos Elu Selu Celu",
    "gelu": "Gelu BiasGelu FastGelu",
    "transpose": "Transpose DepthToSpace SpaceToDepth ReorderInput ReorderOutput",
    "copy": "Concat Split",
    "slice": "Slice Pad Expand Tile ReverseSequence Range ConstantOfShape",
    "gather": "Gather GatherND",
    "gather-elements": "GatherElements OneHot",
    "scatter": "ScatterND ScatterElements Scatter",
    "resize": "Resize Upsample GridSample RoiAlign",
    "sort": "TopK NonZero Unique NonMaxSuppression Compress",
    "body": "Loop If Scan SequenceMap",
    VIEW: "Reshape Flatten Squeeze Unsqueeze Shape Size",
    FREE: "Identity Dropout Constant",
}
_BY_SHAPE = {
    "product-pairs", "conv-pointwise", "conv-depthwise", "conv-grouped", "conv-narrow", "broadcast",
    "select-broadcast", "transpose-rows",
}  # fmt: skip
"""Families of which an operator is only for its shapes."""
FAMILIES = (*sorted(({*_OPERATORS} - {FREE}) | _BY_SHAPE), FREE)
"""Families that a device file may name, and the one that takes no time at last."""
FAMILY = {op: family for family, ops in _OPERATORS.items() for op in ops.split()}
"""Operator type -> family, before shapes are looked at."""

ANCHORS = frozenset(f for f in FAMILIES if f.startswith(("product", "conv"))) | {
    "recurrent", "attention", "experts",
}  # fmt: skip
"""Families into whose kernels others are fused at no cost but their traffic."""

FUSED = {
    "layer-norm": ("norm", 8.0),
    "rms-norm": ("norm", 5.0),
    "skip-layer-norm": ("norm-sum", 10.0),
    "gelu": ("gelu", ERF_GELU),
    "bias-gelu": ("gelu", ERF_GELU + 1),
    "fast-gelu": ("gelu", TANH_GELU),
    "bias-fast-gelu": ("gelu", TANH_GELU + 1),
    "fast-gelu-inside": ("gelu", TANH_GELU + 1),
    "quick-gelu": ("sigmoid", SIGMOID + 2),
}
"""Fusion rule -> family of what it makes, and operations an element of that, whatever it was made
of; rules not listed leave the operators what they are."""
QUANTISED = "quantised-"
"""How the names of rules begin whose kernels compute in 8-bit integers."""


def family_of(op: str, inputs: Sequence[Shape], known: Sequence[bool], output: Shape) -> str:
    """The family of an operator; empty where it has none.

    Parameters
    ----------
    inputs, output
        Shapes of what it reads, and of what it writes first.
    known
        Which inputs are weights, or constants.
    """
    family = FAMILY.get(op, "")
    if family == "conv":
        return _convolution(inputs, known)
    if family == "product" and not any(known):
        return "product-pairs"
    if family in ("arithmetic", "divide") and _broadcasts(inputs, output):
        return "broadcast"
    if family == "select" and _broadcasts(inputs, output):
        return "select-broadcast"
    if family == "transpose" and inputs and _keeps_rows(inputs[0], output):
        return "transpose-rows"
    return family


def _convolution(inputs: Sequence[Shape], known: Sequence[bool]) -> str:
    weights = kernel_of(inputs, known)
    if weights is None:
        return "conv"
    image = inputs[0]
    groups = image[1] // max(weights[1], 1) if image is not None and len(image) > 1 else 1
    if groups > 1 and weights[1] == 1:
        return "conv-depthwise"
    if groups > 1 and weights[1] % NARROW:
        return "conv-grouped"
    if weights[1] < NARROW:
        return "conv-narrow"
    return "conv-pointwise" if all(d == 1 for d in weights[2:]) else "conv"


NARROW = 16
"""Channels below which an input is not laid out in blocks, nor in groups that are no multiple."""


def kernel_of(inputs: Sequence[Shape], known: Sequence[bool]) -> Shape:
    """Shape of a convolution's weights; None where it is not known."""
    for shape, constant in zip(inputs[1:], known[1:], strict=False):
        if constant and shape is not None and len(shape) > 2:
            return shape
    return None


def _broadcasts(inputs: Sequence[Shape], output: Shape) -> bool:
    """Whether rows of an operand are repeated; elements that are count as scalars."""
    if not output or output[-1] == 1:
        return False
    rows = [shape for shape in inputs if shape and shape[-1] == output[-1]]
    return any(list(shape) != list(output) for shape in rows)


def _keeps_rows(source: Shape, target: Shape) -> bool:
    """Whether the last dimension of a transpose seems to stay last."""
    return source is not None and target is not None and list(source[-1:]) == list(target[-1:])
