"""Certificates verify and prove no more than is true; what is no longer a proof is refused."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from dnnp.core.bounds.chain import chain_claim
from dnnp.core.bounds.lower_bound import BoundTask, Whole, whole_of
from dnnp.core.bounds.node_cut import cpu_cut_claim, node_cut_claim
from dnnp.core.bounds.packing import packing_claim
from dnnp.core.bounds.pairs import pairs_claim
from dnnp.core.bounds.searches import bisection_bound
from dnnp.core.bounds.simple import simple_claim
from dnnp.core.bounds.zone_cut import zone_cut_claim
from dnnp.core.certificates.certificate import NOT_CHECKABLE, REFUTED, VERIFIED
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import singletons
from dnnp.core.model.plan import CostOptions
from dnnp.core.model.search_context import SearchContext
from dnnp.core.split.exact import ideal_claim
from support.brute import brute_force
from support.cases import Case, accelerators_case, random_case
from support.certificates import UNKNOWN, Json, Made, above, bad_flows, instance, malformed, spoiled
from support.problems import chain

PRODUCERS = {
    "simple": simple_claim, "chain": chain_claim, "node-cut": node_cut_claim, "pairs": pairs_claim,
    "ideal": ideal_claim, "halves": bisection_bound, "zone-cut": zone_cut_claim,
    "cpu-cut": cpu_cut_claim, "packing": packing_claim,
}  # fmt: skip
SUM = CostOptions(memory_model="sum")
ORDERED = BoundTask("ordered")


def made_of(case: Case, validity: str, name: str) -> Made | None:
    """Bound and certificate of a case as they would stand in a stream."""
    problem = case.problem
    claim = PRODUCERS[name](problem, BoundTask(validity))
    if claim.certificate is None or claim.certificate.get("checkable") is False:
        return None
    return Made.of(case, validity, claim)


def cases(first: int, last: int) -> Iterator[Case]:
    for seed in range(first, last):
        case = accelerators_case(seed, 6, comms=("sum", "sum", "sum", "overlap", "duplex"))
        yield case
        yield replace(case, devices=(replace(case.devices[0], count=2),))
        yield random_case(seed, 6)


@pytest.mark.parametrize("first", range(0, 80, 20))
def test_they_verify_and_their_values_are_bounds(first):
    verified = dict.fromkeys(PRODUCERS, 0)
    for case in cases(first, first + 20):
        for validity in ("ordered", "convex", "free"):
            problem = case.problem
            optimum = brute_force(problem, validity=validity)[0]
            for name in PRODUCERS:
                made = made_of(case, validity, name)
                if made is None:
                    continue
                assert made.record["value"] <= optimum * (1 + 1e-12), (case.seed, name, validity)
                assert made.verdict(made.record) == VERIFIED, (case.seed, name, validity)
                verified[name] += 1
    assert min(verified.values()) > 4, verified


def test_memory_and_clusters_count_where_they_may():
    counted = dict.fromkeys(PRODUCERS, 0)
    for seed in range(30):
        case = accelerators_case(seed, 6)
        (device,) = case.devices
        small = replace(device, memory_bytes=40.0, count=3)
        near = replace(device, cluster_size=2, inner_bandwidth_bytes_per_s=16.0, count=3)
        for changed, validity in ((small, "ordered"), (small, "free"), (near, "ordered")):
            other = replace(case, devices=(changed,))
            optimum = brute_force(other.problem, validity=validity)[0]
            for name in PRODUCERS:
                made = made_of(other, validity, name)
                if made is not None and math.isfinite(optimum):
                    assert made.record["value"] <= optimum * (1 + 1e-12), (seed, name)
                    assert made.verdict(made.record) == VERIFIED, (seed, name)
                    counted[name] += 1
    # With three accelerators there are neither two stages nor CPUs.
    assert {name for name, count in counted.items() if count <= 4} == {"halves", "cpu-cut"}, counted


# Corruptions. Each yields records that are no proof any more, for a reason given beside it.


def beyond(made: Made) -> Iterator[Json]:
    """The value, and what is said to be proven, are more than what the certificate gives."""
    return above(made, limit(made))


def limit(made: Made) -> int:
    """The largest value that the certificate proves.

    Flows, means and times are exact; the path's target was found by bisection. Loads below a bound
    that pairs prove must not carry all that is paid. Ideals prove the optimum of whole numbers.
    """
    certificate = made.certificate
    if certificate["argument"] == "ideal":
        return int(brute_force(made.case.problem)[0] / certificate["quantum"]) + 1
    if certificate["argument"] != "pairs":
        return certificate["units"]
    whole = instance(made)
    stages = min(whole.devices[0].count, whole.items.count)
    return max(certificate["units"], -(-paid(made, whole) // stages))


def paid(made: Made, whole: Whole, without: int = -1) -> int:
    """Work and what cliques cost, by hand; `without` the clique of that number."""
    times = dict(zip(whole.tensors.tolist(), whole.nets.always.astype(int).tolist(), strict=True))
    for number, (tensor, members) in enumerate(made.certificate["cliques"]):
        if number != without:
            times[tensor] = len(members)
    costs = dict(zip(whole.tensors.tolist(), whole.cost[0].tolist(), strict=True))
    return int(whole.work[0].sum()) + sum(int(costs[t]) * q for t, q in times.items())


def bad_simple(made: Made) -> Iterator[Json]:
    for number, part in enumerate(made.certificate["parts"]):
        for name, value in (
            ("pass", "both"),
            ("kind", "median"),
            ("weights", {"elsewhere": 1}),
            ("weights", {}),
            ("weights", dict.fromkeys(part.get("weights", {}), -1) or {"x": 1}),
            ("weights", dict.fromkeys(part.get("weights", {}), 0)),
            ("item", UNKNOWN),
        ):
            if name != "pass" and name != "kind" and name not in part:
                continue
            yield made.altered("parts", number, name, to=value)
    for change in (list.pop, lambda parts: parts.append(parts[0])):
        record = deepcopy(made.record)
        change(record["certificate"]["parts"])  # not one part for each pass
        yield record


def bad_node_cut(made: Made) -> Iterator[Json]:
    certificate = made.certificate
    classes = certificate["classes"]
    exact = len(classes) == 1 and made.case.options.comm == "sum"
    exact = exact and made.case.options.max_replicas == 1
    for name, proof in classes.items():
        yield from bad_flows(
            made,
            lambda c, name=name: c["classes"][name]["flows"],
            certificate["item"] if exact else None,
        )
        for mix in ([1, 1], [2, 2, 1], [1, 1, 0], [-1, 1, 1], [1, 1.0, 1], "sum", [0, 0, -1]):
            yield made.altered("classes", name, "mix", to=mix)
        record = deepcopy(made.record)
        del record["certificate"]["classes"][name]
        yield record  # nothing is said of a class that can run the item
        yield made.altered("classes", "elsewhere", to=proof)
    whole = instance(made)
    for i, name in enumerate(whole.names.tolist() if exact else ()):
        # As a source it gives its own work, and takes from others.
        if name != certificate["item"] and whole.work[0, i] < certificate["units"]:
            record = deepcopy(made.record)
            record["certificate"]["item"] = name
            pushes = sum(
                dict(map(tuple, row)).get(name, 0)
                for _, row in classes[whole.devices[0].name]["flows"]
            )
            if pushes <= 0:
                yield record
    yield made.altered("item", to=UNKNOWN)
    if made.certificate["units"] > 1 and exact:
        # Coarser quanta: half the work and half the costs for the same number.
        record = deepcopy(made.record)
        record["certificate"]["quantum"] *= 2
        yield record


def bad_cpu_cut(made: Made) -> Iterator[Json]:
    items = made.certificate["items"]
    for number, row in enumerate(items):
        for name in row["classes"]:
            yield from bad_flows(
                made,
                lambda c, number=number, name=name: c["items"][number]["classes"][name]["flows"],
            )
            for mix in ([1, 1], [1, 1, 0], [-1, 1, 1], "sum", [0, 0, -1]):
                yield made.altered("items", number, "classes", name, "mix", to=mix)
            for change in (lambda c, n: c.pop(n), lambda c, n: c.update(elsewhere=c[n])):
                record = deepcopy(made.record)
                change(record["certificate"]["items"][number]["classes"], name)
                yield record
        for other in (UNKNOWN, None, "all"):
            yield made.altered("items", number, "item", to=other)
        record = deepcopy(made.record)
        record["certificate"]["items"].append(row)
        yield record  # it would take the CPUs twice
    whole = instance(made)
    times = whole.work[[c for c, d in enumerate(whole.devices) if d.is_cpu]].min(axis=0)
    if np.isfinite(times).all():
        record = deepcopy(made.record)
        record["certificate"]["items"].pop()
        yield record  # the CPUs have room for those before it
    yield made.altered("items", to=[])


def bad_pairs(made: Made) -> Iterator[Json]:
    certificate = made.certificate
    whole = instance(made)
    for number, cut in enumerate(certificate["cuts"]):
        yield from bad_flows(made, lambda c, number=number: c["cuts"][number]["flows"])
        for name, value in (
            ("items", [UNKNOWN, cut["items"][0]]),
            ("items", cut["items"][:1]),
            ("items", [*cut["items"], cut["items"][0]]),
            ("items", "all"),
            ("memory", True),
        ):
            yield made.altered("cuts", number, name, to=value)  # memory has no limit here
    for number, (_, members) in enumerate(certificate["cliques"]):
        for changed in (members[:1], [*members, members[0]], [*members, UNKNOWN], "all", []):
            yield made.altered("cliques", number, 1, to=changed)
        yield made.altered("cliques", number, 0, to=UNKNOWN)
        record = deepcopy(made.record)
        record["certificate"]["cliques"].append(certificate["cliques"][number])
        yield record
        stages = min(whole.devices[0].count, whole.items.count)
        if paid(made, whole, number) <= stages * (certificate["units"] - 1):
            record = deepcopy(made.record)
            del record["certificate"]["cliques"][number]
            yield record
    if certificate["cliques"]:
        yield made.altered("cuts", to=[])  # nothing keeps the items of a clique apart


def bad_chain(made: Made) -> Iterator[Json]:
    path = made.certificate["path"]
    paths = [[], [*path, UNKNOWN], [*path, path[-1]], [None], [[]], "all"]
    paths += [path[::-1]] if len(path) > 1 else []
    for other in paths:
        yield made.altered("path", to=other)
    for weights in ({}, {"elsewhere": 1}, dict.fromkeys(made.certificate["weights"], -1)):
        yield made.altered("weights", to=weights)
    for validity in ("convex", "free"):
        yield {**deepcopy(made.record), "validity": validity}


def bad_ideal(made: Made) -> Iterator[Json]:
    for validity in ("convex", "free"):
        yield {**deepcopy(made.record), "validity": validity}


def bad_halves(made: Made) -> Iterator[Json]:
    tree = made.certificate["tree"]
    trees = [[], tree[1:], tree[:-1], [*tree, [1, 2]], [*tree[:-1], [3, 2]], "all", [1, 2], [{}]]
    trees += [[*tree[:-1], end] for end in ([UNKNOWN], [1, 0], [-1, 2], [1, 2, 3], [0.5, 1], [])]
    whole = instance(made)
    if whole.work.sum() < 2 * made.certificate["units"] - 2**10:
        trees.append([[1, 2]])  # nothing in the ideal, all work at half its weight
    for other in trees:
        yield made.altered("tree", to=other)
    yield {**deepcopy(made.record), "validity": "convex"}


def bad_zone_cut(made: Made) -> Iterator[Json]:
    certificate = made.certificate
    path, joined, rates = certificate["path"], certificate["joined"], certificate["rates"]
    names = [int(name) for name in instance(made).names]
    apart = next(([a, b] for a in names for b in names if a not in path and b not in path), None)
    changes = {
        "path": [[], [*path, UNKNOWN], [*path, path[-1]], [None], "all", [*path, [path[0]]]],
        "joined": [[[UNKNOWN, path[0]]], [[path[0], path[0]]], [[path[0]]], [*joined, *joined[:1]]],
        "span": [0, -1, 1.5, None],
        "rates": [[], [[2, 1]], [[0, 0]], [[1]], [[-1, 1]], rates * 21],
        "parted": ["all", [0], [[0]], [[0, UNKNOWN]], [[-1, 0]], [[0.5, 0]], [[0, None]]],
    }
    if "parted" in certificate:
        changes["parted"] += [[], certificate["parted"][:-1]]
    if not joined:
        del changes["joined"][-1]
    if apart is not None:
        changes["joined"].append([apart, apart])
    if len(path) > 1:
        changes["path"].append(path[::-1])
    for name, others in changes.items():
        for other in others:
            yield made.altered(name, to=other)
    for validity in ("convex", "free"):
        yield {**deepcopy(made.record), "validity": validity}


def bad_packing(made: Made) -> Iterator[Json]:
    for kind in ("sum", 1):
        yield made.altered("kind", to=kind)
    for much in (2, 2**20):
        record = deepcopy(made.record)
        record["certificate"]["units"] *= much
        record["value"] *= much
        yield record


BAD = {
    "simple": bad_simple, "node-cut": bad_node_cut, "pairs": bad_pairs, "chain": bad_chain,
    "ideal": bad_ideal, "halves": bad_halves, "zone-cut": bad_zone_cut, "cpu-cut": bad_cpu_cut,
    "packing": bad_packing,
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_corrupted_ones_are_all_refused(name):
    refused = 0
    for case in cases(0, 25):
        for validity in ("ordered", "convex"):
            made = made_of(case, validity, name)
            if made is None or made.record["value"] <= 0:
                continue
            for corrupt in (beyond, malformed, BAD[name]):
                for number, record in enumerate(corrupt(made)):
                    where = (case.seed, validity, corrupt.__name__, number)
                    assert made.verdict(record) == REFUTED, (where, record)
                    refused += 1
    assert refused > 400


def test_nothing_that_verifies_is_false_whatever_it_looks_like():
    rng = random.Random(1)
    told = {VERIFIED: 0, REFUTED: 0, NOT_CHECKABLE: 0}
    for case in cases(0, 12):
        problem = case.problem
        optimum = brute_force(problem)[0]
        for name in PRODUCERS:
            made = made_of(case, "ordered", name)
            for _ in range(60 if made else 0):
                record = spoiled(made, rng)
                verdict = made.verdict(record)
                told[verdict] += 1
                if verdict == VERIFIED and record["validity"] == "ordered":
                    assert record["value"] <= optimum * (1 + 1e-12), (case.seed, name, record)
    assert min(told[VERIFIED], told[REFUTED]) > 50, told


def problem_of(graph, count, **fields):
    device = DeviceClass("dev", count=count, bandwidth_bytes_per_s=1.0, **fields)
    return SplitProblem(graph, singletons(graph), (device,), SUM)


def test_pairs_by_hand():
    # Alone they pay 14 or 18; two neighbours pay 20 and 4 or 8. So below 24 no two of them share a
    # stage, all three tensors are paid twice, and 3 stages carry 40 + 3 * 2 * 4.
    claim = pairs_claim(problem_of(chain(10, 10, 10, 10, transfer=4.0), 3), ORDERED)
    assert claim.value == pytest.approx(64 / 3)
    assert [members for _, members in claim.certificate["cliques"]] == [[0, 1], [1, 2], [2, 3]]
    assert [cut["items"] for cut in claim.certificate["cuts"]] == [[0, 1], [1, 2], [2, 3]]
    # With 4 stages as much is carried by more; a cut around one item is enough.
    claim = pairs_claim(problem_of(chain(10, 10, 10, 10, transfer=4.0), 4), ORDERED)
    assert claim.value == 16
    assert [cut["items"] for cut in claim.certificate["cuts"]] == [[1, 1], [2, 2]]


def test_memory_keeps_items_apart():
    graph = chain(1, 1, 1, transfer=6.0)
    assert pairs_claim(problem_of(graph, 3), ORDERED).value == 3
    # A node holds the byte that it makes.
    claim = pairs_claim(problem_of(graph, 3, memory_bytes=1.5), ORDERED)
    assert claim.value == pytest.approx((3 + 4 * 6) / 3)
    assert all(cut.get("memory") for cut in claim.certificate["cuts"])


def test_what_does_not_hold_is_refused_by_its_argument():
    graph = chain(1, 9, 1)
    cpu = DeviceClass("cpu", kind="cpu")
    device = DeviceClass("dev", count=3, bandwidth_bytes_per_s=1.0)
    units = singletons(graph)
    for devices, options in (
        ((device, cpu), SUM),
        ((cpu,), SUM),
        ((device,), replace(SUM, comm="overlap")),
        ((device,), replace(SUM, max_replicas=2)),
    ):
        claim = pairs_claim(SplitProblem(graph, units, devices, options), ORDERED)
        assert (claim.status, claim.value) == ("refused", 0.0)
        assert claim.reason
    for validity in ("convex", "free"):
        problem = SplitProblem(graph, units, (device,), SUM)
        assert chain_claim(problem, BoundTask(validity)).status == "refused"
    for claimed in (node_cut_claim, chain_claim, pairs_claim):
        assert claimed(problem, BoundTask("ordered", floor=100.0)).value == 0.0


@pytest.mark.parametrize("name", ["chain", "node-cut", "pairs"])
@pytest.mark.parametrize("patience", range(4))
def test_what_is_stopped_still_holds(name, patience):
    case = accelerators_case(13, 7)
    problem = case.problem
    asked = count()
    claim = PRODUCERS[name](
        problem, ORDERED, SearchContext(interrupted=lambda: next(asked) >= patience)
    )
    record = {"value": claim.value, "validity": "ordered", "certificate": claim.certificate}
    assert claim.status == "limit" or patience > 0
    assert claim.value <= brute_force(problem)[0]
    assert claim.certificate is None or Made(case, "ordered", record).verdict(record) == VERIFIED


def test_a_certificate_that_is_none_is_not_called_verified():
    case = accelerators_case(1)
    made = made_of(case, "ordered", "simple")
    for certificate in ({"argument": "ideal", "checkable": False, "ideals": 3}, None):
        record = {**made.record, "certificate": certificate, "value": 1e9}
        assert made.verdict(record) == NOT_CHECKABLE
    assert made.verdict({"value": 0.0, "validity": "ordered"}) == NOT_CHECKABLE


def test_sums_of_everything_are_exact_in_floating_point():
    for scale in (1e-290, 1e-9, 1.0, 1e290):
        graph = chain(0.1 * scale, 0.7 * scale, 0.3 * scale, transfer=0.4 * scale)
        whole = whole_of(problem_of(graph, 2), "ordered")
        total = float(whole.work.sum() + whole.cost.sum())
        assert 2**40 < total < 2**49, scale
        assert np.all(whole.work == np.floor(whole.work))
        claim = node_cut_claim(problem_of(graph, 2), BoundTask("free"))
        assert claim.value == pytest.approx(1.1 * scale)
