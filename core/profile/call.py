"""One operator as the cost formulas see it, and those of constant work an element.

Weights count arithmetic instructions of a vector implementation: 1 for an addition,
multiplication, comparison or selection, 4 for a division or square root, 10 for one
transcendental function (a range reduction and a polynomial of degree 5 to 8).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

Shape = tuple[int, ...]
ShapeOf = Callable[[str], "Shape | None"]
BytesOf = Callable[[str], float]


class Cost(NamedTuple):
    """Work and traffic of one execution of an operator."""

    flop: float
    """Floating-point (or integer) operations; a multiply-add counts as two."""
    bytes: float
    """Bytes read from and written to memory."""
    known: bool
    """True if formulas covered all of it; if not, `flop` counts only what they covered."""


class ShapeUnknownError(LookupError):
    """A formula needs a shape that is absent. Raised and caught inside this package."""


class Call:
    """A node with access to the shapes and sizes of its tensors.

    Parameters
    ----------
    node
        A `NodeProto`, or anything with `input`, `output` and `attribute`.
    shape_of
        Tensor name to shape; None where unknown.
    bytes_of
        Tensor name to size in bytes; 0 where unknown.
    constant_of
        Name of a scalar integer tensor to its value, None where it is not a constant.
    """

    __slots__ = ("bytes_of", "constant_of", "inputs", "node", "outputs", "shape_of")

    def __init__(
        self,
        node: Any,
        shape_of: ShapeOf,
        bytes_of: BytesOf,
        constant_of: Callable[[str], int | None] | None = None,
    ) -> None:
        self.node = node
        self.inputs: Sequence[str] = node.input
        self.outputs: Sequence[str] = node.output
        self.shape_of = shape_of
        self.bytes_of = bytes_of
        self.constant_of = constant_of

    def has_input(self, index: int) -> bool:
        """True if input `index` is given."""
        return index < len(self.inputs) and self.inputs[index] != ""

    def _shape(self, name: str) -> Shape:
        """Shape of a tensor; ShapeUnknownError: none is known, or there is no name."""
        shape = self.shape_of(name) if name else None
        if shape is None:
            raise ShapeUnknownError
        return shape

    def shape(self, index: int) -> Shape:
        """Shape of input `index`."""
        return self._shape(self.inputs[index] if index < len(self.inputs) else "")

    def out_shape(self, index: int = 0) -> Shape:
        """Shape of output `index`."""
        return self._shape(self.outputs[index] if index < len(self.outputs) else "")

    def size(self, index: int = 0) -> int:
        """Elements of input `index`."""
        return prod(self.shape(index))

    def out_size(self) -> int:
        """Elements of the first output that is named."""
        return prod(self._shape(next(filter(None, self.outputs), "")))

    def attribute(self, name: str) -> Any:
        """The `AttributeProto` called `name`, or None."""
        for attribute in self.node.attribute:
            if attribute.name == name:
                return attribute
        return None

    def integer(self, name: str, default: int) -> int:
        """Integer attribute."""
        found = self.attribute(name)
        return default if found is None else int(found.i)

    def integers(self, name: str) -> Sequence[int]:
        """List-of-integers attribute; empty when absent."""
        found = self.attribute(name)
        return () if found is None else found.ints

    def text(self, name: str, default: str) -> str:
        """String attribute."""
        found = self.attribute(name)
        return default if found is None else found.s.decode("utf-8", "replace")

    def scalar(self, index: int) -> int | None:
        """Value of the integer scalar at input `index` if it is a constant."""
        if self.constant_of is None or not self.has_input(index):
            return None
        return self.constant_of(self.inputs[index])

    def bytes_in(self, index: int) -> float:
        """Bytes of input `index`; 0 when it is not given."""
        return self.bytes_of(self.inputs[index]) if self.has_input(index) else 0.0

    def bytes_out(self) -> float:
        """Bytes of all outputs."""
        return sum(self.bytes_of(name) for name in self.outputs if name)

    def bytes_all(self) -> float:
        """Bytes of all tensors of the node, each once."""
        bytes_of = self.bytes_of
        total = 0.0
        if len(self.inputs) == 1:
            if self.inputs[0]:
                total = bytes_of(self.inputs[0])
        else:
            for name in dict.fromkeys(self.inputs):
                if name:
                    total += bytes_of(name)
        for name in self.outputs:
            if name:
                total += bytes_of(name)
        return total


Formula = Callable[[Call], float]

DIVIDE = 4.0
TRANSCENDENTAL = 10.0
SIGMOID = TRANSCENDENTAL + 1 + DIVIDE
ERF_GELU = TRANSCENDENTAL + 4
TANH_GELU = TRANSCENDENTAL + 8
SOFTMAX = 3 + TRANSCENDENTAL + 1
"""Maximum, subtraction, exponential, sum, and scaling by the reciprocal."""


def free(call: Call) -> float:
    """No arithmetic."""
    return 0.0


def per_output(weight: float) -> Formula:
    """`weight` operations an element of the first output."""
    return lambda call: weight * call.out_size()


def per_input(weight: float) -> Formula:
    """`weight` operations an element of the first input."""
    return lambda call: weight * call.size(0)


def per_parameter(weight: float) -> Formula:
    """`weight` operations an element of all outputs together, for optimisers.

    The outputs are the parameters and one or two tensors of state for each: `weight`
    counts what one of these elements takes.
    """

    def flop(call: Call) -> float:
        return weight * sum(prod(call.out_shape(i)) for i, name in enumerate(call.outputs) if name)

    return flop


def sorting(call: Call) -> float:
    """n log2 n comparisons over all elements of the first input."""
    size = call.size(0)
    return float(size * max(size.bit_length() - 1, 1))


def local_response(call: Call) -> float:
    """LRN: squares summed over a window of channels, then x / (bias + a s) ** beta."""
    window = call.integer("size", 1)
    return call.size(0) * (2.0 * window + 2 + TRANSCENDENTAL + DIVIDE)


def scatter(call: Call) -> float:
    """One operation an update where updates are combined, none where they replace."""
    if call.text("reduction", "none") == "none":
        return 0.0
    return float(call.size(2))


def _each(names: str, weight: float) -> dict[str, float]:
    return dict.fromkeys(names.split(), weight)


ELEMENTWISE: dict[str, float] = {
    # One operation.
    **_each(
        "Abs Add And BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil Equal "
        "Floor Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual Mul Neg Not Or Relu Round Sign "
        "Sub ThresholdedRelu Trilu Where Xor",
        1.0,
    ),
    "Clip": 2.0,
    "LeakyRelu": 2.0,
    "PRelu": 2.0,
    "Shrink": 3.0,
    "HardSigmoid": 4.0,
    "HardSwish": 5.0,
    # Division and square root.
    "Div": DIVIDE,
    "Mod": DIVIDE + 2,
    "Reciprocal": DIVIDE,
    "Sqrt": DIVIDE,
    "Softsign": DIVIDE + 2,
    # One transcendental function.
    **_each(
        "Acos Acosh Asin Asinh Atan Atanh Cos Cosh Erf Exp Log Pow Sin Sinh Tan Tanh",
        TRANSCENDENTAL,
    ),
    "Sigmoid": SIGMOID,
    "Swish": SIGMOID + 2,
    "SwiGLU": SIGMOID + 3,
    "Gelu": ERF_GELU,
    "Elu": TRANSCENDENTAL + 3,
    "Celu": TRANSCENDENTAL + DIVIDE + 3,
    "Selu": TRANSCENDENTAL + 4,
    "Softplus": 2 * TRANSCENDENTAL + 1,
    "Mish": 3 * TRANSCENDENTAL + 2,
    # Quantisation: scale, round, saturate.
    "QuantizeLinear": 4.0,
    "DequantizeLinear": 2.0,
    "DynamicQuantizeLinear": 6.0,
}
"""Operations an element of the output."""

GENERATORS: dict[str, float] = {
    "Bernoulli": TRANSCENDENTAL,
    "RandomUniform": TRANSCENDENTAL,
    "RandomUniformLike": TRANSCENDENTAL,
    "RandomNormal": 2 * TRANSCENDENTAL,
    "RandomNormalLike": 2 * TRANSCENDENTAL,
    "BlackmanWindow": 2 * TRANSCENDENTAL,
    "HammingWindow": TRANSCENDENTAL + 2,
    "HannWindow": TRANSCENDENTAL + 2,
    "MelWeightMatrix": 6.0,
    "AffineGrid": 6.0,
}
"""Operations an element of the output, for operators that read next to nothing."""

REDUCTIONS: dict[str, float] = {
    **_each(
        "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceLogSum ArgMax ArgMin "
        "CumSum CumProd GlobalAveragePool GlobalMaxPool NegativeLogLikelihoodLoss NonZero "
        "Compress",
        1.0,
    ),
    **_each(
        "ReduceL1 ReduceL2 ReduceSumSquare Hardmax GlobalLpPool",
        2.0,
    ),
    "ReduceLogSumExp": TRANSCENDENTAL + 3,
    "Softmax": SOFTMAX,
    "Multinomial": SOFTMAX,
    "LogSoftmax": SOFTMAX + 1,
    **_each(
        "LayerNormalization InstanceNormalization GroupNormalization MeanVarianceNormalization",
        8.0,
    ),
    "RMSNormalization": 5.0,
    "LpNormalization": 2.0 + DIVIDE,
    "SoftmaxCrossEntropyLoss": SOFTMAX + 2,
}
"""Operations an element of the first input."""
