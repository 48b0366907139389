"""One operator as the cost formulas see it: its attributes, and the shapes around it."""

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
    """Whether formulas covered all of it; if not, `flop` counts only what they covered."""


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
        """Test whether input `index` is given."""
        return index < len(self.inputs) and self.inputs[index] != ""

    def shape(self, index: int) -> Shape:
        """Shape of input `index`."""
        if not self.has_input(index):
            raise ShapeUnknownError
        shape = self.shape_of(self.inputs[index])
        if shape is None:
            raise ShapeUnknownError
        return shape

    def out_shape(self, index: int = 0) -> Shape:
        """Shape of output `index`."""
        if index >= len(self.outputs) or not self.outputs[index]:
            raise ShapeUnknownError
        shape = self.shape_of(self.outputs[index])
        if shape is None:
            raise ShapeUnknownError
        return shape

    def size(self, index: int = 0) -> int:
        """Elements of input `index`."""
        return prod(self.shape(index))

    def out_size(self) -> int:
        """Elements of the first output that is named."""
        for name in self.outputs:
            if name:
                shape = self.shape_of(name)
                if shape is None:
                    raise ShapeUnknownError
                return prod(shape)
        raise ShapeUnknownError

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
