"""The chains of stages that named schedules need, derived from what blocks wait for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from graphlib import TopologicalSorter
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from dnnp.core.model.errors import UsageError
from dnnp.core.model.graph import Ints
from dnnp.core.model.placement import Placement


class Stage(NamedTuple):
    """A position in a chain of stages: blocks on the same units; weight -1 if there is none."""

    forward: int
    backward: int
    weight: int = -1


def topological(placement: Placement) -> list[int]:
    """Blocks, each after all that it waits for."""
    waits = {i: [w.block for w in block.after] for i, block in enumerate(placement.blocks)}
    return list(TopologicalSorter(waits).static_order())


def levels(placement: Placement) -> Ints:
    """Most blocks that come one after another before each block; i64[k]."""
    level = np.zeros(len(placement.blocks), dtype=np.int64)
    for i in topological(placement):
        before = [level[w.block] for w in placement.blocks[i].after]
        level[i] = max(before) + 1 if before else 0
    return level


def only_chain(placement: Placement, name: str) -> list[Stage]:
    """The stages of a placement that is one chain; see `chain_of`."""
    return chain_of(placement, range(len(placement.blocks)), name)


def chain_of(placement: Placement, part: Iterable[int], name: str) -> list[Stage]:
    """The stages that blocks form, first stage first.

    Forward blocks wait for each other one by one, backward blocks do so the other way round on
    the same units; a weight block waits for the backward block of its stage.

    Raises
    ------
    UsageError
        They do not; the reason names the schedule that needs it.
    """
    blocks = placement.blocks
    of_kind: dict[str, list[int]] = {"forward": [], "backward": [], "weight": []}
    members = set(part)
    for i in topological(placement):
        if i in members:
            of_kind[blocks[i].kind].append(i)
    for kind in ("forward", "backward"):
        for a, b in pairwise(of_kind[kind]):
            if all(w.block != a for w in blocks[b].after):
                raise UsageError(
                    f"{name} needs stages in a chain, but {kind} block '{blocks[b].name}' does "
                    f"not wait for '{blocks[a].name}'"
                )
    forward, backward = of_kind["forward"], of_kind["backward"][::-1]
    if len(forward) != len(backward):
        raise UsageError(
            f"{name} needs a backward block for each forward block: there are {len(backward)} "
            f"for {len(forward)}"
        )
    for f, b in zip(forward, backward, strict=True):
        if blocks[f].homes != blocks[b].homes:
            raise UsageError(
                f"{name} needs backward block '{blocks[b].name}' on the devices of forward "
                f"block '{blocks[f].name}'"
            )
    if any(blocks[w.block].kind != "forward" for f in forward for w in blocks[f].after):
        raise UsageError(f"{name} needs forward blocks that wait for forward blocks only")
    weight = _weights(placement, of_kind["weight"], name)
    return [Stage(f, b, weight.get(b, -1)) for f, b in zip(forward, backward, strict=True)]


def _weights(placement: Placement, found: list[int], name: str) -> dict[int, int]:
    """The weight block of each backward block that has one."""
    blocks = placement.blocks
    weight: dict[int, int] = {}
    for i in found:
        before = {w.block for w in blocks[i].after if blocks[w.block].kind == "backward"}
        same = [b for b in before if blocks[b].homes == blocks[i].homes]
        if len(before) != 1 or not same or same[0] in weight:
            raise UsageError(
                f"{name} needs weight blocks that each wait for the backward block of their "
                f"stage; '{blocks[i].name}' does not"
            )
        weight[same[0]] = i
    if any(blocks[w.block].kind == "weight" for block in blocks for w in block.after):
        raise UsageError(f"{name} needs weight blocks that nothing waits for")
    return weight


def parts(placement: Placement) -> list[list[int]]:
    """Blocks that wait for each other, however far apart; parts by their first block."""
    label = list(range(len(placement.blocks)))

    def root(i: int) -> int:
        while label[i] != i:
            label[i] = i = label[label[i]]
        return i

    for i, block in enumerate(placement.blocks):
        for wait in block.after:
            a, b = sorted((root(i), root(wait.block)))
            label[b] = a
    found: dict[int, list[int]] = {}
    for i in range(len(label)):
        found.setdefault(root(i), []).append(i)
    return list(found.values())


def one_stage_each(placement: Placement, chain: Sequence[Stage], name: str) -> None:
    """Refuse a chain where a device has several stages."""
    user: dict[int, int] = {}
    for stage in chain:
        for home in placement.blocks[stage.forward].homes:
            for d in home:
                if d in user:
                    a, b = (placement.blocks[i].name for i in (user[d], stage.forward))
                    raise UsageError(
                        f"{name} needs each stage on devices of its own; {placement.units[d].name} "
                        f"runs '{a}' and '{b}'"
                    )
                user[d] = stage.forward


def shared_stages(placement: Placement, chain: Sequence[Stage]) -> tuple[list[int], list[int]]:
    """Positions of stages on devices of their own, one or a group, and of shared ones.

    Shared is a stage whose devices are those of another stage and more.
    """
    homes = [
        frozenset(d for part in placement.blocks[stage.forward].homes for d in part)
        for stage in chain
    ]
    shared = [s for s, home in enumerate(homes) if any(other < home for other in set(homes))]
    return [s for s in range(len(chain)) if s not in set(shared)], shared


def opposite_chains(placement: Placement, name: str) -> list[list[Stage]]:
    """The two chains; the devices of one are those of the other backwards."""
    found = [chain_of(placement, part, name) for part in parts(placement)]
    homes = [[placement.blocks[stage.forward].homes for stage in chain] for chain in found]
    if len(found) != 2 or homes[0] != homes[1][::-1] or any(len(h) > 1 for h in homes[0]):
        raise UsageError(f"{name} needs two chains of stages in opposite directions")
    if len(found[0]) % 2:
        raise UsageError(f"{name} needs an even number of stages, not {len(found[0])}")
    one_stage_each(placement, found[0], name)
    return found


def fill(rank: Ints, stage: Stage, turn: Ints, warm: int, lag: int) -> None:
    """`warm` forwards, then backward, weight (`lag` later) and forward in turn."""
    rank[:, stage.forward] = 3 * (turn - warm) + 2
    rank[:, stage.backward] = 3 * turn
    if stage.weight >= 0:
        rank[:, stage.weight] = 3 * (turn + lag) + 1
