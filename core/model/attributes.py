"""Weights that the attributes of an operator hold."""

from __future__ import annotations

from typing import Any


def attribute_bytes(node: Any) -> int:
    """Bytes of the numbers and strings in lists and tensors among a `NodeProto`'s attributes."""
    total = 0
    for attribute in node.attribute:
        total += 4 * len(attribute.floats) + 8 * len(attribute.ints)
        total += sum(map(len, attribute.strings))
        if attribute.HasField("t"):
            total += attribute.t.ByteSize()
    return total
