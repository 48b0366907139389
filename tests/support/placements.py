"""Random placements for the tests of pipeline schedules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dnnp.core.model.schedule import PlacedBlock, Placement, Unit, Wait
from dnnp.core.schedule.recipes import Classic


def random_placement(
    seed: int, *, devices: int = 0, pairs: int = 0, whole: bool = True, memory: bool = True
) -> Placement:
    """Forward blocks in a random DAG, each with a backward block in the mirrored DAG.

    Devices (2 to 6) and pairs (2 to 8) are drawn unless given; times are whole numbers from 0 to
    4, or real ones, memories whole numbers from 0 to 3, held from forward to backward; now and
    then a block runs on several devices.
    """
    rng = np.random.default_rng([seed, devices, pairs])
    devices = devices or int(rng.integers(2, 7))
    pairs = pairs or int(rng.integers(2, 9))

    def time(most: int) -> float:
        return (
            float(rng.integers(0, most + 1)) if whole else float(np.round(rng.random() * most, 3))
        )

    homes, held, before = [], [], []
    for i in range(pairs):
        many = int(rng.integers(2, devices + 1)) if rng.random() < 0.15 else 1
        homes.append(tuple(sorted(rng.choice(devices, many, replace=False).tolist())))
        held.append(float(rng.integers(0, 4)) if memory else 0.0)
        known = [j for j in range(i) if rng.random() < 0.4]
        before.append(known if known or rng.random() < 0.3 else [i - 1] if i else [])
    blocks = [
        PlacedBlock(f"F{i}", "forward", (homes[i],), time(3), held[i], tuple(map(Wait, before[i])))
        for i in range(pairs)
    ]
    for i in reversed(range(pairs)):
        readers = [2 * pairs - 1 - j for j in range(pairs) if i in before[j]]
        waits = tuple(map(Wait, [i, *readers]))
        blocks.append(PlacedBlock(f"B{i}", "backward", (homes[i],), time(4), -held[i], waits))
    return Placement(
        f"random-{seed}", tuple(Unit(f"device/{d}") for d in range(devices)), tuple(blocks)
    )


def on_groups(placement: Placement, width: int) -> Placement:
    """The same where every device is a group of `width`, all of which run its blocks at once."""
    units = tuple(
        replace(unit, name=f"{unit.name}.{i}") for unit in placement.units for i in range(width)
    )
    blocks = tuple(
        replace(
            block,
            homes=tuple(
                tuple(d * width + i for d in home for i in range(width)) for home in block.homes
            ),
        )
        for block in placement.blocks
    )
    return replace(placement, units=units, blocks=blocks)


def names(made: Classic, placement: Placement, unit: int) -> str:
    """Blocks of a unit with their micro-batches: `F0.0 F0.1 B0.0`."""
    k = made.problem.k
    parts = [(placement.blocks[i % k].name, i // k) for i in made.orders[unit].tolist()]
    return " ".join(f"{name}.{n}" for name, n in parts)
