"""Nets that part the ideals of zones in certificates of `zone-cut`: no ideal is left out, and no
certificate of more than the optimum is verified, however its zones are parted."""

from __future__ import annotations

import random
from collections.abc import Iterator
from copy import deepcopy
from itertools import combinations, product

import numpy as np
import pytest

from dnnp.core.bounds.lower_bound import BoundTask
from dnnp.core.bounds.zone_cut import zone_cut_claim
from dnnp.core.certificates.certificate import NOT_CHECKABLE, REFUTED, VERIFIED
from dnnp.core.certificates.exact import Budget
from dnnp.core.certificates.zones import Ends, _cases, _most
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import Graph, singletons
from dnnp.formats.graph import graph_of
from dnnp.formats.workloads.synthetic import synthetic_stream
from support.brute import brute_force
from support.cases import Case
from support.certificates import Json, Made, instance, spoiled
from support.problems import SUM, fan

ORDERED = BoundTask("ordered")


def made_of(case: Case) -> Made | None:
    """The certificate of a case, if there is one."""
    claim = zone_cut_claim(case.problem, ORDERED)
    if claim.certificate is None or not claim.value:
        return None
    return Made.of(case, "ordered", claim)


def a_fork() -> Made:
    """One whose bound is proven by a fork's tensor: it is paid, or all its readers are in."""
    problem = fan(layers=1, k=2)
    graph: Graph = problem.graph
    case = Case(0, graph, singletons(graph), tuple(problem.devices), SUM)
    made = made_of(case)
    assert made is not None
    return made


def changed(made: Made, **fields: Json) -> Json:
    record = deepcopy(made.record)
    record["certificate"].update(fields)
    return record


def claiming(record: Json, more: int) -> Json:
    """The record with a bound that is so many quanta larger."""
    record["certificate"]["units"] += more
    record["value"] = record["certificate"]["units"] * record["certificate"]["quantum"]
    return record


def test_a_true_one_is_verified_and_a_false_one_refused():
    made = a_fork()
    parted, rates = made.certificate["parted"], made.certificate["rates"]
    names = [int(t) for t in instance(made).tensors]
    assert made.verdict(made.record) == VERIFIED
    # Order says nothing, nor does what is said twice.
    for other in (parted[::-1], [*parted, *parted]):
        assert made.verdict(changed(made, parted=other)) == VERIFIED
    # Each is needed; so is each at its own zone.
    missing = [[row for row in parted if row is not left] for left in parted]
    moved = [[[zone + by, tensor] for zone, tensor in parted] for by in (-1, 1, 20)]
    # A net without a pin that is in all ideals has a third case: none of its pins is in.
    open_ = [[*parted, [zone, tensor]] for zone, tensor in product((0, len(names)), names)]
    priced = [[[zone, tensor, 5] for zone, tensor in parted]]  # what nets cost is not asked
    for other in ([], *missing, *moved, *open_, *priced, [[zone] for zone, _ in parted]):
        assert made.verdict(changed(made, parted=other)) == REFUTED, other
    for other in ([[p, q - p] for p, q in rates if p], [[2 * q, q] for _, q in rates], rates[:1]):
        assert made.verdict(changed(made, rates=other)) == REFUTED, other
    assert made.verdict(changed(made, path=made.certificate["path"][::-1])) == REFUTED
    for more in (1, 10**9):
        assert made.verdict(claiming(deepcopy(made.record), more)) == REFUTED


def random_forks(seed: int) -> Case:
    """Two to three forks in a row, each with two to three branches, on two to four devices."""
    rng = random.Random(seed)
    tail, head, last = [], [], 0
    for _ in range(rng.randint(2, 3)):
        width = rng.randint(2, 3)
        join = last + width + 1
        tail += [*[last] * width, *range(last + 1, join)]
        head += [*range(last + 1, join), *[join] * width]
        last = join
    costs = [[float(rng.randint(1, 9)) for _ in range(last + 1)] for _ in range(2)]
    graph = graph_of(synthetic_stream("forks", *map(np.array, (tail, head, *costs))))
    device = DeviceClass("unit", count=rng.randint(2, 4), bandwidth_bytes_per_s=1.0)
    return Case(seed, graph, singletons(graph), (device,), SUM)


