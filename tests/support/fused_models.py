"""Models of which ONNX Runtime makes fewer operators than they have."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from support.split_models import array, graph, make, node, value


def normalised() -> onnx.ModelProto:
    """A sum that is normalised, which ONNX Runtime makes one operator of."""
    rng = np.random.default_rng(1)
    nodes = [
        node("MatMul", ["x", "w"], ["m"]),
        node("Add", ["m", "bias"], ["b"]),
        node("Add", ["b", "x"], ["s"]),
        node("LayerNormalization", ["s", "scale", "shift"], ["l"]),
        node("MatMul", ["l", "w"], ["y"]),
    ]
    stored = [array("w", rng.standard_normal((256, 256)))]
    stored += [array(name, rng.standard_normal(256)) for name in ("bias", "scale", "shift")]
    ends = [value("x", [1, 8, 256])], [value("y", [1, 8, 256])]
    return make(graph(nodes, "normalised", *ends, stored))


def int4() -> onnx.ModelProto:
    """Two products with weights of 4 bits, in blocks, which ONNX Runtime fuses with them."""
    rng, size, nodes, stored, last = np.random.default_rng(1), 64, [], [], "x"
    for i in range(2):
        values = rng.integers(-8, 8, size * size)
        stored.append(onnx.helper.make_tensor(f"q{i}", TensorProto.INT4, [size, size], values))
        stored.append(array(f"s{i}", rng.uniform(0.01, 0.02, (size // 32, size))))
        nodes.append(node("DequantizeLinear", [f"q{i}", f"s{i}"], [f"d{i}"], axis=0, block_size=32))
        nodes.append(node("MatMul", [last, f"d{i}"], [f"m{i}"]))
        last = f"r{i}"
        nodes.append(node("Relu", [f"m{i}"], [last]))
    ends = [value("x", [2, size])], [value(last, [2, size])]
    return make(graph(nodes, "int4", *ends, stored), ir=10, opset=21)
