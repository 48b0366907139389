"""Work of convolutions, products, pooling, transforms, recurrence, attention and experts.

A multiply-add counts as two operations. `out` is the number of output elements.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log2, prod

from dnnp.core.profile.call import SIGMOID, SOFTMAX, TRANSCENDENTAL, Call, Shape, ShapeUnknownError


def convolution(call: Call) -> float:
    """Conv: 2 out (C / group) prod(kernel), plus the bias. W is [M, C / group, kernel...]."""
    out = call.out_size()
    return out * (2.0 * prod(call.shape(1)[1:]) + call.has_input(2))


def quantized_convolution(call: Call) -> float:
    """QLinearConv (weights at input 3, bias at 8): as Conv, and 4 to requantise."""
    return call.out_size() * (2.0 * prod(call.shape(3)[1:]) + call.has_input(8) + 4.0)


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
    """MatMul: 2 out K; K is the last dimension of the first operand, which FusedMatMul may
    transpose (`transA`), or what MatMulNBits and the like, whose weight is packed, call `K`."""
    a = call.shape(0)
    if call.integer("transA", 0) and len(a) > 1:
        return 2.0 * call.out_size() * a[-2]
    return 2.0 * call.out_size() * call.integer("K", a[-1] if a else 1)


def general_product(call: Call) -> float:
    """Gemm: 2 M N K, and M N for C when it is given. Also FusedGemm and QGemm."""
    a = call.shape(0)
    inner = a[0] if call.integer("transA", 0) else a[1]
    has_c = call.has_input(2) if call.node.op_type != "QGemm" else call.has_input(6)
    return call.out_size() * (2.0 * inner + has_c)


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
    """Det: elimination, 2/3 n^3 a matrix."""
    shape = call.shape(0)
    return prod(shape[:-2]) * (2.0 / 3.0) * shape[-1] ** 3


def lstm(call: Call) -> float:
    """LSTM: 4 gates of 2 H (I + H), 3 sigmoids and 2 tanh, and the cell's arithmetic."""
    peephole = 6.0 if call.has_input(7) else 0.0
    activations = 3 * SIGMOID + 2 * TRANSCENDENTAL
    return recurrent(call, gates=4, pointwise=activations + 4 + peephole)


def quantized_lstm(call: Call) -> float:
    """DynamicQuantizeLSTM: R is [directions, H, 4 H], the transpose of LSTM's."""
    x, recurrence = call.shape(0), call.shape(2)
    directions, hidden = recurrence[0], recurrence[1]
    gates = 2.0 * 4 * hidden * (x[-1] + hidden)
    return x[0] * x[1] * directions * (gates + hidden * (3 * SIGMOID + 2 * TRANSCENDENTAL + 12))


def recurrent(call: Call, gates: int, pointwise: float) -> float:
    """RNN, GRU: steps x batch x directions cells; X [steps, batch, I], R [directions, gates H, H].

    `pointwise` operations a hidden unit; on top, a gate adds the products of W and R and,
    when B is given, its two biases.
    """
    x, recurrence = call.shape(0), call.shape(2)
    directions, hidden = recurrence[0], recurrence[2]
    adds = gates * (3.0 if call.has_input(3) else 1.0)
    cell = 2.0 * gates * hidden * (x[2] + hidden) + hidden * (adds + pointwise)
    return x[0] * x[1] * directions * cell


def _scaled_dot_product(
    queries: float, heads_times_queries: float, values: float, keys: float
) -> float:
    """Q K^T, softmax of the scores, and their product with V.

    `queries` and `values` are the elements of Q and of the result, `keys` the positions
    attended to, `heads_times_queries` the rows of the score matrices.
    """
    return keys * (2.0 * queries + 2.0 * values + (SOFTMAX + 2) * heads_times_queries)


