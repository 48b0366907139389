"""Which of the shapes of the literature a placement has, whatever its blocks take."""

from __future__ import annotations

from collections import Counter

from dnnp.core.model.placement import Placement
from dnnp.core.pipeline.shapes import ALL, EVEN, shape

MOST_GROUPS = 64
"""Groups of devices up to which shapes are looked for."""


Form = tuple[str, tuple[int, ...], tuple[int, ...]]
"""Kind of a block, its groups of devices, and the forms of blocks that it waits for, by number."""


def shape_of(placement: Placement) -> tuple[str, int] | None:
    """A shape with the same blocks on the same devices, and its devices; None: there is none.

    Devices that run the same blocks count as one. Of waits only those matter that do not follow
    from others.
    """
    groups = _groups(placement)
    count = len(set(groups))
    if any(len(block.homes) > 1 for block in placement.blocks) or not 1 < count <= MOST_GROUPS:
        return None
    number: dict[Form, int] = {}
    mine = _forms(placement, groups, number)
    kinds = {block.kind for block in placement.blocks}
    inference = "backward" not in kinds
    for name in ALL:
        if name in EVEN and count % 2:
            continue
        other = shape(name, count, inference=inference)
        if len(other.blocks) != len(placement.blocks):
            continue
        if _forms(other, _groups(other), number) == mine:
            return name, count
    return None


def _groups(placement: Placement) -> list[int]:
    """Number of each device, those with the same blocks have one; by their first block."""
    blocks: dict[int, list[int]] = {d: [] for d in range(len(placement.units))}
    for i, block in enumerate(placement.blocks):
        for d in block.homes[0]:
            blocks[d].append(i)
    number: dict[tuple[int, ...], int] = {}
    return [number.setdefault(tuple(blocks[d]), len(number)) for d in sorted(blocks)]


def _forms(placement: Placement, groups: list[int], number: dict[Form, int]) -> Counter[Form]:
    """What blocks are, without their names and times; `number` those of all placements."""
    forms: dict[int, Form] = {}
    direct = [{wait.block for wait in block.after} for block in placement.blocks]
    all_of: dict[int, set[int]] = {}

    def ancestors(i: int) -> set[int]:
        if i not in all_of:
            all_of[i] = set().union(*({j} | ancestors(j) for j in direct[i]))
        return all_of[i]

    def form(i: int) -> Form:
        if i not in forms:
            needed = {j for j in direct[i] if not any(j in ancestors(o) for o in direct[i] - {j})}
            waits = tuple(sorted(number.setdefault(form(j), len(number)) for j in needed))
            block = placement.blocks[i]
            homes = tuple(sorted({groups[d] for d in block.homes[0]}))
            forms[i] = (block.kind, homes, waits)
        return forms[i]

    return Counter(form(i) for i in range(len(placement.blocks)))
