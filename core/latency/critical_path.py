"""The bound of latency that takes no kernel: there is one however soon a search is stopped."""

from __future__ import annotations

import numpy as np

from dnnp.core.cost.latency import LatencyProblem


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