def attention(call: Call) -> float:
    """Attention (ONNX): 3-D [B, S, heads D] or 4-D [B, heads, S, D]; past keys at input 4.

    A window on the left, with one on the right or a causal mask, bounds the keys of a query.
    """
    query, key = call.shape(0), call.shape(1)
    keys = key[-2] + (call.shape(4)[-2] if call.has_input(4) else 0)
    left, right = call.integer("left_window_size", -1), call.integer("right_window_size", -1)
    if call.integer("is_causal", 0):
        right = 0
    if left >= 0 and right >= 0:
        keys = min(keys, left + right + 1)
    rows = prod(query[:3]) if len(query) == 4 else prod(query[:2]) * call.integer("q_num_heads", 1)
    return _scaled_dot_product(prod(query), rows, call.out_size(), keys)


def flexible_attention(call: Call) -> float:
    """FlexAttention: attention on 4-D inputs; a body's node is one operation a score."""
    query, key = call.shape(0), call.shape(1)
    flop = _scaled_dot_product(prod(query), prod(query[:3]), call.out_size(), key[-2])
    for name in ("score_mod", "prob_mod"):
        body = call.attribute(name)
        if body is not None:
            flop += float(len(body.g.node)) * prod(query[:3]) * key[-2]
    return flop


def linear_attention(call: Call) -> float:
    """LinearAttention: each step updates and reads a state of d_k x d_v a head.

    The four rules take 2 to 4 passes of 2 operations over the state.
    """
    query, out = call.shape(0), call.out_shape()
    passes = {"linear": 2, "gated": 2.5, "delta": 3}.get(
        call.text("update_rule", "gated_delta"), 3.5
    )
    heads = max(call.integer("q_num_heads", 1), 1)
    return 2.0 * passes * prod(query[:-1]) * query[-1] * (out[-1] / heads)


_PAST = {"Attention": 4, "QAttention": 8, "DecoderMaskedSelfAttention": 4, "QOrderedAttention": 18}
_WEIGHTS = {"QOrderedAttention": (5, 6, 7), "QOrderedLongformerAttention": (2, 8)}
_WEIGHTS["LongformerAttention"] = (1, 4)


def projected_attention(call: Call) -> float:
    """Attention (com.microsoft): projects input [B, S, I] by weights [I, 3 D], then attends.

    Also what is packed, quantised or for one step, where a past of [2, B, heads, P, D] may come;
    and Longformer's, whose queries attend to `window` keys on each side, besides global ones.
    """
    op = call.node.op_type
    x, weights = call.shape(0), [call.shape(i) for i in _WEIGHTS.get(op, (1,))]
    rows, columns = prod(x[:-1]), sum(w[-1] for w in weights)
    past = _PAST.get(op, -1)
    keys = x[-2] + (call.shape(past)[3] if past > 0 and call.has_input(past) else 0)
    if op == "PackedAttention":
        keys = call.shape(3)[1]  # of token_offset: [batch, longest sequence]
    width = columns / 3.0
    if "Longformer" in op:
        keys = min(keys, 2 * call.integer("window", keys) + 1)
        width = weights[0][-1] / 3.0
    projection = rows * columns * (2.0 * x[-1] + 1)
    return projection + _scaled_dot_product(
        rows * width, rows * call.integer("num_heads", 1), rows * width, keys
    )


def decoder_attention(call: Call) -> float:
    """DecoderAttention: query [S, B, D] and key [L, B, D], projected by [D, D] and [D, 2 D]."""
    query, key = call.shape(0), call.shape(1)
    projections = 2.0 * (prod(query) * call.shape(2)[1] + prod(key) * call.shape(3)[1])
    heads = prod(query[:-1]) * call.integer("num_heads", 1)
    return projections + _scaled_dot_product(prod(query), heads, prod(query), key[0])


