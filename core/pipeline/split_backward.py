"""Backward passes in two parts: what the stage before waits for, and what only weights need.

Qi et al. 2023 (Zero Bubble Pipeline Parallelism), section 2: the gradient of a layer's input is
urgent, the gradient of its weights can be computed at any time later. The activations of the
forward pass are held until then.
"""

from __future__ import annotations

from dataclasses import replace

from dnnp.core.model.errors import UsageError
from dnnp.core.model.placement import PlacedBlock, Placement, Wait


def split_backward(placement: Placement, share: float) -> Placement:
    """Give every backward block a weight block, which takes `share` of its time.

    Blocks keep their positions; weight blocks come after all others. What a backward block
    releases, its weight block does.

    Raises
    ------
    UsageError
        The share is not between 0 and 1, the backward blocks have been split before, or there
        are none.
    """
    if not 0 <= share <= 1:
        raise UsageError(f"the share of the weight gradient lies between 0 and 1, not {share}")
    kinds = {block.kind for block in placement.blocks}
    if "weight" in kinds:
        raise UsageError("the backward blocks have been split already")
    if "backward" not in kinds:
        raise UsageError("there are no backward blocks to split")
    names = {block.name for block in placement.blocks}
    blocks, weights = [], []
    for position, block in enumerate(placement.blocks):
        if block.kind != "backward":
            blocks.append(block)
            continue
        name = unused(f"W{block.name.removeprefix('B')}", names)
        late = share * block.time_s
        released = min(block.memory_bytes, 0.0)
        after = (Wait(position),)
        weights.append(PlacedBlock(name, "weight", block.homes, late, released, after, block.stage))
        kept = max(block.memory_bytes, 0.0)
        blocks.append(replace(block, time_s=block.time_s - late, memory_bytes=kept))
    return replace(placement, blocks=(*blocks, *weights))


def unused(name: str, names: set[str]) -> str:
    """The name, with a number if it is taken; it is taken from now on."""
    found, number = name, 2
    while found in names:
        found, number = f"{name}.{number}", number + 1
    names.add(found)
    return found
