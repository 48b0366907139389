"""Certificates from linear programs verify, prove no more than is true, and break if changed."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from copy import deepcopy
from itertools import pairwise

import numpy as np
import pytest

from dnnp.core.bounds.column_generation import cover_claim, cover_cut_claim
from dnnp.core.bounds.lower_bound import BoundTask
from dnnp.core.bounds.pairs import between_of, pair_costs
from dnnp.core.bounds.same_block import PARTS, Named, Together, proven, same_block_claim
from dnnp.core.certificates import cover, exact
from dnnp.core.certificates.certificate import NOT_CHECKABLE, REFUTED, VERIFIED, check_certificate
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import singletons
from dnnp.core.model.plan import CostOptions
from dnnp.core.model.search_context import PLAIN, SearchContext
from support.brute import brute_force
from support.cases import Case, accelerators_case, random_case
from support.certificates import UNKNOWN, Json, Made, above, bad_flows, instance, malformed, spoiled
from support.problems import chain

PRODUCERS = {
    "same-block": same_block_claim,
    "cover": cover_claim,
    "cover-cut": cover_cut_claim,
}
VALIDITIES = ("ordered", "convex", "free")


def made_of(case: Case, validity: str, name: str, value: float) -> Made | None:
    """Bound and certificate of a case as they would stand in a stream."""
    claim = PRODUCERS[name](case.problem, BoundTask(validity, value=value))
    if claim.certificate is None:
        return None
    return Made.of(case, validity, claim)


def cases(first: int, last: int) -> Iterator[Case]:
    for seed in range(first, last):
        yield accelerators_case(seed, 6, comms=("sum", "sum", "overlap", "duplex"))
        yield random_case(seed, 6, max_replicas=1)


@pytest.mark.parametrize("first", range(0, 16, 8))
def test_they_verify_and_their_values_are_bounds(first):
    verified = dict.fromkeys(PRODUCERS, 0)
    for case in cases(first, first + 8):
        for validity in VALIDITIES:
            optimum = brute_force(case.problem, validity=validity)[0]
            for name in PRODUCERS:
                made = made_of(case, validity, name, optimum)
                if made is None:
                    continue
                where = (case.seed, name, validity)
                assert made.record["value"] <= optimum * (1 + 1e-12), where
                assert made.verdict(made.record) == VERIFIED, where
                verified[name] += 1
    assert min(verified.values()) > 10, verified


def beyond(made: Made) -> Iterator[Json]:
    """The value, and what is said to be proven, are more than what the certificate gives."""
    return above(made, limit(made))


def limit(made: Made) -> int:
    """The largest value that the certificate proves.

    A target is reached exactly; prices hold until a set that breaks them is light enough.
    """
    if made.certificate["argument"] == "same-block":
        return multiplied(made, made.certificate)
    return least_load(made, dict(map(tuple, made.certificate["prices"])))


def multiplied(made: Made, certificate: Json, *, closed: bool = True) -> int:
    """The value that multipliers prove, by the rows of the program that made them."""
    whole = instance(made)
    options = made.case.options
    stages = min(whole.devices[0].count, whole.items.count)
    program = Together(whole.work[0], whole.nets, whole.cost[0], stages, PARTS[options.comm])
    item = {name: i for i, name in enumerate(whole.names.tolist())}
    tensor = {name: e for e, name in enumerate(whole.tensors[program.first].tolist())}
    rows: list[tuple[Named, int]] = []
    for kind, (first, *rest), y in certificate["rows"]:
        others = [item[name] for name in rest]
        if kind not in ("total", "stage"):
            first = (tensor if kind in ("cut", "inside", "paid") else item)[first]
        rows.append(((kind, (first, *others)), y))
    apart = np.zeros((program.n, program.n), dtype=np.bool_)
    if closed and options.comm == "sum":
        between = between_of(made.case.graph, whole.items, made.validity)
        apart = pair_costs(whole.work[0], whole.nets, whole.cost[0], between)
        apart = apart >= certificate["target"]
    return min(certificate["target"], proven(program, rows, apart)[0])


def least_load(made: Made, prices: dict[int, int]) -> int:
    """Least load of a set that is worth more than its share, by looking at all of them."""
    whole = instance(made)
    between = between_of(made.case.graph, whole.items, made.validity)
    names, n = whole.names.tolist(), whole.items.count
    worth = [prices.get(name, 0) for name in names]
    share = (sum(worth) - 1) // min(whole.devices[0].count, n)
    nets = [
        (set(whole.nets.pins[a:b].tolist()), bool(always), int(cost))
        for (a, b), always, cost in zip(
            pairwise(whole.nets.net_ptr.tolist()), whole.nets.always, whole.cost[0], strict=True
        )
    ]
    held = [[set(between.holds(u, v).tolist()) for v in range(n)] for u in range(n)]
    loads = []
    for mask in range(1, 1 << n):
        some = {v for v in range(n) if mask >> v & 1}
        if sum(worth[v] for v in some) > share and all(
            held[u][v] <= some for u in some for v in some
        ):
            paid = (c for pins, always, c in nets if pins & some and (always or pins - some))
            loads.append(int(whole.work[0, sorted(some)].sum()) + sum(paid))
    return min(loads)


ROW_OF = {"total": 1, "stage": 2, "cut": 4, "inside": 3, "between": 3, "triangle": 3}
"""Kind of a row -> how many numbers it is about."""


def bad_same_block(made: Made) -> Iterator[Json]:
    certificate = made.certificate
    units, scale = certificate["units"], certificate["scale"]
    whole = instance(made)

    def changed(number: int, place: int, value: Json) -> Json:
        return made.altered("rows", number, place, to=value)

    for number, (kind, about, y) in enumerate(certificate["rows"]):
        for multiplier in (-y, -1, y + 0.5, f"{y}.0", None, True):
            yield changed(number, 2, multiplier)
        for other in ("none", "", None, 3, [kind]):
            yield changed(number, 0, other)
        for numbers in ([], "all", None, [*about[:-1], UNKNOWN], [*about[:-1], 0.0], [UNKNOWN]):
            yield changed(number, 1, numbers)
        if kind in ROW_OF:
            yield changed(number, 1, [*about, about[-1]])
        if kind == "paid":
            yield changed(number, 1, [*about, about[1]])  # a pin twice
            yield changed(number, 1, [UNKNOWN, *about[1:]])
        if kind in ("total", "stage"):
            yield changed(number, 1, [len(PARTS[made.case.options.comm]), *about[1:]])
            yield changed(number, 1, [-1, *about[1:]])
            yield changed(number, 2, y + scale)  # T weighs more than it may
        if kind == "cut":
            yield changed(number, 1, [*about[:3], about[2]])  # in and out
            yield changed(number, 0, "paid" if about[1] in about[2:] else "triangle")
        record = deepcopy(made.record)
        del record["certificate"]["rows"][number]
        if multiplied(made, record["certificate"]) < units:
            yield record
    for tensor, always in zip(whole.tensors.tolist(), whole.nets.always.tolist(), strict=True):
        record = deepcopy(made.record)
        record["certificate"]["rows"].append(["paid", [tensor], 1])
        if not always:
            yield record  # it may not be paid at all
    for value in (units - 1, 0, -1, 2.0):
        yield made.altered("target", to=value)
    for value in (0, scale * 2, scale // 2):
        record = deepcopy(made.record)
        record["certificate"]["scale"] = value
        weights = [
            PARTS[made.case.options.comm][about[0]][0] * y
            for kind, about, y in certificate["rows"]
            if kind == "stage"
        ]
        if value != scale // 2 or sum(weights) > value:
            yield record
    for number, cut in enumerate(certificate["cuts"]):
        yield from bad_flows(made, lambda c, number=number: c["cuts"][number]["flows"])
        for name, value in (
            ("items", [UNKNOWN, cut["items"][0]]),
            ("items", cut["items"][:1]),
            ("memory", True),
        ):
            yield made.altered("cuts", number, name, to=value)
    if multiplied(made, certificate, closed=False) < units:
        yield made.altered("cuts", to=[])


def bad_cover(made: Made) -> Iterator[Json]:
    prices = made.certificate["prices"]
    units = made.certificate["units"]

    def changed(other: Json) -> Json:
        return made.altered("prices", to=other)

    for other in ([], [[]], [*prices, prices[0]], [[name, 0] for name, _ in prices], [7]):
        yield changed(other)
    for number, (name, price) in enumerate(prices):
        rest = [row for row in prices if row[0] != name]
        for value in (-price, -1, float(price), f"{price}.0", None, True):
            yield changed([*rest, [name, value]])
        yield changed([*rest, [UNKNOWN, price]])
        yield changed([*rest, [name, price, price]])
        for value in (0, price // 2, price * 2, price * 9, price + 1):
            other = [*prices[:number], [name, value], *prices[number + 1 :]]
            if sum(p for _, p in other) and least_load(made, dict(map(tuple, other))) < units:
                yield changed(other)


def bad_cover_cut(made: Made) -> Iterator[Json]:
    def changed(change) -> Json:
        record = deepcopy(made.record)
        change(record["certificate"])
        return record

    names = [d.name for d in made.case.devices]
    total = sum(price for _, price in made.certificate["prices"])
    for name in names:
        yield changed(lambda c, name=name: c["classes"].pop(name))
        for value in (-1, 0.5, None, True, total):
            yield changed(lambda c, n=name, v=value: c["classes"][n].update(share=v))
        tree = made.certificate["classes"][name]["tree"]
        for other in ([], [[]], [*tree, tree[-1]], tree[:-1], [[0, 0]], [[UNKNOWN], *tree, *tree]):
            yield changed(lambda c, n=name, v=other: c["classes"][n].update(tree=v))
    prices = made.certificate["prices"]
    for other in ([], [[]], [*prices, prices[0]], [[v, 0] for v, _ in prices], [[UNKNOWN, 1]]):
        yield changed(lambda c, v=other: c.update(prices=v))
    for _, price in prices:
        for value in (-price, float(price), None, True):
            yield changed(lambda c, v=value: c.update(prices=[[prices[0][0], v]]))


BAD = {"same-block": bad_same_block, "cover": bad_cover, "cover-cut": bad_cover_cut}


@pytest.mark.parametrize("name", BAD)
def test_corrupted_ones_are_all_refused(name):
    refused = dict.fromkeys(("beyond", "malformed", BAD[name].__name__), 0)
    for case in cases(0, 12):
        for validity in ("ordered", "convex"):
            value = brute_force(case.problem, validity=validity)[0]
            made = made_of(case, validity, name, value)
            if made is None or any("memory" in cut for cut in made.certificate.get("cuts", ())):
                continue
            for corrupt in (beyond, malformed, BAD[name]):
                for number, record in enumerate(corrupt(made)):
                    where = (case.seed, validity, corrupt.__name__, number)
                    assert made.verdict(record) == REFUTED, (where, json.dumps(record))
                    refused[corrupt.__name__] += 1
    assert refused[BAD[name].__name__] > 400, refused


def test_nothing_that_verifies_is_false_whatever_it_looks_like():
    rng = random.Random(1)
    told = {VERIFIED: 0, REFUTED: 0, NOT_CHECKABLE: 0}
    for case in cases(0, 12):
        optimum = {v: brute_force(case.problem, validity=v)[0] for v in VALIDITIES}
        for name in PRODUCERS:
            made = made_of(case, "ordered", name, optimum["ordered"])
            for _ in range(80 if made else 0):
                record = spoiled(made, rng)
                verdict = made.verdict(record)
                told[verdict] += 1
                if verdict == VERIFIED:
                    best = optimum[record["validity"]]
                    assert record["value"] <= best * (1 + 1e-12), (case.seed, name, record)
    assert min(told[VERIFIED], told[REFUTED]) > 50, told


def verdict_of(graph, count, certificate, **options):
    """Verdict on a certificate for devices that move a byte in a second."""
    device = DeviceClass("dev", count=count, bandwidth_bytes_per_s=1.0)
    certificate = {"quantum": 1.0, **certificate}
    record = {"value": certificate["units"], "validity": "ordered", "certificate": certificate}
    cost = CostOptions(memory_model="sum", **options)
    return check_certificate(graph, singletons(graph), (device,), cost, record).verdict


def test_prices_by_hand():
    # Alone they pay 14 or 18, and the two at an end 24: below 24 no stage holds two of them.
    graph = chain(10, 10, 10, 10, transfer=4.0)
    prices = {"argument": "cover", "prices": [[v, 1] for v in range(4)]}
    for count, units, verdict in (
        (3, 24, VERIFIED),
        (3, 25, REFUTED),
        (4, 24, REFUTED),
        (4, 15, REFUTED),
        (4, 14, VERIFIED),
        (1, 40, VERIFIED),
        (1, 41, REFUTED),
    ):
        assert verdict_of(graph, count, {**prices, "units": units}) == verdict, (count, units)
    assert verdict_of(graph, 3, {**prices, "units": 24}, comm="overlap") == REFUTED
    assert verdict_of(graph, 3, {**prices, "units": 24}, max_replicas=2) == REFUTED


def test_multipliers_by_hand():
    # T >= 10 + 10 X + 4 Y and Y >= 1 - X make T >= 14 + 6 X.
    graph = chain(10, 10, transfer=4.0)
    tensor = int(graph.tensor_ids[graph.out_idx[0]])
    rows = [["stage", [0, 0], 1], ["cut", [tensor, 0, 0, 1], 4]]
    proof = {"argument": "same-block", "target": 14, "scale": 1, "rows": rows, "cuts": []}
    assert verdict_of(graph, 2, {**proof, "units": 14}) == VERIFIED
    assert verdict_of(graph, 2, {**proof, "units": 15, "target": 15}) == REFUTED
    assert verdict_of(graph, 2, {**proof, "units": 14}, comm="overlap") == REFUTED
    # All work, and the tensor twice, unless both share a stage: 2 T >= 20 + 4 (2 - 2 X).
    rows = [["total", [0], 1], ["paid", [tensor, 0, 1], 4]]
    proof |= {"rows": rows, "scale": 2}
    assert verdict_of(graph, 2, {**proof, "units": 10}) == VERIFIED
    assert verdict_of(graph, 2, {**proof, "units": 11}) == REFUTED
    # Below 14 the two share no stage: a cut around both is 20.
    proof["cuts"] = [{"items": [0, 1], "flows": []}]
    assert verdict_of(graph, 2, {**proof, "units": 14}) == VERIFIED
    assert verdict_of(graph, 2, {**proof, "units": 14, "target": 21}) == REFUTED


def test_large_numbers_may_be_text():
    graph = chain(10, 10, transfer=4.0)
    tensor = int(graph.tensor_ids[graph.out_idx[0]])
    one = 2**60
    rows = [["total", [0], str(one)], ["paid", [tensor, 0, 1], str(4 * one)]]
    proof = {"argument": "same-block", "target": 14, "scale": str(2 * one), "units": 14}
    cuts = [{"items": [0, 1], "flows": []}]
    assert verdict_of(graph, 2, {**proof, "rows": rows, "cuts": cuts}) == VERIFIED
    cuts[0]["flows"] = [[tensor, [[0, str(one)], [1, str(-one)]]]]
    assert verdict_of(graph, 2, {**proof, "rows": rows, "cuts": cuts}) == REFUTED
    rows[0][1] = [str(one)]
    assert verdict_of(graph, 2, {**proof, "rows": rows, "cuts": []}) == REFUTED
    rows[0][1], rows[1][1][0] = [0], str(one)
    assert verdict_of(graph, 2, {**proof, "rows": rows, "cuts": []}) == REFUTED


def test_cuts_bound_no_load_where_transfers_and_compute_overlap():
    graph = chain(10, 10, transfer=30.0)
    proof = {
        "argument": "same-block",
        "target": 10,
        "scale": 2,
        "rows": [["total", [0], 1]],
        "units": 10,
    }
    assert verdict_of(graph, 2, {**proof, "cuts": []}, comm="overlap") == VERIFIED
    cuts = [{"items": [0, 0], "flows": [[int(graph.tensor_ids[graph.out_idx[0]]), []]]}]
    assert verdict_of(graph, 2, {**proof, "cuts": cuts}, comm="overlap") == REFUTED


def test_a_search_that_takes_too_long_verifies_nothing(monkeypatch):
    graph = chain(10, 10, 10, 10, transfer=4.0)
    proof = {"argument": "cover", "units": 24, "prices": [[v, 1] for v in range(4)]}
    for module, name in ((exact, "MOST_STEPS"), (cover, "MOST_ITEMS")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, 1)
            assert verdict_of(graph, 3, proof) == NOT_CHECKABLE
            assert verdict_of(graph, 3, {**proof, "units": 24.5}) == REFUTED


def test_prices_of_any_size_are_compared_exactly():
    graph = chain(10, 10, 10, 10, transfer=4.0)
    huge = 10**400
    for last, verdict in ((huge, VERIFIED), (4 * huge, REFUTED)):
        prices = [[0, huge], [1, huge], [2, huge], [3, last]]
        assert verdict_of(graph, 3, {"argument": "cover", "units": 24, "prices": prices}) == verdict


@pytest.mark.parametrize("name", PRODUCERS)
def test_what_is_stopped_still_holds(name):
    case = accelerators_case(13, 7)
    optimum = brute_force(case.problem)[0]
    claim = PRODUCERS[name](case.problem, BoundTask("ordered", value=optimum), PLAIN.within(0.0))
    assert claim.value <= optimum
    assert math.isfinite(claim.value)
    if claim.certificate is not None:
        record = {"value": claim.value, "validity": "ordered", "certificate": claim.certificate}
        assert Made(case, "ordered", record).verdict(record) == VERIFIED


def test_cover_cut_proves_no_more_than_what_is_asked_for():
    fewer = 0
    for case in cases(0, 16):
        optimum = brute_force(case.problem, validity="free")[0]
        exact, near = (
            cover_cut_claim(
                case.problem, BoundTask("free", value=optimum), SearchContext(max_gap=gap)
            )
            for gap in (0.0, 0.05)
        )
        if exact.certificate and near.certificate and exact.value >= optimum * 0.9999:
            assert optimum * 0.949 <= near.value <= optimum
            fewer += near.value < exact.value
    assert fewer > 3
