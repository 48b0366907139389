"""Splits over clusters against brute force: over all splits, and those with contiguous clusters."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dnnp.core.check.plan import check_plan
from dnnp.core.cost.problem import SplitProblem, make_plan
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import FormatError, InfeasibleError, UsageError
from dnnp.core.model.graph import Graph, singletons
from dnnp.core.model.plan import CostOptions, Plan, with_contiguous
from dnnp.core.model.search_context import SearchContext
from dnnp.core.split import hierarchy
from dnnp.core.split.hierarchy import hierarchy_split
from dnnp.core.split.ideals.search import ideal_search
from dnnp.formats.graph import graph_of, units_of
from dnnp.formats.stream import Stream
from dnnp.options.split import DeviceOptions
from dnnp.problem import devices_of
from support.brute import _Search, _union, brute_force, placements
from support.graphs import header, node, random_stream, tensor


class Contiguous(_Search):
    """Only splits whose pipeline gives every cluster one contiguous segment, but for CPUs."""

    def finish(self, first: float, second: float) -> None:
        """Try the devices that fit a pipeline order."""
        for numbers in placements(self.parts, self.devices):
            self.numbers_tried = numbers
            homes = [self.home(p, n) for p, n in zip(self.parts, numbers, strict=True)]
            if None in homes:
                continue
            value = self.placed(numbers)
            if value < self.value and self.is_contiguous(homes):
                self.value, self.best, self.numbers = value, list(self.parts), numbers

    def home(self, part: tuple[int, int, int], number: int) -> tuple[int, ...] | None:
        """The clusters that a part keeps to; None: it shares several clusters with others."""
        _, d, replicas = part
        size = self.devices[d].cluster_size
        if not size:
            return (-1 - d,)
        mine = {i // size for i in range(number, number + replicas)}
        shared = len(mine) > 1 and any(
            e == d and {i // size for i in range(n, n + r)} & mine
            for (other, e, r), n in zip(self.parts, self.numbers_tried, strict=True)
            if other != part[0]
        )
        return None if shared else (d, *sorted(mine))

    def is_contiguous(self, homes: list[tuple[int, ...]]) -> bool:
        """True if some pipeline order leaves no cluster before it is done with it."""
        members = [
            sum(bits for a, bits in enumerate(self.bits) if block >> a & 1)
            for block, _, _ in self.parts
        ]

        def grow(needs: list[int], rest: frozenset[int], current: tuple[int, ...] | None) -> bool:
            if not rest:
                return True
            waiting = sum(members[i] for i in rest)
            for i in rest:
                cpu = homes[i][0] < 0
                new = not cpu and homes[i] != current
                done = [homes[j] for j in range(len(homes)) if j not in rest]
                left = [homes[j] for j in rest]
                if needs[i] & waiting or (new and (current in left or homes[i] in done)):
                    continue
                if grow(needs, rest - {i}, current if cpu else homes[i]):
                    return True
            return False

        return any(
            grow([_union(before, m) & ~m for m in members], frozenset(range(len(homes))), None)
            for before, _ in self.orders
        )


def contiguous(graph, units, devices, options) -> float:
    """Least largest load with contiguous clusters."""
    search = Contiguous(graph, units, tuple(devices), options, "ordered")
    search.cover(search.full, tuple(d.count for d in devices), 0.0, 0.0)
    return search.value


def solved(graph, units, devices, options) -> Plan | None:
    """The plan found; None if there is none."""
    try:
        found = hierarchy_split(SplitProblem(graph, units, devices, options))
    except InfeasibleError:
        return None
    plan = make_plan(
        SplitProblem(graph, units, devices, options),
        found.blocks,
        method="exact",
        bound=found.bound,
        digest="0" * 64,
    )
    plan = with_contiguous(plan, found.contiguous_bound)
    assert plan.validity == "ordered"
    assert check_plan(graph, None, plan).violations == ()
    return plan


def compare(
    seed: int,
    *,
    cpu: bool = False,
    most: int = 7,
    objective: str = "throughput",
    max_replicas: int = 1,
    **kinds: object,
) -> Plan | None:
    """Check one random graph against both brute forces."""
    rng = random.Random(f"clusters {seed}")
    limited = bool(kinds.pop("limited", False))
    training = bool(kinds.get("training"))
    stream = random_stream(
        seed,
        rng.randint(2, most),
        params=limited and not training,
        classes=["cpu"] if cpu else [],
        **kinds,
    )
    graph = graph_of(stream)
    if objective == "gpipe" and not graph.backward.any():
        return None
    units = units_of(stream, graph)
    device = DeviceClass(
        "dev",
        count=rng.randint(2, 4),
        bandwidth_bytes_per_s=rng.choice([1.0, 3.0]),
        memory_bytes=rng.randint(40, 200) if limited else math.inf,
        cluster_size=rng.choice([2, 2, 3]),
        inner_bandwidth_bytes_per_s=rng.choice([4.0, 1000.0]),
    )
    devices = (
        (device, DeviceClass("cpu", "cpu", rng.choice([1, 1, 2 if max_replicas == 1 else 1])))
        if cpu
        else (device,)
    )
    options = CostOptions(
        comm=["sum", "overlap", "duplex"][seed % 3],
        charge_io=rng.random() < 0.3,
        memory_model="sum" if training or kinds else rng.choice(["sum", "peak"]),
        memory_mode=rng.choice(["hard", "overflow"]),
        objective=objective,
        max_replicas=max_replicas,
    )
    expected = contiguous(graph, units, devices, options)
    least, _ = brute_force(SplitProblem(graph, units, devices, options), "ordered")
    plan = solved(graph, units, devices, options)
    if plan is None:
        assert expected == math.inf
        return None
    assert plan.value == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert plan.bound <= least * (1 + 1e-9)
    assert plan.contiguous_bound <= expected * (1 + 1e-9)
    if options.memory_model == "sum":
        assert max(plan.bound, plan.contiguous_bound) >= expected * (1 - 1e-8)
    return plan


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("cpu", [False, True])
def test_equals_brute_force(cpu, limited):
    plans = [compare(seed, cpu=cpu, limited=limited) for seed in range(40)]
    found = [plan for plan in plans if plan is not None]
    assert len(found) > 20
    assert any(len(plan.stages) > 2 for plan in found)
    if not limited:
        # Some are proven; for some the bound, where clusters do not matter, cannot be met.
        assert {plan.status for plan in found} == {"optimal", "feasible"}


def test_what_ends_of_clusters_pay_proves_more():
    plans = [compare(seed) for seed in range(100, 140)]
    # Where only the inner links are counted it is 35 of these 40.
    assert sum(plan is not None and plan.status == "optimal" for plan in plans) >= 38


def test_equals_brute_force_when_training():
    for seed in range(40):
        compare(seed, training=True, cpu=seed % 4 == 0, limited=seed % 4 == 1)


@pytest.mark.parametrize("max_replicas", [1, 2])
def test_gpipe_equals_brute_force(max_replicas):
    plans = [
        compare(
            seed,
            training=True,
            cpu=seed % 4 == 0,
            limited=seed % 4 == 1,
            objective="gpipe",
            max_replicas=max_replicas,
        )
        for seed in range(24)
    ]
    found = [plan for plan in plans if plan is not None]
    assert {plan.status for plan in found} == {"optimal", "feasible"}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("max_replicas", [2, 4])
def test_replicas_equal_brute_force(max_replicas, training):
    plans = [
        compare(
            seed,
            most=6,
            training=training,
            cpu=seed % 4 == 0,
            limited=seed % 4 == 1,
            max_replicas=max_replicas,
        )
        for seed in range(40)
    ]
    stages = [stage for plan in plans if plan is not None for stage in plan.stages]
    assert any(stage.replicas == max_replicas for stage in stages)


def test_equals_brute_force_with_colours():
    for seed in range(40):
        compare(seed, colors=True, cpu=seed % 3 == 0)


def chain(times, sizes, cpu=()) -> Graph:
    """Nodes in a row: times on `dev`, bytes of the tensors they make, times on `cpu` if any."""
    tensors = [tensor(0, "input", 1)]
    nodes = []
    for i, (time, size) in enumerate(zip(times, sizes, strict=True)):
        tensors.append(tensor(i + 1, "activation", size))
        times = {"dev": time, **({"cpu": cpu[i]} if cpu else {})}
        nodes.append(node(i, "Op", [i], [i + 1], time_s=times))
    return graph_of(Stream(header=header(), records={"tensor": tensors, "node": nodes}))


def device(count: int, size: int, inner: float = 10.0, **fields: float) -> DeviceClass:
    """Accelerators in clusters; the outer bandwidth is 1."""
    return DeviceClass(
        "dev",
        count=count,
        bandwidth_bytes_per_s=1.0,
        cluster_size=size,
        inner_bandwidth_bytes_per_s=inner,
        **fields,
    )


def test_inner_links_carry_the_large_tensors():
    # Of three cuts the middle one is between clusters: 20 at 1 byte/s would be too dear.
    graph = chain([10, 10, 10, 10], [20, 1, 20, 0])
    plan = solved(graph, singletons(graph), (device(4, 2),), CostOptions())
    # 10 + 20 / 10 | 20 / 10 + 10 + 1 || 1 + 10 + 20 / 10 | 20 / 10 + 10
    assert [s.load_s for s in plan.stages] == [12, 13, 13, 12]
    assert [s.device for s in plan.stages] == ["dev/0", "dev/1", "dev/2", "dev/3"]
    # With the small tensors inside: 10 + 1 / 10 | 1 / 10 + 10 + 20 || ... is worse than 3 stages.
    graph = chain([10, 10, 10, 10], [1, 20, 1, 0])
    plan = solved(graph, singletons(graph), (device(4, 2),), CostOptions())
    # 10 + 1 || 1 + (10 + 10) + 1 / 10 | 1 / 10 + 10
    assert plan.value == pytest.approx(21.1)


def test_the_cluster_that_is_not_full_is_used():
    graph = chain([10] * 5, [1, 20, 1, 20, 0])
    # Clusters of 2, 2 and 1: 10 | ... the single device comes first or last.
    plan = solved(graph, singletons(graph), (device(5, 2, inner=20.0),), CostOptions())
    assert plan.value == pytest.approx(10 + 1 + 1)
    assert [s.device for s in plan.stages] == ["dev/4", "dev/0", "dev/1", "dev/2", "dev/3"]


def test_a_cpu_may_stand_inside_a_cluster():
    graph = chain([10, 99, 10], [3, 3, 0], cpu=[50, 4, 50])
    devices = (device(2, 2), DeviceClass("cpu", "cpu", 1))
    plan = solved(graph, singletons(graph), devices, CostOptions())
    # Transfers with the CPU take the outer link: 10 + 3 | 4 | 3 + 10
    assert [(s.device, s.load_s) for s in plan.stages] == [
        ("dev/0", 13.0),
        ("cpu/0", 4.0),
        ("dev/1", 13.0),
    ]
    assert plan.status == "optimal"


@pytest.mark.parametrize("comm", ["sum", "overlap", "duplex"])
def test_equal_links_give_the_flat_optimum(comm):
    for seed in range(15):
        graph = graph_of(random_stream(seed, 12))
        units = singletons(graph)
        options = CostOptions(comm=comm)
        plan = solved(graph, units, (device(4, 2, inner=1.0),), options)
        flat = ideal_search(
            SplitProblem(graph, units, (replace(device(4, 2), cluster_size=0),), options)
        )
        assert plan.value == pytest.approx(flat.value, rel=1e-9)
        assert plan.status == "optimal"


def test_one_cluster_gives_the_flat_optimum_at_inner_cost():
    for seed in range(15):
        graph = graph_of(random_stream(seed, 12))
        units = singletons(graph)
        plan = solved(graph, units, (device(3, 3, inner=4.0),), CostOptions())
        near = replace(
            graph,
            transfer_s=np.where(np.isnan(graph.transfer_s), graph.tensor_bytes, graph.transfer_s)
            / 4,
        )
        flat = ideal_search(
            SplitProblem(near, units, (replace(device(3, 3), cluster_size=0),), CostOptions())
        )
        assert plan.value == pytest.approx(flat.value, rel=1e-9)
        assert plan.status == "optimal"


def reference(graph: Graph, count: int, size: int, factor: float) -> float:
    """Least largest load of a chain over full clusters of `size`: a table over all segments."""
    n, inf = graph.n, math.inf
    work = np.append(0, np.cumsum(graph.times["dev"]))
    moved = np.append(0, graph.tensor_bytes[1:])
    moved[-1] = 0

    def load(a: int, b: int, first: bool, last: bool) -> float:
        into = moved[a] * (1 if first else factor) if a else 0.0
        return work[b] - work[a] + into + moved[b] * (1 if last else factor)

    inside = np.full((n + 1, n + 1), inf)
    for a in range(n):
        # Least largest load from a to b over d devices, but for the last one's transfer out.
        open_ends = np.array([load(a, b, True, False) if b > a else inf for b in range(n + 1)])
        inside[a, a + 1 :] = [load(a, b, True, True) for b in range(a + 1, n + 1)]
        for _ in range(size - 1):
            longer = np.full(n + 1, inf)
            for c in range(a + 1, n):
                for b in range(c + 1, n + 1):
                    inside[a, b] = min(inside[a, b], max(open_ends[c], load(c, b, False, True)))
                    longer[b] = min(longer[b], max(open_ends[c], load(c, b, False, False)))
            open_ends = longer
    best = inside[0].copy()
    for _ in range(count // size - 1):
        best = np.array(
            [
                min([best[b], *(max(best[a], inside[a, b]) for a in range(1, b))])
                for b in range(n + 1)
            ]
        )
    return float(best[n])


@pytest.mark.parametrize("size", [2, 3, 4])
def test_chains_equal_a_table_over_segments(size):
    for seed in range(4):
        rng = random.Random(seed)
        n = 26
        graph = chain(
            [rng.randint(1, 20) for _ in range(n)], [rng.randint(0, 40) for _ in range(n)]
        )
        plan = solved(graph, singletons(graph), (device(12, size, inner=8.0),), CostOptions())
        assert plan.value == pytest.approx(reference(graph, 12, size, 1 / 8), rel=1e-9)


def test_orders_do_not_beat_ideals(monkeypatch):
    for seed in range(12):
        graph = graph_of(random_stream(seed, 14, classes=["cpu"]))
        units = singletons(graph)
        devices = (device(4, 2, inner=5.0), DeviceClass("cpu", "cpu", 1))
        exact = solved(graph, units, devices, CostOptions())
        with monkeypatch.context() as patch:
            # Too many ideals: only orders are searched, and the ideal search gives the bound.
            patch.setattr(hierarchy, "MAX_IDEALS", 3)
            lines = solved(graph, units, devices, CostOptions())
        assert exact.value <= lines.value * (1 + 1e-9)
        assert lines.bound <= exact.value * (1 + 1e-9)
        assert lines.bound <= exact.bound * (1 + 1e-9)


@pytest.mark.parametrize(("items", "how"), [(10_000, "only those"), (3, "and items, 30,")])
def test_too_many_ideals_are_said(monkeypatch, items, how):
    graph = graph_of(random_stream(3, 30))
    problem = SplitProblem(graph, singletons(graph), (device(8, 4),), CostOptions())
    hierarchy_split(problem, SearchContext(warn=pytest.fail))
    monkeypatch.setattr(hierarchy, "MAX_IDEALS", 3)
    monkeypatch.setattr(hierarchy, "MAX_ITEMS", items)
    said = []
    hierarchy_split(problem, SearchContext(warn=said.append))
    assert len(said) == 1
    assert said[0].startswith(f"clusters: there are too many ideals, {how}")


def test_stopping_leaves_a_valid_split():
    graph = graph_of(random_stream(3, 60))
    units = singletons(graph)
    devices = (device(8, 4),)
    finished = solved(graph, units, devices, CostOptions())
    found = hierarchy_split(
        SplitProblem(graph, units, devices, CostOptions()), SearchContext(interrupted=lambda: True)
    )
    blocks, bound = found.blocks, found.bound
    plan = make_plan(
        SplitProblem(graph, units, devices, CostOptions()),
        blocks,
        method="exact",
        bound=bound,
        digest="0" * 64,
    )
    assert check_plan(graph, None, plan).violations == ()
    assert bound <= finished.value <= plan.value
    found = hierarchy_split(
        SplitProblem(graph, units, devices, CostOptions()), SearchContext(effort=1e-9)
    )
    blocks, bound = found.blocks, found.bound
    assert bound <= finished.value


def test_extreme_numbers():
    graph = chain([1e12, 0, 1e-12, 1e6], [1e-12, 1e12, 0, 5])
    plan = solved(graph, singletons(graph), (device(4, 2),), CostOptions())
    assert plan.value == pytest.approx(1e12)
    graph = chain([0, 0, 0], [0, 0, 0])
    assert solved(graph, singletons(graph), (device(4, 2),), CostOptions()).value == 0


def test_more_devices_than_items_and_clusters_larger_than_the_graph():
    graph = chain([5, 7], [1, 0])
    for count, size in [(1000, 3), (1000, 600), (5, 1000)]:
        plan = solved(graph, singletons(graph), (device(count, size),), CostOptions())
        assert plan.value == pytest.approx(7.1 if size > 1 else 8)


def test_no_device_has_room():
    graph = graph_of(random_stream(1, 5, params=True))
    devices = (device(2, 2, memory_bytes=1.0),)
    with pytest.raises(InfeasibleError, match="infeasible"):
        hierarchy_split(SplitProblem(graph, singletons(graph), devices, CostOptions()))


@pytest.mark.parametrize(
    ("devices", "options", "message"),
    [
        ((replace(device(2, 2), cluster_size=0),), {}, "clusters are for one class"),
        ((device(2, 2), replace(device(2, 2), name="other")), {}, "offered: dev, other"),
        ((DeviceClass("cpu", "cpu"),), {}, "offered: cpu"),
        ((replace(device(2, 2), bandwidth_bytes_per_s=math.inf),), {}, "outer bandwidth"),
        ((device(2, 2, inner=0.5),), {}, "not below it"),
    ],
)
def test_what_is_refused(devices, options, message):
    graph = chain([1, 1], [1, 0])
    with pytest.raises(UsageError, match=message):
        hierarchy_split(SplitProblem(graph, singletons(graph), devices, CostOptions(**options)))


def platform(folder: Path, records: str, **options: object) -> tuple[DeviceClass, ...]:
    """Devices from a file of records, with options of the command."""
    file = folder / "devices.json"
    file.write_text(records)
    node = {"time_s": {"dev": 1, "cpu": 1}}
    stream = Stream(header=header(), records={"node": [node]})
    return devices_of(stream, DeviceOptions(devices=str(file), **options))[0]


RECORD = (
    '{"class": "dev", "kind": "accelerator", "count": 4, "bandwidth_bytes_per_s": 2, '
    '"cluster_size": 2, "inner_bandwidth_bytes_per_s": 8}'
)


def test_clusters_of_a_device_file(tmp_path):
    (found,) = platform(tmp_path, RECORD)
    assert (found.cluster_size, found.inner_bandwidth_bytes_per_s) == (2, 8)
    (found,) = platform(tmp_path, RECORD, cluster_size=4, inner_bandwidth=16.0)
    assert (found.cluster_size, found.inner_factor) == (4, 1 / 8)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"cluster_size": 2', '"cluster_size": -1', "field 'cluster_size'"),
        ('"cluster_size": 2', '"cluster_size": 1.5', "field 'cluster_size'"),
        ('_s": 8', '_s": 0', "field 'inner_bandwidth_bytes_per_s'"),
        ('_s": 8', '_s": 1', "below the one between clusters"),
        (
            '"accelerator", "count": 4, "bandwidth_bytes_per_s": 2, ',
            '"cpu", "count": 4, ',
            "only accelerators form clusters",
        ),
    ],
)
def test_faulty_clusters_of_a_device_file(tmp_path, old, new, message):
    assert old in RECORD
    with pytest.raises((FormatError, UsageError), match=message):
        platform(tmp_path, RECORD.replace(old, new))


def test_cpus_alone_form_no_clusters(tmp_path):
    record = '{"class": "cpu", "kind": "cpu", "count": 2}'
    with pytest.raises(UsageError, match="no accelerators"):
        platform(tmp_path, record, cluster_size=2, inner_bandwidth=4.0)
