"""Placement by name in parallel plans: searches, numbers of devices, checks and refusals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest

from dnnp.core.parallel.plan import first_devices
from dnnp.core.parallel.problem import HybridBlock
from support.graphs import to_bytes
from support.hybrid import random_problem
from support.ruled import decoder, with_forged_rule
from support.ruled_plans import ruled_disagreement
from support.run import Result, dnnp

WIDE = ("--data-parallel", "2", "--micro-batches", "8")


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_equals_all_plans_that_keep_the_rules(first: int) -> None:
    """More by `tests/tools/agree_hybrid.py`."""
    found = [ruled_disagreement(seed) for seed in range(first, first + 50)]
    assert not [reason for _, reason in found if reason]
    seen = Counter(status for status, _ in found)
    assert seen["optimal"] + seen["costs"] > 18
    assert seen["costs"] > 2


def test_equals_all_plans_with_shared_stages_that_keep_cuts() -> None:
    found = [ruled_disagreement(seed, shared=True) for seed in range(80)]
    assert not [reason for _, reason in found if reason]
    seen = Counter(status for status, _ in found)
    assert seen["optimal"] + seen["costs"] > 60
    assert seen["costs"] > 3


def planned(*words: str, status: int = 0, k: int = 4) -> tuple[Result, list[dict[str, Any]]]:
    """A parallel plan of the decoder, accepted by the checker, and its stages."""
    given = ("-k", str(k), "--bandwidth", "10", *WIDE, *words)
    result = dnnp("partition", *given, stdin=to_bytes(decoder()))
    assert result.status == status, result.err
    if status:
        return result, []
    assert dnnp("check", stdin=result.out).status == 0
    return result, result.records("stage")


def devices_of(stages: list[dict[str, Any]], node: int) -> set[str]:
    """Devices of the stage of a node."""
    (stage,) = [s for s in stages if node in s["nodes"]]
    first = int(stage["device"].rpartition("/")[2])
    return {f"gpu/{first + i}" for i in range(stage.get("replicas", 1))}


HEAD = 11
"""The last node of the decoder."""


def test_rules_of_stages() -> None:
    free = planned()[0].one("plan")["value"]
    result, stages = planned("--layers-per-stage", "3,1")
    assert [s["nodes"][-1] for s in stages] == [8, HEAD]
    assert result.one("plan")["value"] > free
    words = ("--apart", "embed_tokens,lm_head", "--together", "layers.0,layers.3")
    _, stages = planned(*words, k=6)
    assert devices_of(stages, 2) == devices_of(stages, 9)
    assert devices_of(stages, 1).isdisjoint(devices_of(stages, HEAD))
    result, stages = planned("--exactly", "3")
    assert len(stages) == 3
    assert "with 2 stages: 31 s" in result.err


@pytest.mark.parametrize("device", ["gpu/0", "gpu/1", "gpu/2", "gpu/3"])
def test_a_pin_is_one_of_the_devices_of_a_stage(device: str) -> None:
    for other in {"gpu/0", "gpu/1", "gpu/2", "gpu/3"} - {device}:
        _, stages = planned("--pin", f"lm_head={device}", "--pin", f"embed_tokens={other}")
        assert device in devices_of(stages, HEAD)
        assert other in devices_of(stages, 1)


def test_stages_are_narrower_where_pins_leave_no_room() -> None:
    """Two stages of two devices are better, but have no devices 2 and 3 each."""
    result, stages = planned("--pin", "lm_head=gpu/2", "--pin", "embed_tokens=gpu/3")
    plan = result.one("plan")
    assert (devices_of(stages, HEAD), devices_of(stages, 1)) == ({"gpu/2"}, {"gpu/3"})
    assert plan["status"] == "feasible"
    assert plan["bound"] == 31 < plan["value"]


def test_a_stage_has_all_devices_from_one_pin_to_the_other() -> None:
    pins = (
        "--pin",
        "lm_head=gpu/0",
        "--pin",
        "embed_tokens=gpu/1",
        "--together",
        "lm_head,embed_tokens",
    )
    _, (stage,) = planned(*pins, k=2)
    assert stage["replicas"] == 2
    far = (*pins[:-3], "embed_tokens=gpu/3", *pins[-2:])
    result, _ = planned(*far, status=4)
    assert "with --pin embed_tokens=gpu/3" in result.err


def test_pins_of_a_device_are_together() -> None:
    _, stages = planned("--pin", "layers.0=gpu/2", "--pin", "layers.1=gpu/2", "--pin", "mask=gpu")
    (stage,) = [s for s in stages if 3 in s["nodes"]]
    assert {4, 5} <= {*stage["nodes"]}


def test_more_stages_than_devices_or_micro_batches() -> None:
    cuts = ("--cut-before", "layers.1", "--cut-before", "layers.2")
    for words in ((), ("--exactly", "3", "--micro-batches", "2")):
        result, _ = planned(*cuts, *words, status=4, k=3 if words else 2)
        assert "more than 2 stages needed, with --cut-before layers.1" in result.err
    planned(*cuts, k=3)


def test_cuts_with_shared_stages() -> None:
    """Compare stages themselves: the devices of a shared one hold others too."""
    stream = decoder()
    for row in stream.get("node"):
        time = row["time_s"]["gpu"]
        row["shards"] = [{"devices": 2, "time_s": {"gpu": time / 2}, "memory_bytes": 0.0}]
    words = ("-k", "2", "--bandwidth", "1000", "--shared-stages", "3", "--micro-batches", "8")
    result = dnnp("partition", *words, "--cut-before", "layers.2", stdin=to_bytes(stream))
    assert result.status == 0, result.err
    assert dnnp("check", stdin=result.out).status == 0
    stages = result.records("stage")
    assert any(s.get("shared") for s in stages)
    assert not [s for s in stages if {2, 3, 4, 5} & {*s["nodes"]} and {7, 8} & {*s["nodes"]}]


def test_certificates_know_no_rules() -> None:
    """A bound is verified where it holds without rules too, and else not checkable."""
    for words, status in ((("--exactly", "2"), 0), (("--layers-per-stage", "3,1"), 9)):
        result, _ = planned(*words)
        checked = dnnp("check", "--certificate", stdin=result.out)
        assert checked.status == status, checked.err
        assert ("a plan without rules with the value 31" in checked.err) == (status == 9)


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ({"rule": "exactly", "stages": 3}, "there are 2 stages"),
        ({"rule": "pin", "names": ["x"], "parts": [[0]], "device": "gpu/2"}, "a node is on gpu/0"),
        ({"rule": "pin", "names": ["x"], "parts": [[0]], "device": "tpu"}, "a node is on gpu/0"),
        ({"rule": "together", "names": ["x"], "parts": [[0, HEAD]]}, "on gpu/0, gpu/2"),
        ({"rule": "apart", "names": ["a", "b"], "parts": [[2], [3]]}, "gpu/0 holds nodes of two"),
        ({"rule": "cut-before", "names": ["x"], "parts": [[3]]}, "gpu/0 holds nodes of two"),
        ({"rule": "pin", "names": ["x"], "parts": [[0]], "device": "gpu/1"}, ""),
        ({"rule": "pin", "names": ["x"], "parts": [[0, HEAD]], "device": "gpu"}, ""),
    ],
)
def test_the_checker_finds_a_broken_rule(rule: dict[str, Any], reason: str) -> None:
    result, stages = planned("--layers-per-stage", "2,2")
    assert [(s["device"], s["replicas"]) for s in stages] == [("gpu/0", 2), ("gpu/2", 2)]
    checked = dnnp("check", stdin=with_forged_rule(result.out, rule))
    assert checked.status == (3 if reason else 0), checked.err
    assert reason in checked.err


def test_numbers_of_devices_are_found_where_there_are_any() -> None:
    """By all ways to number them."""
    random, counted = Random(1), Counter[bool]()
    base = next(p for p in map(random_problem, range(99)) if p.degrees.tolist() == [1, 2])
    for _ in range(400):
        count, stages = random.randint(2, 7), random.randint(1, 4)
        blocks = [
            HybridBlock(np.array([i]), random.randint(0, 1), random.randint(1, 2), np.zeros(0, int))
            for i in range(stages)
        ]
        sizes = [int(base.degrees[b.degree]) * b.replicas for b in blocks]
        pins = sorted((random.randrange(count), random.randrange(stages)) for _ in range(2))
        first = first_devices(replace(base, pinned=np.array(pins)), blocks, count)
        ways = product(range(count), repeat=stages)
        possible = any(numbered(starts, sizes, pins, count) for starts in ways)
        assert possible == bool(first), (sizes, pins, count)
        if first:
            assert numbered([first[b] for b in range(stages)], sizes, pins, count)
        counted[possible] += 1
    assert min(counted.values()) > 50


def numbered(
    starts: Sequence[int], sizes: list[int], pins: list[tuple[int, int]], count: int
) -> bool:
    """True if stages from these devices on are apart, and have what is pinned to them."""
    rows = [{*range(a, a + n)} for a, n in zip(starts, sizes, strict=True)]
    used = set[int]().union(*rows)
    apart = len(used) == sum(sizes) and max(used) < count
    return apart and all(device in rows[item] for device, item in pins)
