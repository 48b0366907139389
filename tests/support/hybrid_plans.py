"""Small graphs with parallel plans at random, and all of their plans, judged by the checker alone.

Nothing is assumed of items, directions, or what may run again: every sequence of sets of nodes,
every team and every set of nodes that run again is priced by `hybrid_costs`, and counts if that has
nothing against it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

from dnnp.core.check.graph import tables_of
from dnnp.core.check.load import PlanCase, units_of
from dnnp.core.check.parallel import hybrid_costs
from dnnp.core.check.plan import check_colors, check_plan
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import InfeasibleError, LimitError, UsageError
from dnnp.core.model.graph import Clustering, singletons
from dnnp.core.model.plan import CostOptions, HybridOptions, Plan, Stage
from dnnp.core.model.search_context import PLAIN
from dnnp.core.parallel.plan import solve_hybrid
from dnnp.formats.graph import clustering_of, graph_of
from support.graphs import random_stream

DEGREES = (1, 2, 4)


class Request(NamedTuple):
    """A graph, its devices and what a plan may use."""

    problem: SplitProblem
    options: HybridOptions
    groups: Clustering | None


def asked(seed: int, most: int, *, shared: bool) -> Request:
    """A graph of up to `most` nodes; most of them are trained, and state what shards take."""
    rng = random.Random(f"hybrid {seed} {shared}")
    training = rng.random() < 0.7
    stream = random_stream(
        seed, rng.randint(2, most), training=training, colors=rng.random() < 0.3,
        params=rng.random() < 0.3, classes=(),
    )  # fmt: skip
    nodes = stream.get("node")
    degrees = DEGREES if shared else rng.choice((DEGREES, (2, 4), (2, 3), ()))
    stated, given = shared or rng.random() < 0.8, rng.random() < 0.4
    for node in nodes:
        if rng.random() < 0.9:
            node["memory_bytes"] = float(rng.randint(4, 20))
            node["held_bytes"] = float(rng.choice((0, 0, 1, 2, 4)))
        if stated and rng.random() < 0.9:
            node["shards"] = [shard_of(rng, node, t, given=given) for t in degrees]
    for tensor in stream.get("tensor"):
        if degrees and rng.random() < 0.3:
            moved = [{"devices": t, "in_bytes": 1.0 * t, "out_bytes": 2.0} for t in degrees]
            tensor["shards"] = moved
    for node in (n for n in nodes if "backward" in n and "color" in n and rng.random() < 0.8):
        ahead = [n["id"] for n in nodes if "backward" not in n and n.get("color") == node["color"]]
        node |= {"of": rng.choice(ahead)} if ahead else {}
    if rng.random() < 0.2:
        stream.records["group"] = list(_groups(rng, nodes))
    graph = graph_of(stream)
    again = graph.backward.any() or (graph.shards is not None and graph.shards.again is not None)
    count = rng.choice((2, 4)) if shared else rng.randint(1, 5)
    near = {"cluster_size": 2, "inner_bandwidth_bytes_per_s": 8.0} if rng.random() < 0.2 else {}
    device = DeviceClass(
        "dev", count=count, bandwidth_bytes_per_s=rng.choice((1.0, 2.0, 5.0)),
        memory_bytes=rng.choice((math.inf, 60.0, 40.0, 30.0, 20.0)), **near,
    )  # fmt: skip
    cost = CostOptions(
        comm=rng.choice(("sum", "overlap", "duplex")), memory_model="sum",
        memory_mode="ignore" if rng.random() < 0.1 else "hard",
    )  # fmt: skip
    options = HybridOptions(
        tensor_parallel=rng.choice((1, 2, 4)),
        data_parallel=rng.choice((1, 2, 3)),
        micro_batches=rng.choice((2, 4, 6)),
        recompute=rng.choice(("none", "full", "auto", "auto")) if again else "none",
        weight_sync=rng.choice(("ring", "server")),
        overlap_sync=rng.random() < 0.3,
        shared_stages=rng.randint(1, 2) if shared else 0,
    )
    groups = clustering_of(stream, graph)
    problem = SplitProblem(graph, groups or singletons(graph), (device,), cost)
    return Request(problem, options, groups)


def _groups(rng: random.Random, nodes: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Groups of one or two nodes; some take less time than these."""
    left = [node["id"] for node in nodes]
    for number in range(len(left)):
        if left:
            mine = sorted([left.pop(0), *(left.pop(rng.randrange(len(left))) for _ in left[:1])])
            time = sum(nodes[v]["time_s"]["dev"] for v in mine) * rng.choice((0.5, 1.0))
            yield {
                "type": "group", "id": number, "name": "g", "nodes": mine, "time_s": {"dev": time},
            }  # fmt: skip


