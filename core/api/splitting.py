"""Split a graph into stages."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dnnp.core.model.asked import Asked, Evolution
from dnnp.core.model.errors import FormatError, UnavailableError, UsageError
from dnnp.core.model.text import counted
from dnnp.platform import DeviceOptions, platform_of
from dnnp.searching import request_of, searching
from dnnp.step import option, step

if TYPE_CHECKING:
    from dnnp.caller import Caller
    from dnnp.core.cost.problem import SplitProblem
    from dnnp.core.model.device import DeviceClass
    from dnnp.core.model.graph import Floats, Ints
    from dnnp.core.model.graph import Graph as NodeGraph
    from dnnp.core.model.link import Link
    from dnnp.core.model.plan import CostOptions, Plan
    from dnnp.formats.stream import Stream

LATENCY_OPTIONS = ("execution", "invocations", "transfers", "congestion")
"""Options that the objective latency alone has."""


@dataclass(frozen=True, kw_only=True)
class SplitOptions(DeviceOptions):
    """What is asked of a split, and how it is found."""

    method: str = option("auto")
    """One of the methods of dnnp-partition(1); `auto`: exact, or what finds the validity asked."""
    validity: str | None = option(choices=("ordered", "convex", "free"))
    """`ordered`: the stages form a pipeline; `convex`: each stage is contiguous; `free`: nothing;
    None: what the method makes."""
    objective: str = option("throughput", choices=("throughput", "gpipe", "latency"))
    """`throughput`: the largest load; `gpipe`: for training, the largest forward load plus the
    largest backward load; `latency`: the time of one sample."""
    max_replicas: int | None = option(least=1)
    """Devices that one stage may run on, sharing the samples; None: 1."""
    order: str | None = option(choices=("best", "kahn", "dfs", "kahn-reverse", "dfs-reverse"))
    """Topological order to cut; None: the best of the four, or `kahn`, as the method has it."""
    sequence: str | os.PathLike[str] | Sequence[int] | None = option(json=True)
    """Method `slice`: order to slice, the ids of all groups, or the file of a JSON list of them."""
    priorities: str | os.PathLike[str] | Sequence[float] | None = option(json=True)
    """Method `slice`: priorities of the groups for Kahn's algorithm, or the file of a list."""
    solver: str | None = option(choices=("cbc", "highs"))
    """Solver of integer programs; None: `cbc`."""
    time_limit: float | None = option(least=0)
    """Seconds after which to keep the best split found; None: no limit."""
    effort: float | None = option(above=0)
    """Scales the work of searches that would not end; None: 1."""
    seed: int | None = option(least=0)
    """Of random choices; None: 0."""
    samples: int | None = option(least=1)
    """Orders that method `random` tries; None: 100."""
    population: int | None = option(least=1)
    """Orders of a generation; None: 100."""
    generations: int | None = option(least=1)
    """Generations; None: 100."""
    elite: float | None = option(least=0, most=1)
    """Share of a generation that stays; None: 0.2."""
    mutants: float | None = option(least=0, most=1)
    """Share of a generation that is drawn anew; None: 0.15."""
    bias: float | None = option(least=0, most=1)
    """Probability that a priority comes from the parent of the elite; None: 0.7."""
    execution: str | None = option(choices=("blocks", "operators"))
    """Latency: `blocks`: accelerators are invoked for whole blocks; `operators`: every unit is
    placed by itself; None: `blocks` where there are CPUs beside accelerators and no links."""
    invocations: int | None = option(least=1)
    """Latency of blocks: blocks that an accelerator may hold, in each pass; None: 1."""
    transfers: str | None = option(choices=("tensor", "edge"))
    """Latency: what moves as one; None: `tensor`."""
    congestion: str | None = option(choices=("device", "channel", "none"))
    """Latency of operators: which transfers wait for each other; None: `device`."""
    comm: str = option("sum", choices=("sum", "overlap", "duplex"))
    """Transfers add to compute, overlap with it, or overlap in both directions."""
    memory_model: str | None = option(choices=("sum", "peak", "weights"))
    """Memory of a stage; None: `sum` where nodes state memory or there is a backward pass, else
    `peak`; for latency `weights` where they state none."""
    memory_mode: str = option("hard", choices=("hard", "overflow"))
    """Above capacity: infeasible, or streamed over the link."""
    charge_io: bool = option(False)
    """Model inputs and outputs cost transfers too."""
    reprice: bool = option(False)
    """Groups whose cost no longer follows from their nodes cost the sum of these."""

    def check(self) -> None:
        """Refuse what makes no sense."""
        super().check()
        sliced = self.sequence is not None or self.priorities is not None
        if self.method != "slice" and sliced:
            raise UsageError("--sequence and --priorities are for --method slice")
        self.evolution.check()

    @property
    def evolution(self) -> Evolution:
        """How an order evolves."""
        names = ("population", "generations", "elite", "mutants", "bias")
        given = {name: getattr(self, name) for name in names}
        return Evolution(**{name: value for name, value in given.items() if value is not None})


