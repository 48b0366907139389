"""The problem of placing one sample: tasks, devices, and what the answer is worth."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dnnp.core.cost.invocations import Invocations, check_invocations, time_invocations
from dnnp.core.cost.machine import Machine, machine_of
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.cost.tasks import Tasks, tasks_of
from dnnp.core.cost.timeline import Placement, check_placement, simulate
from dnnp.core.model.errors import UsageError
from dnnp.core.model.plan import CostOptions

MOST_DEVICES = 1024
"""Devices of a machine: the mesh of all pairs must fit in memory."""


@dataclass(frozen=True, eq=False)
class LatencyProblem:
    """Tasks to be placed on the devices of a machine."""

    tasks: Tasks
    machine: Machine
    options: CostOptions
    """`execution`, `invocations`, `transfers` and `congestion` count here."""

    def block_value(self, split: Invocations) -> float:
        """Latency of a split into blocks; FormatError or InfeasibleError if it is not valid."""
        check_invocations(self.tasks, self.machine, split, self.options.invocations)
        return time_invocations(self.tasks, self.machine, split).value

    def value(self, placement: Placement) -> float:
        """Latency of a placement; FormatError or InfeasibleError if it is not valid."""
        check_placement(self.tasks, self.machine, placement)
        return simulate(self.tasks, self.machine, placement, self.options.congestion).value


def latency_problem(problem: SplitProblem) -> LatencyProblem:
    """Lay out a graph and a cluster for the latency solvers.

    Without links the devices of a class are alike, and no more of them count than there are units.

    Raises
    ------
    UsageError
        More than `MOST_DEVICES` devices.
    """
    devices, units, options = problem.devices, problem.units, problem.options
    if not problem.links:
        devices = tuple(replace(d, count=min(d.count, units.g)) for d in devices)
    if sum(d.count for d in devices) > MOST_DEVICES:
        raise UsageError(f"latency is planned for up to {MOST_DEVICES} devices")
    machine = machine_of(devices, problem.links)
    return LatencyProblem(tasks_of(problem.graph, units, machine, options), machine, options)
