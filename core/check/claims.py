"""Self-consistency of a plan: what its numbers say of each other, without the graph.

Cheap, so that whoever builds on a plan can ask first; `core.check.plan` recomputes all of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from dnnp.core.check.devices import check_devices, number_of, split_name
from dnnp.core.check.graph import STRENGTH
from dnnp.core.check.load import combined
from dnnp.core.check.violation import Violation, above, differs, fits, same
from dnnp.core.model.plan import Plan, Stage, Tried


def check_claims(plan: Plan) -> list[Violation]:
    """Return what does not hold between the numbers of a plan, its devices and its stages."""
    found = check_offer(plan) + check_tried(plan)
    if plan.objective != "latency":
        found += check_devices(plan) + check_shared(plan)
        for number, stage in enumerate(plan.stages):
            found += _load(plan, stage, f"stage {number}")
    value = _value(plan)
    if value is not None and not same(plan.value, value):
        message = f"the value is {plan.value!r}, but by its stages {value!r}"
        found.append(Violation("value", "plan", message, value, plan.value))
    found += check_excess(plan, [stage.memory_bytes for stage in plan.stages])
    return found + check_objective(plan, None)


def check_offer(plan: Plan) -> list[Violation]:
    """No class twice, no more accelerators than devices; where all are CPUs, k may count them."""
    found = []
    if len({device.name for device in plan.devices}) < len(plan.devices):
        found.append(Violation("device", "plan", "a device class is listed twice"))
    accelerators = sum(device.count for device in plan.devices if not device.is_cpu)
    offered = accelerators or sum(device.count for device in plan.devices)
    if plan.k > offered:
        message = f"k is {plan.k}, but its devices are {offered}"
        found.append(Violation("stages", "plan", message, offered, plan.k))
    return [*found, *_links(plan)]


def _links(plan: Plan) -> Iterator[Violation]:
    """Links join devices of the plan, two at a time, and each pair once a direction."""
    counts = {device.name: device.count for device in plan.devices}
    seen = set()
    for link in plan.links:
        for end in (link.source, link.target):
            owner, number = split_name(end)
            if number is None or number >= counts.get(owner, 0):
                message = f"a link names '{end}', which is not among its devices"
                yield Violation("device", "plan", message, None, end)
        pair = link.source, link.target
        if link.source == link.target or pair in seen:
            message = f"a link from '{link.source}' to '{link.target}' is stated twice, or is none"
            yield Violation("device", "plan", message, None, link.target)
        seen.add(pair)


def check_tried(plan: Plan) -> list[Violation]:
    """The plan is the best of what was tried for it, and by the first of the best."""
    found, mine = [], []
    for entry in plan.tried:
        subject = f"tried {entry.method}"
        if entry.value is not None and above(plan.value, entry.value):
            message = f"has the value {entry.value!r}, better than the plan's {plan.value!r}"
            found.append(Violation("value", subject, message, plan.value, entry.value))
        if entry.value is not None and same(plan.value, entry.value):
            mine.append((subject, entry.made_by or entry.method, entry.validity))
        if entry.value is not None:
            found += _tried(plan, entry, subject)
    if plan.tried and not mine:
        message = f"no method that was tried has its value {plan.value!r}"
        found.append(Violation("value", "plan", message, plan.value))
    for subject, method, validity in mine[:1]:
        if (method, validity) != (plan.method, plan.validity):
            message = f"is the first of the best, {validity} by {method}, but the plan is "
            message += f"{plan.validity} by {plan.method}"
            found.append(Violation("value", subject, message))
    return found


def _tried(plan: Plan, entry: Tried, subject: str) -> Iterator[Violation]:
    """The figures of a method fit each other, and its bound all splits that it holds for."""
    value = entry.value or 0.0
    gap = (value - entry.bound) / value if value > 0 else 0.0
    yield from differs("gap", subject, "the gap", entry.gap, gap, 1.0)
    if entry.status == "optimal" and not same(entry.bound, value):
        message = f"claims to be optimal, but value {value!r} is above bound {entry.bound!r}"
        yield Violation("status", subject, message, value, entry.bound)
    rank = STRENGTH.get(entry.validity, 9)
    others = [(plan.bound, plan.validity)]
    others += [(x.value, x.validity) for x in plan.tried if x.value is not None]
    least = min((v for v, kind in others if STRENGTH.get(kind, -1) >= rank), default=math.inf)
    if above(entry.bound, least):
        message = (
            f"the bound {entry.bound!r} exceeds {least!r}, which is reached or all that is proven"
        )
        yield Violation("bound", subject, message, least, entry.bound)


def check_objective(plan: Plan, value: float | None) -> list[Violation]:
    """Value, bound and status; `value` is the recomputed objective, if there is one."""
    found: list[Violation] = []
    if value is not None:
        found += differs("value", "plan", "the value", plan.value, value)
    least = plan.value if value is None else min(plan.value, value)
    if above(plan.bound, least):
        message = f"the bound {plan.bound!r} exceeds the value {least!r}"
        found.append(Violation("bound", "plan", message, least, plan.bound))
    if plan.status == "optimal" and not same(plan.bound, plan.value):
        message = f"claims to be optimal, but value {plan.value!r} is above bound {plan.bound!r}"
        found.append(Violation("status", "plan", message, plan.value, plan.bound))
    found += _contiguous(plan, least)
    near = plan.status == "within_gap"
    if near != (plan.max_gap > 0) or (near and above(plan.gap, plan.max_gap)):
        message = f"the status is {plan.status!r}, max_gap {plan.max_gap!r}, the gap {plan.gap!r}"
        found.append(Violation("status", "plan", message, plan.gap, plan.max_gap))
    return found


def _contiguous(plan: Plan, value: float) -> Iterator[Violation]:
    """A bound of splits with contiguous clusters lies between that of all and the value, which
    only such a split can have; it is for clusters of one size.
    """
    among, sizes = plan.contiguous_bound, {d.name: d.cluster_size for d in plan.devices}
    if not among:
        return
    if above(among, value) or above(plan.bound, among):
        message = f"contiguous_bound {among!r} is not between bound {plan.bound!r} and {value!r}"
        yield Violation("bound", "plan", message, value, among)
    if not any(sizes.values()) or any(d.larger_clusters for d in plan.devices) or plan.links:
        yield Violation("bound", "plan", "contiguous_bound is for clusters of one size", 0.0, among)
    order = list[int]()
    for stage in plan.stages:
        size, number = sizes.get(stage.device_class, 0), number_of(stage)
        if size and number is not None:
            order += range(number // size, (number + stage.devices - 1) // size + 1)
    visits = [b for a, b in pairwise([-1, *order]) if a != b]
    if same(among, value) and len(visits) > len(set(order)):
        message = "contiguous_bound is the value, but a cluster is apart in the pipeline"
        yield Violation("status", "plan", message, value, among)


def check_excess(plan: Plan, memory: Sequence[float]) -> list[Violation]:
    """A plan is infeasible if and only if capacities are ignored and exceeded, by what it states.

    `memory`: bytes of each stage.
    """
    devices = {device.name: device for device in plan.devices}
    held: dict[str, float] = {}
    room: dict[str, float] = {}
    live: dict[str, float] = {}
    shared = math.fsum(m for s, m in zip(plan.stages, memory, strict=True) if s.shared)
    for stage, needed in zip(plan.stages, memory, strict=True):
        device = devices.get(stage.device_class)
        if plan.options.memory_mode == "ignore" and device is not None and not device.is_cpu:
            mine = 0.0 if stage.shared else needed - (stage.peak_bytes or 0.0)
            held[stage.device] = held.get(stage.device, shared) + mine
            if not stage.shared:
                live[stage.device] = max(live.get(stage.device, 0.0), stage.peak_bytes or 0.0)
            room[stage.device] = device.memory_bytes
    # Stages of one device run one after the other: of their live tensors the most count.
    held = {name: memory + live.get(name, 0.0) for name, memory in held.items()}
    over = {name: held[name] - room[name] for name in held if not fits(held[name], room[name])}
    most = max(over.values(), default=0.0)
    found = []
    if not same(plan.excess_bytes, most, max(held.values(), default=0.0)):
        message = f"excess_bytes is {plan.excess_bytes!r}, its devices lack {most!r}"
        found.append(Violation("load", "plan", message, most, plan.excess_bytes))
    if (plan.status == "infeasible") != bool(over):
        truth = f"{max(over, key=lambda name: over[name])} lacks memory" if over else "all fits"
        message = f"the status is {plan.status!r}, but {truth}"
        expected = "infeasible" if over else "feasible"
        found.append(Violation("status", "plan", message, expected, plan.status))
    return found


def _load(plan: Plan, stage: Stage, subject: str) -> Iterator[Violation]:
    """The load of a stage is what its parts make."""
    parts = (stage.in_s, stage.compute_s, stage.overflow_s, stage.out_s)
    alone = combined(plan.options.comm, *parts) / max(stage.replicas, 1)
    added = plan.options.comm == "sum"
    if plan.hybrid is not None:
        added = not plan.hybrid.overlap_sync
    load = alone + stage.sync_s if added else max(alone, stage.sync_s)
    if same(stage.load_s, load):
        return
    message = f"load_s is {stage.load_s!r}, but its parts make {load!r}"
    yield Violation("load", subject, message, load, stage.load_s)


def _value(plan: Plan) -> float | None:
    """The objective by what the stages state; None if they do not state it."""
    if plan.objective == "throughput":
        return fullest(plan, [stage.load_s for stage in plan.stages])
    if plan.objective == "gpipe":
        ahead = [stage.forward_s for stage in plan.stages]
        back = [stage.backward_s for stage in plan.stages]
        return None if None in ahead or None in back else _largest(ahead) + _largest(back)
    ends = [stage.end_s for stage in plan.stages]
    return None if None in ends else _largest(ends)


def _largest(times: list[float | None]) -> float:
    return max((time for time in times if time is not None), default=-math.inf)


def fullest(plan: Plan, amounts: Sequence[float]) -> float:
    """The most that a device has of something, of which stages have these amounts on each device.

    A device has its own stage, of which there is one at most, and its part of each shared stage.
    """
    pairs = list(zip(plan.stages, amounts, strict=True))
    own = max((amount for stage, amount in pairs if not stage.shared), default=0.0)
    return own + math.fsum(amount for stage, amount in pairs if stage.shared)


def check_shared(plan: Plan) -> list[Violation]:
    """Shared stages are on all devices of their class, one shard each; there are not too many."""
    found = []
    most = 0 if plan.hybrid is None else plan.hybrid.shared_stages
    count = sum(stage.shared for stage in plan.stages)
    if count > most:
        message = f"{count} stages are shared, the plan allows {most}"
        found.append(Violation("replicas", "plan", message, most, count))
    devices = {device.name: device for device in plan.devices}
    for number, stage in enumerate(plan.stages):
        device = devices.get(stage.device_class)
        if not stage.shared or device is None:
            continue
        if (number_of(stage), stage.shards, stage.replicas) != (0, device.count, 1):
            width = f"{stage.device} x{stage.replicas} / {stage.shards}"
            message = f"is shared, but on {width}, not on all {device.count} devices"
            found.append(Violation("device", f"stage {number}", message))
    return found


def together(plan: Plan, stages: Sequence[int]) -> bool:
    """Test whether what is in these stages is on the same devices."""
    there = {plan.stages[s].device for s in stages}
    return len(stages) < 2 or (len(there) == 1 and all(plan.stages[s].shared for s in stages))
