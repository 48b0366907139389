"""The checker agrees with the cost model on random blocks under every option of it."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from dnnp.core.check.plan import check_plan
from dnnp.core.cost.problem import SplitProblem, make_plan
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.graph import Clustering, Graph, clustering_of_labels, singletons
from dnnp.core.model.plan import Block, CostOptions, Plan
from dnnp.formats.graph import graph_of
from support.graphs import random_stream


def random_devices(rng: random.Random) -> tuple[DeviceClass, ...]:
    """Two accelerator classes, the first perhaps in clusters, and CPUs."""
    link = rng.choice((0.7, 3.0, 1e9))
    return (
        DeviceClass(
            "dev",
            "accelerator",
            20,
            rng.choice((50.0, 150.0, 1e9)),
            link,
            cluster_size=rng.choice((0, 1, 3, 5)),
            inner_bandwidth_bytes_per_s=link * rng.choice((0.5, 1.0, 3.0)),
        ),
        DeviceClass("big", "accelerator", 2, 1e9, 2.0),
        DeviceClass("cpu", "cpu", 2),
    )


def random_options(rng: random.Random, graph: Graph) -> CostOptions:
    training = bool(graph.backward.any())
    return CostOptions(
        comm=rng.choice(("sum", "overlap", "duplex")),
        memory_model=rng.choice(("sum", "peak")),
        memory_mode=rng.choice(("hard", "overflow")),
        charge_io=rng.random() < 0.4,
        objective=rng.choice(("throughput", "gpipe")) if training else "throughput",
        max_replicas=rng.choice((1, 2, 3)),
    )


def random_blocks(
    rng: random.Random,
    units: Clustering,
    graph: Graph,
    devices: tuple[DeviceClass, ...],
    most: int,
) -> list[Block]:
    """Units thrown into blocks, these onto devices that are free; what is left goes anywhere."""
    count = rng.randint(1, 4)
    homes = [rng.randrange(count) for _ in range(units.g)]
    if rng.random() < 0.6:
        homes.sort()
    spread = rng.random() < 0.5
    blocks = []
    free = {d.name: 0 for d in devices}
    for home in sorted(set(homes)):
        nodes = np.flatnonzero(np.array(homes)[units.label] == home)
        nodes = nodes[np.argsort(graph.rank[nodes])]
        able = [
            d
            for d in devices
            if free[d.name] < d.count
            and d.name in units.times
            and np.isfinite(units.times[d.name][units.label[nodes]]).all()
        ]
        device = rng.choice(able)
        number = min(free[device.name] + spread * rng.randint(0, 2), device.count - 1)
        replicas = min(rng.randint(1, most), device.count - number)
        free[device.name] = number + replicas
        blocks.append(Block(nodes, device, replicas, number))
    rng.shuffle(blocks)
    return blocks


def colors_meet(graph: Graph, blocks: list[Block]) -> bool:
    """True if every colour is in one block."""
    seen: dict[int, int] = {}
    for i, block in enumerate(blocks):
        for color in graph.color[block.nodes].tolist():
            if color >= 0 and seen.setdefault(color, i) != i:
                return False
    return True


def features(graph: Graph, plan: Plan, grouped: bool) -> list[str]:
    """Features that a plan has, so that the test below cannot lose one."""
    found = [plan.validity, plan.objective, plan.options.comm, plan.options.memory_mode]
    found += ["training"] * bool(graph.backward.any()) + ["groups"] * grouped
    found += ["replicas"] * any(s.replicas > 1 for s in plan.stages)
    found += ["sync"] * any(s.sync_s > 0 for s in plan.stages)
    found += ["cpu"] * any(s.device_class == "cpu" for s in plan.stages)
    found += ["streamed"] * any(s.overflow_s > 0 for s in plan.stages)
    size = plan.devices[0].cluster_size
    homes = [int(s.device[4:]) // size for s in plan.stages if s.device_class == "dev" and size]
    return found + ["cluster"] * (len(set(homes)) < len(homes))


def test_checker_agrees_on_random_plans() -> None:
    found: Counter[str] = Counter()
    for seed in range(1000):
        rng = random.Random(seed)
        graph = graph_of(
            random_stream(
                seed,
                rng.randint(1, 12),
                params=rng.random() < 0.7,
                classes=("big", "cpu"),
                training=rng.random() < 0.6,
                memory=rng.random() < 0.3,
            )
        )
        grouped = rng.random() < 0.4
        units = singletons(graph)
        if grouped:
            labels = np.array(sorted(rng.randrange(graph.n) for _ in range(graph.n)))
            label = np.empty(graph.n, dtype=np.int64)
            label[graph.order] = np.unique(labels, return_inverse=True)[1]
            units = clustering_of_labels(graph, label)
        devices = random_devices(rng)
        options = random_options(rng, graph)
        blocks = random_blocks(rng, units, graph, devices, options.max_replicas)
        try:
            plan = make_plan(
                SplitProblem(graph, units, devices, options),
                blocks,
                method="random",
                bound=0,
                digest="0" * 64,
            )
        except InfeasibleError:
            found["infeasible"] += 1
            continue
        report = check_plan(graph, units if grouped else None, plan)
        kinds = {violation.kind for violation in report.violations}
        assert kinds == (set() if colors_meet(graph, blocks) else {"color"}), report.violations
        assert report.value == pytest.approx(plan.value, rel=1e-12, abs=1e-12)
        assert report.validity == plan.validity
        found.update(features(graph, plan, grouped))
    assert found.pop("convex") >= 3, found
    assert min(found.values()) >= 20, found
    assert len(found) == 17, found
