"""Graphs of which the placements of the literature come out: M, NN and K, on four devices.

Blocks of layers take 1 forward and 3 backward, and each device holds 1 of a micro-batch between the
two; four devices take half as long together. What is shared takes 4 on one device and 1 on each of
four, and has weights for four devices.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from support.seeds import encode

Record = dict[str, Any]
ALL = 4
"""Devices."""


class Part(NamedTuple):
    """A forward operator, and its gradient."""

    name: str
    reads: tuple[str, ...] = ()
    large: bool = False
    """True if it is made for all devices together."""
    weight: str = ""
    """Weights that others read, too; empty: its own."""
    held: float = 1.0


SHAPES: dict[str, tuple[Part, ...]] = {
    "M": (
        Part("embed", large=True, held=0.0),
        *(Part(f"l{i}", (f"l{i - 1}" if i else "embed",)) for i in range(4)),
    ),
    "NN": (
        Part("embed", large=True, weight="table", held=0.0),
        Part("l0", ("embed",)),
        Part("l1", ("l0",)),
        Part("again", ("l1",), large=True, weight="table", held=0.0),
        Part("l2", ("again",)),
        Part("l3", ("l2",)),
    ),
    "K": (
        Part("a0"),
        Part("a1", ("a0",)),
        Part("b0"),
        Part("b1", ("b0",)),
        Part("join", ("a1", "b1"), large=True, held=1.0),
    ),
}


def shape_stream(name: str, *, training: bool = True, room: float = 60.0) -> bytes:
    """A stream with shards; `room`: memory of each device."""
    parts = SHAPES[name]
    devices = {
        "type": "device", "class": "gpu", "kind": "accelerator", "count": ALL,
        "memory_bytes": room, "bandwidth_bytes_per_s": 1e6,
    }  # fmt: skip
    header = {
        "type": "header", "format": "dnnp", "version": 1, "model": name.lower(),
        "units": {"time": "s"}, "provenance": [],
    }  # fmt: skip
    if training:
        header["training"] = True
    tensors: list[Record] = []
    number: dict[str, int] = {}

    def tensor(name: str) -> int:
        if name not in number:
            number[name] = len(tensors)
            tensors.append(
                {"type": "tensor", "id": number[name], "name": name, "kind": "input"}
                | {"size_bytes": 0.0}
            )
        return number[name]

    nodes: list[Record] = []
    place = {part.name: v for v, part in enumerate(parts)}
    colors = {key: i for i, key in enumerate(dict.fromkeys(p.weight or p.name for p in parts))}

    def node(part: Part, reads: list[str], writes: list[str], *, late: bool) -> None:
        time = 4.0 if part.large else 1.0 + 2.0 * late
        first = next(p for p in parts if (p.weight or p.name) == (part.weight or part.name))
        weights = (100.0 if part.large else 4.0) if part is first and not late else 0.0
        held = 0.0 if late or not training else part.held
        record = {
            "type": "node", "id": len(nodes), "name": f"d{part.name}" if late else part.name,
            "op": "Op", "inputs": [*map(tensor, reads)], "outputs": [*map(tensor, writes)],
            "time_s": {"gpu": time}, "memory_bytes": weights + held, "held_bytes": held,
            "shards": [
                {
                    "devices": ALL, "time_s": {"gpu": time / (ALL if part.large else 2)},
                    "memory_bytes": weights / ALL + held, "held_bytes": held,
                }
            ],
        }  # fmt: skip
        if training:
            record["color"] = colors[part.weight or part.name]
        if late:
            record |= {"backward": True, "of": place[part.name]}
        nodes.append(record)

    for part in parts:
        node(part, list(part.reads) or ["x"], [part.name], late=False)
    readers = {part.name: [p.name for p in parts if part.name in p.reads] for part in parts}
    for part in reversed(parts) if training else ():
        before = [f"d{reader}>{part.name}" for reader in readers[part.name]]
        made = [f"d{part.name}>{read}" for read in part.reads] or [f"d{part.name}"]
        node(part, before or [part.name], made, late=True)
    for record in nodes:
        for t in record["outputs"]:
            tensors[t]["kind"] = "activation"
    return encode([header, devices, *tensors, *nodes])
