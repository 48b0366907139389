"""A model with weight files, and its export."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto

from dnnp.formats.onnx_stages import split_model
from dnnp.formats.onnx_weights import Placed
from dnnp.formats.stage_folder import write_stages
from support.split_models import graph, make, node, value

SIZE = 1024
ABOUT = {"model": "m", "source": {"kind": "onnx", "path": "m.onnx", "sha256": "0" * 64}}


def external(name: str, location: str, offset: int | str, length: int | None = 4 * SIZE):
    """An initializer whose data is elsewhere."""
    tensor = TensorProto(name=name, data_type=1, dims=[SIZE], data_location=TensorProto.EXTERNAL)
    fields = {"location": location, "offset": offset, "length": length}
    for key, item in fields.items():
        if item is not None:
            tensor.external_data.add(key=key, value=str(item))
    return tensor


def model_with(first: str = "w.bin", second: str = "w.bin", **fields) -> onnx.ModelProto:
    """y = (x + A) * B - A, with A and B in weight files."""
    nodes = [
        node("Add", ["x", "A"], ["a"]),
        node("Mul", ["a", "B"], ["b"]),
        node("Sub", ["b", "A"], ["y"]),
    ]
    stored = [external("A", first, 4096), external("B", second, 8192, **fields)]
    ends = [value("x", [SIZE])], [value("y", [SIZE])]
    return make(graph(nodes, "external", *ends, stored))


def export(model: onnx.ModelProto, source: Path, target: Path, **options) -> list[Placed]:
    """Save the model, split it in two and write the stages."""
    path = source / "m.onnx"
    path.write_bytes(model.SerializeToString())
    stages = split_model(model, [[0], [1, 2]])
    return write_stages(
        stages, model, path, target, about=ABOUT, devices=["acc/0", "acc/1"], **options
    )
