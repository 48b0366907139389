"""Which nodes of a stream the names in a file of costs stand for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from dnnp.core.model.errors import DnnpError

if TYPE_CHECKING:
    from dnnp.caller import Caller
    from dnnp.formats.given_cost import CostFile, GivenCost
    from dnnp.formats.stream import Stream

Regions = Mapping[str, Sequence[int]]
"""Name of a fused node -> positions of the nodes that it stands for."""

_ADDED = re.compile(r"(_nchwc|_token_\d+|/MatMul\w+Fusion/?|_new_reshape)$")
"""What ONNX Runtime appends to the name of a node, or of a tensor, when it makes another one."""
_LEVELS = ("EXTENDED", "BASIC")
"""Optimisation levels that a profile may have been made at; the next one changes layouts only."""


class Names:
    """Nodes of a stream by what they are called."""

    def __init__(self, stream: Stream) -> None:
        nodes, tensors = stream.get("node"), stream.get("tensor")
        called: dict[str, list[int]] = {}
        for i, record in enumerate(nodes):
            # Nodes without a name are called so by ONNX Runtime, and by the parser of TensorRT.
            name = record["name"] or f"{record['op']}_{record['id']}"
            called.setdefault(name, []).append(i)
        self._nodes = {name: places[0] for name, places in called.items() if len(places) == 1}
        self.ambiguous = {name for name, places in called.items() if len(places) > 1}
        title = {record["id"]: record["name"] for record in tensors}
        self._written: dict[str, int] = {}
        self._read: dict[str, int] = {}
        for i, record in enumerate(nodes):
            for t in record["outputs"]:
                self._written.setdefault(title[t], i)
            for t in record["inputs"]:
                self._read.setdefault(title[t], i)

    def node(self, name: str) -> int | None:
        """The node that is called so, or that writes a tensor which is."""
        return self._nodes.get(name, self._written.get(name))

    def places(self, cost: GivenCost, regions: Regions, named: set[int]) -> list[int]:
        """Positions of the nodes that a cost is for, ascending; empty where there are none.

        `named` are those that have a cost by their own name; no range takes them.
        """
        if cost.span is not None:
            first = self.node(cost.span[0])
            first = self._read.get(cost.span[0]) if first is None else first
            last = self.node(cost.span[1])
            if first is None or last is None:
                return []
            return [i for i in range(first, last + 1) if i in (first, last) or i not in named]
        found: set[int] = set()
        for part in cost.parts or (cost.name,):
            found.update(self._part(part, regions))
        return sorted(found)

    def _part(self, name: str, regions: Regions) -> Iterable[int]:
        while True:
            if name in regions:
                return regions[name]
            place = self.node(name)
            if place is not None:
                return (place,)
            shorter = _ADDED.sub("", name).removeprefix("fused ")
            if shorter == name:
                return ()
            name = shorter


def matched(
    stream: Stream, file: CostFile, model: str | None, caller: Caller
) -> list[tuple[GivenCost, list[int]]]:
    """Each cost of a file with the nodes that it is for.

    Where ONNX Runtime has fused nodes, the model is opened to see which; without it a fused node
    stands for the one that it is named after.
    """
    names = Names(stream)
    regions: Regions = {}
    if file.kind == "onnxruntime" and any(names.node(cost.name) is None for cost in file.costs):
        regions = _regions(stream, file, model, caller)
    named = {
        place
        for cost in file.costs
        if cost.span is None
        for place in names.places(cost, regions, set())
    }
    return [(cost, names.places(cost, regions, named)) for cost in file.costs]


def _regions(stream: Stream, file: CostFile, model: str | None, caller: Caller) -> Regions:
    """What the nodes of the optimised graph stand for that knows most names of a profile."""
    from dnnp.core.runtime.borders import optimised_model
    from dnnp.core.runtime.fusion import regions_by_name
    from dnnp.source import open_source

    position = {record["id"]: i for i, record in enumerate(stream.get("node"))}
    best: Regions = {}
    most = 0
    try:
        source, path, _ = open_source(caller, stream, model)
        for level in _LEVELS:
            found = regions_by_name(source, optimised_model(source, path.parent, level=level))
            known = sum(cost.name in found for cost in file.costs)
            if known > most:
                most = known
                best = {
                    name: [position[v] for v in region if v in position]
                    for name, region in found.items()
                }
    except DnnpError as error:
        caller.warn(
            f"{file.path}: what ONNX Runtime fused is told by names alone, without the model: "
            f"{error}"
        )
    return {name: region for name, region in best.items() if region}
