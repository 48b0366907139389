"""Gradients as ordinary operators, to measure their time without training.

A gradient is a sum of terms, one for each input that has a gradient. A term has one or several ways
to compute it, of which the fastest counts, as a library chooses its algorithm. A way is a list of
steps: operators that ONNX Runtime has, each with the shapes of the forward operator's tensors.

The gradients of a product C = A B are dC B^T and A^T dC. That of a convolution is a transposed
convolution for the image and, for the weights, a convolution of the image with the gradient as its
kernel, or a product with the image laid out in columns (Dumoulin and Visin 2016, "A guide to
convolution arithmetic for deep learning"). An elementwise gradient is a multiplication of the same
size. Changes of layout before a step are not counted: training keeps tensors in the layout that
they need.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import fsum, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dnnp.core.model.errors import InputFileError
from dnnp.core.runtime.measure_operators import Measurement, measure_nodes

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

Shape = tuple[int, ...]


class Step(NamedTuple):
    """One operator on tensors of its own."""

    op: str
    reads: tuple[Shape, ...]
    """Shapes of its inputs, in float32."""
    attributes: tuple[tuple[str, Any], ...] = ()
    given: tuple[Shape, ...] = ()
    """Integers that follow as inputs known before it runs: axes, sizes, a shape."""
    weights: tuple[int, ...] = ()
    """Positions of inputs that are known before: parameters."""
    writes: int = 1
    domain: str = ""


Way = tuple[Step, ...]
Term = tuple[Way, ...]
"""Ways to compute the same."""


@dataclass(frozen=True)
class Forward:
    """An operator of the forward pass."""

    op: str
    attributes: Mapping[str, Any]
    reads: Sequence[Shape]
    writes: Sequence[Shape]
    wanted: Sequence[bool]
    """bool of each of `reads`: it has a gradient."""
    static: Sequence[bool]
    """bool of each of `reads`: a parameter or constant."""

    def wants(self, position: int) -> bool:
        """True if there is such an input, with a gradient."""
        return position < len(self.wanted) and self.wanted[position]


def pieces(forward: Forward) -> tuple[Term, ...] | None:
    """The terms of the gradient of an operator; None: it cannot be made of ordinary operators."""
    made = _MAKERS.get(forward.op)
    if made is None or not forward.reads or not forward.writes:
        return None
    if any(0 in shape for shape in (*forward.reads, *forward.writes)):
        return None
    return made(forward)


def sums(shape: Shape, count: int) -> tuple[Term, ...]:
    """The terms that add up gradients of a tensor from several readers."""
    return tuple((_each("Add", shape, shape),) for _ in range(count - 1))


def loss(shape: Shape) -> tuple[Term, ...]:
    """The term of a loss: a difference to the target."""
    return ((_each("Sub", shape, shape),),)


def _each(op: str, *reads: Shape) -> Way:
    """A way of one operator that goes over elements."""
    return (Step(op, reads),)


def _chain(ops: str, shape: Shape) -> Term:
    """A term of operators one after the other, each over all elements.

    Those of one operand are in lower case.
    """
    steps = [
        Step(op.capitalize() if op.islower() else op, (shape,) if op.islower() else (shape, shape))
        for op in ops.split()
    ]
    return (tuple(steps),)


def _reduced(out: Shape, to: Shape) -> Way:
    """The sum of a gradient over the axes along which an operand was repeated; () where none."""
    wide = (1,) * (len(out) - len(to)) + to
    axes = tuple(i for i, (o, t) in enumerate(zip(out, wide, strict=True)) if o != t)
    return (Step("ReduceSum", (out,), given=(axes,)),) if axes else ()


def _over(steps: str) -> Callable[[Forward], tuple[Term, ...]]:
    """Maker for an operator of one operand: a chain of elementwise steps over its output."""
    return lambda f: (_chain(steps, f.writes[0]),)


def _sum(f: Forward) -> tuple[Term, ...]:
    out = f.writes[0]
    ways = [_reduced(out, r) for r, w in zip(f.reads, f.wanted, strict=True) if w]
    return tuple((way,) for way in ways if way)


def _mul(f: Forward) -> tuple[Term, ...]:
    out = f.writes[0]
    return tuple(
        ((Step("Mul", (out, f.reads[1 - i])), *_reduced(out, f.reads[i])),)
        for i in (0, 1)
        if f.wants(i)
    )


def _div(f: Forward) -> tuple[Term, ...]:
    out, terms = f.writes[0], []
    if f.wants(0):
        terms.append(((Step("Div", (out, f.reads[1])), *_reduced(out, f.reads[0])),))
    if f.wants(1):
        way = (Step("Mul", (out, out)), Step("Div", (out, f.reads[1])))
        terms.append(((*way, *_reduced(out, f.reads[1])),))
    return tuple(terms)


def _pow(f: Forward) -> tuple[Term, ...]:
    return (_chain("Mul Mul", f.writes[0]),) if f.wants(0) and not f.wants(1) else ()


def _softmax(f: Forward) -> tuple[Term, ...]:
    out = f.writes[0]
    axis = int(f.attributes.get("axis", -1)) % len(out)
    row = tuple(1 if i == axis else d for i, d in enumerate(out))
    steps = (
        Step("Mul", (out, out)),
        Step("ReduceSum", (out,), given=((axis,),)),
        Step("Sub", (out, row)),
        Step("Mul", (out, out)),
    )
    return ((steps,),)


def _batch_norm(f: Forward) -> tuple[Term, ...]:
    """With statistics of the batch: two sums, then the image once more."""
    out = f.writes[0]
    axes = (0, *range(2, len(out)))
    row = (1, out[1], *[1] * (len(out) - 2))
    image = (
        Step("Mul", (out, out)),
        Step("ReduceSum", (out,), given=(axes,)),
        Step("ReduceSum", (out,), given=(axes,)),
        Step("Mul", (out, row)),
        Step("Add", (out, out)),
    )
    return ((image,),)


def _layer_norm(f: Forward) -> tuple[Term, ...]:
    """Two sums along each row, then the row once more: as two normalisations, in one kernel each.

    Singly, the operators of the formula would take ten times as long as the kernel of any library.
    """
    out = f.writes[0]
    axis = int(f.attributes.get("axis", -1)) % len(out)
    early = tuple(range(axis))
    reads = (out, out[axis:], out[axis:])
    once = Step("LayerNormalization", reads, (("axis", axis),), weights=(1, 2))
    terms: list[Term] = [((once, once),)] if f.wants(0) else []
    if f.wants(1):
        terms.append(((Step("Mul", (out, out)), Step("ReduceSum", (out,), given=(early,))),))
    if f.wants(2):
        terms.append(((Step("ReduceSum", (out,), given=(early,)),),))
    return tuple(terms)


def _expand(f: Forward) -> tuple[Term, ...]:
    """Expand along the reduced axes, kept as ones."""
    full, out = f.reads[0], f.writes[0]
    if len(out) != len(full):
        left = list(out)
        out = tuple(left.pop(0) if left and left[0] == d else 1 for d in full)
    return (((Step("Expand", (out,), given=(full,)),),),)


def _transpose(f: Forward) -> tuple[Term, ...]:
    rank = len(f.writes[0])
    perm = [int(p) for p in f.attributes.get("perm", range(rank - 1, -1, -1))]
    back = tuple(sorted(range(rank), key=perm.__getitem__))
    return (((Step("Transpose", (f.writes[0],), (("perm", back),)),),),)


def _concat(f: Forward) -> tuple[Term, ...]:
    axis = int(f.attributes.get("axis", 0))
    sizes = tuple(r[axis] for r in f.reads)
    step = Step("Split", (f.writes[0],), (("axis", axis),), (sizes,), writes=len(sizes))
    return (((step,),),) if len(sizes) > 1 else ()


def _split(f: Forward) -> tuple[Term, ...]:
    axis = int(f.attributes.get("axis", 0))
    return (((Step("Concat", tuple(f.writes), (("axis", axis),)),),),)


def _slice(f: Forward) -> tuple[Term, ...] | None:
    full, out = f.reads[0], f.writes[0]
    if len(full) != len(out) or any(o > d for o, d in zip(out, full, strict=True)):
        return None
    pads = (*[0] * len(full), *[d - o for o, d in zip(out, full, strict=True)])
    return (((Step("Pad", (out,), given=(pads,)),),),)


def _gather(f: Forward) -> tuple[Term, ...] | None:
    """Rows are added to a table of zeros; only tables along the first axis."""
    table, out = f.reads[0], f.writes[0]
    if int(f.attributes.get("axis", 0)) or len(table) < 2:
        return None
    rows = prod(out) // prod(table[1:])
    step = Step("ScatterND", (table, (rows, *table[1:])), (("reduction", "add"),))
    return (((step,),),)


def _product(
    rows: int, inner: int, columns: int, left: bool, right: bool, static: bool
) -> list[Term]:
    """Gradients of the factors of a product [rows, inner] x [inner, columns]."""
    gradient = (rows, columns)
    terms: list[Term] = []
    if left:
        step = Step(
            "Gemm", (gradient, (inner, columns)), (("transB", 1),), weights=(1,) if static else ()
        )
        terms.append(((step,),))
    if right:
        terms.append(((Step("Gemm", ((rows, inner), gradient), (("transA", 1),)),),))
    return terms


def _matmul(f: Forward) -> tuple[Term, ...] | None:
    a, b = f.reads[:2]
    out = f.writes[0]
    if len(a) < 2 or len(b) < 2:
        return None
    if len(b) == 2:
        rows = prod(a[:-1])
        return tuple(_product(rows, a[-1], b[1], f.wants(0), f.wants(1), f.static[1]))
    if a[:-2] != b[:-2]:
        return None
    terms: list[Term] = []
    contrib = "com.microsoft"
    if f.wants(0):
        terms.append(((Step("FusedMatMul", (out, b), (("transB", 1),), domain=contrib),),))
    if f.wants(1):
        terms.append(((Step("FusedMatMul", (a, out), (("transA", 1),), domain=contrib),),))
    return tuple(terms)


def _gemm(f: Forward) -> tuple[Term, ...]:
    a, (rows, columns) = f.reads[0], f.writes[0]
    inner = a[0] if f.attributes.get("transA") else a[1]
    terms = _product(rows, inner, columns, f.wants(0), f.wants(1), f.static[1])
    if f.wants(2) and (way := _reduced(f.writes[0], f.reads[2])):
        terms.append((way,))
    return tuple(terms)


class _Conv(NamedTuple):
    """Shapes and attributes of a convolution."""

    image: Shape
    kernel: Shape
    out: Shape
    group: int
    strides: Shape
    dilations: Shape
    pads: Shape


def _conv(f: Forward) -> tuple[Term, ...] | None:
    out, given = f.writes[0], f.attributes
    space = len(out) - 2
    if given.get("auto_pad", b"NOTSET") not in (b"NOTSET", "NOTSET") or space < 1:
        return None
    strides, dilations = (tuple(given.get(n, (1,) * space)) for n in ("strides", "dilations"))
    pads = tuple(given.get("pads", (0,) * 2 * space))
    image, kernel, group = f.reads[0], f.reads[1], int(given.get("group", 1))
    conv = _Conv(image, kernel, out, group, strides, dilations, pads)
    terms: list[Term] = []
    if f.wants(0):
        terms.append(_image_ways(conv))
    if f.wants(1):
        terms.append(_kernel_ways(conv))
    if f.wants(2):
        axes = (0, *range(2, len(out)))
        terms.append(((Step("ReduceSum", (out,), given=(axes,)),),))
    return tuple(terms)


def _image_ways(conv: _Conv) -> Term:
    """A transposed convolution; without strides also one with the kernel turned around."""
    image, kernel, out, group, strides, dilations, pads = conv
    space = len(strides)
    reach = [d * (k - 1) for d, k in zip(dilations, kernel[2:], strict=True)]
    whole = [strides[i] * (out[2 + i] - 1) + reach[i] + 1 for i in range(space)]
    more = tuple(image[2 + i] + pads[i] + pads[space + i] - whole[i] for i in range(space))
    settings = (("group", group), ("dilations", dilations), ("pads", pads), ("strides", strides))
    ways: list[Way] = [
        (Step("ConvTranspose", (out, kernel), (*settings, ("output_padding", more)), weights=(1,)),)
    ]
    turned = tuple(reach[i % space] - pad for i, pad in enumerate(pads))
    if set(strides) == {1} and min(turned) >= 0:
        back = (kernel[1] * group, kernel[0] // group, *kernel[2:])
        rest = (("group", group), ("dilations", dilations), ("pads", turned))
        ways.append((Step("Conv", (out, back), rest, weights=(1,)),))
    return tuple(ways)


def _kernel_ways(conv: _Conv) -> Term:
    """A convolution with the gradient as its kernel, samples taking the place of channels.

    Or a product: of the gradient and the image in columns, which are copied unless a kernel of one
    element reads the image as it lies.
    """
    image, kernel, out, group, strides, dilations, pads = conv
    samples, places = image[0], prod(out[2:])
    swapped = (image[1] // group, group * samples, *image[2:])
    gradient = (kernel[0], samples, *out[2:])
    settings = (("group", group), ("dilations", strides), ("pads", pads), ("strides", dilations))
    ways: list[Way] = [(Step("Conv", (swapped, gradient), settings),)]
    taps = prod(kernel[2:])
    if group == 1:
        columns = (kernel[1] * taps, samples * places)
        steps: list[Step] = []
        if taps > 1 or max(strides) > 1:
            part = (kernel[1], samples * places)
            steps.append(Step("Concat", (part,) * taps, (("axis", 0),)))
        steps.append(Step("Gemm", ((kernel[0], samples * places), columns), (("transB", 1),)))
        ways.append(tuple(steps))
    return tuple(ways)


_MAKERS: dict[str, Callable[[Forward], tuple[Term, ...] | None]] = {
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _conv,
    "Mul": _mul,
    "Div": _div,
    "Pow": _pow,
    "Softmax": _softmax,
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "Transpose": _transpose,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
}
_SHARED: tuple[tuple[str, Callable[[Forward], tuple[Term, ...] | None]], ...] = (
    ("Add Sub Sum", _sum),
    ("Reshape Flatten Squeeze Unsqueeze Identity", lambda f: ()),
    ("ReduceSum ReduceMean GlobalAveragePool", _expand),
    ("Relu LeakyRelu Clip Abs Exp Dropout", _over("Mul")),
    ("Sqrt Log", _over("Div")),
    ("Neg Cast", _over("neg")),
    ("Tanh Sigmoid Reciprocal", _over("Mul Sub Mul")),
    ("Erf", _over("Mul neg exp Mul")),
    ("Gelu", _over("Mul neg exp Mul erf Add Mul")),
)
_MAKERS |= {op: make for ops, make in _SHARED for op in ops.split()}
KINDS = frozenset(_MAKERS)
"""Operators with gradients by ordinary operators."""


OPSET, IR_VERSION = 17, 8
CONTRIB = "com.microsoft"
"""Domain of ONNX Runtime's own operators."""


