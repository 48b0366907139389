"""Parallel plans: stages that several devices hold together, and in several copies.

Three kinds of parallelism at once, as in Piper ("Piper: Multidimensional Planner for DNN
Parallelization", NeurIPS 2021): a stage is a part of a pipeline; `t` devices run it together,
each with a shard of its operators (tensor parallelism); and there are `d` replicas of that, which
share the micro-batches of a batch among them (data parallelism). Forward passes may be run again
in the backward pass, so that less is held between the two (recomputation).

Besides stages on devices of their own there may be *shared* ones, which all devices hold together,
such as an embedding (Tessel, section IV.A): a device computes its own stage and its part of each
shared one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dnnp.core.model.graph import Bools, Floats, Ints

RECOMPUTE = ("none", "full", "auto")
"""Whether stages run their forward passes again: none of them, all, or those that gain by it."""

WEIGHT_SYNC = {"ring": 2.0, "server": 4.0}
"""How replicas add up their gradients -> bytes that a device moves for each byte of weights, times
(d - 1) / d: around a ring, or by parameter servers on the same devices, as in Piper's planner."""


@dataclass(frozen=True)
class HybridOptions:
    """Limits of a parallel plan, and how it is priced."""

    tensor_parallel: int = 1
    """Devices that may hold a replica of a stage together, at most."""
    data_parallel: int = 1
    """Replicas of a stage, at most."""
    micro_batches: int = 32
    """Micro-batches in a batch; replicas share them equally."""
    recompute: str = "none"
    """One of `RECOMPUTE`."""
    weight_sync: str = "ring"
    """One of `WEIGHT_SYNC`."""
    overlap_sync: bool = False
    """Whether weights are synchronised while the stage computes."""
    shared_stages: int = 0
    """Stages that all devices share, at most."""


@dataclass(frozen=True, eq=False)
class HybridProblem:
    """`n` items to be split, `p` nets, `D` degrees; seconds (or the stream's unit) and bytes.

    The first axis of `time`, `held` and `fixed` is whether the forward pass is run again. That is a
    choice of each of `q` parts of items, or of a stage; then there is one part an item.
    """

    degrees: Ints
    """i64[D], tensor-parallel degrees, ascending."""
    part: Ints
    """i64[q], the item of each part."""
    time: Floats
    """f64[2, D, q], of one micro-batch, collectives included; inf: it cannot run so."""
    held: Floats
    """f64[2, D, q], bytes on each device for every micro-batch that is under way."""
    fixed: Floats
    """f64[2, D, q], bytes on each device besides."""
    weight: Floats
    """f64[D, n], bytes of weights on each device, which replicas synchronise; what several items
    read is the first one's."""
    pin_ptr: Ints
    pins: Ints
    """Items of each net (CSR), ascending: who makes a tensor, and who reads it; or who reads a
    weight."""
    source: Ints
    """i64[p], item that makes the tensor, or the first that reads the weight."""
    in_s: Floats
    """f64[D, p], time when it enters a stage of such a degree."""
    out_s: Floats
    """f64[D, p], time when it leaves one."""
    kept: Floats
    """f64[p], bytes that a stage that runs its forward pass again holds of a tensor that enters it,
    for every micro-batch that is under way."""
    read: Floats
    """f64[D, p], bytes of weights of a stage that reads them without their first item."""
    tail: Ints
    head: Ints
    """Distinct precedence pairs between items, tail < head."""
    devices: int
    memory: float
    """Of one device."""
    sync_s: float
    """Time to synchronise a byte of weights, per micro-batch, but for the factor (d - 1) / d."""
    comm: int
    """How transfers and compute combine, one of `dnnp.core.cost.load_formula.COMM`."""
    options: HybridOptions
    ahead: Bools
    """bool[n], items with something to run again; a stage without any does not."""
    partwise: bool = False
    """Whether the choice to run forward passes again is one of each part, where nothing is kept of
    what enters a stage; else it is one of a stage."""
    whole: int = -1
    """Position of the degree of shared stages, which is that of all devices; -1: there are none."""
    shared_only: Bools | None = None
    """bool[n], items that only shared stages may hold; None: there are none."""

    @property
    def n(self) -> int:
        """Number of items."""
        return self.weight.shape[1]

    def parts(self, items: Ints) -> Ints:
        """Parts of some items, ascending."""
        mine = np.zeros(self.n, dtype=np.bool_)
        mine[items] = True
        return np.flatnonzero(mine[self.part])


class HybridBlock(NamedTuple):
    """A stage to be: what a search returns."""

    items: Ints
    """Ascending."""
    degree: int
    """Position of its tensor-parallel degree in `HybridProblem.degrees`."""
    replicas: int
    recomputed: Ints
    """Parts that run their forward pass again, ascending; a stage's choice: none, or all."""
    shared: bool = False
    """Whether all devices hold it, besides stages of their own; it has one replica then."""


class HybridCost(NamedTuple):
    """Costs of a stage on each of its devices, for a micro-batch."""

    load_s: float
    compute_s: float
    """Before replicas share it, as all times but `load_s`."""
    in_s: float
    out_s: float
    sync_s: float
    memory_bytes: float
    in_flight: int
    """Micro-batches under way on a device at once."""
