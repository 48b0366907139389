"""Small parallel plans at random, and all of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.plan import WEIGHT_SYNC, HybridOptions
from dnnp.core.parallel.problem import (
    HybridBlock,
    HybridProblem,
    costs_of,
    degrees_of,
    memory_of,
    replicas_of,
    value_of,
)
from dnnp.core.parallel.search import plan_hybrid
from dnnp.core.parallel.shared import plan_shared


def random_problem(seed: int, *, most: int = 6) -> HybridProblem:
    """A problem of a few items; every second one with a choice of each item."""
    rng = random.Random(seed)
    n = rng.randint(1, most)
    degrees = rng.choice(([1], [1, 2], [1, 2, 4], [2, 4]))
    tail, head = [], []
    for v in range(n):
        for u in range(v):
            if rng.random() < 0.4:
                tail.append(u)
                head.append(v)
    partwise = seed % 2 == 0
    part = np.arange(n)
    if partwise:
        part = np.array([*range(n), *(rng.randrange(n) for _ in range(rng.randint(0, 2)))])
    q = len(part)
    plain = np.array([[rng.randint(0, 20) for _ in part] for _ in degrees], float)
    longer = np.array([[rng.randint(-1, 9) for _ in part] for _ in degrees])
    again = np.maximum(plain + longer, 0.0)
    for values in (plain, again):
        for i, v in product(range(len(degrees)), range(q)):
            if len(degrees) > 1 and rng.random() < 0.05:
                values[i, v] = np.inf
    if not partwise:
        again = np.maximum(plain, again)
    shape = (len(degrees), q)
    held = np.array([rng.randint(0, 6) for _ in range(2 * q * len(degrees))], float)
    fixed = np.array([rng.randint(0, 6) for _ in range(2 * q * len(degrees))], float)
    ahead = np.array([partwise or rng.random() < 0.7 for _ in range(n)])
    again[:, ~ahead[part]] = plain[:, ~ahead[part]]
    source, pins, ptr = [], [], [0]
    for u in range(n):
        for _ in range(rng.randint(0, 2)):
            readers = {v for v, w in zip(head, tail, strict=True) if w == u and rng.random() < 0.8}
            if rng.random() < 0.3 and tail:  # a gradient: made behind, read before
                readers |= {w for v, w in zip(head, tail, strict=True) if v == u}
            if readers - {u}:
                source.append(u)
                pins += sorted(readers | {u})
                ptr.append(len(pins))
    p = len(source)
    options = HybridOptions(
        tensor_parallel=rng.choice((1, 2, 4, 8)),
        data_parallel=rng.choice((1, 2, 4)),
        micro_batches=rng.choice((1, 2, 4, 6)),
        recompute=rng.choice(("none", "full", "auto", "auto", "auto")),
        weight_sync=rng.choice(list(WEIGHT_SYNC)),
        overlap_sync=rng.random() < 0.3,
    )
    some = np.array([[rng.randint(0, 5) for _ in range(p)] for _ in degrees], float)
    more = np.array([[rng.randint(0, 5) for _ in range(p)] for _ in degrees], float)
    return HybridProblem(
        degrees=np.array(degrees),
        part=part,
        time=np.stack([plain, again]),
        held=held.reshape(2, *shape),
        fixed=fixed.reshape(2, *shape),
        weight=np.array([[rng.randint(0, 9) for _ in range(n)] for _ in degrees], float),
        pin_ptr=np.array(ptr),
        pins=np.array(pins, dtype=np.int64),
        source=np.array(source, dtype=np.int64),
        in_s=some.reshape(len(degrees), p),
        out_s=more.reshape(len(degrees), p),
        kept=np.zeros(p) if partwise else np.array([float(rng.randint(0, 4)) for _ in range(p)]),
        read=np.array([[float(rng.choice((0, 0, 4))) for _ in range(p)] for _ in degrees]).reshape(
            len(degrees), p
        ),
        tail=np.array(tail, dtype=np.int64),
        head=np.array(head, dtype=np.int64),
        devices=rng.randint(1, 6),
        memory=rng.choice((np.inf, 40.0, 25.0, 15.0, 60.0)),
        sync_s=rng.choice((0.1, 0.5, 1.0)),
        comm=rng.choice((0, 0, 1, 2)),
        options=options,
        ahead=ahead,
        partwise=partwise,
    )


def ordered_partitions(problem: HybridProblem, least: int = 0) -> Iterator[list[list[int]]]:
    """All ways to cut the items into stages, in the order of the pipeline."""
    n = problem.n
    before = [0] * n
    for u, v in zip(problem.tail.tolist(), problem.head.tolist(), strict=True):
        before[v] |= 1 << u

    def grow(done: int) -> Iterator[list[list[int]]]:
        if done == (1 << n) - 1:
            yield []
            return
        free = ((1 << n) - 1) & ~done
        part = free
        while part:
            items = [v for v in range(n) if part >> v & 1]
            if all(before[v] & ~(done | part) == 0 for v in items):
                for rest in grow(done | part):
                    yield [items, *rest]
            part = (part - 1) & free

    yield from grow(least)


def random_shared_problem(seed: int, most: int = 4) -> HybridProblem:
    """A problem with shared stages; of every third, some items cannot be in others."""
    problem = random_problem(seed, most=most)
    rng = random.Random(seed)
    whole = rng.randrange(len(problem.degrees))
    only = np.array([seed % 3 == 0 and rng.random() < 0.4 for _ in range(problem.n)])
    return replace(
        problem,
        devices=int(problem.degrees[whole]),
        whole=whole,
        shared_only=only if only.any() else None,
        options=replace(problem.options, shared_stages=rng.randint(1, 3)),
    )


def best_shared(problem: HybridProblem) -> float:
    """The least value over all plans with shared stages, by trying each of them; inf: none fits."""
    best, options = np.inf, problem.options
    own = [
        (i, d, False)
        for i in degrees_of(problem)
        for d in replicas_of(problem).tolist()
        if problem.degrees[i] * d <= problem.devices
    ]
    only = set() if problem.shared_only is None else set(np.flatnonzero(problem.shared_only))
    for stages in ordered_partitions(problem):
        if len(stages) > options.micro_batches:
            continue
        for chosen in product([*own, (problem.whole, 1, True)], repeat=len(stages)):
            single = [(int(problem.degrees[i]) * d) for i, d, shared in chosen if not shared]
            if (
                sum(single) > problem.devices
                or sum(d for _, d, _ in chosen) > options.micro_batches
            ):
                continue
            if sum(shared for *_, shared in chosen) > options.shared_stages:
                continue
            if any(
                only & {*s} for s, (*_, shared) in zip(stages, chosen, strict=True) if not shared
            ):
                continue
            best = min(best, _best_choice(problem, stages, chosen))
    return best


def _best_choice(problem, stages, chosen) -> float:  # type: ignore[no-untyped-def]
    """The least value over all choices of what to run again."""
    none = np.zeros(0, dtype=np.int64)
    ways: list[list[tuple[float, float]]] = []
    for s, (degree, replicas, shared) in enumerate(chosen):
        items = np.array(stages[s])
        later = sum(d for _, d, _ in chosen[s + 1 :])
        rows = []
        for again in _ways(problem, items, whole=shared):
            block = HybridBlock(items, degree, replicas, again, shared)
            after = [HybridBlock(none, degree, later, none)] if later else []
            cost = costs_of(problem, [block, *after])[0]
            rows.append((cost.load_s, cost.memory_bytes))
        ways.append(rows)
    at = [s for s, (*_, shared) in enumerate(chosen) if shared]
    best = np.inf
    for shares in product(*(ways[s] for s in at)):
        time, memory = sum(t for t, _ in shares), sum(m for _, m in shares)
        room = problem.memory * (1 + 1e-12) - memory
        if room < 0:
            continue
        rest = [
            min((t for t, m in ways[s] if m <= room), default=np.inf)
            for s in range(len(chosen))
            if s not in at
        ]
        best = min(best, time + max(rest, default=0.0))
    return best


def best_of_all(problem: HybridProblem) -> float:
    """The least value over all plans, by trying each of them; inf: none fits."""
    best = np.inf
    options = problem.options
    teams = [
        (i, d)
        for i in degrees_of(problem)
        for d in replicas_of(problem).tolist()
        if problem.degrees[i] * d <= problem.devices
    ]
    for stages in ordered_partitions(problem):
        if len(stages) > min(problem.devices, options.micro_batches):
            continue
        for chosen in product(teams, repeat=len(stages)):
            if sum(int(problem.degrees[i]) * d for i, d in chosen) > problem.devices:
                continue
            if sum(d for _, d in chosen) > options.micro_batches:
                continue
            # What is run again in one stage does not concern the others.
            value = 0.0
            for s in range(len(stages)):
                value = max(value, _best_stage(problem, stages, chosen, s))
                if value >= best:
                    break
            best = min(best, value)
    return best


def _best_stage(problem, stages, chosen, s) -> float:  # type: ignore[no-untyped-def]
    items = np.array(stages[s])
    later = sum(d for _, d in chosen[s + 1 :])
    none = items[:0]
    best = np.inf
    for again in _ways(problem, items):
        block = HybridBlock(items, chosen[s][0], chosen[s][1], again)
        first = HybridBlock(none, chosen[s][0], later, none) if later else None
        cost = costs_of(problem, [block, first] if first else [block])[0]
        if cost.memory_bytes <= problem.memory * (1 + 1e-12):
            best = min(best, cost.load_s)
    return best


def _ways(problem, items, *, whole: bool = False):  # type: ignore[no-untyped-def]
    """Nodes of a stage that may run again; `whole`: all of it or nothing."""
    every = np.flatnonzero(np.isin(problem.part, items))
    if problem.partwise and problem.options.recompute == "auto" and not whole:
        return [every[np.array(b, dtype=bool)] for b in product((0, 1), repeat=len(every))]
    again = every if problem.ahead[items].any() else every[:0]
    return {
        "none": [every[:0]],
        "full": [again],
        "auto": [every[:0], again],
    }[problem.options.recompute]


def disagreement(seed: int, most: int = 5, *, shared: bool = False) -> str:
    """Compare a search with all plans; what is wrong."""
    problem = random_shared_problem(seed, most) if shared else random_problem(seed, most=most)
    best = best_shared(problem) if shared else best_of_all(problem)
    try:
        found = (plan_shared if shared else plan_hybrid)(problem, [np.arange(problem.n)])
    except (InfeasibleError, LimitError) as error:
        return "" if np.isinf(best) else f"{seed}: {best} is possible, but: {error}"
    costs = costs_of(problem, found.blocks)
    value = value_of(found.blocks, costs)
    full = memory_of(found.blocks, costs) > problem.memory * (1 + 1e-12)
    if value != found.value or full:
        return f"{seed}: it says {found.value}, and is {value}; {costs}"
    if sorted(np.concatenate([b.items for b in found.blocks]).tolist()) != list(range(problem.n)):
        return f"{seed}: no partition"
    if found.bound > best * (1 + 1e-9) or not np.isclose(found.value, best, rtol=1e-9):
        return f"{seed}: {found.value}, bound {found.bound}, and {best} is possible"
    if found.bound < found.value * (1 - 1e-8):
        return f"{seed}: bound {found.bound} for {found.value}"
    return ""
