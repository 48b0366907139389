"""Whether a pipeline is the right choice: compared with the whole model and replicas of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dnnp.core.model.errors import UsageError
from dnnp.core.model.text import counted, shown_time

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dnnp.caller import Caller
    from dnnp.core.cost.problem import SplitProblem
    from dnnp.core.model.asked import Asked
    from dnnp.core.model.cluster import Clustering
    from dnnp.core.model.device import DeviceClass
    from dnnp.core.model.graph import Graph
    from dnnp.core.model.plan import CostOptions, Plan
    from dnnp.core.model.run import Run
    from dnnp.core.runtime.choice import Offer
    from dnnp.split_options import SplitOptions

WORTH_SAYING = 1.1
"""How many times as fast as the plan replicas must be predicted, at least, to be named."""


def with_all_replicas(
    options: SplitOptions, cost: CostOptions, devices: Iterable[DeviceClass], *, linked: bool
) -> CostOptions:
    """The cost model where a stage may run on all devices of a class.

    `linked`: links are stated, and take the place of clusters.

    Raises
    ------
    UsageError
        Fewer are asked for, or devices form clusters.
    """
    from dnnp.core.portfolio.ways import all_replicas

    devices = tuple(devices)
    most = all_replicas(devices)
    if options.max_replicas is not None and options.max_replicas < most:
        raise UsageError(
            f"--allow-replicas compares up to all {most} devices of a class: leave --max-replicas "
            f"{options.max_replicas} out"
        )
    if not linked and any(device.cluster_size for device in devices):
        raise UsageError("--allow-replicas knows no clusters; --max-replicas does")
    return replace(cost, max_replicas=most)


def fastest_plan(
    problem: SplitProblem, asked: Asked, run: Run, digest: str, caller: Caller
) -> Plan:
    """The plan of the fastest way to use the devices, with all ways that were compared.

    Raises what `solve` does.
    """
    from dnnp.core.cost.plan import make_plan
    from dnnp.core.portfolio.ways import compare_ways

    found = compare_ways(problem, asked, run)
    solution = found.solution
    plan = make_plan(
        problem,
        solution.blocks,
        method=solution.method,
        bound=solution.bound,
        digest=digest,
        interrupted=caller.interrupted,
        planned_by=solution.planned_by,
    )
    return replace(plan, ways=found.ways)


def ways_in_words(plan: Plan, in_seconds: bool) -> str:
    """Which way was chosen, how the others compare, and what cannot be."""
    from dnnp.core.portfolio.ways import SPOKEN

    devices = sum(stage.replicas for stage in plan.stages)
    parts, missing = list[str](), dict[str, list[str]]()
    for way in sorted(plan.ways, key=lambda way: way.value or 0.0):
        if way.value is None:
            missing.setdefault(way.reason, []).append(SPOKEN[way.name])
        elif (way.stages, way.devices) == (len(plan.stages), devices):
            used = f" on {counted(way.devices, 'device')}" if way.devices > 1 else ""
            parts.insert(
                0, f"chosen: {SPOKEN[way.name]}{used}, {shown_time(way.value, in_seconds)}"
            )
        else:
            longer = f" ({way.value / plan.value:.3g} times as long)" if plan.value > 0 else ""
            parts.append(f"{SPOKEN[way.name]} {shown_time(way.value, in_seconds)}{longer}")
    parts += [f"no {' or '.join(names)}: {reason}" for reason, names in missing.items()]
    return "; ".join(parts)


def name_faster_replicas(problem: SplitProblem, plan: Plan, options: SplitOptions) -> None:
    """Say where plain replicas of the whole model fit and are faster than a plan without them."""
    compared = options.allow_replicas or options.max_replicas is not None
    if compared or options.objective != "throughput" or options.memory_mode == "ignore":
        return
    if problem.clustered or not plan.stages or plan.status == "interrupted":
        return
    from dnnp.core.portfolio.ways import faster_replicas

    found = faster_replicas(problem, plan.value / WORTH_SAYING)
    if found is not None:
        value, copies = found
        faster = f"{plan.value / value:.2f} times as fast" if value else "to take no time"
        options.caller.note(
            f"{copies} replicas of the whole model fit and are predicted {faster}: "
            f"{shown_time(value, problem.graph.in_seconds)} (--allow-replicas compares them)"
        )


def offer_of(plan: Plan, graph: Graph, units: Clustering) -> Offer:
    """What is known of the whole model and its replicas, on the devices that a plan uses.

    Raises
    ------
    UsageError
        The plan is for the latency of one sample.
    """
    from dnnp.core.cost.problem import SplitProblem
    from dnnp.core.model.asked import Asked
    from dnnp.core.portfolio.ways import whole_blocks
    from dnnp.core.runtime.choice import REPLICAS, WHOLE, Offer

    if plan.objective == "latency":
        raise UsageError("--choose compares throughput, the plan is for the latency of one sample")
    problem = SplitProblem(graph, units, plan.devices, plan.options)
    blocks, reasons = whole_blocks(problem, Asked())
    value = {block.device.name: problem.value([block]) for block in blocks}
    used = [s.device_class for s in plan.stages for _ in range(s.replicas)]
    rates = [1 / value[name] if value[name] else 0.0 for name in used if name in value]
    ruled_out = {} if rates else dict.fromkeys((WHOLE, REPLICAS), "; ".join(reasons))
    return Offer(len(rates), ruled_out, rates, plan.value)
