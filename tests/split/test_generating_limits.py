"""Plans of models that generate, within times to first and of later tokens; their bounds."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from dnnp import check, split
from dnnp.core.model.errors import InfeasibleError
from dnnp.graph import Graph
from support.generating import BANDWIDTH, Decoder, random_decoder

WORKLOAD = (8, 5)
GIVEN: dict[str, Any] = {"bandwidth": BANDWIDTH, "workload": [WORKLOAD], "max_gap": 0}


def test_a_plan_with_less_room_for_sequences_has_a_bound_of_its_own() -> None:
    found = Counter[str]()
    for seed in range(60):
        stream = random_decoder(seed, phased=True)
        room = random.Random(seed).uniform(25, 110)
        try:
            one, two = (split(Graph(stream), k=k, memory=room, **GIVEN) for k in (1, 2))
        except InfeasibleError:
            continue
        limit = one.records("plan")[0]["ttft_s"]
        if two.records("plan")[0]["ttft_s"] <= limit:
            continue
        made = split(Graph(stream), k=2, memory=room, max_ttft=limit, **GIVEN)
        record, before = made.records("plan")[0], two.records("plan")[0]
        count = record["in_flight"]
        best = Decoder(stream, count, sum(WORKLOAD), WORKLOAD).best(room)
        assert check(made).ok
        assert record["ttft_s"] <= limit
        assert record["bound"] <= best * (1 + 1e-9), seed
        assert record["status"] != "optimal" or record["value"] == pytest.approx(best), seed
        found["limited"] += 1
        found["fewer"] += count < before["in_flight"]
    assert found["limited"] > 5
    assert found["fewer"] > 3


@pytest.mark.parametrize(
    "devices", [{"speed": ["acc/0=2", "acc/1=1"]}, {"memory": ["1000", "acc/1=30"]}]
)
def test_what_is_slow_or_holds_little_is_left_out_first(devices: dict[str, Any]) -> None:
    """One device alone is the best for TTFT: the first, by its speed or by its memory."""
    left = 0
    for seed in range(12):
        graph = Graph(random_decoder(seed, phased=True))
        more: dict[str, Any] = {**GIVEN, **devices, "in_flight": 4}
        fast = {**more, "pin": ["n*=acc/0"]}
        limit = split(graph, k=2, **fast).records("plan")[0]["ttft_s"]
        made = split(graph, k=2, max_ttft=limit, method="exact,slice", **more)
        assert [row["method"] for row in made.records("plan")[0]["tried"]] == ["exact", "slice"]
        assert made.records("plan")[0]["ttft_s"] <= limit
        assert check(made).ok
        left += [stage["device"] for stage in made.records("stage")] == ["acc/0"]
    assert left > 3


def test_a_pass_of_one_stage_that_takes_too_long_is_infeasible() -> None:
    graph = Graph(random_decoder(1, phased=True))
    limit = split(graph, k=1, **GIVEN).records("plan")[0]["ttft_s"]
    stream = graph.stream()
    stream.get("phase")[0]["pass_s"] += 0.5
    with pytest.raises(InfeasibleError, match="to the first token, above"):
        split(Graph(stream), k=2, max_ttft=limit, **GIVEN)
    stream.get("phase")[0]["pass_s"] -= 0.5
    assert check(split(Graph(stream), k=2, max_ttft=limit, **GIVEN)).ok


def test_fewer_single_devices_of_one_speed() -> None:
    """Plans for as many devices as passes keep busy name these alone, and can be read."""
    fewer = 0
    for seed in range(12):
        graph = Graph(random_decoder(seed, phased=True))
        made = split(graph, k=3, speed=["acc/0=2", "acc/1=2", "acc/2=2"], in_flight=2, **GIVEN)
        assert check(made).ok, seed
        fewer += made.records("plan")[0]["k"] < 3
    assert fewer > 3
