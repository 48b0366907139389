"""Plans of models that generate: for latency, and over links with latency, against all splits."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import permutations
from typing import Any, NamedTuple

import pytest

from dnnp import bound, check, schedule, split
from dnnp.core.model.errors import FormatError, InfeasibleError, UsageError
from dnnp.formats.stream import Stream
from dnnp.graph import Graph
from support.generating import BANDWIDTH, Decoder, Link, random_decoder

WORKLOAD = (8, 5)


def links_of(seed: int) -> dict[tuple[int, int], Link]:
    """Unequal links between three devices, both ways."""
    rng = random.Random(seed)
    ends = (0, 1), (0, 2), (1, 2)
    pairs = {pair: Link(rng.choice([2, 10, 40]), rng.choice([0, 0.5, 2])) for pair in ends}
    return pairs | {(b, a): link for (a, b), link in pairs.items()}


def words_of(over: dict[tuple[int, int], Link]) -> list[str]:
    return [f"acc/{a},acc/{b}={x.rate},{x.latency}s" for (a, b), x in over.items() if a < b]


@pytest.mark.parametrize("first", [0, 20])
def test_each_pass_pays_the_latency_of_a_link(first: int) -> None:
    equal = paid = 0
    for seed in range(first, first + 20):
        stream, over = random_decoder(seed, phased=True), links_of(seed)
        decoder = Decoder(stream, 8, sum(WORKLOAD), WORKLOAD)
        homes = list(permutations(range(3)))
        best = min(
            max(decoder.loads([home[s] for s in stage], over).values())
            for stage in decoder.pipelines(3)
            for home in homes
        )
        made = split(Graph(stream), k=3, link=words_of(over), workload=[WORKLOAD], max_gap=0)
        plan = made.plan
        assert plan is not None
        assert check(made).ok, seed
        assert plan.bound <= best * (1 + 1e-9)
        assert plan.value >= best * (1 - 1e-9)
        equal += plan.value == pytest.approx(best)
        home = {v: int(s["device"][-1]) for s in made.records("stage") for v in s["nodes"]}
        loads = decoder.loads([home[v] for v in range(decoder.n)], over)
        stated = {int(s["device"][-1]): s["load_s"] for s in made.records("stage")}
        assert stated == pytest.approx(loads)
        paid += len(loads) > 1
    assert equal > 17
    assert paid > 5


def test_bounds_over_links_are_verified_and_forged_latencies_found() -> None:
    verified = found = 0
    for seed in range(12):
        over = links_of(seed)
        graph = Graph(random_decoder(seed, phased=True))
        made = split(graph, k=3, link=words_of(over), workload=[WORKLOAD])
        proven = check(bound(made), certificate=True)
        assert proven.ok
        verified += [proof.verdict for proof in proven.proofs or ()] == ["verified"]
        stream = made.stream()
        if len(made.records("stage")) > 1:
            for link in stream.get("plan")[0]["links"]:
                link["latency_s"] += 0.5
            found += not check(Graph(stream)).ok
    assert verified > 8
    assert found > 5


class Alone(NamedTuple):
    """A problem of three devices, for the latency of one sequence."""

    stream: Stream
    decoder: Decoder
    room: float
    speed: tuple[float, ...]
    over: dict[tuple[int, int], Link]
    options: dict[str, Any]

    def cost(self, home: Sequence[int]) -> float:
        """Time of a sequence by the device of every node; inf: something does not fit."""
        parts = [{v for v, d in enumerate(home) if d == one} for one in set(home)]
        if any(self.decoder.memory(part) > self.room for part in parts):
            return math.inf
        return sum(self.decoder.loads(home, self.over, self.speed).values())


def alone(seed: int) -> Alone:
    """A random decoder that one device seldom holds; with unequal speeds or links, or without."""
    rng = random.Random(seed)
    stream, workload = random_decoder(seed, phased=True), (8, rng.randint(2, 13))
    decoder = Decoder(stream, 2, sum(workload), workload, alone=True)
    whole = decoder.memory(set(range(decoder.n)))
    least = min(max(map(decoder.memory, parts)) for parts in decoder.splits())
    room = rng.choice([whole, least, least, rng.uniform(least * 0.8, whole)])
    speed = rng.choice([(1.0, 1.0, 1.0), (1.0, 0.5, 2.0)] if seed % 2 else [(1.0, 1.0, 1.0)])
    options: dict[str, Any] = {"k": 3, "memory": room, "workload": [workload], "max_gap": 0}
    over = dict.fromkeys(permutations(range(3), 2), Link(BANDWIDTH))
    if speed[1] < 1:
        options["speed"] = [f"acc/{d}={x}" for d, x in enumerate(speed)]
    if not seed % 2:
        over = links_of(seed)
        options["link"] = words_of(over)
    else:
        options["bandwidth"] = BANDWIDTH
    return Alone(stream, decoder, room, speed, over, {**options, "objective": "latency"})


@pytest.mark.parametrize("first", [0, 30, 60, 90])
def test_latency_against_all_splits(first: int) -> None:
    found = Counter[str]()
    for seed in range(first, first + 30):
        case = alone(seed)
        homes = list(permutations(range(3)))
        best = min(
            case.cost([home[s] for s in stage])
            for stage in case.decoder.pipelines(3)
            for home in homes
        )
        if best == math.inf:
            with pytest.raises(InfeasibleError):
                split(Graph(case.stream), **case.options)
            found["infeasible"] += 1
            continue
        made = split(Graph(case.stream), **case.options)
        plan, stages = made.plan, made.records("stage")
        assert plan is not None
        assert check(made).ok, seed
        assert plan.objective == "sequence"
        assert plan.bound <= best * (1 + 1e-9), seed
        assert plan.value >= best * (1 - 1e-9), seed
        home = {v: int(s["device"][-1]) for s in stages for v in s["nodes"]}
        assert plan.value == pytest.approx(case.cost([home[v] for v in range(case.decoder.n)]))
        tokens = case.options["workload"][0][1]
        assert plan.ttft_s is not None
        assert plan.tpot_s is not None
        time = plan.value + len(stages) * case.decoder.besides
        assert plan.ttft_s + (tokens - 1) * plan.tpot_s == pytest.approx(time)
        assert plan.tokens_per_s == pytest.approx(tokens / time)
        found["equal"] += plan.value == pytest.approx(best)
        found["optimal"] += plan.status == "optimal"
        found["several"] += len(stages) > 1
        found["plans"] += 1
    assert found["equal"] >= found["plans"] - 1
    assert found["optimal"] > 15
    assert found["several"] > 2
    assert found["infeasible"] > 3


def plan_for_latency() -> tuple[Graph, Stream]:
    case = alone(16)
    made = split(Graph(case.stream), **case.options)
    assert len(made.records("stage")) > 1
    return made, made.stream()


@pytest.mark.parametrize("name", ["tokens_per_s", "ttft_s", "tpot_s", "value"])
def test_a_changed_number_of_latency_is_found(name: str) -> None:
    made, stream = plan_for_latency()
    assert check(made).ok
    stream.get("plan")[0][name] *= 1.01
    assert not check(Graph(stream)).ok


@pytest.mark.parametrize("objective", ["throughput", "latency"])
def test_another_objective_is_found(objective: str) -> None:
    _, stream = plan_for_latency()
    stream.get("plan")[0]["objective"] = objective
    with suppress(FormatError):
        assert not check(Graph(stream)).ok


def test_a_sequence_without_workload_is_found() -> None:
    stream = split(Graph(random_decoder(1, phased=False)), k=1).stream()
    assert check(Graph(stream)).ok
    stream.get("plan")[0]["objective"] = "sequence"
    assert not check(Graph(stream)).ok


def test_what_does_not_know_the_latency_of_a_sequence_says_so() -> None:
    made, _ = plan_for_latency()
    with pytest.raises(UsageError, match="objective is latency; there are bounds"):
        bound(made)
    with pytest.raises(UsageError, match="sequences of prompts and tokens"):
        schedule(made)
    refused: dict[str, dict[str, Any]] = {
        "--method": {"method": "exact"},
        "--validity": {"validity": "free"},
        "--in-flight": {"in_flight": 4},
        "--execution": {"execution": "operators"},
        "--congestion": {"congestion": "none"},
        "clusters": {"cluster_size": 2, "inner_bandwidth": 50.0, "bandwidth": 10.0},
        "--exactly 2": {"exactly": 2},
    }
    for flag, more in refused.items():
        with pytest.raises(UsageError, match=f"^{flag}") as error:
            split(Graph(alone(16).stream), k=2, objective="latency", **more)
        assert "with --objective latency" in str(error.value)


@pytest.mark.parametrize(("factor", "rows"), [(0.5, 3), (1.5, 2)])
def test_rows_of_the_least_latency_are_taken(factor: float, rows: int) -> None:
    for seed in range(5):
        stream = random_decoder(seed, phased=True)
        for phase in stream.get("phase")[1:]:
            times = {"acc": [factor * t for t in phase["times"]["acc"]]}
            more = {**phase, "id": len(stream.get("phase")), "rows": 3, "times": times}
            stream.records["phase"] = [*stream.get("phase"), more]
        made = split(Graph(stream), k=2, workload=[(8, 13)], objective="latency")
        record = made.records("plan")[0]
        assert record["workload"]["rows"] == rows
        assert record["in_flight"] == rows
        assert check(made).ok
