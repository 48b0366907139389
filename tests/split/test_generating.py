"""Plans of models that generate, against all splits; and what is refused."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest

from dnnp import bound, check, split
from dnnp.core.model.errors import InfeasibleError
from dnnp.formats.stream import Stream
from dnnp.graph import Graph
from support.generating import BANDWIDTH, Decoder, random_decoder


def planned(graph: Graph, room: float, **more: Any) -> Graph:
    return split(graph, k=2, memory=room, bandwidth=BANDWIDTH, max_gap=0, **more)


def agree(seed: int) -> str:
    """Compare one random graph; returns what it was."""
    rng = random.Random(seed)
    phased = seed % 3 != 0
    stream = random_decoder(seed, phased=phased)
    count, room = rng.randint(2, 5), float(rng.choice([40, 60, 90, 150, 1000]))
    workload = (8, rng.randint(2, 13)) if phased else None
    length = sum(workload) if workload else rng.randint(1, 6)
    more: dict[str, Any] = {"workload": [workload]} if workload else {"max_length": length}
    graph = Graph(stream)
    decoder = Decoder(stream, count, length, workload)
    expected = decoder.best(room)
    if expected == float("inf"):
        with pytest.raises(InfeasibleError):
            planned(graph, room, in_flight=count, **more)
        return "infeasible"
    made = planned(graph, room, in_flight=count, **more)
    record, stages = made.stream().get("plan")[0], made.stream().get("stage")
    if workload and count < 2 * decoder.rows:  # one pass is under way: one stage is busy at most
        expected = decoder.load(set(range(decoder.n))) if len(stages) == 1 else expected
        with suppress(InfeasibleError):
            one = split(graph, k=1, memory=room, in_flight=count, **more).stream().get("plan")[0]
            assert record["tokens_per_s"] >= one["tokens_per_s"] * (1 - 1e-9), seed
    assert record["value"] == pytest.approx(expected), seed
    assert record["bound"] <= expected * (1 + 1e-9), seed
    parts = tuple(set(stage["nodes"]) for stage in stages)
    for part, stage in zip(parts, stages, strict=True):
        assert stage["memory_bytes"] >= decoder.memory(part) * (1 - 1e-12)
        assert stage["memory_bytes"] <= room
    assert check(made).ok
    if workload:
        loads = sum(decoder.load(part) + decoder.besides for part in parts)
        time = max(expected + decoder.besides, loads * decoder.rows / count)
        assert record["tokens_per_s"] == pytest.approx(workload[1] / time)
        assert_most_fit(stream, planned(graph, room, workload=[workload]), workload, room)
    return "phased" if phased else "plain"


def assert_most_fit(stream: Stream, made: Graph, workload: tuple[int, int], room: float) -> None:
    """As many sequences are under way as fit beside the stages, and no more."""
    count = made.stream().get("plan")[0]["in_flight"]
    more, grows = [], False
    for stage in made.stream().get("stage"):
        part = set(stage["nodes"])
        one, next_ = (Decoder(stream, n, sum(workload), workload) for n in (count, count + 1))
        assert one.memory(part) <= room
        grown = next_.memory(part) - one.memory(part)
        grows |= grown > 0
        more.append(stage["memory_bytes"] + grown)
    assert max(more) > room or not grows


def test_plans_against_all_splits() -> None:
    seen = [agree(seed) for seed in range(45)]
    assert seen.count("phased") > 10
    assert seen.count("plain") > 5
    assert seen.count("infeasible") > 3


def plan_of(seed: int = 1) -> tuple[Graph, Stream]:
    made = planned(Graph(random_decoder(seed, phased=True)), 1000.0, workload=[(8, 6)])
    return made, made.stream()


@pytest.mark.parametrize(
    "field", ["tokens_per_s", "ttft_s", "tpot_s", "in_flight", "max_length", "value"]
)
def test_a_changed_number_is_found(field: str) -> None:
    made, stream = plan_of()
    assert check(made).ok
    stream.get("plan")[0][field] *= 2
    assert not check(Graph(stream)).ok


@pytest.mark.parametrize("field", ["prompt", "tokens", "longest", "token_past"])
def test_a_changed_workload_is_found(field: str) -> None:
    _, stream = plan_of()
    stream.get("plan")[0]["workload"][field] -= 1
    assert not check(Graph(stream)).ok


def test_a_bound_is_verified_by_its_certificate() -> None:
    made, _ = plan_of()
    proven = bound(made)
    findings = check(proven, certificate=True)
    assert findings.ok
    assert [proof.verdict for proof in findings.proofs or ()] == ["verified"]
    stream = proven.stream()
    stream.get("bound")[0]["value"] *= 1.01
    assert not check(Graph(stream), certificate=True).ok
