"""Operators of ONNX as functions of PyTorch; `dnnp-export --to torch` copies those that occur.

A function has the name of its operator, its inputs come first, in their order, and attributes by
their names, with the defaults of ONNX. What `LITERAL` names is no tensor but whole numbers, known
when the file is written. Nothing here is imported by dnnp: PyTorch need not be there.
"""

# ruff: noqa: N802, A002
# mypy: disable-error-code="no-untyped-def"
import torch
from torch.nn import functional

DIRECT = {
    "Abs": "torch.abs", "Add": "torch.add", "And": "torch.logical_and", "Ceil": "torch.ceil",
    "Cos": "torch.cos", "Equal": "torch.eq", "Erf": "torch.erf", "Exp": "torch.exp",
    "Floor": "torch.floor", "Greater": "torch.gt", "GreaterOrEqual": "torch.ge",
    "HardSwish": "functional.hardswish", "Less": "torch.lt", "LessOrEqual": "torch.le",
    "Log": "torch.log", "MatMul": "torch.matmul", "Mish": "functional.mish", "Mul": "torch.mul",
    "Neg": "torch.neg", "Not": "torch.logical_not", "Or": "torch.logical_or",
    "Reciprocal": "torch.reciprocal", "Relu": "torch.relu", "Round": "torch.round",
    "Sigmoid": "torch.sigmoid", "Sin": "torch.sin", "Softplus": "functional.softplus",
    "Sqrt": "torch.sqrt", "Sub": "torch.sub", "Tanh": "torch.tanh", "Where": "torch.where",
}  # fmt: skip
"""Operators that PyTorch has as they are."""

LITERAL = {
    "ConstantOfShape": (0,), "Expand": (1,), "Pad": (1, 3), "Range": (0, 1, 2), "ReduceMax": (1,),
    "ReduceMean": (1,), "ReduceSum": (1,), "Reshape": (1,), "Slice": (1, 2, 3, 4), "Split": (1,),
    "Squeeze": (1,), "Tile": (1,), "Trilu": (1,), "Unsqueeze": (1,),
}  # fmt: skip
"""Operator -> positions of its inputs that are whole numbers."""


def AveragePool(x, *, kernel_shape, strides=None, pads=None, ceil_mode=0, count_include_pad=0):
    n = len(kernel_shape)
    pads = pads or [0] * (2 * n)
    assert pads[:n] == pads[n:] or count_include_pad, "uneven padding that does not count"
    if pads[:n] != pads[n:]:
        x, pads = Pad(x, [0, 0, *pads[:n], 0, 0, *pads[n:]]), [0] * n
    pool = getattr(functional, f"avg_pool{n}d")
    return pool(x, kernel_shape, strides or [1] * n, pads[:n], bool(ceil_mode),
                bool(count_include_pad))  # fmt: skip


def BatchNormalization(x, scale, bias, mean, var, *, epsilon=1e-5, momentum=0.9):
    return functional.batch_norm(x, mean, var, scale, bias, False, 0.0, epsilon)


def Cast(x, *, to):
    return x.to(getattr(torch, to))


def Clip(x, min=None, max=None):
    return x if min is None and max is None else torch.clamp(x, min, max)


def Concat(*xs, axis):
    return torch.cat(xs, axis)


def ConstantOfShape(shape, *, value=(0.0, "float32")):
    return torch.full(shape, value[0], dtype=getattr(torch, value[1]), device=DEVICE)


def Conv(x, w, b=None, *, kernel_shape=None, strides=1, pads=None, dilations=1, group=1):
    n = x.dim() - 2
    pads = pads or [0] * (2 * n)
    if pads[:n] != pads[n:]:
        x, pads = Pad(x, [0, 0, *pads[:n], 0, 0, *pads[n:]]), [0] * n
    conv = getattr(functional, f"conv{n}d")
    return conv(x, w, b, strides, pads[:n], dilations, group)


def Div(a, b):
    return torch.div(a, b, rounding_mode=None if a.is_floating_point() else "trunc")


def Dropout(x, ratio=None, mode=None, *, seed=None):
    return x  # as in inference


def Elu(x, *, alpha=1.0):
    return functional.elu(x, alpha)


def Expand(x, shape):
    return x.expand(torch.broadcast_shapes(x.shape, shape))


def Flatten(x, *, axis=1):
    return x.reshape(x.shape[:axis].numel(), -1)


def Gather(x, index, *, axis=0):
    axis, index = axis % x.dim(), torch.where(index < 0, index + x.shape[axis], index)
    if axis == 0:
        return functional.embedding(index, x) if x.dim() == 2 else x[index]
    rows = x.index_select(axis, index.reshape(-1))
    return rows.reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])


