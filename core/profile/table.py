"""The table: for every operator, a formula for its work and one for the bytes it moves.

Keys are operator types of the default domain, or `domain:type`. Operators without a rule (vendor
plug-ins, unknown custom domains), and nodes without a shape that their rule needs, are priced by
their bytes. Those with a fixed number of operations an element stand in
`dnnp.core.profile.call`, if they are ONNX's own.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log2, prod
from typing import NamedTuple

from dnnp.core.model.graph import attribute_bytes
from dnnp.core.profile import operators
from dnnp.core.profile.call import (
    DIVIDE,
    ELEMENTWISE,
    ERF_GELU,
    GENERATORS,
    REDUCTIONS,
    SIGMOID,
    SOFTMAX,
    TANH_GELU,
    TRANSCENDENTAL,
    Call,
    Formula,
    free,
    local_response,
    per_input,
    per_output,
    per_parameter,
    scatter,
    sorting,
)

Add = Callable[..., None]
"""add(names, flop, bytes): enter a rule for each of the names."""


def _rows(call: Call) -> int:
    """Samples: the first dimension of a matrix, one for a vector."""
    shape = call.shape(0)
    return shape[0] if len(shape) > 1 else 1


def _length(call: Call, name: str) -> int:
    found = call.attribute(name)
    return 0 if found is None else max(len(found.floats), len(found.ints))


def tree_ensemble(call: Call) -> float:
    """Each sample walks down each tree, log2(nodes a tree) levels of 2 operations."""
    trees = call.integers("nodes_treeids")
    count = len(set(trees)) if trees else max(len(call.integers("tree_roots")), 1)
    nodes = len(trees) if trees else _length(call, "nodes_featureids")
    return 2.0 * _rows(call) * count * max(log2(max(nodes / max(count, 1), 2.0)), 1.0)


def support_vectors(call: Call) -> float:
    """A kernel value for each support vector, then the dual coefficients."""
    vectors, coefficients = _length(call, "support_vectors"), _length(call, "coefficients")
    return 2.0 * _rows(call) * (vectors + coefficients)


def with_attributes(call: Call) -> float:
    """Every input and output, and the weights that attributes hold, once."""
    return call.bytes_all() + attribute_bytes(call.node)


def walked(call: Call) -> float:
    """Inputs, outputs, and the nodes of the trees on the ways of all samples, none twice."""
    share = tree_ensemble(call) / 2 / max(_length(call, "nodes_featureids"), 1)
    return call.bytes_all() + min(share, 1.0) * attribute_bytes(call.node)


everything = Call.bytes_all
"""Every input and output once."""
nothing = free
"""A view: no data moves."""
written = Call.bytes_out
"""Outputs only: generators, whose inputs are a few scalars."""


def copied(call: Call) -> float:
    """Outputs read once and written once: slices of larger tensors."""
    return 2.0 * call.bytes_out()


def gathered(call: Call) -> float:
    """Rows gathered from input 0, which are the outputs, and the indices at input 1."""
    return 2.0 * call.bytes_out() + call.bytes_in(1)


class Rule(NamedTuple):
    """The price of one operator."""

    flop: Formula
    bytes: Formula


def _rules() -> dict[str, Rule]:
    rules: dict[str, Rule] = {}

    def add(names: str, flop: Formula, moved: Formula = everything) -> None:
        for name in names.split():
            rules[name] = Rule(flop, moved)

    for name, weight in ELEMENTWISE.items():
        add(name, per_output(weight))
    for name, weight in GENERATORS.items():
        add(name, per_output(weight), written)
    for name, weight in REDUCTIONS.items():
        add(name, per_input(weight))
    _add_views_and_copies(add)
    _add_arithmetic(add)
    _add_classical(add)
    _add_contrib(add)
    _add_layouts(rules)
    return rules


def _add_views_and_copies(add: Add) -> None:
    """Operators that only arrange data."""
    add(
        "Reshape Flatten Squeeze Unsqueeze Identity Shape Size BitCast Optional "
        "OptionalGetElement OptionalHasElement SequenceEmpty SequenceLength Constant Dropout "
        "com.microsoft:ExpandDims com.microsoft:EPContext com.microsoft:Snpe",
        free,
        nothing,
    )
    add(
        "Concat Split Transpose Expand Pad Tile DepthToSpace SpaceToDepth ReverseSequence "
        "SequenceConstruct SequenceInsert SequenceErase SplitToSequence ConcatFromSequence "
        "MaxUnpool MemcpyFromHost MemcpyToHost com.microsoft:Pad com.microsoft:RemovePadding "
        "com.microsoft:RestorePadding com.microsoft.nchwc:ReorderInput "
        "com.microsoft.nchwc:ReorderOutput",
        free,
    )
    add("Slice CenterCropPad SequenceAt Crop DynamicSlice com.microsoft:UnfoldTensor", free, copied)
    add(
        "Gather GatherElements GatherND ai.onnx.ml:ArrayFeatureExtractor com.microsoft:GatherND "
        "com.microsoft:TorchEmbedding",
        free,
        gathered,
    )
    add("com.microsoft:GatherBlockQuantized", per_output(2.0), gathered)
    add("ConstantOfShape EyeLike Range OneHot GivenTensorFill com.microsoft:Range", free, written)
    add("Scatter ScatterElements ScatterND", scatter)
    # An update in place: input 1 is read and written over a part of input 0.
    add("TensorScatter", free, lambda call: 2.0 * call.bytes_in(1) + call.bytes_in(2))


def _add_arithmetic(add: Add) -> None:
    """Default-domain operators with formulas of their own."""
    # One operation for each tensor after the first.
    add("Sum Max Min Mean", lambda call: max(len(call.inputs) - 1, 1) * call.out_size())
    # Scale and shift (folded) in inference; two reductions more in training.
    add("BatchNormalization",
        lambda call: (8.0 if call.integer("training_mode", 0) else 2.0) * call.size(0))  # fmt: skip
    add("LRN", local_response)
    add("SimplifiedLayerNormalization", per_input(5.0))
    add("Unique", sorting)
    add("Conv", operators.convolution)
    add("ConvInteger", lambda call: 2.0 * call.out_size() * prod(call.shape(1)[1:]))
    add("QLinearConv", operators.quantized_convolution)
    add("ConvTranspose", operators.transposed_convolution)
    add("DeformConv", operators.deformable_convolution)
    add("CausalConvWithState", operators.causal_convolution)
    add("Col2Im", per_input(1.0))
    add("MatMul MatMulInteger", operators.matrix_product)
    add("QLinearMatMul", lambda call: operators.matrix_product(call) + 4.0 * call.out_size())
    add("Gemm", operators.general_product)
    add("Einsum", operators.einsum)
    add("MaxPool AveragePool", operators.pooling)
    add("LpPool", lambda call: 2.0 * operators.pooling(call))
    add("Resize Upsample", operators.resampling)
    add("GridSample", operators.grid_sampling)
    add("RoiAlign", operators.region_align)
    add("MaxRoiPool", operators.region_pool)
    add("NonMaxSuppression", operators.non_maximum_suppression)
    add("TopK", operators.top_k)
    add("DFT", operators.one_axis_transform)
    add("STFT", operators.short_time_transform)
    add("Det", operators.determinant)
    add("LSTM", operators.lstm)
    # Two sigmoids and a tanh, and the state's arithmetic.
    add("GRU", lambda call: operators.recurrent(call, 3, 2 * SIGMOID + TRANSCENDENTAL + 5))
    add("RNN", lambda call: operators.recurrent(call, 1, TRANSCENDENTAL))
    add("Attention", operators.attention)
    add("RotaryEmbedding", per_output(3.0), operators.rotated(1))
    add("ai.onnx.preview:FlexAttention", operators.flexible_attention)
    add("LinearAttention", operators.linear_attention)
    # Text: about ten operations a string, a string being one element.
    add("StringNormalizer StringConcat StringSplit RegexFullMatch TfIdfVectorizer", per_input(10.0))
    # A compressed image: entropy decoding and an inverse transform for each byte.
    add("ImageDecoder", per_input(40.0))
    # Gradient names the tensors it differentiates, not the graph between them.
    add("ai.onnx.preview.training:Gradient", per_input(2.0))
    add("ai.onnx.preview.training:Adagrad", per_parameter(2 * DIVIDE + 8))
    add("ai.onnx.preview.training:Adam", per_parameter(2 * DIVIDE + 14))
    add("ai.onnx.preview.training:Momentum", per_parameter(6.0))
    # Caffe2 heritage that ONNX Runtime still registers.
    add("GRUUnit", per_output(2 * SIGMOID + TRANSCENDENTAL + 5))
    add("Affine ImageScaler Scale", per_output(2.0))
    add("ParametricSoftplus", per_output(2 * TRANSCENDENTAL + 2))
    add("ScaledTanh", per_output(TRANSCENDENTAL + 2))


def _add_classical(add: Add) -> None:
    """ai.onnx.ml."""
    ml = "ai.onnx.ml:"

    def linear(call: Call) -> float:
        return 2.0 * _rows(call) * _length(call, "coefficients")

    for name in ("TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor"):
        add(ml + name, tree_ensemble, walked)
    for name in ("Classifier", "Regressor"):
        add(f"{ml}Linear{name}", linear, with_attributes)
        add(f"{ml}SVM{name}", support_vectors, with_attributes)
    add(ml + "Scaler", per_output(2.0))
    add(ml + "Normalizer", per_output(6.0))
    add(ml + "Imputer", per_output(2.0))
    add(ml + "Binarizer", per_output(1.0))
    for name in ("LabelEncoder", "CategoryMapper", "OneHotEncoder"):
        add(ml + name, per_input(10.0))
    for name in ("FeatureVectorizer", "CastMap", "DictVectorizer", "ZipMap"):
        add(ml + name, free)


def _add_contrib(add: Add) -> None:
    """com.microsoft: what ONNX Runtime's own optimisers and exporters write."""

    def contrib(names: str, flop: Formula, moved: Formula = everything) -> None:
        add(" ".join(f"com.microsoft:{name}" for name in names.split()), flop, moved)

    contrib("FusedConv NhwcConv NhwcFusedConv", operators.convolution)
    contrib("QLinearConv", operators.quantized_convolution)
    contrib("ConvTransposeWithDynamicPads", operators.transposed_convolution)
    contrib("CausalConvWithState", operators.causal_convolution)
    contrib("FusedGemm GemmFastGelu GemmFloat8 QGemm", operators.general_product)
    contrib(
        "MatMulInteger16 MatMulIntegerToFloat DynamicQuantizeMatMul SparseToDenseMatMul "
        "QOrderedMatMul MatMulBlockQuantizedFp4Weight MatMulBlockQuantizedFp8Weight "
        "RouterGateUpProj FusedMatMul FusedMatMulActivation TransposeMatMul MatMulNBits MatMulBnb4 "
        "MatMulFpQ4 MatMulPacked",
        operators.matrix_product,
    )
    contrib("MatMulNBitsMlp MatMulNBitsQkv MatMulNBitsQLoRA", operators.packed_products)
    contrib("DynamicQuantizeLSTM", operators.quantized_lstm)
    contrib(
        "Attention QAttention PackedAttention QOrderedAttention LongformerAttention "
        "QOrderedLongformerAttention DecoderMaskedSelfAttention",
        operators.projected_attention,
    )
    contrib("DecoderAttention", operators.decoder_attention)
    contrib(
        "MultiHeadAttention PackedMultiHeadAttention DecoderMaskedMultiHeadAttention",
        operators.multi_head_attention,
    )
    contrib("GroupQueryAttention", operators.multi_head_attention, operators.rotated(7))
    contrib("SparseAttention", operators.multi_head_attention, operators.rotated(9))
    contrib("PagedAttention", operators.multi_head_attention, operators.paged)
    contrib("LinearAttention", operators.linear_attention)
    contrib("MoE QMoE", operators.mixture_of_experts, operators.experts)
    contrib("Gelu BiasGelu QOrderedGelu", per_output(ERF_GELU))
    contrib("FastGelu", per_output(TANH_GELU))
    contrib("QuickGelu ScaledSiLU", per_output(SIGMOID + 2))
    contrib("BiasSplitGelu", per_output(ERF_GELU + 2))
    contrib("BiasAdd BiasDropout BitmaskBiasDropout GatedAdd", per_output(2.0))
    contrib("BitmaskDropout", free)
    contrib("BiasSoftmax QLinearSoftmax", per_input(SOFTMAX + 1))
    contrib("QOrderedLayerNormalization", per_input(10.0))
    contrib("SkipLayerNormalization SkipGroupNorm", per_input(10.0))
    contrib("SkipSimplifiedLayerNormalization", per_input(7.0))
    contrib("GroupNorm", per_input(8.0))
    contrib("GatedRMSNorm", per_input(SIGMOID + 7))
    contrib("BranchwiseRMSNorm", per_input(5.0))
    # Words, positions, segments: of each table only the rows that the output is made of.
    contrib("EmbedLayerNormalization QEmbedLayerNormalization", per_output(10.0),
            lambda call: 4.0 * call.bytes_out() + call.bytes_in(0) + call.bytes_in(1))  # fmt: skip
    contrib("GemmaRotaryEmbedding", per_output(3.0))
    contrib("RotaryEmbedding MRotaryEmbedding", per_output(3.0), operators.rotated(2))
    contrib("RMSNormRotary", per_output(8.0), operators.rotated(3))
    contrib("SwiGLU", per_output(SIGMOID + 3))
    contrib("LinearAttentionGate", per_output(3 * TRANSCENDENTAL))
    contrib("GatherPacked", per_output(2.0), gathered)
    contrib("QLinearAdd QLinearMul QLinearWhere QLinearLeakyRelu", per_output(6.0))
    contrib("QLinearSigmoid QLinearConcat", per_output(2.0))
    contrib("QLinearAveragePool", operators.pooling)
    contrib("QLinearGlobalAveragePool QLinearReduceMean ReduceSumInteger", per_input(2.0))
    contrib("QuantizeLinear QuantizeWithOrder QuantizeBFP", per_output(4.0))
    contrib("DequantizeLinear DequantizeWithOrder DequantizeBFP", per_output(2.0))
    contrib("NhwcMaxPool MaxpoolWithMask", operators.pooling)
    contrib("MulInteger IsAllFinite Trilu", per_input(1.0))
    contrib("ComplexMul ComplexMulConj", per_output(3.0))
    contrib("Inverse", lambda call: 3.0 * operators.determinant(call))
    contrib("Rfft Irfft", operators.last_axis_transform)
    contrib("CDist", lambda call: 3.0 * call.out_size() * call.shape(0)[-1])
    contrib("GridSample", operators.grid_sampling)
    contrib("CropAndResize", operators.region_align)
    contrib("Unique", sorting)
    contrib("RelativePositionBias", per_output(1.0), written)
    contrib("GatedRelativePositionBias", per_output(SIGMOID))
    contrib("MurmurHash3 NGramRepeatBlock Tokenizer", per_input(10.0))


_NCHWC = "Conv MaxPool AveragePool GlobalMaxPool GlobalAveragePool Upsample"
_NHWC = (
    "AveragePool BatchNormalization Conv ConvTranspose DepthToSpace GlobalAveragePool "
    "GlobalLpPool GlobalMaxPool GridSample InstanceNormalization LRN LpPool MaxPool "
    "MaxUnpool QLinearConv Resize SpaceToDepth"
)


def _add_layouts(rules: dict[str, Rule]) -> None:
    """Internal layouts of ONNX Runtime share the formulas of the plain operators."""
    for domain, names in (("com.microsoft.nchwc", _NCHWC), ("com.ms.internal.nhwc", _NHWC)):
        for name in names.split():
            rules[f"{domain}:{name}"] = rules[name]
    rules["com.ms.internal.nhwc:QLinearAveragePool"] = rules["com.microsoft:QLinearAveragePool"]


RULES: dict[str, Rule] = _rules()
"""Operator key -> rule."""

CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})
"""Operators priced by their bodies."""
