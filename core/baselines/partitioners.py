"""Graph partitioners: Scotch through its program gpart, METIS through the package pymetis.

Vertices are items (`dnnp.core.cost.items`), weighted by their time on an accelerator; an edge
weighs what the tensors between two items cost to move. Partitioners balance the vertices and
keep the cut small; they know nothing of directions, memory or device classes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from dnnp.core.baselines.blocks import checked, part_blocks, slots_of
from dnnp.core.cost.items import Items, LinearizedItems
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.errors import FormatError, InfeasibleError, LimitError, UnavailableError
from dnnp.core.model.graph import Floats, Graph, Ints, csr, distinct, totals
from dnnp.core.model.plan import Block
from dnnp.core.model.processes import die_with_parent
from dnnp.core.model.search_context import PLAIN, MethodOptions, SearchContext, Solution
from dnnp.core.solver.child import solver_process
from dnnp.formats.files import scratch_folder
from dnnp.formats.workloads.scotch import read_mapping, write_graph

TOTAL = 2**29
"""Sum of the integer weights: twice that, for both ends of edges, fits 32 bits."""

PROGRAMS = ("scotch_gpart", "gpart")
"""Names of the program: Debian's package scotch adds the prefix, Scotch itself does not."""

TIME_LIMIT_S = 300.0
"""Seconds after which the program is ended."""

POLL_S = 0.05


@dataclass(frozen=True, eq=False)
class PartGraph:
    """An undirected graph with integer weights, and what its vertices are."""

    parts: int
    ptr: Ints
    neighbors: Ints
    """Neighbours of each vertex (CSR), ascending; every edge stands at both ends."""
    edge_weights: Ints
    """Weight of each entry of `neighbors`, positive."""
    weights: Ints
    """i64[vertices], not negative, some positive."""
    items: Items
    slots: Ints
    vertex: Ints
    """i64[items], vertex of each item; -1: it runs on no accelerator."""
    elsewhere: int
    """Slot of the items that have no vertex; -1: there are none."""

    @property
    def vertices(self) -> int:
        """Number of vertices."""
        return len(self.weights)


def part_graph(problem: SplitProblem) -> PartGraph:
    """Build the graph to cut into one part for every accelerator (CPU, if there are only CPUs).

    Items that no accelerator runs are left out; they go to the first CPU.

    Raises InfeasibleError: an item that no accelerator runs, and no CPU to run it.
    """
    items = problem.items
    line = problem.line(items, np.arange(items.count))
    slots = slots_of(line.devices)
    classes = distinct(slots)
    runs = np.isfinite(line.work[classes])
    vertex = np.where(runs.any(axis=0), np.cumsum(runs.any(axis=0)) - 1, -1)
    elsewhere = -1
    if (vertex < 0).any():
        cpu = _cpu_for(problem.graph, items, line, vertex < 0)
        elsewhere, slots = len(slots), np.append(slots, cpu)
    kept = vertex >= 0
    mean = np.where(runs, line.work[classes], 0.0).sum(axis=0) / np.maximum(runs.sum(axis=0), 1)
    a, b, cost = _edges(line, line.cost[classes].mean(axis=0))
    both = kept[a] & kept[b]
    a, b, cost = vertex[a[both]], vertex[b[both]], cost[both]
    count = int(kept.sum())
    tail, head = np.concatenate([a, b]), np.concatenate([b, a])
    order = np.lexsort((head, tail))
    ptr, neighbors = csr(tail[order], head[order], count)
    weight = np.tile(np.maximum(_whole(cost), 1), 2)[order]
    loads = _whole(mean[kept])
    if not loads.any():
        loads = np.ones(count, dtype=np.int64)
    parts = len(slots) - (elsewhere >= 0)
    return PartGraph(parts, ptr, neighbors, weight, loads, items, slots, vertex, elsewhere)


def tell_what_is_left(weighted: PartGraph, method: str, run: SearchContext) -> None:
    """Warn the run where the parts are not those of the partitioner alone."""
    left = int((weighted.vertex < 0).sum())
    if left:
        run.warn(f"{method}: a CPU has what no accelerator runs, {left} of {len(weighted.vertex)}")
    if weighted.parts < 2 or weighted.vertices < 2:
        run.warn(f"{method}: there is nothing to part, so that it was not run")


def split_of_parts(problem: SplitProblem, weighted: PartGraph, part: Ints) -> list[Block]:
    """Blocks of the parts (i64[vertices]) that a partitioner returned."""
    slot = np.append(part, weighted.elsewhere)[weighted.vertex]
    return part_blocks(problem, weighted.items, slot, weighted.slots)


def _cpu_for(graph: Graph, items: Items, line: LinearizedItems, left: np.ndarray) -> int:
    """Class of the CPU for what accelerators cannot run."""
    for c, d in enumerate(line.devices):
        if d.is_cpu and d.count and np.isfinite(line.work[c, left]).all():
            return c
    node = int(np.flatnonzero(left[items.label])[0])
    raise InfeasibleError(
        f"infeasible: node {graph.node_ids[node]} ('{graph.node_names[node]}') is not supported "
        "on the accelerators, and there is no CPU for it"
    )


def _edges(line: LinearizedItems, cost: Floats) -> tuple[Ints, Ints, Floats]:
    """Pairs of items a < b between which a producer's tensors go, and their total cost."""
    counts = line.nets.sizes
    source = np.repeat(line.nets.source, counts)
    price = np.repeat(cost, counts)
    apart = (source >= 0) & (source != line.nets.pins)
    u, v = source[apart], line.nets.pins[apart]
    key, edge = np.unique(np.minimum(u, v) * line.n + np.maximum(u, v), return_inverse=True)
    total = totals(edge.astype(np.int64), price[apart], len(key))
    return key // line.n, key % line.n, total


