"""Costs of operators on several devices at once: tensor parallelism, as a graph states it.

A tensor is whole, each device has all of it; or it is cut along an axis into one part a device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dnnp.core.model.phases import total

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

WHOLE = -1
"""State of a tensor that each device has all of; others are the axis that it is cut along, with
`BLOCK` for what is cut in blocks."""


BLOCK = 1 << 8
"""Added to a state for each further equal part of the axis of which devices take their share apart:
with two devices and three parts a0 a1 b0 b1 c0 c1, the first device has a0 b0 c0."""


def block_state(axis: int, blocks: int) -> int:
    """State of a tensor that is split along an axis in so many blocks."""
    return axis + BLOCK * (blocks - 1)


def axis_of(state: int) -> int:
    """Axis of the state of a tensor that is split."""
    return state % BLOCK


def blocks_of(state: int) -> int:
    """Number of blocks of the state of a tensor that is split; 1 for most."""
    return state // BLOCK + 1


def cut(size: int, devices: int) -> list[tuple[int, int]]:
    """Begin and end of the part of each device; the first ones are longer by one if need be.

    >>> cut(5, 2)
    [(0, 3), (3, 5)]
    """
    least, more = divmod(size, devices)
    begins = [i * least + min(i, more) for i in range(devices + 1)]
    return list(pairwise(begins))


def ranges(size: int, devices: int, state: int, device: int) -> list[tuple[int, int]]:
    """The part of an axis of a cut tensor that a device has: one range a block.

    >>> ranges(12, 2, block_state(0, 3), 1)
    [(2, 4), (6, 8), (10, 12)]
    """
    block = size // blocks_of(state)
    begin, end = cut(block, devices)[device]
    return [(b * block + begin, b * block + end) for b in range(blocks_of(state))]


class Share(NamedTuple):
    """The layout of a node that runs on some devices at once."""

    degree: int
    """Position of the degree in `Shards.degrees`."""
    node: int
    inputs: tuple[int, ...]
    """State that it needs of each input."""
    outputs: tuple[int, ...]
    """State of each output when it has run, its all-reduce included."""
    reduced: bool
    """True if the outputs are summed over the devices."""


class Collective(NamedTuple):
    """A collective among the devices that run a node together."""

    degree: int
    """Position of the degree in `Shards.degrees`."""
    node: int
    kind: str
    """As in `dnnp.core.cost.load_formula`."""
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
    """Costs if the backward pass runs the forward pass again; None: they follow from the graph."""
    weight: Floats
    """f64[D, n], bytes of weights on each device; nan: not stated."""
    collectives: tuple[Collective, ...]
    in_bytes: Floats
    """f64[D, m], what each device moves besides when a tensor enters a stage."""
    out_bytes: Floats
    """The same for one that leaves."""
    shares: tuple[Share, ...] = ()
    """Stated ways in which nodes run, by degree and node."""
    phase_times: Mapping[str, Floats] | None = None
    """Device class -> f64[p, D, n] at all points; None: there are no phases."""

    def of_passes(self, passes: Sequence[float]) -> Shards:
        """The shards with the times of so many passes of each phase, together."""
        if self.phase_times is None:
            return self
        shape = self.weight.shape
        rows = {c: x.reshape(len(x), -1) for c, x in self.phase_times.items()}
        times = {c: total(passes, x).reshape(shape) for c, x in rows.items()}
        return replace(self, plain=self.plain._replace(times=times))
