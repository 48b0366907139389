"""Operators of ONNX as functions of PyTorch; `dnnp-export --to torch` copies those that occur.

A function has the name of its operator, its inputs come first, in their order, then attributes by
their names, with the defaults of ONNX. What `LITERAL` names is no tensor but numbers that are
known when the file is written. Nothing here is imported by dnnp: PyTorch need not be there.
"""

# ruff: noqa: N802, N803, E731
# mypy: disable-error-code="no-untyped-def, no-untyped-call"
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
    "Expand": (1,), "Pad": (1, 2, 3), "ReduceMax": (1,), "ReduceMean": (1,), "ReduceSum": (1,),
    "Reshape": (1,), "Slice": (1, 2, 3, 4), "Split": (1,), "Squeeze": (1,), "Trilu": (1,),
    "Unsqueeze": (1,),
}  # fmt: skip
"""Operator -> positions of its inputs that are numbers."""

BatchNormalization = lambda x, scale, bias, mean, var, epsilon=1e-5, momentum=0.9: (
    functional.batch_norm(x, mean, var, scale, bias, False, 0.0, epsilon)
)
Cast = lambda x, to: x.to(getattr(torch, to))
Clip = lambda x, min=None, max=None: x if min is max is None else torch.clamp(x, min, max)
Concat = lambda *xs, axis: torch.cat(xs, axis)
Div = lambda a, b: torch.div(a, b, rounding_mode=None if a.is_floating_point() else "trunc")
Dropout = lambda x, ratio=None, training=None, seed=None: x  # as in inference
Elu = lambda x, alpha=1.0: functional.elu(x, alpha)
Expand = lambda x, shape: x.expand(torch.broadcast_shapes(x.shape, shape))
Flatten = lambda x, axis=1: x.reshape(x.shape[:axis].numel(), -1)
Gelu = lambda x, approximate="none": functional.gelu(x, approximate=approximate)
GlobalAveragePool = lambda x: x.mean(tuple(range(2, x.dim())), keepdim=True)
HardSigmoid = lambda x, alpha=0.2, beta=0.5: torch.clamp(alpha * x + beta, 0, 1)
Identity = lambda x: x
LayerNormalization = lambda x, scale, bias=None, axis=-1, epsilon=1e-5, stash_type=1: (
    functional.layer_norm(x, x.shape[axis % x.dim() :], scale, bias, epsilon)
)
LeakyRelu = lambda x, alpha=0.01: functional.leaky_relu(x, alpha)
LogSoftmax = lambda x, axis=-1: functional.log_softmax(x, axis)
Pow = lambda x, y: torch.pow(x, y.to(x.dtype))
ReduceMax = lambda x, axes=None, keepdims=1: torch.amax(
    x, axes or tuple(range(x.dim())), keepdim=bool(keepdims)
)
ReduceMean = lambda x, axes=None, keepdims=1: torch.mean(
    x, axes or tuple(range(x.dim())), keepdim=bool(keepdims)
)
ReduceSum = lambda x, axes=None, keepdims=1: torch.sum(
    x, axes or tuple(range(x.dim())), keepdim=bool(keepdims)
)
Reshape = lambda x, shape, allowzero=0: x.reshape(
    [x.shape[i] if s == 0 and not allowzero else s for i, s in enumerate(shape)]
)
Softmax = lambda x, axis=-1: functional.softmax(x, axis)
Split = lambda x, split=None, axis=0, num_outputs=None, count=0: torch.split(
    x, -(-x.shape[axis] // count) if split is None else list(split), axis
)
Squeeze = lambda x, axes=None: x.squeeze() if axes is None else x.squeeze(tuple(axes))
Transpose = lambda x, perm=None: x.permute(*(perm or range(x.dim())[::-1]))
Trilu = lambda x, k=0, upper=1: torch.triu(x, k) if upper else torch.tril(x, k)


def AveragePool(x, kernel_shape, strides=None, pads=None, ceil_mode=0, count_include_pad=0):
    n = len(kernel_shape)
    if count_include_pad:
        x, pads = Pad(x, [0, 0, *(pads or [0] * 2 * n)[:n], 0, 0, *(pads or [0] * 2 * n)[n:]]), None
    pads = pads or [0] * 2 * n
    if pads[:n] != pads[n:]:
        raise ValueError("uneven padding that does not count")
    pool = getattr(functional, f"avg_pool{n}d")
    return pool(x, kernel_shape, strides or 1, pads[:n], bool(ceil_mode), False)


def Conv(x, w, b=None, kernel_shape=None, strides=1, pads=None, dilations=1, group=1):
    n = x.dim() - 2
    pads = pads or [0] * 2 * n
    if pads[:n] != pads[n:]:
        x, pads = Pad(x, [0, 0, *pads[:n], 0, 0, *pads[n:]]), [0] * n
    return getattr(functional, f"conv{n}d")(x, w, b, strides, pads[:n], dilations, group)


def Gather(x, index, axis=0):
    axis, index = axis % x.dim(), torch.where(index < 0, index + x.shape[axis], index)
    rows = x.index_select(axis, index.reshape(-1))
    return rows.reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])


def GatherRows(x, index, first):
    """Gather where each device has some rows of the table: what others have is zero here."""
    mine = (index >= first) & (index < first + x.shape[0])
    return functional.embedding(torch.where(mine, index - first, 0), x) * mine.unsqueeze(-1)


def Gemm(a, b, c=None, alpha=1.0, beta=1.0, transA=0, transB=0):
    y = alpha * ((a.T if transA else a) @ (b.T if transB else b))
    return y if c is None else y + beta * c


def Max(x, *others):
    for other in others:
        x = torch.maximum(x, other)
    return x


def MaxPool(x, kernel_shape, strides=None, pads=None, dilations=1, ceil_mode=0):
    n = len(kernel_shape)
    pads = pads or [0] * 2 * n
    x = Pad(x, [0, 0, *pads[:n], 0, 0, *pads[n:]], float("-inf"))
    pool = getattr(functional, f"max_pool{n}d")
    return pool(x, kernel_shape, strides or 1, 0, dilations, bool(ceil_mode))


def Min(x, *others):
    for other in others:
        x = torch.minimum(x, other)
    return x


def Pad(x, pads, value=0.0, axes=None, mode="constant"):
    axes = range(len(pads) // 2) if axes is None else axes
    ends = {a % x.dim(): pads[i :: len(axes)] for i, a in enumerate(axes)}
    flat = [size for a in reversed(range(x.dim())) for size in ends.get(a, (0, 0))]
    return functional.pad(x, flat, mode, value) if any(flat) else x


def Slice(x, starts, ends, axes=None, steps=None):
    for i, axis in enumerate(range(len(starts)) if axes is None else axes):
        wanted = range(x.shape[axis])[starts[i] : ends[i] : 1 if steps is None else steps[i]]
        x = x.index_select(axis, torch.tensor([*wanted], dtype=torch.int64, device=x.device))
    return x


def Unsqueeze(x, axes):
    for axis in sorted(a % (x.dim() + len(axes)) for a in axes):
        x = x.unsqueeze(axis)
    return x
