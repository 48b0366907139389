"""Inputs that choose which branch of a model runs, such as a sample rate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dnnp.formats.onnx.scope import subgraphs

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

Names = frozenset[str]


def branch_inputs(model: ModelProto, inputs: Iterable[str]) -> list[str]:
    """Those of some inputs whose values, not their shapes, reach the condition of an If."""
    found: set[str] = set()
    functions = {(f.domain, f.name): f for f in model.functions}
    seen: set[tuple[str, str, tuple[Names, ...]]] = set()
    given = list(inputs)

    def follow(nodes: Iterable[NodeProto], known: dict[str, Names]) -> None:
        for node in nodes:
            read = Names().union(*(known.get(name, ()) for name in node.input))
            if node.op_type == "If":
                found.update(read)
            for body in subgraphs(node):
                inner = known | {value.name: read for value in body.input}
                follow(body.node, inner)
                read = read.union(*(inner.get(value.name, ()) for value in body.output))
            function = functions.get((node.domain, node.op_type))
            if function is not None:
                handed = tuple(known.get(name, Names()) for name in node.input)
                if (key := (node.domain, node.op_type, handed)) not in seen:
                    seen.add(key)
                    follow(function.node, dict(zip(function.input, handed, strict=False)))
            if read and node.op_type not in ("Shape", "Size"):
                known.update(dict.fromkeys(node.output, read))

    if given:
        follow(model.graph.node, {name: Names((name,)) for name in given})
    return [name for name in given if name in found]