def split_stream(stream: Stream, options: SplitOptions) -> None:
    """Split a graph into stages over devices; what has no costs is priced first.

    A plan that the graph already has is replaced, and what was made from it is dropped.

    Raises
    ------
    UsageError
        Options that make no sense, do not go together or do not fit the graph.
    FormatError
        The graph is malformed.
    InfeasibleError
        No split meets the limits, such as the memory.
    LimitError
        The time was over before there was any split.
    UnavailableError
        A solver or a program is missing.
    """
    caller = options.caller
    with caller.interruptible(), caller.held():
        problem = problem_of(stream, options)
        caller.elapsed("searching")
        add_plan(stream, problem, options)


split = step("dnnp-partition", SplitOptions)(split_stream)


def problem_of(stream: Stream, options: SplitOptions) -> SplitProblem:
    """What is to be split: the graph, priced if it is not, the devices and the cost model."""
    from dnnp.core.cost.problem import SplitProblem
    from dnnp.core.portfolio.methods import check_options
    from dnnp.costs import ensure_costs
    from dnnp.formats.graph import graph_of, units_of

    caller = options.caller
    with caller.held():
        ensure_costs(stream, caller, reprice=options.reprice)
        graph = graph_of(stream)
        units = units_of(stream, graph)
        devices, links = platform_of(stream, options)
        if options.objective == "latency":
            cost = latency_options(options, graph, devices, links)
        else:
            cost = throughput_options(options, graph, links)
        problem = SplitProblem(graph, units, devices, cost, links)
        if options.objective != "latency":
            check_options(problem)
        _check_method(options, problem)
    if options.devices is None and len(units.times) > 1 and len(devices) == 1:
        others = ", ".join(name for name in units.times if name != devices[0].name)
        caller.note(f"devices of class '{devices[0].name}'; the stream also prices {others}")
    return problem


def add_plan(stream: Stream, problem: SplitProblem, options: SplitOptions) -> None:
    """Split a graph, and put the plan into the stream."""
    from dnnp.formats.graph import digest_of, plan_records

    digest = digest_of(problem.graph, problem.units)
    plan = _latency_plan(problem, options, digest)
    plan = plan or _throughput_plan(problem, options, digest)
    record, stages = plan_records(plan)
    dropped = stream.replace("plan", [record])
    stream.records["stage"] = stages
    if dropped:
        options.caller.note(f"dropped what an earlier plan led to: {', '.join(dropped)} records")
    _report(options.caller, plan, problem.units.g)


