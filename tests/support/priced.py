"""Records of small graphs whose work is given, for tests of prices."""

from __future__ import annotations

from dnnp.formats.stream import Stream
from support.graphs import header


def tensor(i: int, kind: str, size: float, dtype: str = "float32", **fields: object) -> dict:
    return {
        "type": "tensor",
        "id": i,
        "name": f"t{i}",
        "kind": kind,
        "size_bytes": size,
        "dtype": dtype,
        **fields,
    }


def node(i: int, op: str, inputs: list[int], outputs: list[int], **fields: object) -> dict:
    return {
        "type": "node",
        "id": i,
        "name": f"n{i}",
        "op": op,
        "inputs": inputs,
        "outputs": outputs,
        **fields,
    }


def stream(nodes: list[dict], tensors: list[dict], groups: list[list[int]] | None = None) -> Stream:
    records = {"tensor": tensors, "node": nodes}
    if groups:
        records["group"] = [
            {"type": "group", "id": i, "name": f"g{i}", "nodes": members}
            for i, members in enumerate(groups)
        ]
    return Stream(header=header(), records=records)