def GatherRows(x, index, *, first):
    """Gather where each device has some rows of the table: the others' are zero."""
    index = index - first
    mine = (index >= 0) & (index < x.shape[0])
    return functional.embedding(torch.where(mine, index, 0), x) * mine.unsqueeze(-1)


def Gelu(x, *, approximate="none"):
    return functional.gelu(x, approximate=approximate)


def Gemm(a, b, c=None, *, alpha=1.0, beta=1.0, transA=0, transB=0):
    y = alpha * ((a.T if transA else a) @ (b.T if transB else b))
    return y if c is None else y + beta * c


def GlobalAveragePool(x):
    return x.mean(tuple(range(2, x.dim())), keepdim=True)


def HardSigmoid(x, *, alpha=0.2, beta=0.5):
    return torch.clamp(alpha * x + beta, 0, 1)


def Identity(x):
    return x


def LayerNormalization(x, scale, bias=None, *, axis=-1, epsilon=1e-5, stash_type=1):
    return functional.layer_norm(x, x.shape[axis % x.dim() :], scale, bias, epsilon)


def LeakyRelu(x, *, alpha=0.01):
    return functional.leaky_relu(x, alpha)


def LogSoftmax(x, *, axis=-1):
    return functional.log_softmax(x, axis)


def Max(x, *others):
    for other in others:
        x = torch.maximum(x, other)
    return x


def MaxPool(x, *, kernel_shape, strides=None, pads=None, dilations=1, ceil_mode=0):
    n = len(kernel_shape)
    pads = pads or [0] * (2 * n)
    x = Pad(x, [0, 0, *pads[:n], 0, 0, *pads[n:]], float("-inf"))
    pool = getattr(functional, f"max_pool{n}d")
    return pool(x, kernel_shape, strides or [1] * n, 0, dilations, bool(ceil_mode))


def Min(x, *others):
    for other in others:
        x = torch.minimum(x, other)
    return x


def Pad(x, pads, value=0.0, axes=None, *, mode="constant"):
    axes = range(len(pads) // 2) if axes is None else axes
    ends = {a % x.dim(): pads[i :: len(axes)] for i, a in enumerate(axes)}
    flat = [size for a in reversed(range(x.dim())) for size in ends.get(a, (0, 0))]
    return functional.pad(x, flat, mode, value) if any(flat) else x


def Pow(x, y):
    return torch.pow(x, y.to(x.dtype))


def Range(start, limit, delta):
    return torch.arange(start, limit, delta, device=DEVICE)


def ReduceMax(x, axes=None, *, keepdims=1, noop_with_empty_axes=0):
    return torch.amax(x, axes or tuple(range(x.dim())), keepdim=bool(keepdims))


def ReduceMean(x, axes=None, *, keepdims=1, noop_with_empty_axes=0):
    return torch.mean(x, axes or tuple(range(x.dim())), keepdim=bool(keepdims))


def ReduceSum(x, axes=None, *, keepdims=1, noop_with_empty_axes=0):
    return torch.sum(x, axes or tuple(range(x.dim())), keepdim=bool(keepdims))


def Reshape(x, shape, *, allowzero=0):
    return x.reshape([x.shape[i] if s == 0 and not allowzero else s for i, s in enumerate(shape)])


def Slice(x, starts, ends, axes=None, steps=None):
    for i, axis in enumerate(range(len(starts)) if axes is None else axes):
        step = 1 if steps is None else steps[i]
        wanted = range(x.shape[axis])[starts[i] : max(ends[i], -(10**9)) : step]
        if step > 0:
            x = x[(slice(None),) * (axis % x.dim()) + (slice(wanted.start, wanted.stop, step),)]
        else:
            x = x.index_select(axis, torch.tensor(list(wanted), device=x.device))
    return x


def Softmax(x, *, axis=-1):
    return functional.softmax(x, axis)


def Split(x, split=None, *, axis=0, num_outputs=None, count):
    size = -(-x.shape[axis] // count)
    return torch.split(x, size if split is None else list(split), axis)


def Squeeze(x, axes=None):
    return x.squeeze() if axes is None else x.squeeze(tuple(axes))


def Tile(x, repeats):
    return x.repeat(*repeats)


def Transpose(x, *, perm=None):
    return x.permute(*(perm or range(x.dim())[::-1]))


def Trilu(x, k=0, *, upper=1):
    return torch.triu(x, k) if upper else torch.tril(x, k)


def Unsqueeze(x, axes):
    rank = x.dim() + len(axes)
    for axis in sorted(a % rank for a in axes):
        x = x.unsqueeze(axis)
    return x


DEVICE = torch.device("cpu")
