"""Random problems with rules, and what their splits may be, told from the rules alone."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from dnnp.core.check.plan import check_plan
from dnnp.core.cost.latency import POOL, Invocations, LatencyProblem, latency_problem
from dnnp.core.cost.latency_plan import make_latency_plan
from dnnp.core.cost.placing import with_rules
from dnnp.core.cost.problem import SplitProblem, make_plan
from dnnp.core.latency.solve import solve_latency
from dnnp.core.model.device import DeviceClass, Own, own_times, with_own
from dnnp.core.model.errors import InfeasibleError, LimitError, UsageError
from dnnp.core.model.graph import INPUT, STATE, Clustering, Graph, with_own_times
from dnnp.core.model.placing import Rule
from dnnp.core.model.search_context import Evolution, MethodOptions
from dnnp.core.split.auto import solve
from dnnp.formats.stream import Stream
from support import graphs
from support.brute import Admits, brute_force
from support.cases import random_case
from support.graphs import header
from support.latency_brute import brute_blocks
from support.latency_cases import random_problem

LAYERS = 4
"""Layers of `decoder`."""


def with_forged_rule(stream: bytes, rule: dict[str, Any]) -> bytes:
    """A stream whose plans state one rule, whatever they keep."""
    lines = [json.loads(line) for line in stream.splitlines()]
    for record in lines:
        if record["type"] == "plan":
            record["rules"] = [rule]
    return b"".join(json.dumps(record).encode() + b"\n" for record in lines)


def decoder() -> Stream:
    """An embedding, layers that all read a mask, one with a transposed weight, and a head."""
    tensors: list[dict[str, Any]] = []
    nodes: list[dict[str, Any]] = []

    def tensor(name: str, kind: str, size: int = 10) -> int:
        tensors.append(graphs.tensor(len(tensors), kind, size, name=name))
        return len(tensors) - 1

    def node(name: str, inputs: list[int], time: float = 10.0) -> int:
        made = tensor(f"{name}_output", "activation")
        times = {"gpu": time}
        nodes.append(graphs.node(len(nodes), "Op", inputs, [made], name=name, time_s=times))
        return made

    ids = tensor("ids", "input")
    mask = node("/model/mask", [ids], 1.0)
    x = node("/model/embed_tokens/Gather", [ids, tensor("model.embed.weight", "parameter", 100)])
    for i in range(LAYERS):
        weights = [tensor(f"model.layers.{i}.{w}.weight", "parameter", 50) for w in ("attn", "mlp")]
        if i == 2:
            weights[1] = node("/model/layers.2/mlp/Transpose", [weights[1]], 0.0)
        x = node(f"/model/layers.{i}/attn/MatMul", [x, mask, weights[0]])
        x = node(f"/model/layers.{i}/mlp/MatMul", [x, weights[1]])
    node("/lm_head/MatMul", [x, tensor("lm_head.weight", "parameter", 100)], 20.0)
    return Stream(header=header(), records={"tensor": tensors, "node": nodes})


@dataclass(frozen=True)
class RuledCase:
    """A problem with rules, and the graph and units that a stream would have."""

    seed: int
    graph: Graph
    units: Clustering
    problem: SplitProblem

    @property
    def admits(self) -> Admits:
        """Tell whether stages keep the rules."""
        return lambda stages: all(keeps(self.graph, rule, stages) for rule in self.problem.rules)


def ruled_case(seed: int, most: int = 7) -> RuledCase:
    """A random problem of 2 to `most` nodes with one to three rules that do not contradict."""
    rng = random.Random(f"rules {seed}")
    for _ in range(100):
        case = random_case(rng.randrange(10**6), most, max_replicas=1, memory_model="sum")
        if case.graph.n < 2:
            continue
        own = {}
        for device in case.devices:
            for i in range(device.count):
                if rng.random() < 0.25:
                    size = rng.choice([None, 80.0, 120.0])
                    own[f"{device.name}/{i}"] = Own(
                        None if device.is_cpu else size, rng.choice([1.0, 0.5, 2.0])
                    )
        rules = tuple(random_rule(rng, case.graph, case.devices) for _ in range(rng.randint(1, 3)))
        if sum(rule.stages > 0 for rule in rules) > 1:
            continue
        for rule in rules:
            if "/" in rule.device:
                own[rule.device] = own.get(rule.device, Own())._replace(pinned=rule.device)
        devices = with_own(case.devices, own)
        graph, units = with_own_times(case.graph, case.units, own_times(devices))
        try:
            problem = SplitProblem(
                *with_rules(graph, units, devices, rules), devices, case.options, rules=rules
            )
        except UsageError:
            continue
        return RuledCase(seed, graph, units, problem)
    raise AssertionError("no problem has such rules")


def random_rule(rng: random.Random, graph: Graph, devices: Sequence[DeviceClass]) -> Rule:
    """One rule about some nodes."""
    ids = graph.node_ids[graph.order].tolist()
    forward = [
        i for i, late in zip(ids, graph.backward[graph.order].tolist(), strict=True) if not late
    ]
    some = tuple(sorted(rng.sample(forward, min(len(forward), rng.randint(1, 2)))))
    kind = rng.choice(["cut-before", "pin", "together", "apart", "layers-per-stage", "exactly"])
    count = sum(d.count for d in devices)
    if kind == "pin":
        device = rng.choice(devices)
        name = rng.choice([device.name, f"{device.name}/{rng.randrange(device.count)}"])
        return Rule(kind, ("x",), (some,), name)
    if kind == "exactly":
        return Rule(kind, stages=rng.randint(1, count))
    if kind == "layers-per-stage":
        stages = min(rng.randint(1, count), len(forward))
        cuts = sorted(rng.sample(range(1, len(forward)), stages - 1))
        ends = [0, *cuts, rng.randint(max([1, *cuts]), len(forward))]
        parts = tuple(tuple(forward[a:b]) for a, b in pairwise(ends))
        parts = tuple(part for part in parts if part)
        return Rule(kind, ("1",), parts, stages=len(parts))
    if kind == "apart" and len(forward) > 1:
        both = rng.sample(forward, rng.randint(2, min(4, len(forward))))
        at = rng.randint(1, len(both) - 1)
        return Rule(kind, ("a", "b"), (tuple(both[:at]), tuple(both[at:])))
    if kind == "together":
        return Rule(kind, ("x",), (some,))
    return Rule("cut-before", ("x",), (some,))


def keeps(graph: Graph, rule: Rule, stages: Sequence[tuple[DeviceClass, list[int]]]) -> bool:
    """Tell whether stages keep a rule; each has a device of its own."""
    place = {int(i): v for v, i in enumerate(graph.node_ids)}
    parts = [{place[i] for i in part} for part in rule.parts]
    held = [set(nodes) for _, nodes in stages]
    if rule.rule == "exactly":
        return len(stages) == rule.stages
    if rule.rule == "pin":
        names = [(d.name, d.of, *(d.members or [f"{d.name}/0"][: d.count == 1])) for d, _ in stages]
        return all(rule.device in n for n, h in zip(names, held, strict=True) if h & parts[0])
    if rule.rule == "together":
        return sum(bool(h & parts[0]) for h in held) <= 1
    if rule.rule == "cut-before":
        parts = [parts[0] & fed(graph), ancestors(graph, parts[0])]
    apart = all(sum(bool(h & p) for p in parts) <= 1 for h in held)
    if rule.rule == "layers-per-stage":
        whole = all(sum(bool(h & p) for h in held) == 1 for p in parts)
        return apart and whole and len(stages) == len(parts)
    return apart


def fed(graph: Graph) -> set[int]:
    """Nodes of the forward pass that follow from an input or a state."""
    found: set[int] = set()
    for v in graph.order.tolist():
        for t in graph.reads(v).tolist():
            if graph.tensor_kind[t] in (INPUT, STATE) or graph.producer[t] in found:
                found.add(v)
    return {v for v in found if not graph.backward[v]}


def ancestors(graph: Graph, part: set[int]) -> set[int]:
    """Nodes that a cut before a part parts from it."""
    live = fed(graph)
    before: dict[int, set[int]] = {}
    for v in graph.order.tolist():
        makers = {int(graph.producer[t]) for t in graph.reads(v)} & live
        before[v] = makers.union(*(before[u] for u in makers)) if v in live else set()
    matched = part & live
    found = set[int]().union(*(before[v] for v in matched)) - matched
    return {v for v in found if not before[v] & matched}


def compared(
    case: RuledCase, methods: Sequence[str], validity: str = "ordered"
) -> Iterator[tuple[str, str, str]]:
    """Solve a case by methods and by brute force: method, what came of it, and what is wrong."""
    problem = case.problem
    best, _ = brute_force(problem, validity, case.admits)
    for method in methods:
        try:
            found = solve(problem, replace(FEW, method=method, validity=validity))
        except InfeasibleError:
            wrong = "a split fits" if best < math.inf and method in EXACT else ""
            yield method, "infeasible", wrong
            continue
        plan = make_plan(problem, found.blocks, bound=found.bound)
        report = check_plan(case.graph, case.units, plan)
        faults = [str(violation) for violation in report.violations]
        faults += [] if plan.value >= best * (1 - ROUNDING) else [f"{plan.value} is below {best}"]
        faults += [] if found.bound <= best * (1 + ROUNDING) else [f"bound {found.bound} > {best}"]
        worse = plan.value > best * (1 + SOLVED[method == "ip"])
        faults += [f"{plan.value} is above {best}"] if worse and method in EXACT else []
        yield method, "worse" if worse else "best", "; ".join(faults)


@dataclass(frozen=True)
class RuledLatency:
    """A problem of blocks with rules, the same without rules about stages, and its bare graph.

    The second has the colours of nodes that are together: a block holds what is between them, too.
    """

    problem: LatencyProblem
    free: LatencyProblem
    bare: tuple[Graph, Clustering]
    rules: tuple[Rule, ...]

    def admits(self, split: Invocations) -> bool:
        """Tell whether what the devices and the pool hold keeps the rules."""
        graph, machine = self.free.whole.graph, self.problem.machine
        home = np.append(split.device, POOL)[split.block]
        stages = []
        for d in np.unique(home).tolist():
            name = machine.classes[d if d != POOL else int(np.argmax(machine.is_cpu))]
            device = next(x for x in self.free.whole.devices if x.name == name)
            stages.append((device, np.flatnonzero(home == d).tolist()))
        return all(keeps(graph, rule, stages) for rule in self.rules)


def ruled_latency(seed: int, most: int = 6) -> RuledLatency:
    """A random problem of 2 to `most` nodes in blocks, with one to three rules."""
    rng = random.Random(f"latency rules {seed}")
    while True:
        training = rng.random() < 0.2
        free = random_problem(
            rng, rng.randint(2, most), execution="blocks", tight=rng.random() < 0.3,
            training=training, colors=rng.random() < 0.2, live=not training and rng.random() < 0.2,
            q=1 if training else rng.choice([1, 1, 2]), devices=rng.randint(2, 3),
        )  # fmt: skip
        whole = free.whole
        rules = tuple(
            random_rule(rng, whole.graph, whole.devices) for _ in range(rng.randint(1, 3))
        )
        if sum(rule.stages > 0 for rule in rules) > 1:
            continue
        pins = {rule.device: Own(pinned=rule.device) for rule in rules if "/" in rule.device}
        devices = with_own(whole.devices, pins)
        bare = with_own_times(whole.graph, whole.units, own_times(devices))
        graph, units = with_rules(*bare, devices, rules, by_stage=False)
        ruled = SplitProblem(graph, units, devices, whole.options, rules=rules)
        free = latency_problem(SplitProblem(graph, units, devices, whole.options))
        return RuledLatency(latency_problem(ruled), free, bare, rules)


def compared_latency(case: RuledLatency, methods: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Solve a case by methods and by brute force: method, what came of it, and what is wrong."""
    problem, whole = case.problem, case.problem.whole
    best, _ = brute_blocks(case.free, admits=case.admits)
    for method in methods:
        try:
            found = solve_latency(problem, MethodOptions(method=method))
        except (InfeasibleError, LimitError) as error:
            wrong = "a split fits" if best < math.inf and method == "auto" else ""
            yield method, type(error).__name__[:-5], wrong
            continue
        plan = make_latency_plan(
            whole, problem, found.split, method=method, bound=found.bound, bound_method="x"
        )
        report = check_plan(*case.bare, plan)
        faults = [str(violation) for violation in report.violations]
        faults += [] if plan.rules == case.rules else ["the plan has other rules"]
        faults += [] if plan.value >= best * (1 - ROUNDING) else [f"{plan.value} is below {best}"]
        faults += [] if found.bound <= best * (1 + ROUNDING) else [f"bound {found.bound} > {best}"]
        worse = plan.value > best * (1 + ROUNDING)
        faults += [f"{plan.value} is above {best}"] if worse and method == "auto" else []
        came = "worse" if worse else "best"
        yield method, came + " proven" * (plan.status == "optimal"), "; ".join(faults)


FEW = MethodOptions(validity="ordered", samples=5, evolution=Evolution(10, 3))
EXACT = ("exact", "auto", "ip")
ROUNDING, SOLVED = 1e-9, (1e-9, 1e-5)
"""Relative differences that are none, of searches, and of their results by solvers."""
