"""Checks of a latency problem before any search, and its critical path."""

from __future__ import annotations

import numpy as np

from dnnp.core.cost.capacity import shortage
from dnnp.core.cost.latency import LatencyProblem
from dnnp.core.cost.load_formula import MARGIN
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.text import shown_bytes


def refuse_impossible(problem: SplitProblem, latency: LatencyProblem) -> None:
    """Refuse what no split can place, naming what is short.

    Raises
    ------
    InfeasibleError
        A unit that no device supports or can hold, or more memory needed than there is.
    """
    tasks, machine = latency.tasks, latency.machine
    what = "node" if problem.units.g == problem.graph.n else "group"
    supported = np.isfinite(tasks.time)
    if latency.options.execution == "blocks" and machine.is_cpu.any():
        supported[machine.is_cpu] = supported[int(np.argmax(machine.is_cpu))]
    alone = np.flatnonzero(~supported.any(axis=0))
    if len(alone):
        unit = int(problem.units.group_ids[alone[0]])
        raise InfeasibleError(f"infeasible: {what} {unit} is not supported on any device")
    fits = supported & (tasks.memory <= machine.capacity[:, None] * (1 + MARGIN))
    large = np.flatnonzero(~fits.any(axis=0))
    if len(large):
        unit = int(problem.units.group_ids[large[0]])
        need = float(tasks.memory[large[0]])
        most = float(machine.capacity[supported[:, large[0]]].max())
        raise InfeasibleError(
            f"infeasible: {what} {unit} needs {shown_bytes(need, 6)}, the largest device that "
            f"supports it has {shown_bytes(most, 6)}"
        )
    impossible = shortage(float(tasks.memory.sum()), "the tasks", problem.devices)
    if impossible is not None and np.isfinite(machine.capacity).all():
        raise impossible


def critical_path(problem: LatencyProblem) -> float:
    """Longest path where every task runs on the device that is fastest at it, without transfers."""
    tasks, machine = problem.tasks, problem.machine
    if not tasks.n:
        return 0.0
    runs = np.ones(len(machine.is_cpu), dtype=np.bool_)
    if problem.options.execution == "blocks" and machine.is_cpu.any():
        runs = ~machine.is_cpu
        runs[int(np.argmax(machine.is_cpu))] = True
    least = tasks.time[runs].min(axis=0)
    end = np.zeros(tasks.n)
    maker = tasks.maker.tolist()
    for v in tasks.order.tolist():
        flows = tasks.in_idx[tasks.in_ptr[v] : tasks.in_ptr[v + 1]].tolist()
        ready = max((end[maker[f]] for f in flows if maker[f] >= 0), default=0.0)
        end[v] = ready + least[v]
    return float(end.max())


def first_bound(problem: LatencyProblem) -> tuple[float, str]:
    """`critical_path`, and its name: the one of operators else counts transfers, too."""
    blocks = problem.options.execution == "blocks"
    name = "critical path" if blocks else "critical path without transfers"
    return critical_path(problem), name
