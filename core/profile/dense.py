"""Work of convolutions, matrix products, pooling, resampling and transforms.

A multiply-add counts as two operations. `out` is the number of output elements.
"""

from __future__ import annotations

from math import log2, prod

from dnnp.core.profile.call import Call, Shape, ShapeUnknownError


def convolution(call: Call) -> float:
    """Conv: 2 out (C / group) prod(kernel), plus the bias. W is [M, C / group, kernel...]."""
    out = call.out_size()
    return out * (2.0 * prod(call.shape(1)[1:]) + call.has_input(2))


def quantized_convolution(call: Call) -> float:
    """QLinearConv (weights at input 3, bias at 8): as Conv, and 4 to requantise."""
    return call.out_size() * (2.0 * prod(call.shape(3)[1:]) + call.has_input(8) + 4.0)


def integer_convolution(call: Call) -> float:
    """ConvInteger: as Conv without a bias."""
    return 2.0 * call.out_size() * prod(call.shape(1)[1:])


def transposed_convolution(call: Call) -> float:
    """ConvTranspose: every input element meets W[c], [M / group, kernel...]."""
    bias = call.out_size() if call.has_input(2) else 0
    return 2.0 * call.size(0) * prod(call.shape(1)[1:]) + bias


def deformable_convolution(call: Call) -> float:
    """DeformConv (bias at 3, mask at 4): Conv over samples interpolated from four taps."""
    out, weights = call.out_shape(), call.shape(1)
    samples = out[0] * call.shape(0)[1] * prod(weights[2:]) * prod(out[2:])
    flop = prod(out) * (2.0 * prod(weights[1:]) + call.has_input(3))
    return flop + samples * (8.0 + call.has_input(4))


def causal_convolution(call: Call) -> float:
    """CausalConvWithState: depthwise, weights [C, 1, k], then an optional Swish."""
    activation = 17.0 if call.text("activation", "none") != "none" else 0.0
    return call.out_size() * (2.0 * call.shape(1)[-1] + call.has_input(2) + activation)


def matrix_product(call: Call) -> float:
    """MatMul: 2 out K; K is the last dimension of the first operand."""
    return 2.0 * call.out_size() * _inner(call.shape(0))


def transposable_product(call: Call) -> float:
    """FusedMatMul: MatMul whose first operand may be transposed (`transA`)."""
    a = call.shape(0)
    if call.integer("transA", 0) and len(a) > 1:
        return 2.0 * call.out_size() * a[-2]
    return 2.0 * call.out_size() * _inner(a)


def quantized_product(call: Call) -> float:
    """QLinearMatMul: MatMul and 4 an output to requantise."""
    return call.out_size() * (2.0 * _inner(call.shape(0)) + 4.0)


def general_product(call: Call) -> float:
    """Gemm: 2 M N K, and M N for C when it is given. Also FusedGemm and QGemm."""
    a = call.shape(0)
    inner = a[0] if call.integer("transA", 0) else a[1]
    has_c = call.has_input(2) if call.node.op_type != "QGemm" else call.has_input(6)
    return call.out_size() * (2.0 * inner + has_c)


def packed_product(call: Call) -> float:
    """MatMulNBits and the like: the weight is packed, K is the `K` attribute or A's last."""
    return 2.0 * call.out_size() * call.integer("K", _inner(call.shape(0)))


def packed_products(call: Call) -> float:
    """Products with packed weights that share their input: for each output that is one, 2 K.

    MatMulNBitsMlp multiplies two of them, MatMulNBitsQkv makes three, MatMulNBitsQLoRA adds a
    product of low rank, whose second factor [N, blocks, packed] is at input 5.
    """
    rows, inner = prod(call.shape(0)[:-1]), call.integer("K", call.shape(0)[-1])
    if call.node.op_type == "MatMulNBitsQkv":
        return 2.0 * rows * inner * (call.integer("Nq", 0) + 2 * call.integer("Nkv", 0))
    columns = call.integer("N", call.out_shape()[-1])
    if call.node.op_type == "MatMulNBitsMlp":
        return 4.0 * rows * inner * columns
    return 2.0 * rows * (inner * columns + call.shape(3)[0] * (inner + columns))


def _inner(shape: Shape) -> int:
    return shape[-1] if shape else 1


def einsum(call: Call) -> float:
    """Einsum: operands contracted pairwise from the left.

    Each contraction takes 2 operations for each point of the product of all index ranges
    in either operand; an index dies with its last use. One operand: one operation a point.
    """
    equation = call.text("equation", "").replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(call.inputs):
        raise ShapeUnknownError
    sizes: dict[str, int] = {}
    operands = [_label(term, call.shape(i), sizes) for i, term in enumerate(terms)]
    if arrow:
        ellipsis = [index for index in sizes if index.startswith(".")]
        result = set(right.replace("...", "")) | (set(ellipsis) if "..." in right else set())
    else:
        text = left.replace(",", "").replace("...", "")
        result = {index for index in sizes if index[0] == "." or text.count(index) == 1}
    if len(operands) == 1:
        return float(prod(sizes[index] for index in operands[0]))
    flop = 0.0
    current = operands[0]
    for position in range(1, len(operands)):
        joint = current | operands[position]
        flop += 2.0 * prod(sizes[index] for index in joint)
        later = result.union(*operands[position + 1 :])
        current = joint & later
    return flop


