"""Whether the shapes inside a model can depend on what it is run on, its input shapes given."""

from __future__ import annotations

import onnx

_BY_VALUES = frozenset(
    {"Compress", "If", "Loop", "NonMaxSuppression", "NonZero", "Scan", "StringSplit", "Unique"}
)
"""Operators whose outputs may differ in shape from one sample to the next."""

_SHAPE_OPERANDS: dict[str, tuple[int, ...]] = {
    "Reshape": (1,), "Expand": (1,), "Range": (0, 1, 2), "Slice": (1, 2, 3, 4), "Tile": (1,),
    "ConstantOfShape": (0,), "Resize": (2, 3), "Upsample": (1,), "Pad": (1, 3), "TopK": (1,),
    "OneHot": (1,), "Split": (1,), "CenterCropPad": (1,), "AffineGrid": (1,), "Unsqueeze": (1,),
    "Squeeze": (1,), "DFT": (1, 2), "STFT": (1, 3), "MelWeightMatrix": (0, 1),
    "BlackmanWindow": (0,), "HannWindow": (0,), "HammingWindow": (0,), "MaxUnpool": (2,),
    "Col2Im": (1, 2), "ImageDecoder": (0,),
}  # fmt: skip
"""Operators, and their inputs whose values decide a shape."""

_OF_SHAPES = ("Shape", "Size")
"""Operators that look at shapes only."""


def depends_on_values(model: onnx.ModelProto) -> bool:
    """Whether the shape of some tensor may depend on the values of the model's inputs.

    True as well where that is not looked into: in local functions, and for operators of other
    domains.
    """
    graph = model.graph
    if model.functions:
        return True
    stored = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    varying = {value.name for value in graph.input} - stored
    for node in graph.node:
        if node.op_type in _BY_VALUES or node.domain not in ("", "ai.onnx", "com.microsoft"):
            return True
        read = [name in varying for name in node.input]
        if any(i < len(read) and read[i] for i in _SHAPE_OPERANDS.get(node.op_type, ())):
            return True
        if any(read) and node.op_type not in _OF_SHAPES:
            varying.update(node.output)
    return False
