"""Plans of all kinds, exported, and what the whole model makes of the same inputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx

from dnnp.formats.export.manifest import manifest_schema
from dnnp.formats.stream import read_bytes
from support.run import dnnp
from support.split_models import graph, make, node, run_whole, value

Feeds = dict[str, np.ndarray]
FREE = ["partition", "-k", "2", "--validity", "free", "--bandwidth", "1T"]
KINDS = {
    "ordered": [["partition", "-k", "3"]],
    "free": [FREE],
    "latency": [["partition", "-k", "2", "--objective", "latency"]],
    "scheduled": [["partition", "-k", "3"], ["schedule", "-n", "4"]],
    "turns": [FREE, ["schedule", "-n", "4"]],
    "replicas": [["partition", "-k", "4", "--max-replicas", "3"]],
}
"""Kind of plan -> the commands that make it of a priced stream."""


def two_ways() -> onnx.ModelProto:
    """Two chains that meet, with a skip, a shared weight and a free dimension.

    What the second one hands out is small: a device that runs the first one, what comes before
    and what comes after has least to send, and has to wait in its midst.
    """
    weight = onnx.numpy_helper.from_array(np.eye(64, dtype=np.float32) / 2, "W")
    nodes = [node("MatMul", ["x", "W"], ["a0"])]
    for side in "ab":
        last = "a0"
        for i in range(4):
            nodes.append(node("MatMul", [last, "W"], [f"{side}{i}m"]))
            nodes.append(node("Tanh", [f"{side}{i}m"], [f"{side}{i}t"]))
            last = f"{side}{i}t"
    nodes.append(node("ReduceMean", ["b3t"], ["b"], axes=[1]))
    nodes += [node("Add", ["a3t", "b"], ["s"]), node("Mul", ["s", "a0"], ["y"])]
    ends = [value("x", ["n", 64])], [value("y", ["n", 64]), value("a1t", ["n", 64])]
    return make(graph(nodes, "two ways", *ends, [weight]))


def plan_of_kind(kind: str, folder: Path, model: onnx.ModelProto | None = None) -> bytes:
    """A stream with a plan; its model is saved in the folder."""
    path = folder / "m.onnx"
    path.write_bytes((model or two_ways()).SerializeToString())
    stream = dnnp("profile", stdin=dnnp("import", "--dim", "n=8", path).out).out
    for command in KINDS[kind]:
        done = dnnp(*command, stdin=stream)
        assert done.status == 0, done.err
        stream = done.out
    return stream


def exported(stream: bytes, folder: Path, *options: Any, to: str = "stages") -> dict[str, Any]:
    """Export a stream; its manifest, which the schema allows."""
    done = dnnp("export", "--to", to, "-o", folder, *options, stdin=stream)
    assert done.status == 0, done.err
    found = json.loads((folder / "manifest.json").read_text())
    jsonschema.Draft202012Validator(manifest_schema()).validate(found)
    assert found["source"]["sha256"] == read_bytes(stream).header["source"]["sha256"]
    return found


def sample(seed: int = 0) -> Feeds:
    """Inputs of `two_ways`."""
    return {"x": np.random.default_rng(seed).standard_normal((8, 64), np.float32)}


def same(found: Feeds, feeds: Feeds, model: onnx.ModelProto | None = None) -> None:
    """Compare outputs with those of the whole model."""
    expected = run_whole(model or two_ways(), feeds)
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)
