"""The forward pass of a graph of training, as a stream of its own."""

from __future__ import annotations

from dnnp.formats.stream import Stream


def forward_pass(stream: Stream) -> Stream:
    """Nodes that are not of the backward pass, and the tensors that they read and write.

    Groups and what was computed from them are left out; lines stay, for messages.
    """
    nodes = [i for i, node in enumerate(stream.get("node")) if not node.get("backward")]
    used: set[int] = set()
    for i in nodes:
        used.update(stream.get("node")[i]["inputs"], stream.get("node")[i]["outputs"])
    tensors = [i for i, tensor in enumerate(stream.get("tensor")) if tensor["id"] in used]
    part = Stream(stream.header, name=stream.name)
    part.records = {kind: stream.get(kind) for kind in ("device", "link")}
    for kind, kept in (("tensor", tensors), ("node", nodes)):
        part.records[kind] = [stream.get(kind)[i] for i in kept]
        if kind in stream.lines:
            part.lines[kind] = [stream.lines[kind][i] for i in kept]
    return part