def _label(term: str, shape: Shape, sizes: dict[str, int]) -> set[str]:
    """Index names of one operand; an ellipsis gives `.1`, `.2`, ... counted from the right."""
    before, dots, after = term.partition("...")
    hidden = len(shape) - len(before) - len(after)
    if hidden < 0 or (hidden and not dots):
        raise ShapeUnknownError
    names = [*before, *(f".{hidden - i}" for i in range(hidden)), *after]
    for name, size in zip(names, shape, strict=True):
        sizes[name] = max(sizes.get(name, 1), size)
    return set(names)


def pooling(call: Call) -> float:
    """MaxPool, AveragePool: one operation an element of the window."""
    return float(call.out_size() * prod(call.integers("kernel_shape")))


def lp_pooling(call: Call) -> float:
    """LpPool: a power and an addition an element of the window."""
    return 2.0 * call.out_size() * prod(call.integers("kernel_shape"))


def resampling(call: Call) -> float:
    """Resize, Upsample: 2 operations a tap; 2 taps an axis (linear) or 4 (cubic)."""
    out = call.out_shape()
    mode = call.text("mode", "nearest")
    taps = {"linear": 2, "bilinear": 2, "cubic": 4}.get(mode)
    if taps is None:
        return 0.0
    source = call.shape(0)
    resized = sum(a != b for a, b in zip(source, out, strict=True))
    return 2.0 * prod(out) * taps**resized


def grid_sampling(call: Call) -> float:
    """GridSample: the grid's arithmetic, then as Resize over all spatial axes."""
    out = call.out_shape()
    taps = {"nearest": 0, "cubic": 4, "bicubic": 4}.get(call.text("mode", "linear"), 2)
    axes = len(out) - 2
    return 2.0 * prod(out) * taps**axes + 6.0 * axes * prod(out[2:]) * out[0]


def region_align(call: Call) -> float:
    """RoiAlign, CropAndResize: four taps a sample; `sampling_ratio` squared samples a bin."""
    ratio = call.integer("sampling_ratio", 0) or 2
    return 8.0 * call.out_size() * ratio * ratio


def region_pool(call: Call) -> float:
    """MaxRoiPool: every region covers the whole map at most."""
    source, out = call.shape(0), call.out_shape()
    return float(out[0] * out[1] * prod(source[2:]))


def non_maximum_suppression(call: Call) -> float:
    """Sort the scores [B, C, N] of each class, then compare boxes with those kept.

    An overlap takes 12 operations. The number kept is the constant at input 2, else N.
    """
    batch, classes, boxes = call.shape(1)
    limit = call.scalar(2)
    kept = boxes if limit is None else min(max(limit, 0), boxes)
    return batch * classes * boxes * (log2(max(boxes, 2)) + 12.0 * kept)


def top_k(call: Call) -> float:
    """TopK: each element against a heap of k, k being the output's length on the axis."""
    source, out = call.shape(0), call.out_shape()
    k = out[call.integer("axis", -1)]
    return prod(source) * max(log2(max(k, 1)), 1.0)


def one_axis_transform(call: Call) -> float:
    """DFT: 5 n log2 n for each signal of complex length n.

    The axis is the attribute (opset 17, default 1), or the constant at input 2 (opset 20,
    default -2).
    """
    source, out = call.shape(0), call.out_shape()
    attribute = call.attribute("axis")
    axis = int(attribute.i) if attribute is not None else call.scalar(2)
    axis = -2 if axis is None else axis
    length = max(source[axis], out[axis], 1)
    signals = prod(source[:-1]) // max(source[axis], 1)
    return 5.0 * signals * length * log2(max(length, 2))


def short_time_transform(call: Call) -> float:
    """STFT: a window and a DFT for each frame; output is [batch, frames, bins, 2]."""
    batch, frames, bins, _ = call.out_shape()
    length = 2 * (bins - 1) if call.integer("onesided", 1) else bins
    return batch * frames * length * (5.0 * log2(max(length, 2)) + 1.0)


def last_axis_transform(call: Call) -> float:
    """Rfft, Irfft over the last `signal_ndim` axes: 5 n log2 n, half of it for real data."""
    size = max(call.size(0), call.out_size())
    axes = max(call.integer("signal_ndim", 1), 1)
    length = prod(call.shape(0)[-axes:])
    return 2.5 * size * log2(max(length, 2))


def determinant(call: Call) -> float:
    """Det: elimination, 2/3 n^3 a matrix. Inverse takes three times as much."""
    shape = call.shape(0)
    return prod(shape[:-2]) * (2.0 / 3.0) * shape[-1] ** 3


def inverse(call: Call) -> float:
    """Inverse: 2 n^3 a matrix."""
    return 3.0 * determinant(call)


def pairwise_distance(call: Call) -> float:
    """CDist: 3 operations a coordinate of each pair of rows."""
    return 3.0 * call.out_size() * call.shape(0)[-1]


def column_fold(call: Call) -> float:
    """Col2Im: each column element is added to the image."""
    return float(call.size(0))