def multi_head_attention(call: Call) -> float:
    """MultiHeadAttention and its relatives: Q [B, S, D], or packed with K and V.

    Keys are those of the present (the largest of K's, the past's and the present's
    positions); without any of them, the queries attend to each other. A local window leaves so
    many, a block mask its share of the blocks.
    """
    query = call.shape(0)
    heads = call.integer("num_heads", 1)
    out = call.out_shape()
    rows = prod(out[:-1]) if len(out) <= 3 else prod(query[:2])
    width = out[-1] if len(out) <= 3 else query[-1]
    keys = float(_keys(call, query))
    if call.integer("local_window_size", -1) > 0:
        keys = min(keys, call.integer("local_window_size", -1))
    if call.node.op_type == "SparseAttention":
        blocks = call.shape(5)[1] - 1
        keys *= min(call.shape(6)[1] / max(blocks * blocks, 1), 1.0)
    return _scaled_dot_product(rows * width, rows * heads, rows * width, keys)


def _keys(call: Call, query: Shape) -> int:
    if call.node.op_type == "PackedMultiHeadAttention":
        return call.shape(4)[1]  # of token_offset: [batch, longest sequence]
    if call.node.op_type == "PagedAttention":
        return call.shape(7)[1] * call.shape(3)[1]  # blocks of a sequence, keys of a block
    keys = query[1] if len(query) > 2 else query[0]
    for index in (1, 3, 4, 5, 6):
        if call.has_input(index):
            shape = call.shape_of(call.inputs[index])
            if shape is not None and len(shape) == 4:
                keys = max(keys, shape[2])
            elif shape is not None and len(shape) == 3 and index == 1:
                keys = max(keys, shape[1])
    for name in call.outputs[1:2]:
        present = call.shape_of(name) if name else None
        if present is not None and len(present) == 4:
            keys = max(keys, present[2])
    return keys


def rotated(first: int) -> Callable[[Call], float]:
    """Bytes of an operator that reads cosines and sines at inputs `first` and the next one.

    Of tables [positions, D] it reads the rows of its positions: at most one for each of the
    batch's; tables of each sample are read whole.
    """

    def moved(call: Call) -> float:
        total = call.bytes_all()
        if not call.has_input(first):
            return total
        x, table = call.shape(0), call.shape(first)
        if len(table) != 2:
            return total
        rows = x[0] * x[2] if len(x) == 4 else prod(x[:-1])
        unread = 1 - min(rows / max(table[0], 1), 1.0)
        return total - unread * (call.bytes_in(first) + call.bytes_in(first + 1))

    return moved


def paged(call: Call) -> float:
    """Bytes of PagedAttention: the blocks that its sequences have, of caches updated in place."""
    caches = call.bytes_in(3) + call.bytes_in(4)
    blocks = prod(call.shape(7)) / max(call.shape(3)[0], 1)
    written = sum(call.bytes_of(name) for name in call.outputs[1:] if name)
    fresh = call.bytes_in(1) + call.bytes_in(2)
    return rotated(8)(call) - written + fresh - caches * (1 - min(blocks, 1.0))


def experts(call: Call) -> float:
    """Bytes of a mixture of experts: the weights of min(experts, rows x k) of them are read."""
    count = call.shape(2)[0]
    chosen = min(prod(call.shape(0)[:-1]) * call.integer("k", 1), count)
    of_experts = 0.0
    for index in range(2, len(call.inputs)):
        shape = call.shape_of(call.inputs[index]) if call.has_input(index) else None
        if shape and shape[0] == count:
            of_experts += call.bytes_in(index)
    return call.bytes_all() - of_experts * (1 - chosen / max(count, 1))


def mixture_of_experts(call: Call) -> float:
    """MoE: each row runs through `k` experts; weights [experts, width, inner] at inputs 2, 5(4).

    A quantised weight packs several values in a byte, which its `expert_weight_bits` tells.
    """
    rows = prod(call.shape(0)[:-1])
    packing = 8 // max(call.integer("expert_weight_bits", 8), 1) if _is_quantized(call) else 1
    flop = 0.0
    for index in (2, 5, 8) if _is_quantized(call) else (2, 4, 6):
        if call.has_input(index):
            flop += 2.0 * prod(call.shape(index)[1:]) * packing
    if flop == 0.0:
        raise ShapeUnknownError
    return rows * call.integer("k", 1) * flop


def _is_quantized(call: Call) -> bool:
    return bool(call.node.op_type == "QMoE")