def _whole(weights: Floats) -> Ints:
    """Integers in proportion that add up to about TOTAL."""
    total = float(weights.sum())
    if not total > 0:
        return np.zeros(len(weights), dtype=np.int64)
    return np.rint(weights * (TOTAL / total)).astype(np.int64)


def scotch(
    problem: SplitProblem,
    asked: MethodOptions,
    run: SearchContext = PLAIN,
    *,
    time_limit_s: float = TIME_LIMIT_S,
) -> Solution:
    """Split with Scotch's gpart, run in a private temporary directory.

    The parts need not be contiguous.

    Raises
    ------
    UnavailableError
        The program is not installed, fails, or is another one of that name.
    LimitError
        It takes longer than the limit, or the run is to stop before it is done.
    InfeasibleError
        A part is too much for the memory of its device: Scotch knows none.
    """
    program = _installed()
    weighted = part_graph(problem)
    tell_what_is_left(weighted, "scotch", run)
    part = np.zeros(weighted.vertices, dtype=np.int64)
    if weighted.parts > 1 and weighted.vertices > 1:
        arrays = weighted.ptr, weighted.neighbors, weighted.edge_weights, weighted.weights
        text = write_graph(*(array.tolist() for array in arrays))
        mapping = _run(program, weighted.parts, text, run.stop, time_limit_s)
        try:
            part[:] = read_mapping(mapping, weighted.vertices, weighted.parts, "its mapping")
        except FormatError as error:
            raise UnavailableError(f"{program} does not answer as Scotch does: {error}") from None
    return checked(problem, split_of_parts(problem, weighted, part))


def _installed() -> str:
    """Path of the program."""
    for name in PROGRAMS:
        path = shutil.which(name)
        if path is not None:
            return os.path.abspath(path)
    raise UnavailableError(
        f"method scotch needs the program {' or '.join(PROGRAMS)}; Debian has it in the package "
        "scotch (its package gpart is another program)"
    )


def _run(
    program: str, parts: int, graph: bytes, stop: Callable[[], bool], time_limit_s: float
) -> bytes:
    """Run `program PARTS GRAPH MAPPING` and return the mapping."""
    with scratch_folder() as folder:
        source, result, log = (Path(folder, name) for name in ("in.grf", "out.map", "log"))
        source.write_bytes(graph)
        deadline = time.monotonic() + time_limit_s
        with log.open("wb") as messages:
            # A process group of its own: Ctrl-C is for this command to act on.
            try:
                child = subprocess.Popen(
                    [program, str(parts), str(source), str(result)],
                    stdin=subprocess.DEVNULL,
                    stdout=messages,
                    stderr=messages,
                    cwd=folder,
                    process_group=0,
                    preexec_fn=die_with_parent,
                )
            except OSError as error:
                raise UnavailableError(f"{program} cannot be run: {error.strerror}") from None
            try:
                while not _ended(child):
                    if stop():
                        raise LimitError(f"interrupted before {program} was done")
                    if time.monotonic() > deadline:
                        raise LimitError(f"{program} was not done after {time_limit_s:g} s")
            finally:
                child.kill()
                child.wait()
        if child.returncode != 0 or not result.is_file():
            said = log.read_bytes()[:2000].decode(errors="replace").strip().splitlines()
            reason = _ending(child.returncode) + (f": {said[0]}" if said else "")
            raise UnavailableError(f"{program} {reason}; is it Scotch's gpart?")
        return result.read_bytes()


def _ended(child: subprocess.Popen[bytes]) -> bool:
    """Wait a moment; whether the process is done."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(POLL_S)
    return child.returncode is not None


def _ending(status: int) -> str:
    """Describe how a process ended without an answer."""
    if status == 0:
        return "wrote no mapping"
    return f"failed with status {status}" if status > 0 else f"ended by signal {-status}"


def metis(
    problem: SplitProblem,
    asked: MethodOptions,
    run: SearchContext = PLAIN,
    *,
    time_limit_s: float = TIME_LIMIT_S,
) -> Solution:
    """Split with METIS, in a process of its own; the parts need not be contiguous.

    Raises
    ------
    UnavailableError
        The package pymetis is not installed, or fails.
    LimitError
        It takes longer than the limit, or the run is to stop before it is done.
    InfeasibleError
        A part is too much for the memory of its device: METIS knows none.
    """
    if find_spec("pymetis") is None:
        raise UnavailableError("method metis needs the package pymetis: pip install 'dnnp[metis]'")
    weighted = part_graph(problem)
    tell_what_is_left(weighted, "metis", run)
    part = np.arange(weighted.vertices, dtype=np.int64)
    if 1 < weighted.vertices <= weighted.parts:
        run.warn("metis: as many devices as there is to part: each has one, metis was not run")
    if weighted.parts < weighted.vertices:
        graph = weighted.ptr, weighted.neighbors, weighted.weights, weighted.edge_weights
        with solver_process("metis") as process:
            found = process.ask(
                "metis", weighted.parts, graph, run.seed, patience=time_limit_s, stop=run.stop
            )
        if found.status == "limit":
            why = "interrupted before METIS was done"
            raise LimitError(why if run.stop() else f"METIS was not done after {time_limit_s:g} s")
        if found.values is None:
            raise UnavailableError(f"pymetis fails: {found.reason.partition(chr(10))[0]}")
        part = np.array(found.values, dtype=np.int64)
    return checked(problem, split_of_parts(problem, weighted, part))
