"""Memory of training: gradients, the state of the optimiser, weights in two precisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

OPTIMIZERS = {"adam": 2, "momentum": 1, "sgd": 0}
"""Optimiser -> numbers that it keeps for each weight, in float32."""

BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of an element of types that have gradients."""
MASTER_BYTES = 4
"""Bytes of a weight, and of a number of the optimiser, as it is updated."""


@dataclass(frozen=True)
class Optimizer:
    """What updates the weights."""

    name: str = "adam"
    """One of `OPTIMIZERS`."""

    def kept_bytes(self, tensor: Mapping[str, Any]) -> float:
        """What training keeps for a parameter besides the weights that the passes read.

        Its gradient, in the precision of the passes; the optimiser's numbers; and the weights
        themselves in float32, if the passes read them in fewer bits (as Micikevicius et al. 2018,
        "Mixed precision training").
        """
        size = float(tensor["size_bytes"])
        each = BYTES[tensor["dtype"]]
        count = size / each
        master = MASTER_BYTES if each < MASTER_BYTES else 0
        return size + count * (master + MASTER_BYTES * OPTIMIZERS[self.name])


def in_half_precision(tensors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tensor records with float16 in the place of float32."""
    return [
        {**record, "dtype": "float16", "size_bytes": record["size_bytes"] / 2}
        if record.get("dtype") == "float32"
        else record
        for record in tensors
    ]
