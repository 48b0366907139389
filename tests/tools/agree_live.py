"""Compare live memory in latency plans with brute force and with a simulation, on random graphs.

    python tests/tools/agree_live.py --count 1000 --seed 0 [--most 4] [--method ip]

Every graph is split into blocks and placed operator by operator, on devices that are short of
memory. What is found is not below the least of all sequences, its bound not above that; nothing is
called infeasible that is not; the checker finds no fault, and both it and the cost model have the
memory of a simulation that looks at every moment. Exits with 1 on any disagreement.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np

from dnnp.core.check.plan import check_plan
from dnnp.core.cost.latency import LatencyProblem, latency_problem
from dnnp.core.cost.latency_plan import make_latency_plan
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.latency.solve import solve_latency
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.graph import clustering_of_labels, singletons
from dnnp.core.model.plan import CostOptions, Plan
from dnnp.core.model.search_context import MethodOptions, SearchContext
from dnnp.formats.graph import graph_of
from support.graphs import random_stream
from support.latency_brute import brute_blocks, brute_operators

SLACK = 1e-9


def live_case(seed: int, execution: str, most: int = 4) -> SplitProblem:
    """A random problem in which live tensors count; groups in one of three."""
    rng = random.Random(f"live {seed} {execution}")
    blocks = execution == "blocks"
    n = rng.randint(1, most + 2 * blocks)
    cpu = blocks and rng.random() < 0.7
    training = n > 2 and rng.random() < 0.2
    classes = ["cpu"] * cpu
    stream = random_stream(
        rng.randrange(10**9), n, params=rng.random() < 0.6, classes=classes, training=training
    )
    for node in stream.get("node"):
        if rng.random() < 0.1:
            node["time_s"]["dev"] = 0
    graph = graph_of(stream)
    units = singletons(graph)
    if rng.random() < 0.35 and not training:
        cuts = np.cumsum([0, *(rng.random() < 0.6 for _ in range(graph.n - 1))])
        label = np.empty(graph.n, dtype=np.int64)
        label[graph.order] = cuts
        units = clustering_of_labels(graph, label)
    size = float(graph.tensor_bytes.sum())
    memory = max(round(size * rng.uniform(0.25, 0.9)), 1)
    speed = rng.choice([1.0, 2.0, 5.0, 20.0])
    offered = [DeviceClass("dev", count=2, memory_bytes=memory, bandwidth_bytes_per_s=speed)]
    offered += [DeviceClass("cpu", kind="cpu", bandwidth_bytes_per_s=4.0)] * cpu
    options = CostOptions(
        objective="latency",
        execution=execution,
        memory_model="peak",
        transfers=rng.choice(["tensor", "tensor", "edge"]),
        congestion="device" if blocks else rng.choice(["device", "channel", "none"]),
        invocations=rng.choice([1, 1, 2]) if blocks else 1,
    )
    return SplitProblem(graph, units, tuple(offered), options)


def simulated(problem: SplitProblem, plan: Plan) -> dict[str, float]:
    """Memory of each device of a plan of operators, by what is there at every moment."""
    graph, label = problem.graph, problem.units.label.tolist()
    place = {node: v for v, node in enumerate(graph.node_ids.tolist())}
    home, start, end, rank = {}, {}, {}, {}
    for stage in plan.stages:
        nodes = [place[node] for node in stage.nodes]
        for unit, begin in zip(dict.fromkeys(label[v] for v in nodes), stage.starts_s, strict=True):
            home[unit], start[unit] = stage.device, begin
            end[unit] = begin + float(problem.units.times[stage.device_class][unit])
        rank.update({v: i for i, v in enumerate(nodes)})
    moves = [(stage.device, move) for stage in plan.stages for move in stage.receives]
    marks = sorted({*start.values(), *end.values(), 0.0})
    marks = sorted({*marks, *(t for _, m in moves for t in (m.start_s, m.end_s))})
    times = [(a + b) / 2 for a, b in pairwise(marks)]
    held = {}
    for stage in plan.stages:
        device, mine = stage.device, [u for u in home if home[u] == stage.device]
        weights = sum(
            float(graph.tensor_bytes[t])
            for u in mine
            for t in {
                t
                for v in range(graph.n)
                if label[v] == u
                for t in graph.reads(v).tolist()
                if graph.tensor_kind[t] >= 2
            }
        )
        inner, whole = {}, {}
        for u in mine:
            inner[u], whole[u] = _alone(problem, u, label, rank)
        peak = max((whole[u] for u in mine), default=0.0)
        for now in times:
            total = sum(inner[u] for u in mine if start[u] < now < end[u])
            for t in range(graph.m):
                maker = label[graph.producer[t]] if graph.producer[t] >= 0 else -1
                readers = {label[v] for v in graph.readers(t).tolist()} - {maker}
                here = [u for u in readers if home[u] == device]
                size = float(graph.tensor_bytes[t])
                if graph.tensor_kind[t] >= 2:
                    continue
                sent = [m for d, m in moves if d == device and graph.tensor_ids[t] in m.tensors]
                if maker < 0:
                    total += size * (bool(here) and now < max(end[u] for u in here))
                elif home[maker] == device:
                    if not (readers or graph.is_output[t]):
                        continue
                    out = [m for _, m in moves if graph.tensor_ids[t] in m.tensors]
                    last = max([end[maker], *(end[u] for u in here), *(m.end_s for m in out)])
                    last = max(end.values()) if graph.is_output[t] else last
                    total += size * (start[maker] < now < last)
                elif problem.options.transfers == "edge":
                    begun = sum(m.start_s < now for m in sent)
                    total += size * (begun - sum(end[u] < now for u in here))
                elif sent:
                    total += size * (sent[0].start_s < now < max(end[u] for u in here))
            peak = max(peak, total)
        held[device] = weights + peak
    return held


def _alone(
    problem: SplitProblem, unit: int, label: list[int], rank: dict[int, int]
) -> tuple[float, float]:
    """Memory of a unit alone at its peak; the same with all that it reads and writes."""
    graph = problem.graph
    nodes = sorted((v for v in range(graph.n) if label[v] == unit), key=rank.__getitem__)
    own, outer = [], 0.0
    for t in range(graph.m):
        made = graph.producer[t] >= 0 and label[graph.producer[t]] == unit
        readers = graph.readers(t).tolist()
        size = float(graph.tensor_bytes[t])
        beyond = graph.is_output[t] or any(label[v] != unit for v in readers)
        if graph.tensor_kind[t] >= 2 or not (made or any(label[v] == unit for v in readers)):
            continue
        if made and not beyond:
            own.append((nodes.index(graph.producer[t]), [nodes.index(v) for v in readers], size))
        else:
            outer += size
    peak = max(
        sum(size for first, uses, size in own if first <= i <= max([first, *uses]))
        for i in range(len(nodes))
    )
    return peak, peak + outer


def disagreements(
    whole: SplitProblem, counts: Counter[str], effort: float = 0.05, method: str = "auto"
) -> list[str]:
    """Faults of the answer to one problem."""
    problem = latency_problem(whole)
    least, _ = _brute(problem)
    loose, _ = _brute(problem.relaxed)
    counts["binds"] += problem.live.binds
    counts["costs"] += least > loose * (1 + SLACK)
    try:
        found = solve_latency(problem, MethodOptions(method=method), SearchContext(effort=effort))
    except (InfeasibleError, LimitError) as error:
        kind = type(error).__name__
        counts[kind] += 1
        counts["missed"] += np.isfinite(least)
        wrong = isinstance(error, InfeasibleError) and np.isfinite(least)
        return [f"{error}, but {least} fits"] if wrong else []
    plan = make_latency_plan(
        whole,
        problem,
        found.split,
        method="auto",
        bound=found.bound,
        bound_method=found.bound_method,
        digest="",
    )
    wrong = []
    counts["optimal"] += plan.status == "optimal"
    counts["repaired"] += found.method.endswith("-repaired")
    counts["found"] += 1
    counts["least"] += plan.value <= least * (1 + SLACK)
    if plan.value < least * (1 - SLACK):
        wrong.append(f"{plan.value} is found, the least is {least}")
    if plan.bound > least * (1 + SLACK):
        wrong.append(f"the bound is {plan.bound}, the least {least}")
    wrong += [str(v) for v in check_plan(whole.graph, _clustering(whole), plan).violations]
    if whole.options.execution == "operators":
        held = problem.held(found.split)
        for name, memory in simulated(whole, plan).items():
            stated = next(s.memory_bytes for s in plan.stages if s.device == name)
            model = float(held[problem.machine.names.index(name)])
            if not memory == stated == model:
                wrong.append(f"{name} holds {memory}, stated {stated}, by the model {model}")
    small = tuple(
        d if d.is_cpu else replace(d, memory_bytes=d.memory_bytes / 2) for d in plan.devices
    )
    report = check_plan(whole.graph, _clustering(whole), replace(plan, devices=small))
    kinds = {v.kind for v in report.violations}
    most = max((problem.held(found.split) / problem.live.capacity).max(), 0.0)
    if ("capacity" in kinds) != (most > 0.5):
        wrong.append(f"{most} of the memory is used, with half of it the checker says {kinds}")
    return wrong


def _clustering(whole: SplitProblem):
    return None if whole.units.g == whole.graph.n else whole.units


def _brute(problem: LatencyProblem):
    blocks = problem.options.execution == "blocks"
    return (brute_blocks if blocks else brute_operators)(problem)


def main() -> int:
    """Compare, and print what disagrees and how often what happened."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=int, default=4)
    parser.add_argument("--method", default="auto")
    args = parser.parse_args()
    bad = 0
    for execution in ("operators", "blocks"):
        counts: Counter[str] = Counter()
        for seed in range(args.seed, args.seed + args.count):
            case = live_case(seed, execution, args.most)
            for reason in disagreements(case, counts, method=args.method):
                bad += 1
                print(f"{execution} {seed}: {reason}", flush=True)
        print(execution, dict(counts), flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
