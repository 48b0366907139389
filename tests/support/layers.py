"""Graphs of any size with layers in their names, as exporters write them; a browser."""

from __future__ import annotations

import functools
import shutil

import dnnp as api
from dnnp.graph import Graph
from support.graphs import node, tensor
from support.seeds import encode, header

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
OPS = ("MatMul", "Add", "Mul", "Softmax", "Relu")


@functools.cache
def layered(count: int, k: int = 3, method: str = "uniform", name: str = "") -> Graph:
    """A chain with side branches in layers of attention and feed-forward parts, split.

    A layer has 40 nodes; `name` ends all names.
    """
    layers = max(1, count // 40)
    nodes, tensors = [], []
    for v in range(count):
        scope = f"/model/layers.{v * layers // count}/{('attn', 'mlp')[v % 40 >= 20]}"
        reads = sorted({u for u in (v - 1, v - 4 if v % 3 == 0 else -1) if u >= 0})
        made = {"name": f"{scope}/op_{v}_output_0", "shape": [1, v % 7 + 1], "dtype": "float32"}
        tensors.append(tensor(v, "activation", 100 + v % 7, **made))
        costs = {"flop": 2e6, "bytes": 500, "time_s": {"dev": 1e-6 * (1 + v % 11)}}
        nodes.append(node(v, OPS[v % 5], reads, [v], name=f"{scope}/op_{v}{name}", **costs))
    device = {
        "type": "device", "class": "dev", "kind": "accelerator", "bandwidth_bytes_per_s": 1e9,
        "memory_bytes": 1e9,
    }  # fmt: skip
    records = [header(model=f"layered{name}"), device, *tensors, *nodes]
    return api.split(Graph.from_bytes(encode(records)), k=k, method=method)