def shard_of(rng: random.Random, node: dict[str, Any], t: int, *, given: bool) -> dict[str, Any]:
    """Time of a node on t devices; `given`: and if its forward pass runs again."""
    time, memory = node["time_s"]["dev"] / t, float(rng.randint(2, 20))
    costs = {
        "devices": t, "time_s": {"dev": time}, "memory_bytes": memory,
        "held_bytes": min(memory, float(rng.choice((0, 1, 2, 4)))),
    }  # fmt: skip
    if rng.random() < 0.9:
        costs["weight_bytes"] = float(rng.randint(0, 5))
    if t > 1 and rng.random() < 0.6:
        kinds = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
        costs["collectives"] = [{"kind": rng.choice(kinds), "bytes": 3.0}]
    if given and rng.random() < 0.9:
        less = float(rng.randint(0, int(memory)))
        costs["recomputed"] = {
            "time_s": {"dev": time * rng.choice((0.9, 1.0, 1.3, 1.5))},
            "memory_bytes": less, "held_bytes": min(less, float(rng.randint(0, 2))),
        }  # fmt: skip
    return costs


class AllPlans:
    """All plans of what is asked."""

    def __init__(self, what: Request) -> None:
        self.problem, self.options, groups = what
        self.graph, (self.device,) = self.problem.graph, self.problem.devices
        self.tables = tables_of(self.graph)
        self.units = units_of(self.graph, groups, self.tables)
        self.known: dict[tuple[object, ...], list[tuple[float, float, float]]] = {}
        shards = self.graph.shards
        degrees = [1] if shards is None else shards.degrees.tolist()
        batch = self.options.micro_batches
        self.teams = [
            (t, d, False)
            for t in degrees
            for d in range(1, self.options.data_parallel + 1)
            if t <= self.options.tensor_parallel and batch % d == 0 and t * d <= self.device.count
        ]
        if self.options.shared_stages:
            self.teams.append((self.device.count, 1, True))
        hard = self.problem.options.memory_mode == "hard"
        self.room = self.device.memory_bytes * (1 + 1e-12) if hard else math.inf

    def plan(self, stages: Sequence[Stage]) -> Plan:
        return Plan(
            tuple(stages), self.device.count, "hybrid", "ordered", 0.0, 0.0, "feasible",
            self.problem.options, self.problem.devices, "", hybrid=self.options,
        )  # fmt: skip

    def case(self, stages: Sequence[Stage], blocks: Sequence[Sequence[int]]) -> PlanCase:
        return PlanCase(self.graph, self.plan(stages), self.tables, self.units, blocks)

    def stage(self, block: Sequence[int], team: tuple[int, int, bool], again: object) -> Stage:
        t, d, shared = team
        ids = tuple(self.tables.ids[v] for v in block)
        return Stage(
            "dev/0", "dev", ids, *[0.0] * 6, replicas=d, shards=t, recomputed=again, shared=shared
        )

    def sequences(self) -> Iterator[list[list[int]]]:
        """Sets of nodes in an order to which the checker has nothing to say."""
        for blocks in _sequences(list(range(self.tables.n))):
            home = {v: s for s, block in enumerate(blocks) for v in block}
            whole = {(self.units.of_node[v], s) for v, s in home.items()}
            if len(whole) > len(self.units.ids):
                continue
            if not self.wrong(blocks, [(1, 1, False)] * len(blocks), {"order"}):
                yield blocks

    def wrong(
        self, blocks: list[list[int]], teams: Sequence[tuple[int, int, bool]], kinds: set[str]
    ) -> bool:
        stages = [self.stage(b, team, ()) for b, team in zip(blocks, teams, strict=True)]
        found = hybrid_costs(self.case(stages, blocks))[1]
        return any(violation.kind in kinds for violation in found)

    def ways(self, block: list[int], team: tuple[int, int, bool]) -> list[tuple[float, ...]]:
        """Load, memory with one micro-batch under way, and more for each that is: all choices."""
        key = (tuple(block), team)
        if key not in self.known:
            self.known[key] = []
            many = self.options.recompute != "none"
            for chosen in product((0, 1), repeat=len(block)) if many else [(0,) * len(block)]:
                again = tuple(
                    self.tables.ids[v] for v, taken in zip(block, chosen, strict=True) if taken
                )
                one, two = (self.price(block, team, again, more) for more in (0, team[1]))
                if one is not None and two is not None and math.isfinite(one[0]):
                    self.known[key].append((one[0], one[1], two[1] - one[1]))
        return self.known[key]

    def price(
        self, block: list[int], team: tuple[int, int, bool], again: object, later: int
    ) -> tuple[float, float] | None:
        """Load and memory before so many replicas; None: the checker has something against it."""
        stages = [self.stage(block, team, again)]
        if later:
            stages.append(self.stage([], (team[0], later, False), ()))
        blocks = [block, []][: len(stages)]
        costs, found = hybrid_costs(self.case(stages, blocks))
        mine = [v for v in found if v.subject == "stage 0" and "recomputed" not in v.message]
        if any(v.kind in ("support", "load") for v in mine):
            return None
        return costs[0].load_s, costs[0].memory_bytes

    def least(self) -> float:
        """The least value of all; inf: nothing fits."""
        best = math.inf
        for blocks in self.sequences():
            for teams in product(self.teams, repeat=len(blocks)):
                own = sum(t * d for t, d, shared in teams if not shared)
                copies = sum(d for _, d, _ in teams)
                if own > self.device.count or copies > self.options.micro_batches:
                    continue
                if sum(shared for *_, shared in teams) > self.options.shared_stages:
                    continue
                if not self.colored(blocks, teams):
                    continue
                best = min(best, self.value(blocks, teams))
        return best

    def colored(self, blocks: list[list[int]], teams: Sequence[tuple[int, int, bool]]) -> bool:
        """True if the checker finds nothing wrong with the places of colours."""
        stages = [self.stage(b, team, ()) for b, team in zip(blocks, teams, strict=True)]
        return not [*check_colors(self.case(stages, blocks))]

    def value(self, blocks: list[list[int]], teams: Sequence[tuple[int, int, bool]]) -> float:
        """The least value with these stages on these devices."""
        rows, later = [], sum(d for _, d, _ in teams)
        for block, team in zip(blocks, teams, strict=True):
            later -= team[1]
            under_way = math.ceil((team[1] + later) / team[1])
            ways = self.ways(block, team)
            rows.append([(load, bytes_ + (under_way - 1) * each) for load, bytes_, each in ways])
        shared = [r for r, (*_, is_shared) in zip(rows, teams, strict=True) if is_shared]
        alone = [r for r, (*_, is_shared) in zip(rows, teams, strict=True) if not is_shared]
        best = math.inf
        for chosen in product(*shared):
            time, held = sum(t for t, _ in chosen), sum(m for _, m in chosen)
            if held <= self.room:
                loads = [min((t for t, m in r if m + held <= self.room), default=math.inf)
                         for r in alone]  # fmt: skip
                best = min(best, time + max(loads, default=0.0))
        return best


