"""The brute force of the tests against one that is plainer still: every plan, checked whole."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from dnnp.core.check.plan import check_plan
from dnnp.core.cost.problem import SplitProblem, make_plan
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.graph import Clustering, Graph, clustering_of_labels, singletons
from dnnp.core.model.plan import CostOptions, Plan, Stage
from dnnp.formats.graph import graph_of
from support.brute import brute_force
from support.graphs import random_stream

STRENGTH = ("free", "convex", "ordered")


def partitions(items: list[int]) -> Iterator[list[list[int]]]:
    """Every partition of a list."""
    if not items:
        yield []
        return
    for parts in partitions(items[1:]):
        yield [items[:1], *parts]
        for i, part in enumerate(parts):
            yield [*parts[:i], [items[0], *part], *parts[i + 1 :]]


def seats(
    count: int, devices: tuple[DeviceClass, ...], most: int, taken: tuple[tuple[str, int], ...] = ()
) -> Iterator[list[tuple[DeviceClass, int, int]]]:
    """Every choice of class, first device and replicas for `count` stages."""
    if not count:
        yield []
        return
    for device in devices:
        for first in range(device.count):
            for replicas in range(1, most + 1):
                own = tuple((device.name, i) for i in range(first, first + replicas))
                if first + replicas <= device.count and not set(own) & set(taken):
                    for rest in seats(count - 1, devices, most, (*taken, *own)):
                        yield [(device, first, replicas), *rest]


def plainest(
    graph: Graph, units: Clustering, devices: tuple[DeviceClass, ...], options: CostOptions
) -> dict[str, float]:
    """Least value for each validity: of all plans that have no fault but unstated costs."""
    best = dict.fromkeys(STRENGTH, math.inf)
    for parts in partitions(list(range(units.g))):
        blocks = [np.flatnonzero(np.isin(units.label, part)) for part in parts]
        blocks = [nodes[np.argsort(graph.rank[nodes])] for nodes in blocks]
        for chosen in seats(len(parts), devices, options.max_replicas):
            stages = tuple(
                Stage(
                    f"{d.name}/{first}",
                    d.name,
                    tuple(graph.node_ids[nodes].tolist()),
                    0,
                    0,
                    0,
                    0,
                    0,
                    0,
                    replicas,
                )
                for nodes, (d, first, replicas) in zip(blocks, chosen, strict=True)
            )
            k = sum(d.count for d in devices if not d.is_cpu)
            plan = Plan(stages, k, "all", "free", 0.0, 0.0, "feasible", options, devices, "")
            report = check_plan(graph, units, plan)
            if {v.kind for v in report.violations} <= {"load", "value"}:
                assert report.value is not None
                for validity in STRENGTH[: STRENGTH.index(report.validity) + 1]:
                    best[validity] = min(best[validity], report.value)
    return best


def random_case(
    seed: int,
) -> tuple[Graph, Clustering, tuple[DeviceClass, ...], CostOptions]:
    """Up to four nodes and devices with any options, or six nodes on two devices."""
    rng = random.Random(seed)
    training = rng.random() < 0.5
    large = seed % 3 == 0
    n = 6 if large else rng.randint(1, 4)
    stream = random_stream(
        seed,
        n,
        params=True,
        classes=("big", "cpu"),
        training=training,
        memory=rng.random() < 0.3,
        colors=rng.random() < 0.3,
    )
    graph = graph_of(stream)
    units = singletons(graph)
    if rng.random() < 0.2:
        label = np.empty(graph.n, dtype=np.int64)
        label[graph.order] = np.arange(graph.n) // 2
        units = clustering_of_labels(graph, label)
    link = 1e9 if large else rng.choice((1.0, 3.0))
    counts = (2, 0, 0) if large else (rng.randint(0, 4), rng.choice((0, 0, 1)), rng.randint(0, 1))
    devices = (
        DeviceClass(
            "dev",
            "accelerator",
            counts[0],
            rng.choice((30.0, 60.0, 1e9)),
            link,
            cluster_size=rng.choice((0, 2, 3)),
            inner_bandwidth_bytes_per_s=link * 4,
        ),
        DeviceClass("big", "accelerator", counts[1], 1e9, 2.0),
        DeviceClass("cpu", "cpu", counts[2]),
    )
    options = CostOptions(
        comm=rng.choice(("sum", "overlap", "duplex")),
        memory_model=rng.choice(("sum", "peak")),
        memory_mode=rng.choice(("hard", "hard", "overflow")),
        charge_io=rng.random() < 0.3,
        objective=rng.choice(("throughput", "gpipe")) if graph.backward.any() else "throughput",
        max_replicas=rng.choice((1, 1, 2)),
    )
    return graph, units, tuple(d for d in devices if d.count), options


def test_brute_force_is_the_best_plan_that_the_checker_accepts() -> None:
    found: Counter[str] = Counter()
    for seed in range(60):
        graph, units, devices, options = random_case(seed)
        best = plainest(graph, units, devices, options)
        for validity in STRENGTH:
            value, blocks = brute_force(SplitProblem(graph, units, devices, options), validity)
            assert value == pytest.approx(best[validity], rel=1e-12, abs=1e-12)
            assert bool(blocks) == math.isfinite(value)
            if blocks:
                plan = make_plan(
                    SplitProblem(graph, units, devices, options),
                    blocks,
                    method="",
                    bound=0,
                    digest="",
                )
                assert plan.value == pytest.approx(value, rel=1e-12, abs=1e-12)
                found["stages"] += len(blocks) > 1
                found["replicas"] += any(b.replicas > 1 for b in blocks)
                found["clusters"] += any(b.device.cluster_size for b in blocks)
                found["gpipe"] += options.objective == "gpipe"
            else:
                found["infeasible"] += 1
        found["weaker is better"] += best["free"] < best["ordered"]
    assert min(found.values()) >= 3, found
    assert len(found) == 6


def test_gpipe_needs_a_backward_pass() -> None:
    graph = graph_of(random_stream(1, 3))
    device = DeviceClass("dev")
    with pytest.raises(ValueError, match="backward pass"):
        brute_force(
            SplitProblem(graph, singletons(graph), (device,), CostOptions(objective="gpipe"))
        )
