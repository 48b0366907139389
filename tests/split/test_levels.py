"""Clusters in clusters: against brute force, links between single devices, and by hand."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import numpy as np
import orjson
import pytest

from dnnp.core.check.plan import check_plan
from dnnp.core.cost.problem import SplitProblem, make_plan
from dnnp.core.model.device import DeviceClass, Level, Link
from dnnp.core.model.errors import FormatError
from dnnp.core.model.graph import singletons
from dnnp.core.model.plan import Block, CostOptions
from dnnp.core.model.search_context import MethodOptions
from dnnp.core.split.auto import solve
from dnnp.core.split.hierarchy import hierarchy_split
from dnnp.formats.graph import graph_of
from dnnp.formats.inputs.links import expand_links
from dnnp.formats.plan import device_of, device_record
from dnnp.formats.stream import Stream
from support.brute import brute_force
from support.graphs import chain, header, node, random_stream, tensor, to_bytes
from support.linked_cases import least_over_links
from support.run import Result, dnnp


def nested(count: int, *levels: tuple[int, float], outer: float = 1.0) -> DeviceClass:
    """Accelerators in clusters of these sizes and bandwidths."""
    (size, inner), *larger = levels
    return DeviceClass(
        "dev",
        count=count,
        bandwidth_bytes_per_s=outer,
        cluster_size=size,
        inner_bandwidth_bytes_per_s=inner,
        larger_clusters=tuple(Level(*level) for level in larger),
    )


def random_case(seed: int) -> SplitProblem:
    """A random graph on two levels of clusters, of which the last may not be full."""
    rng = random.Random(f"levels {seed}")
    training = seed % 3 == 0
    graph = graph_of(random_stream(seed, rng.randint(3, 6), training=training))
    gpipe = training and seed % 2 == 0 and graph.backward.any()
    options = CostOptions(
        comm=["sum", "overlap", "duplex"][seed % 3],
        charge_io=rng.random() < 0.3,
        objective="gpipe" if gpipe else "throughput",
        max_replicas=rng.choice([1, 1, 2, 4]),
    )
    size = rng.choice([1, 2])
    device = nested(rng.randint(3, 6), (size, 9.0), (2 * size, rng.choice([3.0, 9.0])), outer=1.5)
    return SplitProblem(graph, singletons(graph), (device,), options)


def test_splits_and_bounds_against_brute_force() -> None:
    met = 0
    for seed in range(30):
        problem = random_case(seed)
        least, _ = brute_force(problem, "ordered")
        found = hierarchy_split(problem)
        blocks, bound = found.blocks, found.bound
        plan = make_plan(problem, blocks, bound=bound)
        assert check_plan(problem.graph, problem.units, plan).violations == (), seed
        assert bound <= least * (1 + 1e-9), seed
        assert plan.value >= least * (1 - 1e-9), seed
        met += plan.value <= least * (1 + 1e-9)
    assert met >= 20


def test_a_front_ends_where_links_of_two_levels_are_priced() -> None:
    """A split that meets a target may cost less than its level states."""
    sizes = (11, 6, 13, 5, 3, 0, 9, 18, 2, 5.28653421105097)
    sent = {3: 5.292030279783976, 5: 5.0}
    pins = (([1], [3]), ([3, 1], [4, 5]), ([5, 4, 2], [6, 7]), ([5, 7, 3, 6], [8, 9]))
    times = (6.254833248942875, 0.0, 9.0, 5.0)
    stream = Stream(header(training=True), {"tensor": [], "node": []})
    for t, size in enumerate(sizes):
        kind = {0: "input", 1: "input", 2: "parameter"}.get(t, "activation")
        more = {"transfer_s": sent[t]} if t in sent else {}
        stream.get("tensor").append(tensor(t, kind, size, **more))
    for v, (inputs, outputs) in enumerate(pins):
        more = {"time_s": {"dev": times[v]}, "backward": v > 1}
        stream.get("node").append(node(v, "X", inputs, outputs, **more))
    graph = graph_of(stream)
    device = nested(2, (2, 8.0), (4, 6.0), outer=2.0)
    options = CostOptions(objective="gpipe")
    found = hierarchy_split(SplitProblem(graph, singletons(graph), (device,), options))
    blocks, bound = found.blocks, found.bound
    assert len(blocks) == 1
    assert bound == pytest.approx(20.254833248942875, rel=1e-9)


def splits(problem: SplitProblem, rng: random.Random) -> Iterator[list[Block]]:
    """Random cuts of the order of a graph, on random devices in any order."""
    graph, (device,) = problem.graph, problem.devices
    for _ in range(8):
        cuts = sorted(rng.sample(range(1, graph.n), min(rng.randint(1, 3), graph.n - 1)))
        parts = np.split(graph.order, cuts)
        free = list(range(device.count))
        blocks = []
        for nodes in parts:
            runs = [
                (a, b)
                for a, b in combinations(range(device.count + 1), 2)
                if b - a <= problem.options.max_replicas and set(range(a, b)) <= set(free)
            ]
            if not runs:
                break
            a, b = rng.choice(runs)
            free = [i for i in free if not a <= i < b]
            blocks.append(Block(nodes, device, b - a, a))
        else:
            yield blocks


def test_clusters_cost_what_links_between_single_devices_cost() -> None:
    tried = 0
    for seed in range(15):
        problem = random_case(seed)
        graph, (device,) = problem.graph, problem.devices
        if not np.isnan(graph.transfer_s).all():
            continue
        links = []
        for i in range(device.count):
            for j in range(device.count):
                inside = [
                    x.bandwidth_bytes_per_s for x in device.levels if i // x.size == j // x.size
                ]
                band = [*inside, device.bandwidth_bytes_per_s][0]
                links += [Link(f"dev/{i}", f"dev/{j}", band, 0.0)] if i != j else []
        linked = SplitProblem(graph, problem.units, (device,), problem.options, tuple(links))
        for blocks in splits(problem, random.Random(seed)):
            one, other = problem.plan(blocks), linked.plan(blocks)
            assert one.value == pytest.approx(other.value, rel=1e-9)
            for mine, theirs in zip(one.stages, other.stages, strict=True):
                assert mine.load_s == pytest.approx(theirs.load_s, rel=1e-9)
                assert mine.sync_s == pytest.approx(theirs.sync_s, rel=1e-9)
            # Cuts of an order heed no colours.
            found = check_plan(graph, problem.units, one).violations
            assert [str(v) for v in found if v.kind != "color"] == []
            tried += 1
    assert tried > 20


def test_clusters_of_two_classes_against_brute_force() -> None:
    """Links join the classes, and those of their clusters stay."""
    ratios, near = [], 0
    for seed in range(10):
        rng = random.Random(f"classes {seed}")
        graph = graph_of(random_stream(seed, rng.randint(3, 5), classes=["acc"]))
        devices = tuple(
            replace(nested(rng.randint(1, 3), (2, 8.0), (4, 4.0)), name=name)
            for name in ("dev", "acc")
        )
        record = {"from": "dev", "to": "acc", "bandwidth_bytes_per_s": rng.choice([0.5, 2.0])}
        links = expand_links([record], devices, lambda *why: AssertionError(why))
        for link in links:
            ends = [end.rpartition("/") for end in (link.source, link.target)]
            (one, _, i), (other, _, j) = ends
            close = one == other and int(i) // 2 == int(j) // 2
            within = 8.0 if close else 4.0
            expected = within if one == other else record["bandwidth_bytes_per_s"]
            assert link.bandwidth_bytes_per_s == expected
            near += close
        options = CostOptions(max_replicas=rng.choice([1, 2]))
        problem = SplitProblem(graph, singletons(graph), devices, options, links)
        least = least_over_links(problem)
        if least == np.inf:
            continue
        found = solve(problem, MethodOptions())
        plan = make_plan(problem, found.blocks, bound=found.bound)
        assert check_plan(graph, problem.units, plan).violations == (), seed
        assert found.bound <= least * (1 + 1e-9), seed
        assert plan.value >= least * (1 - 1e-9), seed
        ratios.append(plan.value / least)
    assert near > 10
    assert sum(ratio < 1 + 1e-9 for ratio in ratios) > 0.7 * len(ratios)
    assert sum(ratios) / len(ratios) < 1.03


def partition(*arguments: str) -> Result:
    """Eight nodes of 5 s that hand on 4 bytes, on eight devices."""
    made = to_bytes(chain(*[5.0] * 8, sizes=(4,) * 8))
    return dnnp("partition", "-k", "8", "--bandwidth", "1", *arguments, stdin=made)


LEVELS = ("--cluster-size", "2,4", "--inner-bandwidth", "16,4")


def test_racks_of_machines_by_hand() -> None:
    result = partition(*LEVELS)
    assert result.status == 0, result.err
    # In pairs 4 / 16, between the pairs of four 4 / 4, in the middle 4 / 1.
    loads = [5.25, 6.25, 6.25, 9.25, 9.25, 6.25, 6.25, 5.25]
    assert [s["load_s"] for s in result.records("stage")] == loads
    plan = result.one("plan")
    assert plan["value"] == 9.25
    assert plan["devices"][0]["larger_clusters"] == [
        {"cluster_size": 4, "bandwidth_bytes_per_s": 4.0}
    ]
    checked = dnnp("check", stdin=result.out)
    assert checked.status == 0, checked.err
    bounded = dnnp("bound", stdin=result.out)
    assert bounded.status == 0, bounded.err
    assert dnnp("check", stdin=bounded.out).status == 0


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("bandwidth_bytes_per_s", 2.0, "recomputed"),
        ("cluster_size", 8, "recomputed"),
        ("cluster_size", 3, "clusters of 3 are not made of several of 2 devices"),
    ],
)
def test_forged_levels_are_found(field: str, value: float, message: str) -> None:
    records = [orjson.loads(line) for line in partition(*LEVELS).out.splitlines()]
    plan = next(r for r in records if r["type"] == "plan")
    plan["devices"][0]["larger_clusters"][0][field] = value
    checked = dnnp("check", stdin=b"".join(orjson.dumps(r) + b"\n" for r in records))
    assert checked.status == 3
    assert message in checked.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--cluster-size", "2,4", "--inner-bandwidth", "16"), "give a bandwidth for each size"),
        (("--cluster-size", "2,5", "--inner-bandwidth", "16,4"), "clusters of 5 are not made of"),
        (("--cluster-size", "4,2", "--inner-bandwidth", "16,4"), "clusters of 2 are not made of"),
        (("--cluster-size", "2,", "--inner-bandwidth", "16,4"), "give whole numbers, such as 4"),
        (("--cluster-size", "2,4", "--inner-bandwidth", "16,0"), "'0' is not above 0"),
        (("--cluster-size", "2,4", "--inner-bandwidth", "4,16"), "is below the one between"),
        (("--cluster-size", "2,4"), "needs --inner-bandwidth"),
    ],
)
def test_faulty_levels(arguments: tuple[str, ...], message: str) -> None:
    result = partition(*arguments)
    assert (result.status, result.out) == (2, b"")
    assert message in result.err
    assert "Traceback" not in result.err


def test_records_of_levels_are_read_back() -> None:
    device = nested(8, (2, 16.0), (4, 4.0))
    record = device_record(device)
    assert device_of(record) == device
    record["larger_clusters"][0]["cluster_size"] = 5
    with pytest.raises(FormatError, match="'dev': clusters of 5 are not made of several of 2"):
        device_of(record)
    del record["cluster_size"]
    with pytest.raises(FormatError, match="clusters of 5 are not made of several of 0 devices"):
        device_of(record)