def _sequences(nodes: list[int]) -> Iterator[list[list[int]]]:
    """All ways to cut nodes into sets, in all orders of these."""
    if not nodes:
        yield []
    for mask in range(1, 1 << len(nodes)):
        first = [v for i, v in enumerate(nodes) if mask >> i & 1]
        for rest in _sequences([v for i, v in enumerate(nodes) if not mask >> i & 1]):
            yield [first, *rest]


def plan_disagreement(seed: int, most: int = 4, *, shared: bool = False) -> tuple[str, str]:
    """Compare a plan with all plans; what became of it, and what is wrong."""
    what = asked(seed, most, shared=shared)
    try:
        plan = solve_hybrid(what.problem, what.options, PLAIN)
    except (InfeasibleError, LimitError) as error:
        best = AllPlans(what).least()
        return "infeasible", "" if math.isinf(best) else f"{seed}: {best} is possible, but {error}"
    except UsageError as error:
        return f"refused: {error}"[:40], ""
    report = check_plan(what.problem.graph, what.groups, replace(plan, digest=""))
    if report.violations:
        return plan.status, f"{seed}: {'; '.join(map(str, report.violations))}"
    best = AllPlans(what).least()
    if plan.bound > best * (1 + 1e-9) or plan.value > best * (1 + 1e-8):
        return plan.status, f"{seed}: {plan.value}, bound {plan.bound}, and {best} is possible"
    if plan.value < best * (1 - 1e-9):
        return plan.status, f"{seed}: {plan.value} is not among all plans, whose best is {best}"
    if plan.status == "feasible":
        return plan.status, f"{seed}: {plan.value} is the best, but not called optimal"
    return plan.status, ""
