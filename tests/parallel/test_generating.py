"""Parallel plans of models that generate, against all plans of small graphs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from dnnp import check, split
from dnnp.core.model.errors import FormatError, InfeasibleError
from dnnp.formats.stream import Stream
from dnnp.graph import Graph
from support.generating import BANDWIDTH, Decoder, random_decoder

DEGREES = (2, 4)
KINDS = {"all-reduce": 2.0, "all-gather": 1.0}


class Sharded:
    """Layouts of the nodes of a random decoder, which both ends of a state share."""

    def __init__(self, stream: Stream, seed: int) -> None:
        rng = random.Random(f"shards {seed}")
        nodes, self.states = stream.get("node"), stream.get("state")
        self.outputs = {t["id"] for t in stream.get("tensor") if t.get("output")}
        self.outputs -= {state["output"] for state in self.states}
        self.cut = {}
        for state in self.states:  # another state of a tensor than its own has a say, too
            self.cut |= dict.fromkeys((state["input"], state["output"]), rng.choice((-1, 0)))
        self.layout: dict[tuple[int, int], dict[str, Any]] = {}
        for t in DEGREES:
            for node in nodes:
                outs = [self.cut.get(x, rng.choice((-1, 0))) for x in node["outputs"]]
                ins = [self.cut.get(x, rng.choice((-1, 0, 0))) for x in node["inputs"]]
                made = {"inputs": ins, "outputs": outs}
                if set(outs) == {-1} and rng.random() < 0.4:
                    made["reduced"] = True
                self.layout[t, node["id"]] = made
        self.nodes = nodes
        self.gathered = {t: set(self._gathered(t)) for t in DEGREES}

    def made(self, t: int, x: int) -> int:
        """State of a tensor when it has been made."""
        return int(self.layout[t, x]["outputs"][0]) if (t, x) in self.layout else -1

    def _gathered(self, t: int) -> Iterator[int]:
        for node in self.nodes:
            x = node["outputs"][0]
            needs = [
                state
                for other in self.nodes
                for y, state in zip(
                    other["inputs"], self.layout[t, other["id"]]["inputs"], strict=True
                )
                if y == x
            ]
            if self.made(t, x) == 0 and (x in self.outputs or -1 in needs):
                yield x

    def exchanged(self, t: int, v: int, size: list[float]) -> list[tuple[str, float]]:
        """Kind and bytes of each exchange when a node has run."""
        x = self.nodes[v]["outputs"][0]
        found = [("all-reduce", size[x])] if self.layout[t, v].get("reduced") else []
        return found + [("all-gather", size[x])] * (x in self.gathered[t])

    def part(self, t: int, x: int) -> float:
        """Share of a tensor that a device has of what a node makes."""
        return 1 / t if self.made(t, x) == 0 and x not in self.gathered[t] else 1.0


def with_shards(stream: Stream, seed: int) -> Sharded:
    """State random times and layouts on 2 and 4 devices, in all phases."""
    rng = random.Random(f"times {seed}")
    sharded = Sharded(stream, seed)
    size = [float(tensor["size_bytes"]) for tensor in stream.get("tensor")]
    for node in stream.get("node"):
        node["shards"] = []
        for t in DEGREES:
            one = {"devices": t, "time_s": {"acc": float(rng.randint(1, 9)) / t}}
            said = sharded.exchanged(t, node["id"], size)
            if said:
                one["collectives"] = [{"kind": kind, "bytes": bytes_} for kind, bytes_ in said]
            node["shards"].append(one | {"layout": sharded.layout[t, node["id"]]})
            x = node["outputs"][0]
            if sharded.part(t, x) < 1:
                entry = {"devices": t, "out_bytes": size[x] * (t - 1) / t}
                stream.get("tensor")[x].setdefault("shards", []).append(entry)
    count = len(stream.get("node"))
    for phase in stream.get("phase")[1:]:
        times = [float(rng.randint(1, 9)) / t for t in DEGREES for _ in range(count)]
        phase["shard_times"] = {"acc": times}
    return sharded


class Plans:
    """All plans of a decoder: stages in order, each on 1, 2 or 4 devices."""

    def __init__(
        self, stream: Stream, sharded: Sharded, decoder: Decoder, passes: list[float]
    ) -> None:
        self.sharded, self.decoder, nodes = sharded, decoder, stream.get("node")
        self.time: dict[int, list[float]] = {1: decoder.time}
        for at, t in enumerate(DEGREES):
            first = [node["shards"][at]["time_s"]["acc"] for node in nodes]
            n = len(nodes)
            rows = [p["shard_times"]["acc"][at * n : at * n + n] for p in stream.get("phase")[1:]]
            self.time[t] = [
                sum(w * row[v] for w, row in zip(passes, (first, *rows), strict=True))
                for v in range(n)
            ]
        self.held = [
            (state["input"], held)
            for state, (_, held) in zip(stream.get("state"), decoder.states, strict=True)
        ]

    def load(self, part: set[int], t: int) -> float:
        """Time of a stage for a sequence."""
        size = self.decoder.moved
        total = sum(self.time[t][v] for v in part)
        if t > 1:
            said = [one for v in part for one in self.sharded.exchanged(t, v, size)]
            total += sum(KINDS[kind] * bytes_ * (t - 1) / t for kind, bytes_ in said) / BANDWIDTH
        for x in {u for u, v in self.decoder.feeds if (u in part) != (v in part)}:
            total += size[x] / BANDWIDTH
            if t > 1 and x in part and self.sharded.part(t, x) < 1:
                total += size[x] * (t - 1) / t / BANDWIDTH
        return total

    def memory(self, part: set[int], t: int) -> float:
        """Bytes on each device of a stage: what its nodes write, and states at each reader."""
        kept = {state["output"] for state in self.sharded.states}
        total = 0.0
        for v in part - kept:
            total += self.decoder.largest[v] * (self.sharded.part(t, v) if t > 1 else 1.0)
        for x, held in self.held:
            readers = [v for v in part if x in self.sharded.nodes[v]["inputs"]]
            total += len(readers) * held / (t if t > 1 and self.sharded.cut[x] == 0 else 1)
        return total

    def best(self, k: int, most: int, room: float) -> float:
        """Least largest load; inf: nothing fits."""
        found = float("inf")
        seen: dict[tuple[frozenset[int], int], float] = {}
        for stage in self.decoder.pipelines(min(k, self.decoder.n)):
            parts = [{v for v, s in enumerate(stage) if s == one} for one in sorted({*stage})]
            rows = []
            for part in parts:
                row = []
                for t in (t for t in (1, *DEGREES) if t <= most):
                    key = frozenset(part), t
                    if key not in seen:
                        fits = self.memory(part, t) <= room
                        seen[key] = self.load(part, t) if fits else float("inf")
                    row.append((t, seen[key]))
                rows.append(row)
            for teams in product(*rows):
                if sum(t for t, _ in teams) <= k:
                    found = min(found, max(load for _, load in teams))
        return found


def passes_of(decoder: Decoder, workload: tuple[int, int] | None) -> list[float]:
    """Passes of each point that a sequence takes."""
    if workload is None:
        return [1.0]
    return [decoder.alone[0][0], *(whole / decoder.rows for whole, _ in decoder.alone[1:])]


def agree(seed: int) -> str:
    """Compare one random graph; returns what it was."""
    rng = random.Random(f"parallel {seed}")
    phased = seed % 3 != 0
    stream = random_decoder(seed, phased=phased)
    sharded = with_shards(stream, seed)
    count, room = rng.randint(2, 5), float(rng.choice([12, 25, 40, 70, 1000]))
    k, most = rng.randint(1, 5), rng.choice((2, 4))
    workload = (8, rng.randint(2, 13)) if phased else None
    length = sum(workload) if workload else rng.randint(1, 6)
    more: dict[str, Any] = {"workload": [workload]} if workload else {"max_length": length}
    more |= {"in_flight": count, "tensor_parallel": most, "bandwidth": BANDWIDTH, "memory": room}
    decoder = Decoder(stream, count, length, workload)
    plans = Plans(stream, sharded, decoder, passes_of(decoder, workload))
    expected = plans.best(k, most, room)
    graph = Graph(stream)
    if expected == float("inf"):
        with pytest.raises(InfeasibleError):
            split(graph, k=k, max_gap=0, **more)
        return "infeasible"
    made = split(graph, k=k, max_gap=0, **more)
    record, stages = made.stream().get("plan")[0], made.stream().get("stage")
    assert record["value"] == pytest.approx(expected), seed
    assert record["bound"] <= expected * (1 + 1e-9), seed
    teams = [(set(stage["nodes"]), stage.get("shards", 1)) for stage in stages]
    for stage, team in zip(stages, teams, strict=True):
        assert stage["memory_bytes"] == pytest.approx(plans.memory(*team)), seed
        assert stage["load_s"] == pytest.approx(plans.load(*team)), seed
    found = check(made, certificate=True)
    assert found.ok, seed
    assert [proof.verdict for proof in found.proofs or ()] == ["verified"], seed
    if workload:
        busy = sum(plans.load(*team) + decoder.besides for team in teams)
        time = max(expected + decoder.besides, busy * decoder.rows / count)
        assert record["tokens_per_s"] == pytest.approx(workload[1] / time), seed
    return "sharded" if any(t > 1 for _, t in teams) else "plain"


def test_plans_against_all_plans() -> None:
    seen = [agree(seed) for seed in range(90)]
    assert seen.count("sharded") > 15
    assert seen.count("plain") > 4
    assert seen.count("infeasible") > 3


def plan_of(seed: int = 4) -> Graph:
    stream = random_decoder(seed, phased=True)
    with_shards(stream, seed)
    made = split(
        Graph(stream), k=4, tensor_parallel=4, workload=[(8, 6)], in_flight=2, memory=1000.0,
        bandwidth=1e6,
    )  # fmt: skip
    assert any(stage.get("shards", 1) > 1 for stage in made.stream().get("stage"))
    return made


@pytest.mark.parametrize("field", ["tokens_per_s", "ttft_s", "tpot_s", "in_flight", "value"])
def test_a_changed_number_of_a_plan_is_found(field: str) -> None:
    made = plan_of()
    assert check(made).ok
    stream = made.stream()
    stream.get("plan")[0][field] *= 2
    assert not check(Graph(stream)).ok


@pytest.mark.parametrize("field", ["memory_bytes", "load_s", "collective_s", "compute_s"])
def test_a_changed_number_of_a_stage_is_found(field: str) -> None:
    stream = plan_of().stream()
    stage = next(one for one in stream.get("stage") if one.get("shards", 1) > 1)
    stage[field] = stage[field] * 2 + 1
    assert not check(Graph(stream)).ok


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda s: s.get("phase")[1]["shard_times"]["acc"].pop(), "values for"),
        (lambda s: s.get("phase")[1].pop("shard_times"), "missing"),
        (lambda s: s.get("node")[0]["shards"][0].pop("layout"), "layout"),
    ],
)
def test_malformed_shards_are_refused(change: Any, reason: str) -> None:
    stream = plan_of().stream()
    change(stream)
    with pytest.raises(FormatError, match=reason):
        check(Graph(stream))
