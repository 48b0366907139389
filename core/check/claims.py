"""Self-consistency of a plan: devices, figures and methods, without the graph.

It is cheap, so that readers of a plan can ask first; `core.check.plan` recomputes all of it. A
stage on `class/i` with r replicas occupies the devices i to i + r - 1 of the class; stages that all
devices share leave them to others. A method is one that dnnp has for results of that kind; where
the header says what made a result, it is the requested method or one that may answer for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product
from typing import Any

from dnnp.core.check.violation import STRENGTH, Violation, above, differs, fits, printable, same
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.plan import Plan, Stage, Tried


def check_devices(plan: Plan) -> Iterator[Violation]:
    """Check that stages have distinct existing devices, at most k of them accelerators."""
    devices = {device.name: device for device in plan.devices}
    most = plan.options.max_replicas if plan.hybrid is None else plan.hybrid.data_parallel
    accelerators = 0
    if most < 1:
        yield Violation("replicas", "plan", f"allows {most} replicas", ">= 1", most)
    for number, stage in enumerate(plan.stages):
        subject = f"stage {number}"
        if stage.replicas < 1:
            message = f"has {stage.replicas} replicas, expected at least 1"
            yield Violation("replicas", subject, message, 1, stage.replicas)
        elif stage.replicas > max(most, 1):
            message = f"has {stage.replicas} replicas, the plan allows {most}"
            yield Violation("replicas", subject, message, most, stage.replicas)
        device = devices.get(stage.device_class)
        if device is None:
            message = f"device class '{stage.device_class}' is not among the plan's devices"
            yield Violation("device", subject, message)
            continue
        if not device.is_cpu and not stage.shared:
            accelerators += width_of(stage)
        first = number_of(stage, device)
        if first is None or first >= device.count:
            message = f"there is no device '{stage.device}'"
            message += f"; class '{device.name}' has {device.count}"
            yield Violation("device", subject, message)
        elif first + width_of(stage) > device.count:
            last = f"{device.name}/{first + width_of(stage) - 1}"
            message = f"its {stage.replicas} replicas reach to device '{last}'"
            message += f"; class '{device.name}' has {device.count}"
            yield Violation("device", subject, message)
    yield from _overlaps(plan)
    if accelerators > plan.k:
        message = f"{accelerators} accelerators are in use, but k is {plan.k}"
        yield Violation("stages", "plan", message, plan.k, accelerators)


def width_of(stage: Stage) -> int:
    """Devices that a stage takes."""
    return max(stage.replicas, 1) * max(stage.shards, 1)


def number_of(stage: Stage, device: DeviceClass | None = None) -> int | None:
    """Number of a stage's first device: the i of `class/i`; None if the name is not of this form.

    Numbers have no sign, no leading zeros and at most 18 digits. It is a place among named devices.
    """
    if device is not None and device.members:
        return device.members.index(stage.device) if stage.device in device.members else None
    owner, number = split_name(stage.device)
    return number if owner == stage.device_class else None


def split_name(device: str) -> tuple[str, int | None]:
    """Class and number of a device; no number if the name is not of the form `class/i`."""
    owner, slash, index = device.rpartition("/")
    if not slash or not (index.isascii() and index.isdigit() and len(index) <= 18):
        return owner, None
    return owner, int(index) if index == str(int(index)) else None


def _overlaps(plan: Plan) -> Iterator[Violation]:
    """Check that no device is in two stages."""
    intervals = []
    devices = {device.name: device for device in plan.devices}
    for stage_number, stage in enumerate(plan.stages):
        first = number_of(stage, devices.get(stage.device_class))
        if first is not None and not stage.shared:
            end = first + width_of(stage)
            intervals.append((stage.device_class, first, stage_number, end))
    reach: dict[str, tuple[int, int]] = {}
    for owner, first, stage_number, end in sorted(intervals):
        furthest, other = reach.get(owner, (0, -1))
        if first < furthest:
            earlier, later = sorted((stage_number, other))
            message = f"device {owner}/{first} is already used by stage {earlier}"
            yield Violation("device", f"stage {later}", message)
        if end > furthest:
            reach[owner] = (end, stage_number)


def check_claims(plan: Plan) -> Iterator[Violation]:
    """Return contradictions between the figures of a plan, its devices and its stages."""
    yield from check_offer(plan)
    yield from check_tried(plan)
    if plan.objective != "latency":
        yield from check_devices(plan)
        yield from check_shared(plan)
        for number, stage in enumerate(plan.stages):
            yield from _load(plan, stage, f"stage {number}")
    value = _value(plan)
    if value is not None and not same(plan.value, value):
        message = f"the value is {plan.value!r}, but by its stages {value!r}"
        yield Violation("value", "plan", message, value, plan.value)
    yield from check_excess(plan, [stage.memory_bytes for stage in plan.stages])
    yield from check_objective(plan, None)


def check_offer(plan: Plan) -> Iterator[Violation]:
    """Check that classes are distinct and k is at most the number of devices."""
    if len({device.name for device in plan.devices}) < len(plan.devices):
        yield Violation("device", "plan", "a device class is listed twice")
    yield from _members(plan)
    accelerators = sum(device.count for device in plan.devices if not device.is_cpu)
    offered = accelerators or sum(device.count for device in plan.devices)
    if plan.k > offered:
        message = f"k is {plan.k}, but its devices are {offered}"
        yield Violation("stages", "plan", message, offered, plan.k)
    yield from _links(plan)


def _members(plan: Plan) -> Iterator[Violation]:
    """Check classes made of single devices of another: a name for each, and none twice."""
    names = list[str]()
    shared = plan.options.max_replicas > 1 or plan.links or plan.hybrid is not None
    for device in (device for device in plan.devices if device.members or device.of):
        owner = device.of or device.name
        named = [m for m in device.members if m == f"{owner}/{split_name(m)[1]}"]
        names += device.members
        if shared or device.levels or not len(named) == len(device.members) == device.count:
            message = f"class '{device.name}' does not name {device.count} devices of '{owner}', "
            message += "or there are links, clusters or replicas"
            yield Violation("device", "plan", message, device.count, len(named))
    if len(set(names)) < len(names):
        yield Violation("device", "plan", "a device is in two classes")


def _links(plan: Plan) -> Iterator[Violation]:
    """Check that links join two devices of the plan, each pair once a direction."""
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


def check_tried(plan: Plan) -> Iterator[Violation]:
    """Check that the plan is the first of the best methods that were tried."""
    mine = []
    for entry in plan.tried:
        subject = f"tried {entry.method}"
        if entry.value is not None and above(plan.value, entry.value):
            message = f"has the value {entry.value!r}, better than the plan's {plan.value!r}"
            yield Violation("value", subject, message, plan.value, entry.value)
        if entry.value is not None and same(plan.value, entry.value):
            mine.append((subject, entry.made_by or entry.method, entry.validity))
        if entry.value is not None:
            yield from _tried(plan, entry, subject)
    if plan.tried and not mine:
        message = f"no method that was tried has its value {plan.value!r}"
        yield Violation("value", "plan", message, plan.value)
    for subject, method, validity in mine[:1]:
        if (method, validity) != (plan.method, plan.validity):
            message = f"is the first of the best, {validity} by {method}, but the plan is "
            message += f"{plan.validity} by {plan.method}"
            yield Violation("value", subject, message)


def _tried(plan: Plan, entry: Tried, subject: str) -> Iterator[Violation]:
    """Check the gap, status and bound of one method that was tried."""
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


def check_objective(plan: Plan, value: float | None) -> Iterator[Violation]:
    """Check value, bound and status; `value` is the recomputed objective, if defined."""
    if value is not None:
        yield from differs("value", "plan", "the value", plan.value, value)
    least = plan.value if value is None else min(plan.value, value)
    if above(plan.bound, least):
        message = f"the bound {plan.bound!r} exceeds the value {least!r}"
        yield Violation("bound", "plan", message, least, plan.bound)
    if plan.status == "optimal" and not same(plan.bound, plan.value):
        message = f"claims to be optimal, but value {plan.value!r} is above bound {plan.bound!r}"
        yield Violation("status", "plan", message, plan.value, plan.bound)
    yield from _contiguous(plan, least)
    near = plan.status == "within_gap"
    if near != (plan.max_gap > 0) or (near and above(plan.gap, plan.max_gap)):
        message = f"the status is {plan.status!r}, max_gap {plan.max_gap!r}, the gap {plan.gap!r}"
        yield Violation("status", "plan", message, plan.gap, plan.max_gap)


def _contiguous(plan: Plan, value: float) -> Iterator[Violation]:
    """Check `contiguous_bound`: between bound and value, for clusters of one size."""
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


def check_excess(plan: Plan, memory: Sequence[float]) -> Iterator[Violation]:
    """Check that the status is infeasible exactly if ignored capacities are exceeded, by
    `excess_bytes`.

    `memory`: bytes of each stage.
    """
    devices = {device.name: device for device in plan.devices}
    held: dict[str, float] = {}
    capacity: dict[str, float] = {}
    live: dict[str, float] = {}
    shared = math.fsum(m for s, m in zip(plan.stages, memory, strict=True) if s.shared)
    for stage, needed in zip(plan.stages, memory, strict=True):
        device = devices.get(stage.device_class)
        if plan.options.memory_mode == "ignore" and device is not None and not device.is_cpu:
            mine = 0.0 if stage.shared else needed - (stage.peak_bytes or 0.0)
            held[stage.device] = held.get(stage.device, shared) + mine
            if not stage.shared:
                live[stage.device] = max(live.get(stage.device, 0.0), stage.peak_bytes or 0.0)
            capacity[stage.device] = device.memory_bytes
    # Stages of one device run one after the other: of their live tensors the most count.
    held = {name: memory + live.get(name, 0.0) for name, memory in held.items()}
    over = {
        name: held[name] - capacity[name] for name in held if not fits(held[name], capacity[name])
    }
    most = max(over.values(), default=0.0)
    if not same(plan.excess_bytes, most, max(held.values(), default=0.0)):
        message = f"excess_bytes is {plan.excess_bytes!r}, its devices lack {most!r}"
        yield Violation("load", "plan", message, most, plan.excess_bytes)
    if (plan.status == "infeasible") != bool(over):
        truth = f"{max(over, key=lambda name: over[name])} lacks memory" if over else "all fits"
        message = f"the status is {plan.status!r}, but {truth}"
        expected = "infeasible" if over else "feasible"
        yield Violation("status", "plan", message, expected, plan.status)


def combined(comm: str, in_s: float, compute_s: float, overflow_s: float, out_s: float) -> float:
    """Combine transfers and compute into a load."""
    if comm == "sum":
        return math.fsum([in_s, compute_s, overflow_s, out_s])
    if comm == "overlap":
        return max(compute_s, math.fsum([in_s, overflow_s, out_s]))
    return max(compute_s, in_s + overflow_s, out_s)


def _load(plan: Plan, stage: Stage, subject: str) -> Iterator[Violation]:
    """Check that the load of a stage follows from its parts."""
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
    if plan.objective in ("throughput", "sequence"):
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
    """Largest amount on a device, from the amounts of the stages on each of theirs; or their sum.

    A device has its own stage, of which there is one at most, and its part of each shared stage.
    """
    if plan.objective == "sequence":
        return math.fsum(amounts)
    pairs = list(zip(plan.stages, amounts, strict=True))
    own = max((amount for stage, amount in pairs if not stage.shared), default=0.0)
    return own + math.fsum(amount for stage, amount in pairs if stage.shared)


def check_shared(plan: Plan) -> Iterator[Violation]:
    """Check that shared stages are few enough, and on all devices of their class."""
    most = 0 if plan.hybrid is None else plan.hybrid.shared_stages
    count = sum(stage.shared for stage in plan.stages)
    if count > most:
        message = f"{count} stages are shared, the plan allows {most}"
        yield Violation("replicas", "plan", message, most, count)
    devices = {device.name: device for device in plan.devices}
    for number, stage in enumerate(plan.stages):
        device = devices.get(stage.device_class)
        if not stage.shared or device is None:
            continue
        if (number_of(stage), stage.shards, stage.replicas) != (0, device.count, 1):
            width = f"{stage.device} x{stage.replicas} / {stage.shards}"
            message = f"is shared, but on {width}, not on all {device.count} devices"
            yield Violation("device", f"stage {number}", message)


def together(plan: Plan, stages: Sequence[int]) -> bool:
    """True if what is in these stages is on the same devices."""
    there = {plan.stages[s].device for s in stages}
    return len(stages) < 2 or (len(there) == 1 and all(plan.stages[s].shared for s in stages))


Record = Mapping[str, Any]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split(", "))


ANSWERS = _names("slice, first-fit, exact, anneal, ip, random, brkga, links")
"""Methods that a search may name in place of its own."""

SEARCHES = _names("auto, exact, heuristic, random, brkga, mla, mla-weighted, ip, anneal, cpsat, ")
SEARCHES |= _names("max-load, placeto")
OTHERS = _names(
    "slice, dpl, greedy, local-search, pipedream, scotch, metis, uniform, params, single"
)
OTHERS |= _names(
    "heft, heft-congested, m-topo, m-etf, m-sct, getf, getf-milp, given, hybrid, whole"
)
TAILS = ("", "-packed", "-repaired", "-greedy", "-fluid", "-greedy-packed", "-fluid-packed")
"""Ends of names of methods that had to be helped."""

SPLITS = ANSWERS | {a + b for a, b in product(SEARCHES | OTHERS, TAILS)} | {"replicas"}
BOUNDS = _names(
    "simple, packing, chain, zone-cut, node-cut, cpu-cut, ideal, halves, pairs, same-block, cover"
)
BOUNDS |= _names("cover-cut, links, no-dag, no-io, bottleneck, guess, exact")
PATHS = _names("critical path, critical path without transfers, path of blocks, ideals of blocks")
PATHS |= _names("area, memory path, windows, segments, sequences, simple, exact, cbc, highs, cpsat")
PATHS |= _names("branch and bound, orders of blocks")
RECIPES = _names("sequential, gpipe, 1f1b, 1f1b+, interleaved-1f1b, chimera, zb-h1, zb-h2, zb-v")
RECIPES |= _names("v-half, v-min, dualpipe, dualpipev, inference")
SCHEDULES = RECIPES | _names("auto, optimal, tessel, tessel-fast, in-turn")
REPETENDS = _names("orders, list, sequential, tessel, tessel-fast")


def check_origin(header: Record, records: Mapping[str, Sequence[Record]]) -> Iterator[Violation]:
    """Find methods that do not exist, or differ from those in the header."""
    steps = header["provenance"]
    for plan in records.get("plan", ()):
        proofs = PATHS if plan["objective"] == "latency" else BOUNDS
        known = SPLITS | {f"bound-{name}" for name in proofs}
        rows = [plan, *plan.get("tried", ())]
        rows += [{"method": row["made_by"]} for row in rows if "made_by" in row]
        yield from _strange("plan", known, rows)
        yield from _strange("plan", PATHS, [{"method": plan.get("bound_method", "simple")}])
        yield from _made(plan, steps)
        for bound in records.get("bound", ()):
            yield from _strange("bound", proofs, [bound, *bound["tried"]])
            yield from _proof(bound)
    for schedule in records.get("schedule", ()):
        rows = [schedule["repetend"]] if "repetend" in schedule else []
        yield from _strange("schedule", SCHEDULES, [schedule])
        yield from _strange("schedule", REPETENDS, [*rows, *schedule.get("pareto", ())])
        requested = [_requested(step) for step in steps if step["tool"] == "dnnp-schedule"][-1:]
        for name, *_ in requested:
            if name in RECIPES and schedule["method"] not in (name, "sequential"):
                yield _other("schedule", schedule["method"], [name])


def _strange(subject: str, known: frozenset[str], rows: Sequence[Record]) -> Iterator[Violation]:
    for name in sorted({row["method"] for row in rows if "method" in row} - known):
        message = f"not checkable: there is no method {printable(name, 40)!r}"
        yield Violation("unchecked", subject, message, None, name)


def _other(subject: str, name: str, requested: Sequence[str]) -> Violation:
    message = f"says that it is by {printable(name, 80)}, but the header asks for "
    return Violation(
        "provenance", subject, message + printable(", ".join(requested), 80), None, name
    )


def _requested(step: Record) -> list[str]:
    """Methods that a command requests."""
    words = [part for word in step["arguments"] for part in word.split("=", 1)]
    given = [names for word, names in pairwise(words) if word == "--method"]
    names = "given" if "--eval" in words else (given or ["auto"])[-1]
    return list(dict.fromkeys(names.split(",")))


def _made(plan: Record, steps: Sequence[Record]) -> Iterator[Violation]:
    """Check the method of a plan against the command; several must all be in `tried`."""
    makers = [step for step in steps if step["tool"] in ("dnnp-partition", "dnnp-bound")]
    if not any(step["tool"] == "dnnp-partition" for step in makers):
        return  # dnnp-bound may have found a plan that others made
    name, rows = plan["method"], plan.get("tried", ())
    splits = [_requested(step) for step in makers if step["tool"] == "dnnp-partition"]
    requested = ["hybrid"] if "parallel" in plan else splits[-1]
    bounded = makers[-1]["tool"] == "dnnp-bound"
    replaced = bounded and name.startswith("bound-")
    whole = "ways" in plan and name in ANSWERS | {"whole", "replicas"}
    if not replaced and not whole and not any(_answers(one, name) for one in requested):
        yield _other("plan", name, requested)
    if [x["method"] for x in rows] != (requested if len(requested) > 1 and not replaced else []):
        yield _other("plan", f"the best of {[x['method'] for x in rows]}", requested)
    if plan.get("bound_method") == "exact" and not bounded:
        yield _other("plan", "bounded by exact", requested)
    most = STRENGTH[plan["validity"]]
    proven = [x.get("bound", 0.0) for x in rows if STRENGTH.get(x.get("validity"), 9) <= most]
    if rows and not bounded and above(plan["bound"], max(proven, default=0.0)):
        message = f"the bound {plan['bound']!r} is proven by no method that was tried"
        yield Violation("bound", "plan", message, max(proven, default=0.0), plan["bound"])


def _answers(requested: str, name: str) -> bool:
    """True if a method may answer under a name."""
    helped = any(name == requested + tail for tail in TAILS)
    return helped or name in ("slice", "first-fit") or (requested in SEARCHES and name in ANSWERS)


def _proof(bound: Record) -> Iterator[Violation]:
    """Check that a bound names the argument of its certificate, and each tried value its status."""
    argument = bound.get("certificate", {}).get("argument", bound["method"])
    if argument != bound["method"] or not bound["tried"]:
        message = f"its method is {bound['method']}, which was not tried or its certificate is not"
        yield Violation("bound", "bound", printable(message, 200), str(argument), bound["method"])
    for entry in bound["tried"]:
        states = {"solved": (True,), "limit": (True,), "refused": (False,)}
        if ("value" in entry) not in states.get(entry["status"], (False, True)):
            message = f"{entry['method']}: {entry['status']}, with a value or without one"
            yield Violation("status", "bound", printable(message, 200), None, entry["status"])
