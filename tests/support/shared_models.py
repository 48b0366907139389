"""Small transformers whose best plans on four devices have the shapes M, NN and K.

Tables of words, and the layer that joins two branches, take four times as long as a layer, and a
quarter of that on four devices; layers are hardly faster there. What is so large stays together,
unless all devices share it.
"""

from __future__ import annotations

import json
from math import sqrt
from pathlib import Path

from dnnp.samples.builder import Builder
from dnnp.samples.layers import gelu, layer_norm, linear, self_attention
from dnnp.samples.shapes import INT64, Value
from dnnp.samples.weights import normal, save
from support.run import dnnp

ALL = 4
"""Devices."""
WIDTH, HEADS, WORDS, LENGTH = 64, 4, 500, 12
LAYER_S = 1e-3

LARGE = "/large"
"""Scope of what is shared; `/layer.N` are layers."""


def _layer(b: Builder, x: Value, name: str) -> Value:
    with b.scope(name):
        y = self_attention(b, layer_norm(b, x, "before"), HEADS, None, "query", "key", "value")
        x = b.add(x, linear(b, y, WIDTH, "dense", gain=1 / sqrt(2)))
        y = gelu(b, linear(b, layer_norm(b, x, "after"), 2 * WIDTH, "up"))
        return b.add(x, linear(b, y, WIDTH, "down", gain=1 / sqrt(2)))


def _words(b: Builder, name: str) -> Value:
    at = b.input(name, (1, LENGTH), INT64, (0, WORDS - 1))
    with b.scope("large"):
        return b.gather(b.weight("words", (WORDS, WIDTH), normal(1.0)), at)


def build(shape: str, path: Path) -> Path:
    """Write the model of a shape."""
    b = Builder(shape, seed=1)
    if shape == "K":
        sides = []
        for side in "ab":
            x = b.input(side, (1, LENGTH, WIDTH))
            for i in range(2):
                x = _layer(b, x, f"layer.{side}{i}")
            sides.append(x)
        with b.scope("large"):
            x = b.concat(sides, axis=1)
            x = _layer(b, x, "joint")
    else:
        x = _words(b, "ids")
        for i in range(4):
            if shape == "NN" and i == 2:
                again = _words(b, "more")
                with b.scope("large"):
                    x = b.add(x, again)
            x = _layer(b, x, f"layer.{i}")
    b.output("y", x)
    save(b.build(), path)
    return path


SLOW = {
    "name": "slow", "kind": "accelerator", "peak_flop_per_s": {"float32": 1e7},
    "memory_bytes": 1e9, "fast_memory_bytes": 1e3, "memory_bandwidth_bytes_per_s": 1e7,
    "link_bandwidth_bytes_per_s": 1e10, "launch_overhead_s": 0.0,
}  # fmt: skip
"""A device on which it pays to share whatever can be shared."""


def priced(path: Path, layer_s: float = LAYER_S, alone: float = 1.0) -> bytes:
    """The stream of a model with such times; `alone`: times as long on one device as that."""
    stream = b""
    device = path.with_name("slow.json")
    device.write_text(json.dumps(SLOW))
    split = ("profile", "--device", str(device), "--tensor-parallel", str(ALL))
    for words in (("import", str(path)), split):
        result = dnnp(*words, stdin=stream)
        assert result.status == 0, result.err
        stream = result.out
    found = [json.loads(line) for line in stream.splitlines()]
    nodes = [record for record in found if record["type"] == "node"]
    parts: list[str] = []
    for record in nodes:
        scope = record["name"].split("/")[1]
        again = record["op"] == "Gather" and scope in parts
        parts.append(f"{scope} again" if again or scope + " again" in parts else scope)
    for part, record in zip(parts, nodes, strict=True):
        large = part.startswith("large")
        time = layer_s * (4.0 if large else 1.0) / parts.count(part)
        record["time_s"] = dict.fromkeys(record["time_s"], alone * time)
        if large:
            record["color"] = 0
        for entry in record["shards"]:
            share = 1 / entry["devices"] if large else 0.9
            entry["time_s"] = dict.fromkeys(entry["time_s"], time * share)
    return b"".join(json.dumps(record).encode() + b"\n" for record in found)
