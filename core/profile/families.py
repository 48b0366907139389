"""Families of operators that run alike: what a device file states efficiencies for."""

from __future__ import annotations

from collections.abc import Sequence

from dnnp.core.model import device_rates
from dnnp.core.profile.call import ERF_GELU, SIGMOID, TANH_GELU

Shape = Sequence[int] | None

VIEW, FREE, NONE = "view", "free", ""
"""Families that move nothing: one is started all the same, one is gone before the model runs;
and none: such operators run at the general efficiencies of a device."""

_OPERATORS = {
    "product": "MatMul Gemm FusedMatMul FusedGemm TransposeMatMul QLinearMatMul MatMulInteger "
    "MatMulInteger16 MatMulIntegerToFloat DynamicQuantizeMatMul QGemm GemmFastGelu MatMulNBits "
    "Einsum FusedMatMulActivation GemmFloat8 MatMulBnb4 MatMulFpQ4 QOrderedMatMul CDist "
    "SparseToDenseMatMul MatMulBlockQuantizedFp4Weight MatMulBlockQuantizedFp8Weight "
    "MatMulPacked MatMulNBitsMlp MatMulNBitsQkv MatMulNBitsQLoRA RouterGateUpProj Inverse Det "
    "LinearClassifier LinearRegressor SVMClassifier SVMRegressor",
    "conv": "Conv FusedConv NhwcConv NhwcFusedConv QLinearConv ConvInteger DeformConv "
    "CausalConvWithState VarlenCausalConvWithState WordConvEmbedding",
    "conv-transpose": "ConvTranspose ConvTransposeWithDynamicPads QLinearConvTranspose",
    "recurrent": "LSTM GRU RNN DynamicQuantizeLSTM AttnLSTM",
    "attention": "Attention MultiHeadAttention GroupQueryAttention QAttention PackedAttention "
    "PackedMultiHeadAttention SparseAttention PagedAttention LinearAttention FlexAttention "
    "DecoderMaskedMultiHeadAttention DecoderMaskedSelfAttention DecoderAttention "
    "QOrderedAttention LongformerAttention QOrderedLongformerAttention SparsePagedAttention "
    "DynamicSparseAttention SparseAttentionIndexer PackedSparseAttentionIndexer GatedDeltaNet "
    "Mamba2Verify DisentangledAttention_TRT",
    "experts": "MoE QMoE MoEPacked",
    "pool": "MaxPool AveragePool LpPool QLinearAveragePool NhwcMaxPool MaxpoolWithMask MaxRoiPool",
    "reduce": "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 "
    "ReduceSumSquare ReduceLogSum ReduceLogSumExp ArgMax ArgMin GlobalAveragePool GlobalMaxPool "
    "GlobalLpPool QLinearGlobalAveragePool QLinearReduceMean CumSum CumProd ReduceSumInteger "
    "IsAllFinite NegativeLogLikelihoodLoss",
    "softmax": "Softmax LogSoftmax BiasSoftmax QLinearSoftmax Hardmax SoftmaxCrossEntropyLoss "
    "Multinomial",
    "norm": "LayerNormalization SimplifiedLayerNormalization RMSNormalization LpNormalization "
    "QOrderedLayerNormalization GatedRMSNorm BranchwiseRMSNorm RMSNormRotary Normalizer",
    "norm-sum": "SkipLayerNormalization SkipSimplifiedLayerNormalization EmbedLayerNormalization "
    "QEmbedLayerNormalization",
    "image-norm": "InstanceNormalization GroupNormalization GroupNorm BatchNormalization "
    "MeanVarianceNormalization SkipGroupNorm",
    "norm-window": "LRN",
    "arithmetic": "Add Sub Mul Neg Abs Relu Clip Max Min Sum Mean LeakyRelu And Or Not Xor Sign "
    "BiasAdd HardSigmoid HardSwish PRelu Floor Ceil Round QLinearAdd QLinearMul ThresholdedRelu "
    "Shrink BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor MulInteger GatedAdd Affine "
    "ImageScaler Scale Scaler Imputer ComplexMul ComplexMulConj QLinearLeakyRelu QLinearConcat "
    "BiasDropout BitmaskBiasDropout RotaryEmbedding GemmaRotaryEmbedding MRotaryEmbedding "
    "Momentum HyperConnectionPreMix HyperConnectionPostMix HyperConnectionLowRankMix",
    "divide": "Div Sqrt Reciprocal Mod Softsign Adagrad Adam",
    "power": "Pow",
    "select": "Where Equal Greater GreaterOrEqual Less LessOrEqual IsNaN IsInf Trilu Binarizer "
    "QLinearWhere",
    "cast": "Cast CastLike CastMap",
    "quantise": "QuantizeLinear DequantizeLinear DynamicQuantizeLinear QuantizeWithOrder "
    "DequantizeWithOrder QuantizeBFP DequantizeBFP",
    "tanh": "Tanh ScaledTanh",
    "sigmoid": "Sigmoid QuickGelu Swish QLinearSigmoid SwiGLU ScaledSiLU EngramGate "
    "GatedRelativePositionBias",
    "erf": "Erf",
    "exp": "Exp Log Softplus Mish Sin Cos Elu Selu Celu Acos Acosh Asin Asinh Atan Atanh Cosh "
    "Sinh Tan ParametricSoftplus LinearAttentionGate",
    "gelu": "Gelu BiasGelu FastGelu BiasSplitGelu QOrderedGelu",
    "transpose": "Transpose DepthToSpace SpaceToDepth ReorderInput ReorderOutput",
    "copy": "Concat Split ConcatFromSequence SplitToSequence SequenceConstruct SequenceInsert "
    "SequenceErase RemovePadding RestorePadding MemcpyFromHost MemcpyToHost FeatureVectorizer "
    "BitmaskDropout ConvStateReplay GatedDeltaNetStateReplay SpeculativePrefixCommit",
    "slice": "Slice Pad Expand Tile ReverseSequence Range ConstantOfShape SequenceAt Crop "
    "CenterCropPad DynamicSlice UnfoldTensor EyeLike GivenTensorFill TensorScatter "
    "RelativePositionBias",
    "gather": "Gather GatherND GatherBlockQuantized GatherPacked ArrayFeatureExtractor "
    "TorchEmbedding",
    "gather-elements": "GatherElements OneHot OneHotEncoder",
    "scatter": "ScatterND ScatterElements Scatter Col2Im MaxUnpool",
    "resize": "Resize Upsample GridSample RoiAlign CropAndResize",
    "sort": "TopK NonZero Unique NonMaxSuppression Compress MoEGroupRouter "
    "PackedSparseAttentionIndexerMerge SampleOp EfficientNMS_TRT",
    "body": "Loop If Scan SequenceMap BeamSearch WhisperBeamSearch GreedySearch Sampling",
    VIEW: "Reshape Flatten Squeeze Unsqueeze Shape Size BitCast ExpandDims Optional "
    "OptionalGetElement OptionalHasElement SequenceEmpty SequenceLength EPContext Snpe",
    FREE: "Identity Dropout Constant",
    NONE: "TreeEnsemble TreeEnsembleClassifier TreeEnsembleRegressor CategoryMapper "
    "DictVectorizer LabelEncoder ZipMap Tokenizer StringNormalizer StringConcat StringSplit "
    "RegexFullMatch TfIdfVectorizer ImageDecoder Gradient MurmurHash3 NGramRepeatBlock "
    "NGramHashMapping VarlenNGramHashMapping BifurcationDetector DynamicTimeWarping DFT STFT "
    "Rfft Irfft AffineGrid Bernoulli BlackmanWindow HammingWindow HannWindow MelWeightMatrix "
    "RandomNormal RandomNormalLike RandomUniform RandomUniformLike GRUUnit "
    "MultilevelCropAndResize_TRT PyramidROIAlign_TRT",
}
"""Family -> its operators: all of ONNX's opsets and of ONNX Runtime's own domains."""
FAMILIES = (*device_rates.FAMILIES, FREE)
"""Families that a device file may name, and the one that takes no time at last."""
FAMILY = {op: family for family, ops in _OPERATORS.items() for op in ops.split()}
"""Operator type -> family, before shapes are looked at."""

PRODUCTS = frozenset({"product", "conv", "conv-transpose", "recurrent", "attention", "experts"})
"""Families made of multiply-adds over long rows."""

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
"""First letters of the names of rules whose kernels compute in 8-bit integers."""


def family_of(op: str, inputs: Sequence[Shape], known: Sequence[bool], output: Shape) -> str:
    """The family of an operator; empty where it has none.

    `inputs`, `output`: shapes of what it reads, and of what it writes first; `known`: which inputs
    are weights, or constants.
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
    """True if rows of an operand are repeated; elements that are count as scalars."""
    if not output or output[-1] == 1:
        return False
    rows = [shape for shape in inputs if shape and shape[-1] == output[-1]]
    return any(list(shape) != list(output) for shape in rows)


def _keeps_rows(source: Shape, target: Shape) -> bool:
    """True if the last dimension of a transpose seems to stay last."""
    return source is not None and target is not None and list(source[-1:]) == list(target[-1:])
