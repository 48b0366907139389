"""Plans of models that generate over links with latency, against all splits on all devices."""

from __future__ import annotations

import random
from itertools import permutations

import pytest

from dnnp import bound, check, split
from dnnp.graph import Graph
from support.generating import Decoder, Link, random_decoder

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
