"""The problem of placing one sample: tasks, devices, and what the answer is worth."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dnnp.core.cost.invocations import Invocations, check_invocations, time_invocations
from dnnp.core.cost.machine import Machine, machine_of
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.cost.tasks import Tasks, tasks_of
from dnnp.core.cost.timeline import Placement, check_placement, simulate
from dnnp.core.model.errors import UsageError
from dnnp.core.model.learned import Learned
from dnnp.core.model.plan import CostOptions

MOST_DEVICES = 1024
"""Devices of a machine: the mesh of all pairs must fit in memory."""

Split = Invocations | Placement
"""What plans one sample: in blocks, or operator by operator."""


@dataclass(frozen=True, eq=False)
class LatencyProblem:
    """Tasks to be placed on the devices of a machine."""

    tasks: Tasks
    machine: Machine
    options: CostOptions
    """`execution`, `invocations`, `transfers` and `congestion` count here."""
    whole: SplitProblem | None = None
    """What it was laid out from; None: tasks and machine are all there is."""

    def value(self, split: Split) -> float:
        """Latency of a split; FormatError or InfeasibleError if it is not valid."""
        if isinstance(split, Invocations):
            check_invocations(self.tasks, self.machine, split, self.options.invocations)
        else:
            check_placement(self.tasks, self.machine, split)
        return self.time(split)

    def time(self, split: Split) -> float:
        """Latency of a split whatever the devices hold; FormatError where it cannot run."""
        if isinstance(split, Invocations):
            return time_invocations(self.tasks, self.machine, split).value
        return simulate(self.tasks, self.machine, split, self.options.congestion).value


@dataclass(frozen=True, eq=False)
class LatencySolution:
    """A split, and what was proven about the latency of any."""

    split: Split
    bound: float = 0.0
    bound_method: str = ""
    """The argument for the bound; empty: nothing was proven yet."""
    method: str = ""
    """What made it; empty: the method that was asked."""
    learned: Learned | None = None
    """The policy that made it; None: none did."""


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
    tasks = tasks_of(problem.graph, units, machine, options)
    return LatencyProblem(tasks, machine, options, problem)
