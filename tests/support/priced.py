"""Records of small graphs whose work is given, for tests of prices."""

from __future__ import annotations

from dnnp.formats.stream import Stream
from support import graphs
from support.graphs import header


def tensor(i: int, kind: str, size: float, dtype: str = "float32", **fields: object) -> dict:
    return graphs.tensor(i, kind, size, dtype=dtype, **fields)


def stream(nodes: list[dict], tensors: list[dict], groups: list[list[int]] | None = None) -> Stream:
    records = {"tensor": tensors, "node": nodes}
    if groups:
        records["group"] = [
            {"type": "group", "id": i, "name": f"g{i}", "nodes": members}
            for i, members in enumerate(groups)
        ]
    return Stream(header=header(), records=records)
