"""What the stages of a parallel plan cost, stage by stage: the definition the search is held to.

A stage of degree t with d replicas takes, for each micro-batch of a batch of N,

    load = (compute + in + out) / d + sync,    sync = f (d - 1) / d * weights / (N * bandwidth)

where `--comm` may let transfers and compute overlap, and `--overlap-sync` the synchronisation with
the rest; f is a number of `dnnp.core.model.hybrid.WEIGHT_SYNC`. Each of its devices holds

    memory = fixed + y * held,    y = ceil(s / d)

where s is the number of replicas of this stage and of all later ones: in a schedule of one forward
and one backward pass in turn (1F1B) a replica has that many micro-batches under way (Piper, section
3, equations for `TPS` and memory).

A shared stage has t devices, all there are, and one replica. A device then takes

    its own stage's load + the loads of all shared stages

and so much memory; the value of a plan is the largest such sum.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dnnp.core.cost.combine import combine
from dnnp.core.model.graph import Bools, Floats, Ints
from dnnp.core.model.hybrid import HybridBlock, HybridCost, HybridProblem


def in_flight(replicas: int, later: int) -> int:
    """Micro-batches under way on a replica; `later`: replicas of all later stages."""
    return -(-(replicas + later) // replicas)


def shared_sync(problem: HybridProblem, weights: float, replicas: int) -> float:
    """Time to synchronise so many bytes of weights, per micro-batch."""
    return problem.sync_s * weights * (replicas - 1) / replicas


def crossing(problem: HybridProblem, inside: Bools) -> tuple[Bools, Bools]:
    """Nets that enter a set of items, and that leave it; bool[p] each.

    `inside`: bool[n].
    """
    p = len(problem.source)
    net = np.repeat(np.arange(p), np.diff(problem.pin_ptr))
    pinned = np.bincount(net, weights=inside[problem.pins], minlength=p)
    some = pinned > 0
    cut = some & (pinned < np.diff(problem.pin_ptr))
    mine = (problem.source >= 0) & inside[problem.source]
    return cut & ~mine & (problem.source >= 0), cut & mine


def block_cost(
    problem: HybridProblem, block: HybridBlock, later: int, weights: float | None = None
) -> HybridCost:
    """Cost of a stage on each of its devices; `later`: replicas of all later stages.

    `weights`: bytes that its replicas synchronise, where they are more than those of its items.
    """
    i, d = block.degree, block.replicas
    inside = np.zeros(problem.n, dtype=np.bool_)
    inside[block.items] = True
    again = np.zeros(problem.n, dtype=np.int64)
    again[block.recomputed] = 1
    chosen = again[block.items]

    def total(values: Floats) -> float:
        return float(values[chosen, i, block.items].sum())

    compute = total(problem.time)
    enters, leaves = crossing(problem, inside)
    in_s, out_s = float(problem.in_s[i, enters].sum()), float(problem.out_s[i, leaves].sum())
    if weights is None:
        weights = float(problem.weight[i, block.items].sum())
    sync = shared_sync(problem, weights, d)
    y = in_flight(d, later)
    held = total(problem.held)
    if len(block.recomputed):
        held += float(problem.kept[enters].sum())
    load = combine(problem.comm, in_s, compute, 0.0, out_s) / d
    load = max(load, sync) if problem.options.overlap_sync else load + sync
    return HybridCost(load, compute, in_s, out_s, sync, total(problem.fixed) + y * held, y)


def costs_of(
    problem: HybridProblem,
    blocks: Sequence[HybridBlock],
    weights: Sequence[float | None] | None = None,
) -> list[HybridCost]:
    """Cost of every stage of a plan, in the order of the pipeline; `weights` as in `block_cost`."""
    later = sum(block.replicas for block in blocks)
    found = []
    for b, block in enumerate(blocks):
        later -= block.replicas
        found.append(block_cost(problem, block, later, None if weights is None else weights[b]))
    return found


def value_of(blocks: Sequence[HybridBlock], costs: Sequence[HybridCost]) -> float:
    """Load of the busiest device of a plan."""
    own = [c.load_s for b, c in zip(blocks, costs, strict=True) if not b.shared]
    return max(own, default=0.0) + shared_time(blocks, costs)


def shared_time(blocks: Sequence[HybridBlock], costs: Sequence[HybridCost]) -> float:
    """Time of every device for the shared stages of a plan."""
    return sum(c.load_s for b, c in zip(blocks, costs, strict=True) if b.shared)


def memory_of(blocks: Sequence[HybridBlock], costs: Sequence[HybridCost]) -> float:
    """Memory of the fullest device of a plan."""
    own = [c.memory_bytes for b, c in zip(blocks, costs, strict=True) if not b.shared]
    return max(own, default=0.0) + shared_memory(blocks, costs)


def shared_memory(blocks: Sequence[HybridBlock], costs: Sequence[HybridCost]) -> float:
    """Memory of every device for the shared stages of a plan."""
    return sum(c.memory_bytes for b, c in zip(blocks, costs, strict=True) if b.shared)


def degrees_of(problem: HybridProblem) -> list[int]:
    """Positions of the tensor-parallel degrees that are allowed."""
    most = min(problem.options.tensor_parallel, problem.devices)
    return [i for i, t in enumerate(problem.degrees.tolist()) if t <= most]


def replicas_of(problem: HybridProblem) -> Ints:
    """Numbers of replicas that are allowed, ascending: they share a batch equally; i64[r]."""
    options = problem.options
    most = min(options.data_parallel, options.micro_batches, problem.devices)
    numbers = np.arange(1, most + 1)
    return numbers[options.micro_batches % numbers == 0]