def throughput_options(
    options: SplitOptions, graph: NodeGraph, links: Sequence[Link]
) -> CostOptions:
    """The cost model that the options ask for, where the objective is not latency.

    Raises
    ------
    UsageError
        Options or methods that only latency has.
    """
    import numpy as np

    from dnnp.core.model.plan import CostOptions
    from dnnp.core.portfolio.latency import EXECUTIONS
    from dnnp.core.portfolio.methods import FINDS

    for name in LATENCY_OPTIONS:
        if getattr(options, name) is not None:
            raise UsageError(f"--{name} is for --objective latency")
    if options.method in EXECUTIONS and options.method not in FINDS:
        raise UsageError(f"method {options.method} is for --objective latency")
    if links:
        options.caller.note("links have no effect on the objective " + options.objective)
    stated = not np.isnan(graph.node_bytes).all()
    summed = stated or bool(graph.backward.any())
    return CostOptions(
        options.comm,
        options.memory_model or ("sum" if summed else "peak"),
        options.memory_mode,
        options.charge_io,
        options.objective,
        options.max_replicas or 1,
    )


def latency_options(
    options: SplitOptions,
    graph: NodeGraph,
    devices: tuple[DeviceClass, ...],
    links: tuple[Link, ...],
) -> CostOptions:
    """The cost model that the options ask for, where the objective is latency.

    Raises
    ------
    UsageError
        Options that this objective does not have, or that do not go together.
    """
    import numpy as np

    from dnnp.core.model.plan import CostOptions

    if options.memory_model == "peak":
        raise UsageError("--objective latency adds memory up: no --memory-model peak")
    if options.memory_mode == "overflow":
        raise UsageError("--objective latency streams nothing: no --memory-mode overflow")
    if options.max_replicas not in (None, 1):
        raise UsageError("--objective latency runs every sample once: no --max-replicas")
    if options.validity is not None:
        raise UsageError("--objective latency: --execution says what a split may be, not validity")
    execution = options.execution or _execution(devices, links)
    cpus = [d.name for d in devices if d.is_cpu]
    if execution == "blocks":
        if len(cpus) > 1:
            raise UsageError(f"--execution blocks has one pool of CPUs, not {', '.join(cpus)}")
        if options.congestion is not None:
            raise UsageError("--congestion is for --execution operators")
    else:
        if options.invocations is not None:
            raise UsageError("--invocations is for --execution blocks")
        if options.charge_io:
            raise UsageError("--charge-io is for --execution blocks")
    if options.charge_io and options.transfers == "edge":
        raise UsageError("--charge-io needs --transfers tensor")
    stated_none = bool(np.isnan(graph.node_bytes).all())
    return CostOptions(
        memory_model=options.memory_model or ("weights" if stated_none else "sum"),
        charge_io=options.charge_io,
        objective="latency",
        execution=execution,
        invocations=options.invocations or 1,
        transfers=options.transfers or "tensor",
        congestion=options.congestion or "device",
    )


def _execution(devices: Sequence[DeviceClass], links: Sequence[Link]) -> str:
    """Blocks for the machines of the 2020 paper: accelerators, one class of CPUs, no links."""
    cpus = sum(d.is_cpu for d in devices)
    return "blocks" if cpus == 1 and len(devices) > 1 and not links else "operators"


def _check_method(options: SplitOptions, problem: SplitProblem) -> None:
    """Refuse a method that does not make what is asked for, before any search begins."""
    from dnnp.core.portfolio.latency import EXECUTIONS, check_method
    from dnnp.core.portfolio.methods import FINDS, method_asked

    if options.method not in EXECUTIONS and options.method not in FINDS:
        known = ", ".join(dict.fromkeys((*FINDS, *EXECUTIONS)))
        raise UsageError(f"--method {options.method!r}: must be one of {known}")
    if options.method == "scotch":
        # The search knows no program by itself: its command hands it one.
        raise UnavailableError("method scotch is for dnnp-partition")
    if options.objective == "latency":
        check_method(options.method, problem.options.execution)
    else:
        method_asked(options.method, options.validity, clustered=problem.clustered)


def _asked(options: SplitOptions, problem: SplitProblem) -> Asked:
    """What is asked of the method."""
    sequence, priorities = _order_files(options, problem)
    return Asked(
        method=options.method,
        validity=options.validity,
        order=options.order or "best",
        sequence=sequence,
        priorities=priorities,
        samples=options.samples or Asked.samples,
        evolution=options.evolution,
        solver=options.solver or "cbc",
        least_peak=options.memory_model == "peak",
    )


