"""The checker against the cost model on plans of the objective latency, right and wrong."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from dnnp.core.check.plan import check_plan
from dnnp.core.cost.latency import (
    POOL,
    Invocations,
    LatencyProblem,
    Placement,
    latency_problem,
    lazy_events,
)
from dnnp.core.cost.latency_plan import make_latency_plan
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.device import DeviceClass, Link, machine_of
from dnnp.core.model.errors import FormatError
from dnnp.core.model.graph import Clustering, Graph, Ints, clustering_of_labels, singletons
from dnnp.core.model.plan import CostOptions, Plan
from dnnp.formats.graph import graph_of
from dnnp.formats.plan import plan_of, plan_records
from support.graphs import random_stream
from support.latency_cases import eager_events

CASES = 150


class Case:
    """A random graph in random groups, random devices, and a random valid plan."""

    def __init__(self, seed: int, execution: str) -> None:
        rng = random.Random(seed)
        n = rng.randint(2, 9)
        self.training = rng.random() < 0.3
        self.stream = random_stream(
            rng.randrange(10**9),
            n,
            params=rng.random() < 0.5,
            training=self.training,
            classes=["other", "cpu"],
            memory=rng.random() < 0.5,
        )
        for node in self.stream.get("node"):
            node.pop("color", None)
            node["time_s"] = {name: rng.choice([0.0, 1.0, 2.5]) for name in ("dev", "other", "cpu")}
        self.graph: Graph = graph_of(self.stream)
        self.units: Clustering = singletons(self.graph)
        if rng.random() < 0.5 and not self.training:
            self.units = self._intervals(rng)
        self.devices = (
            DeviceClass("dev", count=2, bandwidth_bytes_per_s=rng.choice([1.0, 7.0])),
            DeviceClass("other", count=1, bandwidth_bytes_per_s=3.0),
            DeviceClass("cpu", kind="cpu", count=1, bandwidth_bytes_per_s=5.0),
        )
        self.options = CostOptions(
            objective="latency",
            execution=execution,
            memory_model=rng.choice(["sum", "weights", "peak"]),
            transfers=rng.choice(["tensor", "tensor", "edge"]),
            congestion=rng.choice(["device", "channel", "none"]),
            invocations=9,
            charge_io=execution == "blocks" and rng.random() < 0.4,
        )
        self.links: tuple[Link, ...] = ()
        if execution == "operators" and rng.random() < 0.6:
            self.links = tuple(self._ring(rng))
        whole = SplitProblem(self.graph, self.units, self.devices, self.options, self.links)
        self.problem: LatencyProblem = latency_problem(whole)
        make = self._blocks if execution == "blocks" else self._placement
        self.plan: Plan = make_latency_plan(
            whole,
            self.problem,
            make(rng),
            method="test",
            bound=0.0,
            bound_method="none",
            digest="0" * 64,
        )

    def violations(self, plan: Plan) -> list[str]:
        return [str(v) for v in check_plan(self.graph, self.units, plan).violations]

    def _intervals(self, rng: random.Random) -> Clustering:
        label = np.empty(self.graph.n, dtype=np.int64)
        number = 0
        for v in self.graph.order.tolist():
            label[v] = number
            number += rng.random() < 0.6
        label = np.unique(label, return_inverse=True)[1].astype(np.int64)
        return clustering_of_labels(self.graph, label)

    def _ring(self, rng: random.Random) -> list[Link]:
        names = ["dev/0", "dev/1", "other/0", "cpu/0"]
        links = []
        for i in range(4):
            a, b = names[i], names[(i + 1) % 4]
            for source, target in ((a, b), (b, a)):
                links.append(Link(source, target, rng.choice([2.0, 5.0]), rng.choice([0.0, 1.5])))
        return links

    def _order(self, rng: random.Random) -> Ints:
        tasks = self.problem.tasks
        tail, head = tasks.edges
        waiting = np.bincount(head, minlength=tasks.n)
        order: list[int] = []
        ready = [v for v in range(tasks.n) if not waiting[v]]
        while ready:
            v = ready.pop(rng.randrange(len(ready)))
            order.append(v)
            for w in head[tail == v].tolist():
                waiting[w] -= 1
                if not waiting[w]:
                    ready.append(w)
        return np.array(order, dtype=np.int64)

    def _placement(self, rng: random.Random) -> Placement:
        device = np.array([rng.randrange(4) for _ in range(self.problem.tasks.n)])
        events = rng.choice([lazy_events, eager_events])
        return Placement(device, events(self.problem.tasks, device, self._order(rng)))

    def _blocks(self, rng: random.Random) -> Invocations:
        """Cut an order, forward tasks first, into blocks and stretches of the pool."""
        tasks = self.problem.tasks
        order = self._order(rng)
        order = np.concatenate([order[~tasks.backward[order]], order[tasks.backward[order]]])
        block = np.full(tasks.n, POOL, dtype=np.int64)
        devices: list[int] = []
        late = False
        home = POOL
        for v in order.tolist():
            if rng.random() < 0.5 or (tasks.backward[v] != late and home != POOL):
                home = rng.choice([POOL, 0, 1, 2])
                if home != POOL:
                    devices.append(home)
            late = bool(tasks.backward[v])
            block[v] = POOL if home == POOL else len(devices) - 1
        kept = np.unique(block[block >= 0])
        number = np.full(len(devices) + 1, POOL, dtype=np.int64)
        number[kept] = np.arange(len(kept))
        return Invocations(np.array(devices, dtype=np.int64)[kept], number[block])


@pytest.mark.parametrize("execution", ["blocks", "operators"])
def test_checker_agrees(execution: str) -> None:
    for seed in range(CASES):
        case = Case(seed, execution)
        assert case.violations(case.plan) == [], seed


@pytest.mark.parametrize("execution", ["blocks", "operators"])
def test_records_and_back(execution: str) -> None:
    for seed in range(30):
        case = Case(seed, execution)
        record, stages = plan_records(case.plan)
        case.stream.records |= {"plan": [record], "stage": stages}
        assert plan_of(case.stream, case.graph, check_digest=False) == case.plan


def corrupted(plan: Plan, rng: random.Random) -> tuple[str, Plan] | None:
    """A plan with one number changed, or two stages exchanged."""
    number = rng.randrange(len(plan.stages))
    stage = plan.stages[number]
    what = rng.choice(["value", "begin", "end", "load", "out", "start", "move", "lost", "length"])
    if what == "value":
        return what, replace(plan, value=plan.value * 1.001 + 1)
    changed = stage
    if what == "begin":
        changed = replace(stage, begin_s=(stage.begin_s or 0.0) + 1)
    elif what == "end":
        changed = replace(stage, end_s=(stage.end_s or 0.0) - 1)
    elif what in ("load", "out"):
        name = {"load": "load_s", "out": "out_s"}[what]
        changed = replace(stage, **{name: getattr(stage, name) + 1})
    elif what == "start" and stage.starts_s:
        at = rng.randrange(len(stage.starts_s))
        starts = list(stage.starts_s)
        starts[at] -= 0.75
        if plan.stages[number].starts_s and at == 0 and starts[0] < 0:
            return None
        changed = replace(stage, starts_s=tuple(starts))
    elif what in ("move", "lost", "length") and stage.receives:
        at = rng.randrange(len(stage.receives))
        move = stage.receives[at]
        moves = list(stage.receives)
        if what == "lost":
            del moves[at]
        elif what == "move":
            moves[at] = move._replace(start_s=move.start_s - 0.5, end_s=move.end_s - 0.5)
        else:
            moves[at] = move._replace(start_s=move.start_s + 0.5)
        changed = replace(stage, receives=tuple(moves))
    if changed == stage:
        return None
    stages = [*plan.stages]
    stages[number] = changed
    return what, replace(plan, stages=tuple(stages))


@pytest.mark.parametrize("execution", ["blocks", "operators"])
def test_corruptions_are_found(execution: str) -> None:
    tried: dict[str, int] = {}
    for seed in range(CASES):
        case = Case(seed, execution)
        rng = random.Random(seed)
        for _ in range(6):
            bad = corrupted(case.plan, rng)
            if bad is None:
                continue
            what, plan = bad
            if what in ("start", "move"):
                # May still be possible where time was left; then begin, in or order differ.
                continue
            tried[what] = tried.get(what, 0) + 1
            assert case.violations(plan), (seed, what)
    assert {"value", "begin", "end", "load", "out"} <= set(tried)


def test_too_early_starts_are_found() -> None:
    """Moving what is tight to an earlier time breaks something."""
    found = 0
    for seed in range(CASES):
        case = Case(seed, "operators")
        tasks = [s for s in case.plan.stages if s.receives]
        for stage in tasks:
            first = min(range(len(stage.receives or ())), key=lambda i: stage.receives[i].start_s)
            moves = list(stage.receives or ())
            shift = moves[first].start_s + 1
            moves[first] = moves[first]._replace(
                start_s=moves[first].start_s - shift, end_s=moves[first].end_s - shift
            )
            stages = tuple(
                replace(s, receives=tuple(moves)) if s is stage else s for s in case.plan.stages
            )
            assert case.violations(replace(case.plan, stages=stages))
            found += 1
    assert found > 50


def later(plan: Plan, offset: float) -> Plan:
    """A plan where all units start together, after a while."""
    stages = []
    for stage in plan.stages:
        moves = [m._replace(start_s=offset, end_s=m.end_s + offset) for m in stage.receives or ()]
        starts = (offset,) * len(stage.starts_s or ())
        stages.append(replace(stage, starts_s=starts, receives=tuple(moves)))
    return replace(plan, stages=tuple(stages))


def test_an_offset_hides_nothing() -> None:
    """A task that starts too early is named however late it is."""
    found = 0
    for seed in range(40):
        case = Case(seed, "operators")
        early, still = (
            sum(" before " in v for v in case.violations(later(case.plan, at)))
            for at in (0.0, 1e11)
        )
        assert still == early, seed
        found += early
    assert found > 50


def test_blocks_that_wait_for_each_other() -> None:
    checked = 0
    for seed in range(CASES):
        case = Case(seed, "blocks")
        tail, head = case.problem.tasks.edges
        middle = np.intersect1d(tail, head)
        if case.training or not len(middle):
            continue
        block = np.zeros(case.problem.tasks.n, dtype=np.int64)
        block[middle[0]] = 1
        with pytest.raises(FormatError, match="wait for each other"):
            case.problem.value(Invocations(np.array([0, 1]), block))
        checked += 1
    assert checked > 10


def test_capacity_is_of_the_device() -> None:
    """Two blocks that fit alone, but not together."""
    checked = 0
    for seed in range(CASES):
        case = Case(seed, "blocks")
        total: dict[str, list[float]] = {}
        live: dict[str, float] = {}
        for stage in case.plan.stages:
            peak = stage.peak_bytes or 0.0
            live[stage.device] = max(live.get(stage.device, 0.0), peak)
            if stage.device_class != "cpu" and stage.memory_bytes > peak:
                total.setdefault(stage.device, []).append(stage.memory_bytes - peak)
        shared = [name for name, parts in total.items() if len(parts) > 1]
        if not shared:
            continue
        limit = (sum(total[shared[0]]) + live[shared[0]]) * 0.999
        devices = tuple(
            replace(d, memory_bytes=limit) if shared[0].startswith(d.name) else d
            for d in case.devices
        )
        found = case.violations(replace(case.plan, devices=devices))
        assert any(f"{shared[0]} needs" in v for v in found)
        checked += 1
    assert checked > 10


def test_mesh_takes_the_widest_path() -> None:
    devices = (DeviceClass("d", count=4),)

    def both(a: int, b: int, band: float, delay: float) -> list[Link]:
        ends = f"d/{a}", f"d/{b}"
        return [Link(*ends, band, delay), Link(*reversed(ends), band, delay)]

    links = [*both(0, 1, 10, 1), *both(1, 3, 10, 1), *both(0, 2, 5, 0), *both(2, 3, 20, 0)]
    machine = machine_of(devices, links)
    # 0 - 3 through 1 is 10 wide, through 2 only 5; direct links count even where narrow.
    assert (machine.rate[0, 3], machine.latency[0, 3]) == (0.1, 2.0)
    assert (machine.rate[0, 2], machine.latency[0, 2]) == (0.2, 0.0)
    hops = [*both(0, 1, 10, 1), *both(1, 2, 10, 1), *both(2, 3, 10, 1), *both(0, 3, 4, 9)]
    assert machine_of(devices, hops).latency[1, 3] == 2.0
    with pytest.raises(FormatError, match="no path from d/0 to d/2"):
        machine_of(devices, both(0, 1, 1, 0) + both(2, 3, 1, 0))
