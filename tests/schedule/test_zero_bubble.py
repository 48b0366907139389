"""Split backward passes: the published memory and bubbles, orders by hand, the checker."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dnnp.core.model.errors import UsageError
from dnnp.core.model.schedule import Placement
from dnnp.core.schedule.problem import peak_memory, problem_of, span_of, violations
from dnnp.core.schedule.recipes import SPLIT, Classic, classic, classic_rate
from dnnp.core.schedule.shapes import shape
from dnnp.core.schedule.transfers import split_backward
from support.placements import names, on_groups
from support.run import dnnp

FORMS = {
    "zb-v": "VV", "dualpipe": "X", "zb-h2": "V", "v-half": "VV", "v-min": "VV", "dualpipev": "VV",
}  # fmt: skip
EVEN = (2, 4, 6, 8)


def split(name: str, devices: int, *, backward_s: float = 2.0, share: float = 0.5) -> Placement:
    """Placement of a recipe; by default every block takes 1."""
    return split_backward(shape(FORMS[name], devices, backward_s=backward_s), share)


def idle(made: Classic) -> list[float]:
    """Time that each device waits between its first and its last block."""
    end = made.start + made.problem.time
    return [
        float(end[order].max() - made.start[order].min() - made.problem.time[order].sum())
        for order in made.orders
    ]


@pytest.mark.parametrize("devices", range(1, 9))
def test_zb_v_has_no_bubble_in_the_memory_of_1f1b(devices: int) -> None:
    """V-ZB of Qi et al. 2024: bubble 0, activations of as many micro-batches as devices.

    A stage of VV holds half of what one of V does. No schedule is shorter than the last device's
    blocks after the way there.
    """
    placement = split("zb-v", devices)
    for count in sorted({1, devices, 2 * devices - 1, 2 * devices, 3 * devices + 1, 5 * devices}):
        made = classic(placement, "zb-v", count)
        assert violations(made.problem, made.start) == []
        peak = peak_memory(made.problem, made.start)
        if count >= devices:
            assert peak.max() == 2 * devices
        if count == devices or count >= 2 * devices - 2:
            assert span_of(made.problem, made.start) == 6 * count + devices - 1
        if count >= 2 * devices - 1:
            assert idle(made) == [0.0] * devices
        assert peak.max() <= 2 * devices
    assert classic_rate(placement, "zb-v") == pytest.approx(6.0)
    one = shape("V", devices, forward_s=2.0, backward_s=4.0)
    made = classic(one, "1f1b", 2 * devices)
    assert 2 * peak_memory(made.problem, made.start).max() == 2 * devices


def test_order_of_zb_v() -> None:
    placement = split("zb-v", 2)
    made = classic(placement, "zb-v", 3)
    assert names(made, placement, 0) == (
        "Fa0.0 Fa0.1 Fa0.2 Fb1.0 Bb1.0 Wb1.0 Fb1.1 Bb1.1 Wb1.1 Ba0.0 Wa0.0 Fb1.2 Bb1.2 Ba0.1 "
        "Wa0.1 Ba0.2 Wb1.2 Wa0.2"
    )
    assert names(made, placement, 1).startswith("Fa1.0 Fb0.0 Fa1.1 Fb0.1 Bb0.0 Wb0.0 Fa1.2 Ba1.0")


@pytest.mark.parametrize("devices", range(1, 9))
def test_zb_h2_as_published(devices: int) -> None:
    """Qi et al. 2023, table 1: bubble (D - 1)(F + B - 2 W), memory 2 D - 1 activations."""
    placement = split("zb-h2", devices)
    for count in (2 * devices - 1, 2 * devices, 5 * devices):
        made = classic(placement, "zb-h2", count)
        assert violations(made.problem, made.start) == []
        assert idle(made) == [0.0] * devices
        assert span_of(made.problem, made.start) == 3 * count + devices - 1
        assert peak_memory(made.problem, made.start).max() == 2 * devices - 1
    assert classic_rate(placement, "zb-h2") == pytest.approx(3.0)


@pytest.mark.parametrize("devices", range(1, 9))
def test_zb_h2_waits_below_2_d_less_1_micro_batches(devices: int) -> None:
    placement = split("zb-h2", devices)
    waits = [max(idle(classic(placement, "zb-h2", n))) > 0 for n in range(1, 4 * devices)]
    assert waits == [n < 2 * devices - 1 for n in range(1, 4 * devices)]


def test_zb_h2_waits_where_blocks_differ() -> None:
    placement = split("zb-h2", 4, backward_s=2.2)
    assert max(idle(classic(placement, "zb-h2", 20))) > 0


@pytest.mark.parametrize("devices", range(2, 11))
def test_v_half_and_v_min_as_published(devices: int) -> None:
    """Qi et al. 2024: (D + 2) // 2 and (D + 4) // 3 micro-batches, bubbles D / 2 N and 2 D / 3 N.

    Memory is exact. Bubbles, there of the longest stage and about, are those of the building block
    before it is squeezed as far as here.
    """
    for name, most, bubble in (
        ("v-half", (devices + 2) // 2, 3 * devices),
        ("v-min", (devices + 4) // 3, 4 * devices),
    ):
        placement = split(name, devices)
        for count in (2 * devices, 3 * devices + 1):
            made = classic(placement, name, count)
            assert violations(made.problem, made.start) == []
            assert peak_memory(made.problem, made.start).max() == 2 * most
            assert max(idle(made)) <= bubble
        assert classic_rate(placement, name) == pytest.approx(6.0)


@pytest.mark.parametrize("devices", range(1, 9))
def test_dualpipev_as_published(devices: int) -> None:
    """With 2 D stages: bubble (D - 1)(F&B + B - 3 W) at most, 2 D + 1 activations.

    As with `dualpipe` half of that bubble goes, as passes that overlap there are blocks here.
    """
    placement = split("dualpipev", devices)
    for count in (1, 2 * devices, 2 * devices + 1, 5 * devices):
        made = classic(placement, "dualpipev", count)
        assert violations(made.problem, made.start) == []
        peak = peak_memory(made.problem, made.start)
        assert peak.max() <= 2 * devices + 1
        if count > 2 * devices:
            assert peak.tolist() == [2 * devices + 1] * devices
            assert span_of(made.problem, made.start) == 6 * count + devices - 1
            assert max(idle(made)) <= (devices - 1) * (3 + 2 - 3)
    assert classic_rate(placement, "dualpipev") == pytest.approx(6.0)


@pytest.mark.parametrize("devices", EVEN)
def test_dualpipe_as_published(devices: int) -> None:
    """DeepSeek-V3, table 2: bubble (D / 2 - 1)(F&B + B - 3 W), activations of D + 1 stages.

    B includes the weights there, and takes effect at its end, as F&B does, the two passes that
    run as one. Here they are blocks of their own, and half of that bubble goes.
    """
    placement = split("dualpipe", devices)
    for count in (1, devices - 1, devices, devices + 1, 3 * devices):
        made = classic(placement, "dualpipe", count)
        assert violations(made.problem, made.start) == []
        peak = peak_memory(made.problem, made.start)
        assert peak.max() <= devices + 1
        if count < devices:
            continue
        assert peak.tolist() == [devices + 1] * devices
        assert span_of(made.problem, made.start) == 6 * count + devices // 2 - 1
        items = published(made, placement, count)
        assert waited(items, devices, 3.0) == (devices // 2 - 1) * (3 + 2 - 3)
        # The middle devices have one pair less that overlaps, and others wait less for them.
        assert waited(items, devices, 2.5) <= (devices // 2 - 1) * (2.5 + 2 - 3)
    assert classic_rate(placement, "dualpipe") == pytest.approx(6.0)


Op = tuple[str, str, int, int]
"""Pass, chain, stage, micro-batch."""


def published(made: Classic, placement: Placement, pairs: int) -> list[list[list[Op]]]:
    """Simultaneous work of devices: single passes, backward ones with their weights, and pairs.

    Weights are late for the first and the last backward passes of a device. A forward pass and the
    full backward pass after it are one block, but for the first such pair in the middle.
    """
    devices, k = len(made.orders), made.problem.k
    found = []
    for d, order in enumerate(made.orders):
        end = min(d, devices - 1 - d)
        inner = devices // 2 - 1 - end
        full = range(inner, 2 * pairs - (end + 1) - inner)
        items: list[list[Op]] = []
        backward, apart = 0, inner == 0
        for i in order.tolist():
            name = placement.blocks[i % k].name
            op = (name[0], name[1], int(name[2:]), i // k)
            last = items[-1] if items else []
            if op[0] == "W" and last[-1] == ("B", *op[1:]) and backward - 1 in full:
                last.append(op)
            elif op[0] == "B" and [kind for kind, *_ in last] == ["F"] and backward in full:
                if apart:
                    items.append([op])
                else:
                    last.append(op)
                apart = False
            else:
                items.append([op])
            backward += op[0] == "B"
        found.append(items)
    return found


def waited(found: list[list[list[Op]]], devices: int, together: float) -> float:
    """The least idle time of a device, start to end, where each item takes effect as a whole."""
    end: dict[Op, float] = {}
    now, place = [0.0] * devices, [0] * devices
    cost = [sum(together if len(item) == 3 else len(item) for item in items) for items in found]
    while any(place[d] < len(found[d]) for d in range(devices)):
        before = list(place)
        for d in range(devices):
            while place[d] < len(found[d]):
                item = found[d][place[d]]
                needed = [op for own in item for op in waits(own, devices) if op not in item]
                if any(op not in end for op in needed):
                    break
                length = together if len(item) == 3 else len(item)
                now[d] = max([now[d], *(end[op] for op in needed)]) + length
                end.update(dict.fromkeys(item, now[d]))
                place[d] += 1
        assert place != before, "the devices wait for each other"
    return min(max(now) - busy for busy in cost)


def waits(op: Op, devices: int) -> list[Op]:
    """Predecessors of a pass."""
    kind, chain, stage, n = op
    if kind == "F":
        return [("F", chain, stage - 1, n)] if stage else []
    if kind == "W":
        return [("B", chain, stage, n)]
    later: list[Op] = [("B", chain, stage + 1, n)] if stage + 1 < devices else []
    return [("F", chain, stage, n), *later]


def test_order_of_dualpipe() -> None:
    placement = split("dualpipe", 2)
    made = classic(placement, "dualpipe", 3)
    assert names(made, placement, 0) == (
        "Fa0.0 Fb1.0 Fa0.1 Bb1.0 Wb1.0 Fb1.1 Ba0.0 Wa0.0 Fa0.2 Bb1.1 Wb1.1 Fb1.2 Ba0.1 Wa0.1 "
        "Bb1.2 Wb1.2 Ba0.2 Wa0.2"
    )
    few = classic(placement, "dualpipe", 1)
    assert names(few, placement, 0) == "Fa0.0 Fb1.0 Bb1.0 Wb1.0 Ba0.0 Wa0.0"


def checked(*arguments: object) -> dict[str, Any]:
    """The schedule record, after the checker has agreed with the stream."""
    result = dnnp("schedule", *map(str, arguments))
    assert result.status == 0, result.err
    agreed = dnnp("check", stdin=result.out)
    assert agreed.status == 0, agreed.err
    return result.one("schedule")


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        (name, devices)
        for name in (*FORMS, "zb-h1")
        for devices in range(2, 9)
        if name != "dualpipe" or devices % 2 == 0
    ],
)
def test_the_checker_agrees(name: str, devices: int) -> None:
    form = ("--shape", FORMS.get(name, "V"), "--devices", devices, "--method", name)
    for count in (1, devices, 2 * devices + 3):
        for share in (0.5, 0.3):
            record = checked(*form, "-n", count, "--split-backward", share)
            assert record["method"] == name


@pytest.mark.parametrize("name", FORMS)
def test_own_search_is_as_good(name: str) -> None:
    """Within its own, smaller memory it repeats as often."""
    record = checked("--shape", FORMS[name], "--backward-time", 2, "--split-backward", "-n", 8)
    assert record["repetend"]["period_s"] == (3 if FORMS[name] == "V" else 6)
    held = max(unit["peak_bytes"] for unit in record["units"])
    assert held <= peak_memory(*of(classic(split(name, 4), name, 8))).max()


def of(made: Classic) -> tuple[Any, np.ndarray]:
    return made.problem, made.start


@pytest.mark.parametrize("seed", range(10))
def test_any_times(seed: int) -> None:
    """Orders keep the limits of memory whatever blocks take."""
    rng = np.random.default_rng(seed)
    for name in FORMS:
        devices = int(rng.choice(EVEN))
        backward, share = float(rng.uniform(0.5, 4)), float(rng.uniform(0, 1))
        placement = split(name, devices, backward_s=backward, share=share)
        made = classic(placement, name, int(rng.integers(1, 20)))
        assert violations(made.problem, made.start) == []
        most = {
            "zb-v": 2 * devices,
            "dualpipe": devices + 1,
            "zb-h2": 2 * devices - 1,
            "v-half": 2 * ((devices + 2) // 2),
            "v-min": 2 * ((devices + 4) // 3),
            "dualpipev": 2 * devices + 1,
        }
        assert peak_memory(made.problem, made.start).max() <= most[name]
        assert classic_rate(placement, name) >= problem_of(placement, 1).load().max() - 1e-9


@pytest.mark.parametrize("name", FORMS)
def test_stages_on_groups_of_devices(name: str) -> None:
    placement = split(name, 4)
    wide, plain = classic(on_groups(placement, 3), name, 6), classic(placement, name, 6)
    assert wide.start.tolist() == plain.start.tolist()


@pytest.mark.parametrize("name", SPLIT)
def test_refused(name: str) -> None:
    for form, reason in (
        (shape(FORMS.get(name, "V"), 4), "weight blocks"),
        (split_backward(shape("K", 4), 0.5), "chain"),
        (shape(FORMS.get(name, "V"), 4, inference=True), "weight blocks"),
    ):
        with pytest.raises(UsageError, match=reason):
            classic(form, name, 4)


def test_other_chains_are_refused() -> None:
    for name in ("zb-v", "v-half", "v-min", "dualpipev"):
        with pytest.raises(UsageError, match=f"{name} needs two stages on each device"):
            classic(split_backward(shape("V", 4), 0.5), name, 4)
    with pytest.raises(UsageError, match="opposite directions"):
        classic(split_backward(shape("V", 4), 0.5), "dualpipe", 4)
    with pytest.raises(UsageError, match="even number of stages"):
        classic(split_backward(shape("X", 3), 0.5), "dualpipe", 4)
