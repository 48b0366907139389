"""Named schedules: textbook orders, makespans and memory; rates; what they refuse."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from dnnp.core.methods.schedules import RECIPES
from dnnp.core.model.errors import LimitError, UsageError
from dnnp.core.model.schedule import PlacedBlock, Placement, Unit, Wait
from dnnp.core.schedule.problem import peak_memory, problem_of, span_of, violations
from dnnp.core.schedule.recipes import SPLIT, classic, classic_rate
from dnnp.core.schedule.shapes import SHAPES, shape
from dnnp.core.schedule.starts import Arcs, max_cycle_ratio
from dnnp.core.schedule.transfers import split_backward, with_transfers, without_transfers
from support.placements import names, on_groups, random_placement

Homes = tuple[tuple[int, ...], ...]


def chain(homes: Sequence[Homes], times: Sequence[tuple[float, float]]) -> Placement:
    """Stages in a chain, forward and backward blocks; each holds 1 in between."""
    blocks: list[PlacedBlock] = []
    depth = len(homes)
    for i, home in enumerate(homes):
        after = (Wait(i - 1),) if i else ()
        blocks.append(PlacedBlock(f"F{i}", "forward", home, times[i][0], 1.0, after))
    for i in reversed(range(depth)):
        after = tuple(Wait(j) for j in {i, len(blocks) - 1})
        blocks.append(PlacedBlock(f"B{i}", "backward", homes[i], times[i][1], -1.0, after))
    devices = 1 + max(d for home in homes for part in home for d in part)
    return Placement("chain", tuple(Unit(f"d/{i}") for i in range(devices)), tuple(blocks))


def interleaved(devices: int, chunks: int, forward: float, backward: float) -> Placement:
    homes: list[Homes] = [((d,),) for _ in range(chunks) for d in range(devices)]
    return chain(homes, [(forward, backward)] * len(homes))


def judged(placement: Placement, name: str, count: int) -> tuple[float, np.ndarray]:
    """Makespan and peak memory of a schedule without faults."""
    made = classic(placement, name, count)
    assert made.problem.b == count * len(placement.blocks)
    assert violations(made.problem, made.start) == []
    assert sorted(made.sequence.tolist()) == list(range(made.problem.b))
    place = np.argsort(made.sequence)
    for order in made.orders:
        assert (np.diff(made.start[order]) >= 0).all()
        assert (np.diff(place[order]) > 0).all()
    return span_of(made.problem, made.start), peak_memory(made.problem, made.start)


@pytest.mark.parametrize(("devices", "count"), [(1, 1), (1, 4), (2, 1), (3, 7), (4, 3), (5, 12)])
@pytest.mark.parametrize("times", [(1.0, 3.0), (1.0, 1.0), (0.7, 1.9)])
def test_textbook_formulas(devices: int, count: int, times: tuple[float, float]) -> None:
    placement = shape("V", devices, forward_s=times[0], backward_s=times[1])
    both = sum(times)
    short = (count + devices - 1) * both
    ahead = np.minimum(devices - np.arange(devices), count)
    for name, span, held in (
        ("gpipe", short, np.full(devices, count)),
        ("1f1b", short, ahead),
        ("1f1b+", short, ahead),
        ("sequential", count * devices * both, np.ones(devices)),
    ):
        found, peak = judged(placement, name, count)
        assert found == pytest.approx(span), name
        assert peak.tolist() == held.tolist(), name


def test_order_of_1f1b() -> None:
    placement = shape("V", 3)
    made = classic(placement, "1f1b", 4)
    assert names(made, placement, 0) == "F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 B0.2 B0.3"
    assert names(made, placement, 1) == "F1.0 F1.1 B1.0 F1.2 B1.1 F1.3 B1.2 B1.3"
    assert names(made, placement, 2) == "F2.0 B2.0 F2.1 B2.1 F2.2 B2.2 F2.3 B2.3"


def test_order_of_gpipe() -> None:
    placement = shape("V", 2)
    made = classic(placement, "gpipe", 3)
    for d in range(2):
        assert names(made, placement, d) == " ".join(f"{x}{d}.{n}" for x in "FB" for n in range(3))


def test_order_of_interleaved_1f1b() -> None:
    """The first of two devices in Megatron-LM, Figure 4, with 2 devices and 2 chunks."""
    placement = interleaved(2, 2, 1.0, 2.0)
    made = classic(placement, "interleaved-1f1b", 4)
    assert names(made, placement, 0) == (
        "F0.0 F0.1 F2.0 F2.1 F0.2 B2.0 F0.3 B2.1 F2.2 B0.0 F2.3 B0.1 B2.2 B2.3 B0.2 B0.3"
    )


@pytest.mark.parametrize(("devices", "chunks", "groups"), [(2, 2, 2), (3, 2, 3), (4, 3, 2)])
def test_interleaving_divides_the_bubble(devices: int, chunks: int, groups: int) -> None:
    placement = interleaved(devices, chunks, 1.0, 2.0)
    count = devices * groups
    span, peak = judged(placement, "interleaved-1f1b", count)
    assert span == pytest.approx(3.0 * (count * chunks + devices - 1))
    ahead = [2 * (devices - d - 1) + (chunks - 1) * devices + 1 for d in range(devices)]
    assert peak.tolist() == [min(a, count * chunks) for a in ahead]
    assert classic_rate(placement, "interleaved-1f1b") == pytest.approx(3.0 * chunks)
    for more in range(1, devices + 1):
        spans = [
            judged(placement, "interleaved-1f1b", n)[0] for n in (count + more, count + devices)
        ]
        assert spans[0] <= spans[1]


@pytest.mark.parametrize(("devices", "count"), [(1, 3), (2, 5), (4, 8), (5, 5), (6, 20)])
def test_zero_bubble(devices: int, count: int) -> None:
    """The bubble is a third of that of 1f1b, the largest memory is the same (Qi et al., 2.1)."""
    whole = shape("V", devices, forward_s=1.0, backward_s=2.0)
    placement = split_backward(whole, 0.5)
    span, peak = judged(placement, "zb-h1", count)
    assert span == pytest.approx(3 * count + devices - 1)
    assert peak.max() == min(devices, count)
    plain, held = judged(whole, "1f1b", count)
    assert plain == pytest.approx(3 * (count + devices - 1))
    # Split backward passes help 1f1b, too, but less.
    between = judged(placement, "1f1b", count)[0]
    assert between == pytest.approx(3 * count + 2 * (devices - 1))
    assert peak.max() == held.max()
    assert classic_rate(placement, "zb-h1") == pytest.approx(3.0)


def test_order_of_zb_h1() -> None:
    placement = split_backward(shape("V", 2), 0.5)
    made = classic(placement, "zb-h1", 3)
    assert names(made, placement, 0) == "F0.0 F0.1 B0.0 W0.0 F0.2 B0.1 W0.1 B0.2 W0.2"
    assert names(made, placement, 1) == "F1.0 B1.0 F1.1 B1.1 W1.0 F1.2 B1.2 W1.1 W1.2"


@pytest.mark.parametrize("devices", [2, 4, 6, 8, 16])
def test_chimera(devices: int) -> None:
    """D micro-batches take 2 D + D - 2 slots; directly concatenated groups leave no gap."""
    placement = shape("X", devices, forward_s=1.0, backward_s=1.0)
    span, peak = judged(placement, "chimera", devices // 2)
    assert span == 3 * devices - 2
    assert peak.max() <= devices
    assert classic_rate(placement, "chimera") == pytest.approx(4.0)
    for count in range(1, devices):
        judged(placement, "chimera", count)


def test_bubble_rates_of_tessel() -> None:
    """Table II: 1F1B 0 %, Chimera-direct 20 %, 1F1B+ 25 % on M and 20 % on NN; none on K."""
    for name, form, bubble in (
        ("1f1b", "V", 0.0),
        ("chimera", "X", 0.2),
        ("1f1b+", "M", 0.25),
        ("1f1b+", "NN", 0.2),
    ):
        placement = shape(form, 4)
        load = problem_of(placement, 1).load().mean()
        assert 1 - load / classic_rate(placement, name) == pytest.approx(bubble), name
    for name in ("1f1b", "1f1b+"):
        with pytest.raises(UsageError, match="chain"):
            classic(shape("K", 4), name, 4)


@pytest.mark.parametrize("devices", [2, 4, 8])
@pytest.mark.parametrize("form", SHAPES)
def test_inference_needs_no_more_than_the_load(form: str, devices: int) -> None:
    placement = shape(form, devices, inference=True)
    load = problem_of(placement, 1).load().max()
    for name in set(RECIPES) - {"sequential", *SPLIT}:
        assert classic_rate(placement, name) == pytest.approx(load)
        judged(placement, name, 5)
    spans = [judged(placement, "sequential", n)[0] for n in (1, 3)]
    assert spans[1] == pytest.approx(3 * spans[0])


@pytest.mark.parametrize("form", ["M", "NN"])
def test_shared_stages_of_gpipe_do_not_keep_others_waiting(form: str) -> None:
    placement = shape(form, 4)
    assert classic_rate(placement, "gpipe") == pytest.approx(problem_of(placement, 1).load().max())


@pytest.mark.parametrize("seed", range(30))
def test_any_placement_runs_gpipe_and_sequentially(seed: int) -> None:
    placement = random_placement(seed, whole=seed % 2 == 0)
    count = 1 + seed % 5
    made = classic(placement, "gpipe", count)
    for order in made.orders:
        late = [placement.blocks[i % made.problem.k].kind == "backward" for i in order.tolist()]
        assert late == sorted(late)
    judged(placement, "gpipe", count)
    span, peak = judged(placement, "sequential", count)
    alone, held = judged(placement, "sequential", 1)
    assert span == pytest.approx(count * alone)
    assert (peak <= held + 1e-9).all()
    rate = classic_rate(placement, "gpipe")
    assert rate >= problem_of(placement, 1).load().max() - 1e-9


def replicated(seed: int) -> Placement:
    """A chain of stages whose devices take turns."""
    rng = random.Random(seed)
    homes: list[Homes] = []
    used = 0
    for _ in range(rng.randint(1, 5)):
        turns, wide = rng.choice([1, 1, 2, 3, 4]), rng.choice([1, 1, 2])
        homes.append(
            tuple(tuple(range(used + i * wide, used + (i + 1) * wide)) for i in range(turns))
        )
        used += turns * wide
    times = [(rng.randint(1, 3) * len(h), rng.randint(1, 4) * len(h)) for h in homes]
    return chain(homes, times)


@pytest.mark.parametrize("seed", range(40))
def test_stages_whose_devices_take_turns(seed: int) -> None:
    placement = replicated(seed)
    for count in (1, 2, 5, 11, 24):
        judged(placement, "1f1b", count)
        judged(placement, "gpipe", count)
        judged(placement, "sequential", count)


def test_replicas_of_equal_load_are_all_kept_busy() -> None:
    homes: list[Homes] = [((0,), (1,), (2,)), ((3,),), ((4,), (5,))]
    placement = chain(homes, [(3.0, 6.0), (1.0, 2.0), (2.0, 4.0)])
    assert classic_rate(placement, "1f1b") == pytest.approx(3.0)
    peak = judged(placement, "1f1b", 30)[1]
    # PipeDream: 6 devices from the first stage on, 3 of which take turns; then 3; then 2 by 2.
    assert peak.tolist() == [2, 2, 2, 3, 1, 1]


@pytest.mark.parametrize("form", ["V", "M", "NN", "NN-eager", "multi-modal"])
@pytest.mark.parametrize("width", [2, 3])
def test_1f1b_plus_of_groups(form: str, width: int) -> None:
    """Stages on groups of devices run as those on one device do; shared ones on all groups."""
    placement = shape(form, 4)
    wide = on_groups(placement, width)
    made, plain = classic(wide, "1f1b+", 9), classic(placement, "1f1b+", 9)
    assert made.start.tolist() == plain.start.tolist()
    assert violations(made.problem, made.start) == []
    assert classic_rate(wide, "1f1b+") == classic_rate(placement, "1f1b+")


def test_1f1b_plus_of_uneven_groups() -> None:
    """Groups of one to three devices, shared by all, and by the first two groups."""
    groups = [(0,), (1, 2), (3, 4, 5)]
    homes: list[Homes] = [(tuple(range(6)),), (groups[0],), ((0, 1, 2),), (groups[1],)]
    placement = chain([*homes, (groups[2],)], [(1.0, 1.0), (2.0, 4.0)] * 2 + [(2.0, 4.0)])
    span, peak = judged(placement, "1f1b+", 7)
    assert span >= problem_of(placement, 7).load().max()
    made = classic(placement, "1f1b+", 7)
    assert names(made, placement, 5) == (
        "F0.0 F0.1 F4.0 B4.0 F0.2 F4.1 B4.1 B0.0 F0.3 F4.2 B4.2 B0.1 F0.4 F4.3 B4.3 B0.2 "
        "F0.5 F4.4 B4.4 B0.3 F0.6 F4.5 B4.5 B0.4 F4.6 B4.6 B0.5 B0.6"
    )
    assert peak.max() <= 12


@pytest.mark.parametrize("seed", range(12))
def test_rates_are_slopes_of_makespans(seed: int) -> None:
    rng = random.Random(seed)
    devices = rng.choice([2, 4, 6])
    homes: list[Homes] = [((d,),) for d in range(devices)]
    times = [(rng.randint(1, 4), rng.randint(1, 4)) for _ in homes]
    one = chain(homes, times)
    both = shape("X", devices)
    two = replace(
        both,
        blocks=tuple(replace(b, time_s=float(rng.randint(1, 4))) for b in both.blocks),
    )
    plus = shape(rng.choice(["M", "NN"]), devices)
    plus = replace(
        plus,
        blocks=tuple(replace(b, time_s=float(rng.randint(1, 4))) for b in plus.blocks),
    )
    cases = [("1f1b", one), ("gpipe", one), ("chimera", two), ("1f1b+", plus)]
    cases += [("sequential", two), ("zb-h1", split_backward(one, rng.random()))]
    for name, placement in cases:
        low, high = (judged(placement, name, n)[0] for n in (120, 240))
        assert classic_rate(placement, name) == pytest.approx((high - low) / 120), name


def test_rate_with_turns_in_a_common_multiple() -> None:
    homes: list[Homes] = [((0,), (1,)), ((2,), (3,), (4,))]
    placement = chain(homes, [(2.0, 4.0), (3.0, 7.0)])
    assert classic_rate(placement, "1f1b") == pytest.approx(10 / 3)


@pytest.mark.parametrize("seed", range(30))
def test_cycle_ratio(seed: int) -> None:
    """Against all simple cycles."""
    rng = random.Random(seed)
    n = rng.randint(1, 5)
    edges = {(i, (i + 1) % n): (rng.random(), 1 if i == n - 1 else 0) for i in range(n)}
    for _ in range(rng.randint(0, 6)):
        edges[rng.randrange(n), rng.randrange(n)] = rng.random() * 3, rng.randint(1, 3)

    def walk(path: list[int], time: float, count: int) -> float:
        best = -math.inf
        for (a, b), (t, c) in edges.items():
            if a != path[-1]:
                continue
            if b == path[0] and count + c > 0:
                best = max(best, (time + t) / (count + c))
            elif b not in path:
                best = max(best, walk([*path, b], time + t, count + c))
        return best

    want = max(walk([i], 0.0, 0) for i in range(n))
    tail, head = (np.array([e[i] for e in edges]) for i in (0, 1))
    time, count = (np.array([v[i] for v in edges.values()]) for i in (0, 1))
    period, _ = max_cycle_ratio(Arcs(tail, head, time, -count), n, 0.0, 1e-12)
    assert period == pytest.approx(want)


@pytest.mark.parametrize("mode", ["blocking", "non-blocking"])
@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("1f1b", "V"),
        ("gpipe", "K"),
        ("1f1b+", "NN"),
        ("chimera", "X"),
        ("sequential", "M"),
        ("zb-h1", "V"),
        ("inference", "K"),
    ],
)
def test_transfers_keep_the_orders(name: str, form: str, mode: str) -> None:
    placement = shape(form, 4, inference=name == "inference")
    if name == "zb-h1":
        placement = split_backward(placement, 0.5)
    moved = with_transfers(placement, mode, time_s=0.25, delay_s=0.125)
    count, k = 6, len(placement.blocks)
    plain, made = classic(placement, name, count), classic(moved, name, count)
    assert made.problem.unroll == count
    assert violations(made.problem, made.start) == []
    wide = made.problem.k
    for before, after in zip(plain.orders, made.orders, strict=False):
        kept = [i // wide * k + i % wide for i in after.tolist() if i % wide < k]
        if name != "sequential":
            assert kept == before.tolist()
    plain_span = span_of(plain.problem, plain.start)
    assert span_of(made.problem, made.start) > plain_span
    none = classic(with_transfers(placement, "none", time_s=9.0), name, count)
    assert span_of(none.problem, none.start) == plain_span
    low, high = (span_of(m.problem, m.start) for m in (classic(moved, name, n) for n in (60, 120)))
    assert classic_rate(moved, name) == pytest.approx((high - low) / 60)


def test_transfers_in_several_steps() -> None:
    """Over two links, and one that brings the input."""
    units = tuple(Unit(x) for x in "ab") + tuple(Unit(x, link=True) for x in ("in", "a>c", "c>b"))
    blocks = (
        PlacedBlock("in", "transfer", ((2,),), 0.5),
        PlacedBlock("F0", "forward", ((0,),), 1.0, 0.0, (Wait(0),)),
        PlacedBlock("one", "transfer", ((3,),), 0.25, 0.0, (Wait(1, 0.5),)),
        PlacedBlock("two", "transfer", ((4,),), 0.75, 0.0, (Wait(2),)),
        PlacedBlock("F1", "forward", ((1,),), 1.0, 0.0, (Wait(3, 0.125),)),
    )
    placement = Placement("hops", units, blocks)
    core, kept = without_transfers(placement)
    assert kept.tolist() == [1, 4]
    assert core.blocks[1].after == (Wait(0, 1.625),)
    for name in ("inference", "gpipe", "sequential", "1f1b"):
        span, _ = judged(placement, name, 4)
        assert span == (4 * 4.125 if name == "sequential" else 4.125 + 3)
    assert classic_rate(placement, "1f1b") == 1.0


def test_split_backward() -> None:
    placement = split_backward(shape("M", 2, backward_s=4.0), 0.25)
    names = {block.name: block for block in placement.blocks}
    assert [b.name for b in placement.blocks[-3:]] == ["W1", "W0", "Ws"]
    assert names["B0"].time_s == 3.0
    assert names["W0"].time_s == 1.0
    assert (names["B0"].memory_bytes, names["W0"].memory_bytes) == (0.0, -1.0)
    assert names["W0"].homes == names["B0"].homes
    assert placement.blocks[names["W0"].after[0].block].name == "B0"
    assert (problem_of(placement, 1).left_behind() == 0).all()
    for share in (-0.1, 1.1, math.nan):
        with pytest.raises(UsageError, match="between 0 and 1"):
            split_backward(shape("V", 2), share)
    with pytest.raises(UsageError, match="split already"):
        split_backward(placement, 0.5)
    with pytest.raises(UsageError, match="no backward"):
        split_backward(shape("V", 2, inference=True), 0.5)


@pytest.mark.parametrize(
    ("name", "form", "reason"),
    [
        ("pipedream", "V", "no schedule is called"),
        ("1f1b", "X", "chain"),
        ("1f1b", "M", "devices of its own"),
        ("interleaved-1f1b", "NN", "devices of its own"),
        ("chimera", "V", "two chains"),
        ("chimera", "K", "chain"),
        ("zb-h1", "V", "weight blocks"),
        ("inference", "V", "backward blocks"),
    ],
)
def test_refused(name: str, form: str, reason: str) -> None:
    for ask in (
        lambda: classic(shape(form, 4), name, 4),
        lambda: classic_rate(shape(form, 4), name),
    ):
        with pytest.raises(UsageError, match=reason):
            ask()


def test_refused_counts_and_chains() -> None:
    with pytest.raises(UsageError, match="at least 1 micro-batch"):
        classic(shape("V", 2), "1f1b", 0)
    with pytest.raises(LimitError, match="too many"):
        classic(shape("V", 2), "1f1b", 2**53 - 1)
    with pytest.raises(UsageError, match="even number of stages"):
        classic(shape("X", 3), "chimera", 3)
    with pytest.raises(UsageError, match="weight blocks"):
        classic(shape("V", 2, inference=True), "zb-h1", 3)
    ragged: list[Homes] = [((0,),), ((1,),), ((1,),), ((0,),)]
    with pytest.raises(UsageError, match="devices of its own"):
        classic(chain(ragged, [(1.0, 1.0)] * 4), "interleaved-1f1b", 4)
    swapped = chain([((0,),), ((1,),)], [(1.0, 1.0)] * 2)
    moved = replace(swapped.blocks[2], homes=((0,),))
    with pytest.raises(UsageError, match="on the devices of forward"):
        classic(replace(swapped, blocks=(*swapped.blocks[:2], moved, swapped.blocks[3])), "1f1b", 2)
    with pytest.raises(UsageError, match="backward block for each"):
        classic(replace(swapped, blocks=swapped.blocks[:3]), "1f1b", 2)
