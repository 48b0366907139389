"""Local search over splits that need not be contiguous (2020 paper, section 6; MKA07)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dnnp.core.baselines.blocks import checked, part_blocks, slots_of
from dnnp.core.baselines.descent import Moves, descend, moves_of
from dnnp.core.cost.combine import ROOM
from dnnp.core.cost.items import Items
from dnnp.core.cost.line import Line
from dnnp.core.cost.load import stage_load
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.asked import Asked, Solution
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.graph import Bools, Graph, Ints
from dnnp.core.model.plan import Block
from dnnp.core.model.run import PLAIN, Run

RESTARTS = 10
"""The paper's number."""

MAX_TRIALS = 200_000_000
"""Reassignments that a call may try at effort 1, about two minutes; each restart has its share."""

CHUNK = 300_000
"""Reassignments between two questions whether to stop."""


def local_search(
    problem: SplitProblem, asked: Asked, run: Run = PLAIN, *, restarts: int = RESTARTS
) -> Solution:
    """Start from random splits, make the best single reassignment until none helps; keep the best.

    As published, nodes of a colour move together and only accelerators are used; a CPU is where
    nothing else runs an item (or where there are only CPUs). A split above a capacity is worse
    than any below it. The `peak` memory model enters in the end only: the best local optimum
    that fits is taken, and if none does, a second round keeps the sum of the nodes' memory
    within the capacities. The run is warned of restarts that ran out of trials.

    Raises
    ------
    InfeasibleError
        A node runs nowhere, or no local optimum fits the memory.
    """
    graph, options = problem.graph, problem.options
    items = problem.free_items
    line = problem.line(items, np.arange(items.count))
    allowed = _allowed(graph, items, line)
    line = replace(line, work=np.where(allowed, line.work, np.inf))
    slots = slots_of(line.devices, all_kinds=True)
    choices = [np.flatnonzero(allowed[slots, i]) for i in range(items.count)]
    limit = int(MAX_TRIALS * run.effort) // max(restarts, 1)
    summed = options.memory_model == "sum"
    for memory in [line.memory] if summed else [0 * line.memory, line.memory]:
        if not summed and memory.any():
            run.warn("local-search: no local optimum fits; again, with memory summed up")
        moves = moves_of(line, problem.devices, options, memory)
        rng = np.random.default_rng(run.seed)
        optima: list[tuple[float, float, int, Ints]] = []
        cut = 0
        for restart in range(max(restarts, 1)):
            if optima and run.stop():
                break
            run.stands("descending", share=restart / max(restarts, 1))
            draw = rng.random(items.count)
            part = np.array([c[int(x * len(c))] for c, x in zip(choices, draw, strict=True)])
            excess, value, spent = _to_optimum(moves, part, limit, run)
            cut += spent
            optima.append((excess, value, restart, part))
        optima.sort(key=lambda optimum: optimum[:3])
        for *_, part in optima:
            blocks = part_blocks(graph, items, part, slots, problem.devices)
            if all(_fits(problem, block) for block in blocks):
                if len(optima) < restarts:
                    run.warn(f"local-search: stopped after {len(optima)} of {restarts} restarts")
                if cut:
                    run.warn(
                        f"local-search: {cut} of {len(optima)} restarts ran out of trials, perhaps "
                        "before a local optimum; a larger --effort may help"
                    )
                return checked(problem, blocks)
    raise InfeasibleError(
        f"infeasible: none of {len(optima)} local optima keeps within the memory of the devices"
    )


def _allowed(graph: Graph, items: Items, line: Line) -> Bools:
    """bool[C, n]: classes an item may be on; CPUs only where no accelerator runs it."""
    runs = np.isfinite(line.work)
    fast = runs & np.array([not d.is_cpu for d in line.devices])[:, None]
    stuck = np.flatnonzero(~runs.any(axis=0))
    if len(stuck):
        node = int(np.flatnonzero(items.label == stuck[0])[0])
        raise InfeasibleError(
            f"infeasible: node {graph.node_ids[node]} ('{graph.node_names[node]}'), with what "
            "belongs to it, cannot run on any device offered"
        )
    allowed: Bools = np.where(fast.any(axis=0), fast, runs)
    return allowed


def _to_optimum(moves: Moves, part: Ints, limit: int, run: Run) -> tuple[float, float, bool]:
    """Improve `part` in place until no reassignment helps, trials run out, or it is to stop.

    Returns the excess in bytes, the objective, and whether trials ran out.
    """
    spent = 0
    while True:
        most = min(CHUNK, limit - spent)
        excess, value, trials = descend(moves, part, most)
        spent += trials
        if trials <= most or spent >= limit or run.stop():
            return float(excess), float(value), trials > most and spent >= limit


def _fits(problem: SplitProblem, block: Block) -> bool:
    """Whether a block keeps within its device's memory, where it must."""
    device, options = block.device, problem.options
    if options.memory_mode != "hard" or device.is_cpu or np.isinf(device.memory_bytes):
        return True
    need = stage_load(problem.graph, problem.units, block.nodes, device, options).memory_bytes
    return need <= device.memory_bytes * ROOM