def _order_files(options: SplitOptions, problem: SplitProblem) -> tuple[Ints | None, Floats | None]:
    """What the options `sequence` and `priorities` hold."""
    from dnnp.core.portfolio.orders import given_order
    from dnnp.formats.orders import read_priorities, read_sequence

    units, sequence, priorities = problem.units, None, None
    if options.sequence is not None:
        data, name = _list_in(options.sequence, "--sequence", options.caller)
        sequence = read_sequence(data, name, units.group_ids)
        try:
            given_order(problem, sequence)
        except FormatError as error:
            raise FormatError(str(error), name) from None
    if options.priorities is not None:
        data, name = _list_in(options.priorities, "--priorities", options.caller)
        priorities = read_priorities(data, name, units.g)
    return sequence, priorities


def _list_in(
    value: str | os.PathLike[str] | Sequence[float], flag: str, caller: Caller
) -> tuple[bytes, str]:
    """JSON of a list, or what is in the file that has one; and the name of it."""
    if isinstance(value, str | os.PathLike):
        return caller.read_input(os.fspath(value)), os.fspath(value)
    import orjson

    return orjson.dumps(list(value), option=orjson.OPT_SERIALIZE_NUMPY), flag


def _throughput_plan(problem: SplitProblem, options: SplitOptions, digest: str) -> Plan:
    """Find a split for the largest load."""
    from dnnp.core.cost.plan import make_plan
    from dnnp.core.portfolio.solve import solve

    asked = _asked(options, problem)
    with searching(
        options.caller,
        seed=options.seed or 0,
        effort=1.0 if options.effort is None else options.effort,
        seconds=options.time_limit,
        label="searching",
    ) as run:
        found = solve(problem, request_of(asked, run))
    return make_plan(
        problem,
        found.blocks,
        method=found.method,
        bound=found.bound,
        digest=digest,
        interrupted=options.caller.interrupted,
    )


def _latency_plan(problem: SplitProblem, options: SplitOptions, digest: str) -> Plan | None:
    """Find a split for the latency of one sample, if that is the objective."""
    if options.objective != "latency":
        return None
    from dnnp.core.cost.latency import latency_problem
    from dnnp.core.cost.latency_plan import make_latency_plan
    from dnnp.core.portfolio.latency import solve_latency

    asked = _asked(options, problem)
    with searching(
        options.caller,
        seed=options.seed or 0,
        effort=1.0 if options.effort is None else options.effort,
        seconds=options.time_limit,
        label="searching",
    ) as run:
        found = solve_latency(problem, request_of(asked, run))
    return make_latency_plan(
        problem,
        latency_problem(problem),
        found.split,
        method=found.method,
        bound=found.bound,
        bound_method=found.bound_method,
        digest=digest,
        interrupted=options.caller.interrupted,
    )


def _report(caller: Caller, plan: Plan, units: int) -> None:
    """One line about what was found."""
    stages, used = counted(len(plan.stages), "stage"), sum(s.replicas for s in plan.stages)
    if used > len(plan.stages):
        stages += f" on {used} devices"
    if plan.k > max(used, units):
        there = f"{'is' if units == 1 else 'are'} only {counted(units, 'unit')}"
        caller.note(f"k = {plan.k}, but there {there}: {stages}")
    what = {"throughput": "largest load", "gpipe": "forward plus backward load"}.get(
        plan.objective, "latency"
    )
    found = f"{stages}, {plan.method}: {what} {plan.value:.6g}"
    by = f" ({plan.bound_method})" if plan.bound_method else ""
    proven = (
        "optimal"
        if plan.status == "optimal"
        else f"bound {plan.bound:.6g}{by}, gap {100 * plan.gap:.1f} %"
    )
    interrupted = ", interrupted" if plan.status == "interrupted" else ""
    caller.note(f"{found}, {proven}, {plan.validity}{interrupted}")
