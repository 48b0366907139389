"""The layers that `trtexec --exportProfile` writes: the number of runs, then a record a layer.

The name of a layer tells which nodes it joins: ` + ` and ` || ` stand between them, and some words
around them say what the layer is. Layers that TensorRT's compiler makes end in `_myl0_5` or the
like; those called `__myl_...` name operators but no node. What `trtexec --exportLayerInfo` writes,
of an engine built with `--profilingVerbosity=detailed`, names the nodes of each.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from dnnp.core.model.errors import FormatError
from dnnp.formats.checked_json import Fields
from dnnp.formats.given_cost import GivenCost

_AROUND = re.compile(
    r"Reformatting CopyNode for (?:Input|Output) Tensor \d+ to "
    r"|(?:copied_)?(?:un)?(?:reshape|squeeze|shuffle|transpose|cast)(?:_node)?_(?:before|after)_"
    r"|node_of_"
)
"""Words in front of the name of a node that a layer is part of."""
_FOREIGN = re.compile(r"\{ForeignNode\[(.*)\]\}", re.DOTALL)
"""What its compiler took together, by the first and the last name."""
_AFTER = re.compile(r"(?:_myl\d+(?:_\d+)*| copy)$")
"""What follows the name of a node that the compiler took, or of a tensor that is copied."""
_NODE = re.compile(r"\[ONNX Layer: (.*?)\](?=[\s\x1e\x1f\[]|$)")
"""A node in what a layer is made of; separators stand between them."""
_BETWEEN = re.compile(r" \+ | \|\| |, ")


def read_layers(rows: Sequence[Any], path: str) -> tuple[GivenCost, ...]:
    """The time of every layer: the median over the runs where there is one, else the mean.

    See `cost_files.read_costs`.
    """
    costs = []
    runs = 0
    for i, row in enumerate(rows):
        fields = Fields(row, f"[{i}]", path)
        if "name" not in fields:
            runs = fields.count("count") or runs
            continue
        name = fields.text("name")
        for field in ("medianMs", "averageMs"):
            if field in fields:
                milliseconds = fields.number(field)
                break
        else:
            if not runs:
                raise FormatError("no count of runs before it to divide by", path, None,
                                  fields.place("timeMs"))  # fmt: skip
            milliseconds = fields.number("timeMs") / runs
        parts, span = layer_names(name)
        costs.append(GivenCost(name, milliseconds * 1e-3, parts, span))
    return tuple(costs)


def read_made_of(document: dict[str, Any], path: str) -> dict[str, tuple[str, ...]]:
    """Name of each layer of `trtexec --exportLayerInfo` -> names of the nodes that it is made of.

    Raises
    ------
    FormatError
        No layer says so.
    """
    found: dict[str, tuple[str, ...]] = {}
    rows = document["Layers"]
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict) and isinstance(row.get("Name"), str):
            nodes = _NODE.findall(str(row.get("Metadata", "")))
            if nodes:
                found[row["Name"]] = tuple(dict.fromkeys(nodes))
    if not found:
        reason = "no layer says which nodes it is made of; build the engine with "
        raise FormatError(f"{reason}--profilingVerbosity=detailed", path, None, "Layers")
    return found


def layer_names(name: str) -> tuple[tuple[str, ...], tuple[str, str] | None]:
    """Names that the name of a layer joins; or the first and the last one of a range.

    >>> layer_names("/a/Conv + PWN(/b/Relu, /b/Add)")
    (('/a/Conv', '/b/Relu', '/b/Add'), None)
    >>> layer_names("/a/MatMul_myl0_2")
    (('/a/MatMul',), None)
    >>> layer_names("{ForeignNode[/a/Add.../b/Softmax]}")
    ((), ('/a/Add', '/b/Softmax'))
    """
    name = _AFTER.sub("", name.strip())
    foreign = _FOREIGN.fullmatch(name)
    if foreign:
        first, dots, last = foreign[1].partition("...")
        return ((), (first, last)) if dots else ((foreign[1],), None)
    parts: dict[str, None] = {}
    for word in _BETWEEN.split(_AROUND.sub("", name, count=1)):
        plain = word.strip()
        while plain.startswith(("PWN(", "(")) or _AROUND.match(plain):
            plain = _AROUND.sub("", plain.removeprefix("PWN").removeprefix("("), count=1)
        plain = plain.rstrip(")") if "(" not in plain else plain
        if plain:
            parts[plain] = None
    return tuple(parts), None
