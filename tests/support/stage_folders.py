"""Models with weight files, and their export."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from dnnp.core.model.plan import Stage
from dnnp.formats.export.manifest import Role, manifest_of
from dnnp.formats.export.stage_folder import Weights, stage_units, write_export
from dnnp.formats.onnx.stages import StageModel, split_model
from support.split_models import graph, make, node, value

SIZE = 1024
ABOUT = {
    "model": "m",
    "source": {"path": "m.onnx", "sha256": "0" * 64},
    "units": {"time": "s"},
    "plan": {
        "digest": "0" * 64,
        "k": 2,
        "method": "test",
        "objective": "throughput",
        "validity": "ordered",
        "value": 0.5,
        "stages": 2,
    },
    "devices": [{"class": "acc", "kind": "accelerator", "count": 2}],
}


def external(
    name: str, location: str, offset: int | str, length: int | None = 4 * SIZE, dims=(SIZE,), kind=1
) -> TensorProto:
    """An initializer whose data is elsewhere; float32 by default."""
    tensor = TensorProto(name=name, data_type=kind, dims=dims, data_location=TensorProto.EXTERNAL)
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


def export(model: onnx.ModelProto, source: Path, target: Path, **options) -> Weights:
    """Save the model, split it in two and write the stages."""
    path = source / "m.onnx"
    path.write_bytes(model.SerializeToString())
    stages = split_model(model, [[0], [1, 2]])
    return write_stages(stages, model, path, target, **options)


def role(number: int, device: str = "", replicas: int = 1, **loads: float) -> Role:
    """A stage on a device; what it costs is made up."""
    numbers = dict.fromkeys(("load_s", "in_s", "compute_s", "overflow_s", "out_s"), 0.5) | loads
    device = device or f"acc/{number}"
    kind = device.partition("/")[0]
    return Role(Stage(device, kind, (), memory_bytes=64.0, replicas=replicas, **numbers), number)


def write_stages(
    stages: Sequence[StageModel], model: onnx.ModelProto, path: Path, target: Path, **options
) -> Weights:
    """Write stages on devices `acc/0`, `acc/1` and so on."""
    roles = [role(i) for i in range(len(stages))]
    manifest = manifest_of(stages, model, roles, ABOUT, {})
    return write_export(stage_units(stages), manifest, path, target, **options)


def files(folder: Path) -> dict[str, bytes]:
    """Contents of all files in a folder, by path."""
    found = (p for p in folder.rglob("*") if p.is_file())
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in found}


def chain(folder: Path, layers: int, width: int, *, sparse: bool = False) -> Path:
    """Save y = tanh(... tanh(tanh(x W0) W1) ... W0) with its matrices in a weight file.

    The last matrix is the first one again: stages share it. `sparse`: the file is one big hole.
    """
    size = 4 * width * width
    names = [f"W{i}" for i in range(layers)]
    stored = []
    with (folder / "w.bin").open("wb") as file:
        file.truncate(layers * size)
        for i, name in enumerate(names):
            stored.append(external(name, "w.bin", i * size, size, dims=(width, width)))
            if not sparse:
                values = np.random.default_rng(i).standard_normal((width, width), np.float32)
                file.write(values.data)
    nodes, last = [], "x"
    for i, name in enumerate([*names, names[0]]):
        nodes += [node("MatMul", [last, name], [f"m{i}"]), node("Tanh", [f"m{i}"], [f"t{i}"])]
        last = f"t{i}"
    ends = [value("x", [1, width])], [value(last, [1, width])]
    path = folder / "m.onnx"
    path.write_bytes(make(graph(nodes, "chain", *ends, stored)).SerializeToString())
    return path
