"""What operators take on several devices at once: tensor parallelism, as a graph states it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Collective(NamedTuple):
    """What the devices that run a node together exchange."""

    degree: int
    """Position of the degree in `Shards.degrees`."""
    node: int
    kind: str
    """As in `dnnp.core.cost.collectives`."""
    size: float
    """Bytes of the whole tensor."""


class Costs(NamedTuple):
    """Nodes at every degree; f64[D, n]. nan: not stated."""

    times: Mapping[str, Floats]
    """Device class -> f64[D, n], seconds; inf: it cannot run so."""
    memory: Floats
    """Bytes on each device with one micro-batch under way."""
    held: Floats
    """The part that each micro-batch under way holds."""


@dataclass(frozen=True, eq=False)
class Shards:
    """Nodes and tensors by tensor-parallel degree: `D` degrees, `n` nodes, `m` tensors."""

    degrees: Ints
    """i64[D], ascending, 1 among them."""
    plain: Costs
    again: Costs | None
    """Where the backward pass runs the forward pass again; None: it follows from the graph."""
    weight: Floats
    """f64[D, n], bytes of weights on each device; nan: not stated."""
    collectives: tuple[Collective, ...]
    in_bytes: Floats
    """f64[D, m], what each device moves besides when a tensor enters a stage."""
    out_bytes: Floats
    """The same for one that leaves."""
