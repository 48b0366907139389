"""The layers that `trtexec --exportProfile` writes: the number of runs, then a record a layer.

The name of a layer tells which nodes it joins: ` + ` and ` || ` stand between them, and some words
around them say what the layer is.
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


def layer_names(name: str) -> tuple[tuple[str, ...], tuple[str, str] | None]:
    """Names that the name of a layer joins; or the first and the last one of a range.

    >>> layer_names("/a/Conv + PWN(/b/Relu, /b/Add)")
    (('/a/Conv', '/b/Relu', '/b/Add'), None)
    >>> layer_names("{ForeignNode[/a/Add.../b/Softmax]}")
    ((), ('/a/Add', '/b/Softmax'))
    """
    foreign = _FOREIGN.fullmatch(name.strip())
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