def step_model(step: Step) -> ModelProto:
    """A model of one operator on tensors of its own."""
    from onnx import TensorProto, helper

    rng = np.random.default_rng(0)
    inputs, stored, names = [], [], []
    for i, shape in enumerate(step.reads):
        name = f"x{i}"
        if i in step.weights:
            stored.append(_stored(name, rng.standard_normal(shape, np.float32)))
        else:
            inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        names.append(name)
    given = [np.array(values, np.int64) for values in step.given]
    if step.op == "ScatterND":
        table, rows = step.reads
        given = [rng.integers(0, table[0], (rows[0], 1))]
        names.insert(1, "g0")
    else:
        names += [f"g{i}" for i in range(len(given))]
    stored += [_stored(f"g{i}", values) for i, values in enumerate(given)]
    outputs = [f"y{i}" for i in range(step.writes)]
    node = helper.make_node(
        step.op, names, outputs, name="step", domain=step.domain, **dict(step.attributes)
    )
    shown = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph([node], "gradient", inputs, shown, stored)
    domains = [helper.make_opsetid("", OPSET), helper.make_opsetid(CONTRIB, 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=IR_VERSION)


def _stored(name: str, values: np.ndarray[Any, Any]) -> TensorProto:
    from onnx import numpy_helper

    return numpy_helper.from_array(values, name)


def step_times(
    steps: Iterable[Step], how: Measurement, progress: Callable[[float], None] = lambda share: None
) -> dict[Step, float]:
    """Seconds of each distinct step; steps that do not run here are left out.

    Parameters
    ----------
    progress
        Called with the share of finished steps.
    """
    found: dict[Step, float] = {}
    distinct = list(dict.fromkeys(steps))
    for done, step in enumerate(distinct, 1):
        # Where one does not run, another way may; if none does, the ratio by formula is left.
        with suppress(InputFileError):
            found[step] = fsum(measure_nodes(step_model(step), Path(os.curdir), how))
        progress(done / len(distinct))
    return found


def gradient_time(terms: Sequence[Term], times: Mapping[Step, float]) -> float | None:
    """Seconds of a gradient, each term in its fastest way; None: a term runs in none."""
    total = []
    for ways in terms:
        known = [fsum(times[s] for s in way) for way in ways if all(s in times for s in way)]
        if not known:
            return None
        total.append(min(known))
    return fsum(total)
