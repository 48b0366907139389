"""Small models, each a chain of one kind of operator, that a device file is fitted on.

A case is a block of operators that keeps the shape of its input. It is timed as a short and as a
long chain of blocks with weights of their own: the difference is what the blocks take, without
what a run takes at its start and end, and with weights that come from beyond the nearest caches,
as in a model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

Shape = tuple[int, ...]

TYPES = {"float32": np.float32, "float64": np.float64, "float16": np.float16}
_OPSET, _IR = 17, 8


@dataclass
class Builder:
    """Collects the nodes and weights of a chain."""

    dtype: str
    nodes: list[NodeProto] = field(default_factory=list)
    weights: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)

    def weight(self, *shape: int, inner: int = 1) -> str:
        """Random weights; `inner`, the length of the sums that they are in, sets their scale."""
        rng = np.random.default_rng(len(self.weights))
        return self.constant(rng.standard_normal(shape, np.float32) / sqrt(inner))

    def constant(self, value: np.ndarray[Any, Any]) -> str:
        """A weight of this value; floating-point values in the type of the chain."""
        name = f"w{len(self.weights)}"
        floating = value.dtype.kind == "f"
        self.weights[name] = value.astype(TYPES[self.dtype]) if floating else value
        return name

    def add(self, op: str, *inputs: str, outputs: int = 1, domain: str = "", **given: Any) -> str:
        """Add a node; its first output, the others are called the same with .1, .2 behind."""
        from onnx import helper

        name = f"t{len(self.nodes)}"
        names = [name, *(f"{name}.{i}" for i in range(1, outputs))]
        self.nodes.append(
            helper.make_node(op, list(inputs), names, name=f"n{name}", domain=domain, **given)
        )
        return name


Block = Callable[[Builder, str], str]
"""(builder, input) -> output, of the input's shape and type."""


@dataclass(frozen=True)
class Case:
    """One point of the grid."""

    kind: str
    """What is varied, in a word."""
    shape: Shape
    """Of the input and output."""
    block: Block
    dtype: str = "float32"
    threads: int = 1
    weight: float = 1.0
    """What its error counts in a fit."""

    @property
    def title(self) -> str:
        """What it is, in a few words."""
        sizes = "x".join(map(str, self.shape))
        return f"{self.kind} {sizes} {self.dtype}" + f" {self.threads} threads" * (self.threads > 1)

    def chain(self, length: int) -> ModelProto:
        """The model of `length` blocks."""
        from onnx import helper, numpy_helper

        builder = Builder(self.dtype)
        out = "x"
        for _ in range(length):
            out = self.block(builder, out)
        element = helper.np_dtype_to_tensor_dtype(np.dtype(TYPES[self.dtype]))
        ends = [helper.make_tensor_value_info(n, element, self.shape) for n in ("x", out)]
        weights = [numpy_helper.from_array(v, n) for n, v in builder.weights.items()]
        graph = helper.make_graph(builder.nodes, self.kind, ends[:1], ends[1:], weights)
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=_IR)
