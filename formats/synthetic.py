"""The stream of a generated graph."""

from __future__ import annotations

import numpy as np

from dnnp.core.model.graph import Floats, Ints
from dnnp.formats.records import FORMAT, VERSION
from dnnp.formats.stream import Record, Stream

DEVICE_CLASS = "unit"
"""The one device class that such a graph has costs for."""


def synthetic_stream(name: str, tail: Ints, head: Ints, size: Floats, cost: Floats) -> Stream:
    """A priced stream without a source file.

    The link moves one byte per unit of time, so that a tensor's size is its transfer time, as in
    MTPP (Archer et al. 2024, Appendix B.1). A tensor without readers is an output of the model.

    Parameters
    ----------
    name
        Model name.
    tail, head
        i64[e] each; node `head[i]` reads the tensor of node `tail[i]`. Heads ascend.
    size, cost
        f64[n] each, size of the tensor that each node writes, and its time.
    """
    n = len(size)
    starts = np.searchsorted(head, np.arange(n + 1)).tolist()
    reads = tail.tolist()
    is_read = np.bincount(tail, minlength=n) > 0
    tensors: list[Record] = []
    nodes: list[Record] = []
    rows = zip(size.tolist(), cost.tolist(), is_read.tolist(), strict=True)
    for i, (number_of_bytes, time, used) in enumerate(rows):
        tensor: Record = {
            "type": "tensor",
            "id": i,
            "name": f"node{i}",
            "kind": "activation",
            "size_bytes": number_of_bytes,
        }
        if not used:
            tensor["output"] = True
        tensors.append(tensor)
        nodes.append(
            {
                "type": "node",
                "id": i,
                "name": f"node{i}",
                "op": "",
                "inputs": reads[starts[i] : starts[i + 1]],
                "outputs": [i],
                "time_s": {DEVICE_CLASS: time},
            }
        )
    header: Record = {
        "type": "header",
        "format": FORMAT,
        "version": VERSION,
        "model": name,
        "units": {"time": "unknown"},
        "provenance": [],
    }
    device: Record = {
        "type": "device",
        "class": DEVICE_CLASS,
        "kind": "accelerator",
        "bandwidth_bytes_per_s": 1,
    }
    return Stream(header, {"device": [device], "tensor": tensors, "node": nodes}, name=name)