@pytest.mark.parametrize("first", [0, 10])
def test_no_way_to_part_zones_proves_more_than_the_optimum(first):
    tried, rates = 0, [[0, 1], [1, 4], [1, 2], [1, 1]]
    for seed in range(first, first + 10):
        made = made_of(random_forks(seed))
        assert made is not None
        assert made.verdict(made.record) == VERIFIED
        optimum = brute_force(made.case.problem)[0]
        limit = int(optimum / made.certificate["quantum"] * (1 + 1e-12)) + 1
        rows = product(range(len(made.certificate["path"]) + 1), instance(made).tensors)
        named = [[zone, int(tensor)] for zone, tensor in rows]

        def verdict(parted: Json, span: int, units: int, made: Made = made) -> str:
            record = changed(made, parted=parted, span=span, rates=rates)
            return made.verdict(claiming(record, units - record["certificate"]["units"]))

        for span in (1, 2, 3):
            good = [row for row in named if verdict([row], span, 1) == VERIFIED]
            for size in range(1, min(len(good), 3) + 1):
                for parted in combinations(good, size):
                    assert verdict(list(parted), span, limit) == REFUTED, (seed, span, parted)
                    tried += 1
    assert tried > 40


def zones(rng: random.Random) -> tuple[list[int], list[Ends], list[tuple[int, int]], list[int]]:
    """A random zone: work, nets, edges, and nets that may part it."""
    n = rng.randint(1, 5)
    edges = [(u, v) for u, v in combinations(range(n), 2) if rng.random() < 0.4]
    ends = []
    for _ in range(rng.randint(1, 4)):
        pins = tuple(sorted(rng.sample(range(n), rng.randint(1, n))))
        some_in, some_out = rng.random() < 0.6, rng.random() < 0.2
        ends.append((rng.randint(1, 9), some_in, some_out and not some_in, pins))
    parted = [e for e, (_, some_in, _, _) in enumerate(ends) if some_in][:2]
    return [rng.randint(0, 9) for _ in range(n)], ends, edges, parted


def ideals(n: int, edges: list[tuple[int, int]]) -> Iterator[frozenset[int]]:
    for bits in product((False, True), repeat=n):
        inside = frozenset(v for v, bit in enumerate(bits) if bit)
        if all(u in inside for u, v in edges if v in inside):
            yield inside


def test_every_ideal_of_a_zone_is_in_one_case_that_holds_for_it():
    rng, many = random.Random(7), 0
    for _ in range(200):
        works, ends, edges, parted = zones(rng)
        cases = list(_cases(ends, edges, parted, Budget()))
        many += len(cases) > 1
        for ideal, (p, q) in product(ideals(len(works), edges), ((0, 1), (1, 3), (1, 1))):
            work, cut, paid = sum(works[v] for v in ideal), 0, set()
            for e, (cost, some_in, some_out, pins) in enumerate(ends):
                if (some_in or ideal & set(pins)) and (some_out or not ideal >= set(pins)):
                    cut, paid = cut + cost, paid | {e}
            of_it = [
                (inside, nets)
                for inside, nets in cases
                if inside <= ideal and all((not nets[e][3]) == (e in paid) for e in parted)
            ]
            assert len(of_it) == 1
            ((inside, nets),) = of_it
            assert p * work - q * cut <= _most(works, nets, edges, inside, (p, q), Budget())
    assert many > 50


def test_what_still_verifies_when_it_is_spoiled_is_true():
    rng, told = random.Random(3), {VERIFIED: 0, REFUTED: 0, NOT_CHECKABLE: 0}
    for made in (a_fork(), *filter(None, map(made_of, map(random_forks, range(20, 24))))):
        optimum = brute_force(made.case.problem)[0]
        parted = made.certificate.setdefault(
            "parted", [[1, int(t)] for t in instance(made).tensors]
        )
        for _ in range(60):
            part = Made(made.case, "ordered", {"parted": parted})
            for record in (spoiled(made, rng), changed(made, **spoiled(part, rng))):
                verdict = made.verdict(record)
                told[verdict] += 1
                assert verdict != VERIFIED or record["value"] <= optimum * (1 + 1e-12), record
    assert told[REFUTED] > 100
    assert told[VERIFIED] > 10
