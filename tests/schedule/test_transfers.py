"""Transfers as blocks: which are needed, on which units; one order that never deadlocks."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from dnnp.core.model.errors import FormatError, UsageError
from dnnp.core.model.schedule import PlacedBlock, Placement, Unit, Wait, check_placement
from dnnp.core.schedule.problem import ScheduleProblem, problem_of, violations
from dnnp.core.schedule.shapes import shape
from dnnp.core.schedule.starts import left_shift
from dnnp.core.schedule.transfers import MODES, global_order, with_transfers, without_transfers
from support.placements import random_placement

Homes = tuple[tuple[int, ...], ...]


def small(*parts: tuple[Homes, Sequence[Wait]], devices: int = 4) -> Placement:
    """Forward blocks A, B, ... of time 1."""
    blocks = (
        PlacedBlock("ABCDEFGH"[i], "forward", homes, 1.0, 0.0, tuple(after))
        for i, (homes, after) in enumerate(parts)
    )
    return Placement("small", tuple(Unit(f"d/{i}") for i in range(devices)), tuple(blocks))


def test_blocking_transfers_occupy_both_devices() -> None:
    found = with_transfers(shape("V", 2), "blocking", time_s=0.5, delay_s=0.25)
    check_placement(found)
    assert [b.name for b in found.blocks] == [
        "F0",
        "F1",
        "B1",
        "B0",
        "F0>device/1",
        "B1>device/0",
    ]
    assert found.blocks[4].homes == ((0, 1),)
    assert found.blocks[5].homes == ((1, 0),)
    assert found.blocks[4].after == (Wait(0),)
    assert found.blocks[1].after == (Wait(4, 0.25),)
    assert found.blocks[2].after == (Wait(1),)
    assert {(b.kind, b.time_s, b.memory_bytes) for b in found.blocks[4:]} == {
        ("transfer", 0.5, 0.0)
    }
    assert len(found.units) == 2


def test_non_blocking_transfers_occupy_links() -> None:
    found = with_transfers(shape("V", 2), "non-blocking", time_s=0.5)
    assert found.units[2:] == (
        Unit("device/0>device/1", link=True),
        Unit("device/1>device/0", link=True),
    )
    assert [b.homes for b in found.blocks[4:]] == [((2,),), ((3,),)]
    assert found.devices == (0, 1)


def test_times_of_waits_and_instead_of_them() -> None:
    waits = [Wait(0, 0.5, 2.0)]
    placement = small((((0,),), []), (((1,),), waits), (((0,),), [Wait(0, 0.5, 2.0)]))
    found = with_transfers(placement, "blocking")
    assert found.blocks[3].time_s == 2.0
    assert found.blocks[1].after == (Wait(3, 0.5),)
    assert found.blocks[2].after == (Wait(0, 0.5),)
    assert with_transfers(placement, "blocking", time_s=3.0).blocks[3].time_s == 3.0
    none = with_transfers(placement, "none", delay_s=9.0)
    assert none.blocks[1].after == (Wait(0, 0.5),)
    assert len(none.blocks) == 3


def test_no_time_is_no_transfer_but_latency_stays() -> None:
    placement = small((((0,),), []), (((1,),), [Wait(0)]), (((0,),), [Wait(0)]))
    for mode in MODES:
        found = with_transfers(placement, mode)
        assert found == placement
    found = with_transfers(placement, "non-blocking", delay_s=0.5)
    assert found.blocks[1].after == (Wait(0, 0.5),)
    assert found.blocks[2].after == (Wait(0),)
    assert (len(found.blocks), len(found.units)) == (3, 4)


def test_readers_on_one_device_share_a_transfer() -> None:
    placement = small(
        (((0,),), []),
        (((1,),), [Wait(0, 0.0, 1.0)]),
        (((1,),), [Wait(0, 0.0, 3.0)]),
        (((2,),), [Wait(0, 0.0, 2.0)]),
    )
    found = with_transfers(placement, "non-blocking")
    assert [(b.name, b.time_s) for b in found.blocks[4:]] == [("A>d/1", 3.0), ("A>d/2", 2.0)]
    assert found.blocks[1].after == found.blocks[2].after == (Wait(4),)


def test_blocks_on_several_devices() -> None:
    """From the first unit, to each unit that has not run the block that makes the result."""
    placement = small(
        (((1, 2),), []), (((0, 1, 2, 3),), [Wait(0)]), (((2,),), [Wait(1)]), (((3,),), [Wait(0)])
    )
    found = with_transfers(placement, "blocking", time_s=1.0)
    assert [b.homes for b in found.blocks[4:]] == [((1, 0),), ((1, 3),)]
    assert found.blocks[1].after == (Wait(4), Wait(5))
    assert found.blocks[2].after == (Wait(1),)
    assert found.blocks[3].after == (Wait(5),)


@pytest.mark.parametrize("mode", ["blocking", "non-blocking"])
def test_devices_that_take_turns(mode: str) -> None:
    first, second = ((0,), (1,)), ((2, 3), (4, 5), (6, 7))
    placement = small((first, []), (second, [Wait(0, 0.0, 1.0)]), devices=8)
    found = with_transfers(placement, mode)
    check_placement(found)
    assert [len(b.homes) for b in found.blocks[2:]] == [6, 6]
    for n in range(12):
        targets = set()
        for block in found.blocks[2:]:
            home = block.homes[n % 6]
            if mode == "non-blocking":
                parts = found.units[home[0]].name.split(">")
                home = tuple(int(name[2:]) for name in parts)
            assert home[0] == first[n % 2][0]
            targets.add(home[1])
        assert targets == set(second[n % 3])
    assert found.turns == 6
    # Replicas of as many devices feed one another in pairs.
    pairs = with_transfers(small((first, []), (((2,), (3,)), [Wait(0)])), mode, time_s=1.0)
    assert len(pairs.blocks[2].homes) == 2


def test_names_are_unique() -> None:
    placement = small((((0,), (1,)), []), (((2,),), [Wait(0)]), (((2,), (3,)), [Wait(0)]))
    found = with_transfers(placement, "blocking", time_s=1.0)
    assert len({b.name for b in found.blocks}) == len(found.blocks) == 5


def test_refused() -> None:
    placement = small((((0,), (1,)), []), (((1,),), [Wait(0)]))
    with pytest.raises(UsageError, match="some micro-batches only"):
        with_transfers(placement, "blocking", time_s=1.0)
    assert with_transfers(placement, "none") == placement
    with pytest.raises(UsageError, match="no way of transfers"):
        with_transfers(placement, "eager")
    for value in (-1.0, math.inf, math.nan):
        with pytest.raises(UsageError, match="finite number"):
            with_transfers(placement, "none", time_s=value)
        with pytest.raises(UsageError, match="finite number"):
            with_transfers(placement, "none", delay_s=value)
    twice = with_transfers(shape("V", 2), "blocking", time_s=1.0)
    with pytest.raises(UsageError, match="already"):
        with_transfers(twice, "blocking")
    assert with_transfers(twice, "none") == twice


@pytest.mark.parametrize("mode", ["blocking", "non-blocking"])
@pytest.mark.parametrize("seed", range(10))
def test_without_transfers(seed: int, mode: str) -> None:
    placement = random_placement(seed)
    found = with_transfers(placement, mode, time_s=0.5, delay_s=0.25)
    core, kept = without_transfers(found)
    assert kept.tolist() == list(range(len(placement.blocks)))
    for before, after in zip(placement.blocks, core.blocks, strict=True):
        assert (before.name, before.homes) == (after.name, after.homes)
        delays = {w.block: w.delay_s for w in after.after}
        assert set(delays) == {w.block for w in before.after}
        for block, delay in delays.items():
            local = set(before.homes[0]) <= set(placement.blocks[block].homes[0])
            assert delay == (0.0 if local else 0.75)


def random_start(problem: ScheduleProblem, rng: random.Random) -> np.ndarray:
    """Start times of a random schedule."""
    waiting = np.bincount(problem.head, minlength=problem.b).tolist()
    ready = [i for i, w in enumerate(waiting) if not w]
    sequence = []
    while ready:
        i = ready.pop(rng.randrange(len(ready)))
        sequence.append(i)
        for j in problem.head[problem.tail == i].tolist():
            waiting[j] -= 1
            if not waiting[j]:
                ready.append(j)
    return left_shift(problem, np.array(sequence, dtype=np.int64))


def programs(
    placement: Placement, problem: ScheduleProblem, order: np.ndarray
) -> dict[str, list[int]]:
    """Blocks, sends and receives of each device, in order."""
    found: dict[str, list[int]] = {unit.name: [] for unit in placement.units if not unit.link}
    for i in order.tolist():
        for d in problem.unit[problem.ptr[i] : problem.ptr[i + 1]].tolist():
            unit = placement.units[d]
            for name in unit.name.split(">") if unit.link else [unit.name]:
                found[name].append(i)
    return found


def completed(programs: dict[str, list[int]], problem: ScheduleProblem) -> int:
    """Blocks that run before all devices wait, if both ends of a transfer wait for the other."""
    done: set[int] = set()
    at = dict.fromkeys(programs, 0)
    users: dict[int, list[str]] = {}
    for name, program in programs.items():
        for i in program:
            users.setdefault(i, []).append(name)
    moved = True
    while moved:
        moved = False
        for name, program in programs.items():
            while at[name] < len(program):
                i = program[at[name]]
                waits = problem.tail[problem.head == i].tolist()
                ready = all(programs[u][at[u] : at[u] + 1] == [i] for u in users[i])
                if not ready or not done.issuperset(waits):
                    break
                done.add(i)
                for user in users[i]:
                    at[user] += 1
                moved = True
    return len(done)


@pytest.mark.parametrize("mode", ["blocking", "non-blocking"])
def test_one_order_of_all_never_deadlocks(mode: str) -> None:
    """Blocks on several devices, and sends and receives, wait for all their devices."""
    transfers = 0
    for seed in range(25):
        rng = random.Random(seed)
        bare = random_placement(seed, whole=seed % 2 == 0, pairs=rng.randint(2, 5))
        placement = with_transfers(bare, mode, time_s=rng.choice([0.5, 1.0, 4.0]))
        transfers += len(placement.blocks) - len(bare.blocks)
        problem = problem_of(placement, rng.randint(1, 4))
        start = random_start(problem, rng)
        assert violations(problem, start) == []
        order = global_order(problem, start)
        place = np.argsort(order)
        assert (place[problem.tail] < place[problem.head]).all()
        assert (np.diff(start[order]) >= 0).all()
        assert completed(programs(placement, problem, order), problem) == problem.b
        assert (left_shift(problem, order) <= start + 1e-9).all()
    assert transfers > 50


def test_orders_that_disagree_deadlock() -> None:
    """Two devices that each send before they receive, over blocking links."""
    placement = small(
        (((0,),), []), (((1,),), []), (((1,),), [Wait(0)]), (((0,),), [Wait(1)]), devices=2
    )
    placement = with_transfers(placement, "blocking", time_s=1.0)
    problem = problem_of(placement, 1)
    bad = {"d/0": [0, 4, 5, 3], "d/1": [1, 5, 4, 2]}
    assert completed(bad, problem) == 2
    start = np.array([0.0, 0.0, 2.0, 3.0, 1.0, 2.0])
    good = programs(placement, problem, global_order(problem, start))
    assert completed(good, problem) == 6


def test_order_of_blocks_that_take_no_time() -> None:
    placement = small(*[(((0,),), [Wait(i + 1)] if i < 5 else []) for i in range(6)])
    placement = replace(placement, blocks=tuple(replace(b, time_s=0.0) for b in placement.blocks))
    problem = problem_of(placement, 2)
    order = global_order(problem, np.zeros(12)).tolist()
    assert [i for i in order if i < 6] == [5, 4, 3, 2, 1, 0]
    with pytest.raises(FormatError, match="starts before"):
        global_order(problem, np.arange(12.0))
