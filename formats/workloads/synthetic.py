"""The stream of a generated graph."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dnnp.core.model.graph import Floats, Ints
from dnnp.formats.header import bare_header
from dnnp.formats.stream import Record, Stream
from dnnp.formats.workloads.records import device_record, node_record, tensor_record

DEVICE_CLASS = "unit"
"""The one device class that such a graph has costs for."""


def synthetic_stream(
    name: str, tail: Ints, head: Ints, size: Floats, cost: Floats | Mapping[str, Floats]
) -> Stream:
    """A priced stream without a source file.

    The link moves one byte per unit of time, so that a tensor's size is its transfer time, as in
    MTPP (Archer et al. 2024, Appendix B.1). A tensor without readers is an output of the model.

    Parameters
    ----------
    name
        Model name.
    tail, head
        i64[e] each; node `head[i]` reads the tensor of node `tail[i]`. Heads ascend.
    size
        f64[n], size of the tensor that each node writes.
    cost
        f64[n], time of each node on the one class; or such times by class, one device of each.
    """
    n = len(size)
    starts = np.searchsorted(head, np.arange(n + 1)).tolist()
    reads = tail.tolist()
    is_read = np.bincount(tail, minlength=n) > 0
    tensors: list[Record] = []
    nodes: list[Record] = []
    counted = isinstance(cost, Mapping)
    times = cost if isinstance(cost, Mapping) else {DEVICE_CLASS: cost}
    by_node = zip(*(column.tolist() for column in times.values()), strict=True)
    rows = zip(size.tolist(), by_node, is_read.tolist(), strict=True)
    for i, (number_of_bytes, time, used) in enumerate(rows):
        tensor = tensor_record(i, f"node{i}", number_of_bytes)
        if not used:
            tensor["output"] = True
        tensors.append(tensor)
        inputs, time_s = reads[starts[i] : starts[i + 1]], dict(zip(times, time, strict=True))
        nodes.append(node_record(i, f"node{i}", inputs=inputs, outputs=[i], time_s=time_s))
    stated: Record = {"count": 1} if counted else {}
    devices = [device_record(c, **stated, bandwidth_bytes_per_s=1) for c in times]
    header = bare_header(name, "unknown")
    return Stream(header, {"device": devices, "tensor": tensors, "node": nodes}, name=name)
