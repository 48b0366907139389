"""Validate how the records of a stream hang together, what runs name, and what devices plans have.

Everything here works on plain records, as decoded from JSON and already checked one by one: their
numbers are finite and not negative. What was measured is taken as it is.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dnnp.core.check.claims import check_origin
from dnnp.core.check.declared import Covered, check_declared
from dnnp.core.check.violation import STRENGTH, Violation, above, differs, printable, same, shown

Record = Mapping[str, Any]

NEEDS = {
    "plan": "stage",
    "stage": "plan",
    "bound": "plan",
    "block": "schedule",
    "run": "plan",
    "generation": "plan",
}
"""Kind of record -> kind it cannot do without."""

MAX_NUMBER = 1e100
"""Largest number of a record; sums beyond it stand as this."""

PRICING = ("dnnp-profile", "dnnp-coarsen")
"""Commands that replace what a plan was made from."""


def check_stream(
    header: Record,
    records: Mapping[str, Sequence[Record]],
    graph_digest: str | None,
    plan_digest: str | None,
    covered: Covered,
    training: bool,
) -> Iterator[Violation]:
    """Return what does not hold between the records of a stream, or is not checkable.

    The digests are those of graph, costs and groups, and of the plan, as they stand in the stream;
    None where they are not there. `covered`, `training`: see `check_declared`.
    """
    yield from check_declared(records, covered, training)
    yield from _present(records)
    yield from _digests(records, graph_digest, plan_digest)
    yield from _numbers(records)
    yield from _work(records)
    for plan in records.get("plan", ()):
        yield from check_made(header, plan, records.get("device", ()))
        yield from check_unknown(header, records, plan)
    yield from check_origin(header, records)
    if records.get("plan"):
        for schedule in records.get("schedule", ()):
            from dnnp.core.check.passes import check_passes

            yield from check_passes(schedule, records)
        yield from check_runs(records)
    yield from _provenance(header, records)


def _present(records: Mapping[str, Sequence[Record]]) -> Iterator[Violation]:
    """No kind without the kinds it was computed from."""
    for kind, needed in NEEDS.items():
        if records.get(kind) and not records.get(needed):
            message = f"there are {kind} records but no {needed} record"
            yield Violation("records", kind, message, needed)
    schedules = records.get("schedule", ())
    if len(schedules) > 1:
        message = f"there are {len(schedules)} schedule records, a stream holds one"
        yield Violation("records", "schedule", message, 1, len(schedules))
    if any("digest" in schedule for schedule in schedules) and not records.get("plan"):
        message = "there are schedule records but no plan record"
        yield Violation("records", "schedule", message, "plan")
    if records.get("plan") and not any("time_s" in r for r in records.get("node", ())):
        grouped = records.get("group", ())
        if not grouped or not all("time_s" in r for r in grouped):
            yield Violation("records", "plan", "there is a plan but nothing is priced")
    ids = sorted(r["id"] for r in records.get("stage", ()))
    if ids != list(range(len(ids))):
        message = f"stage ids are {shown(ids)}, expected 0 to {len(ids) - 1}"
        yield Violation("stages", "plan", message)


def check_unknown(
    header: Record, records: Mapping[str, Sequence[Record]], plan: Record
) -> Iterator[Violation]:
    """Check what the costs of a plan leave out; without costs, or all sizes, none is optimal."""
    sizeless = {r["id"] for r in records.get("tensor", ()) if r.get("size_unknown")}
    own = {device["class"]: device.get("of", device["class"]) for device in plan["devices"]}
    stages = records.get("stage", ())
    home = {v: own.get(r["class"], r["class"]) for r in stages for v in r["nodes"]}
    whole, rough = [0.0], [0.0]
    for node in records.get("node", ()):
        time = node.get("time_s", {}).get(home.get(node["id"]), 0.0)
        whole.append(time)
        vague = sizeless and sizeless.intersection([*node["inputs"], *node["outputs"]])
        if "work" in header and ("flop" not in node or node.get("partial") or vague):
            rough.append(time)
    grouped = [(r.get("time_s", {}), home.get(r["nodes"][0])) for r in records.get("group", ())]
    share = float(bool(home) and not any(times.get(name) for times, name in grouped))
    share = math.fsum(rough) / math.fsum(whole) if any(whole) else share
    said = plan.get("unknown", {"time": 0.0, "sizes": 0})
    for name, real in (("sizes", len(sizeless)), ("time", share)):
        what = f"the {name} that are unknown are {said[name]!r}, recomputed {real!r}"
        if not same(said[name], real, 1.0):
            yield Violation("unknown", "plan", what, real, said[name])
    if not sizeless and share < 1:
        return
    why = "but sizes are unknown" if sizeless else "but no costs are known"
    claims = [("plan", plan["status"])]
    claims += [(f"tried {printable(x['method'], 40)}", x["status"]) for x in plan.get("tried", [])]
    for kind in ("bound", "schedule"):
        for record in records.get(kind, ()):
            claims += [(kind, r["status"]) for r in (record, record.get("repetend", record))]
    for subject, status in dict.fromkeys(claims):
        if status in ("optimal", "within_gap"):
            yield Violation("status", subject, f"says {status}, {why}", "feasible", status)
    if "contiguous_bound" in plan:
        yield Violation("bound", "plan", f"states a contiguous_bound, {why}")


def _digests(
    records: Mapping[str, Sequence[Record]], graph_digest: str | None, plan_digest: str | None
) -> Iterator[Violation]:
    """Plan against graph; bounds, schedules and runs against the plan."""
    for plan in records.get("plan", ()):
        if plan["digest"] != graph_digest:
            message = "was made from another graph, costs or groups"
            yield Violation("digest", "plan", message, graph_digest, plan["digest"])
    for kind in ("run", "generation"):
        for number, run in enumerate(records.get(kind, ())):
            if plan_digest is not None and run["digest"] != plan_digest:
                message = "was made with another plan"
                yield Violation("digest", f"{kind} {number}", message, plan_digest, run["digest"])
    for schedule in records.get("schedule", ()) if plan_digest is not None else ():
        digest = schedule.get("digest")
        if digest != plan_digest:
            message = "was made for another plan" if digest else "does not say for which plan it is"
            yield Violation("digest", "schedule", message, plan_digest, digest)
    if records.get("plan") and plan_digest is not None:
        expected = _bound_digest(records["plan"][0], plan_digest)
        for bound in records.get("bound", ()):
            if bound["digest"] != expected:
                message = "was proven for another plan, other devices or another cost model"
                yield Violation("digest", "bound", message, expected, bound["digest"])


PARALLEL = (
    "tensor_parallel", "data_parallel", "micro_batches", "recompute", "weight_sync", "overlap_sync",
    "shared_stages",
)  # fmt: skip
"""Options of a parallel plan, as a bound's digest lists them; none is 0."""


def _bound_digest(plan: Record, plan_digest: str) -> str:
    """Digest of all that a bound depends on (`dnnp-graph(5)`)."""
    content: list[Any] = [plan_digest]
    for name in ("objective", "validity", "comm", "memory_model", "memory_mode", "charge_io"):
        content.append(plan[name])
    content += [plan.get("max_replicas", 1), []]
    for device in plan["devices"]:
        row = [device["class"], device["kind"], device.get("count", 0)]
        for name in (
            "memory_bytes",
            "bandwidth_bytes_per_s",
            "cluster_size",
            "inner_bandwidth_bytes_per_s",
        ):
            if name == "cluster_size":
                row.append(device.get(name, 0))
            else:
                row.append(float(device[name]) if name in device else None)
        for larger in device.get("larger_clusters", ()):
            row.append([larger["cluster_size"], float(larger["bandwidth_bytes_per_s"])])
        content[-1].append(row)
    if plan["objective"] == "latency":
        for name in ("execution", "invocations", "transfers", "congestion"):
            content.append(plan.get(name))
    if plan["objective"] == "latency" or plan.get("links"):
        rows = []
        for link in plan.get("links", ()):
            speed, delay = float(link["bandwidth_bytes_per_s"]), float(link["latency_s"])
            rows.append([link["from"], link["to"], speed, delay])
        content.append(rows)
    if "in_flight" in plan or "max_length" in plan:
        content.append([plan.get("in_flight", 0), plan.get("max_length", 0)])
    if "workload" in plan:
        names = ("prompt", "tokens", "longest", "prompt_past", "token_past", "rows")
        content.append([float(plan["workload"].get(name, 0)) for name in names])
    if "parallel" in plan:
        content.append([plan["parallel"].get(name, 0) for name in PARALLEL])
    return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()


def _numbers(records: Mapping[str, Sequence[Record]]) -> Iterator[Violation]:
    """The gap follows from value and bound, of the plan and of a bound record."""
    for plan in records.get("plan", ()):
        yield from check_gap(plan)
        for record in records.get("bound", ()):
            yield from _bound(plan, record)


def _work(records: Mapping[str, Sequence[Record]]) -> Iterator[Violation]:
    """A group computes what its nodes compute together."""
    groups = [group for group in records.get("group", ()) if "flop" in group]
    nodes = records.get("node", ()) if groups else ()
    flop = {r["id"]: r["flop"] for r in nodes if "flop" in r}
    for group in groups:
        if all(node in flop for node in group["nodes"]):
            total = math.fsum(flop[node] for node in group["nodes"])
            if not same(group["flop"], min(total, MAX_NUMBER)):
                message = f"flop is {group['flop']!r}, its nodes have {total!r}"
                subject = f"group {group['id']}"
                yield Violation("group", subject, message, total, group["flop"])


def check_gap(plan: Record) -> Iterator[Violation]:
    """The gap that a plan states follows from its value and its bound."""
    value, bound = float(plan["value"]), float(plan["bound"])
    gap = (value - bound) / value if value > 0 else 0.0
    return differs("gap", "plan", "the gap", plan["gap"], gap, 1.0)


def _bound(plan: Record, record: Record) -> Iterator[Violation]:
    """Check a bound against its plan; that it is a bound is the certificate's business."""
    value, bound = float(plan["value"]), float(record["value"])
    gap = (value - bound) / value if value > 0 else 0.0
    if above(bound, value):
        message = f"the bound {bound!r} exceeds the value {value!r} of the plan"
        yield Violation("bound", "bound", message, value, bound)
    else:
        yield from differs("gap", "bound", "the gap", record["gap"], gap, 1.0)
    if record["status"] == "optimal" and not same(bound, value):
        message = f"says that the plan is optimal, but its value {value!r} is above {bound!r}"
        yield Violation("status", "bound", message, value, bound)
    if above(bound, float(plan["bound"])):
        message = f"is {bound!r}, but the plan states only {plan['bound']!r}"
        yield Violation("bound", "bound", message, bound, plan["bound"])
    if STRENGTH[record["validity"]] > STRENGTH[plan["validity"]]:
        message = f"holds for {record['validity']} splits, but the plan is {plan['validity']}"
        yield Violation("validity", "bound", message, plan["validity"], record["validity"])
    yield from _tried(record, bound)


def _tried(record: Record, bound: float) -> Iterator[Violation]:
    """The bound is the best of what was tried, by the method that it names."""
    for entry in record["tried"]:
        if "value" in entry and above(float(entry["value"]), bound):
            message = f"{entry['method']} proves {entry['value']!r}, which is more than {bound!r}"
            yield Violation("bound", "bound", message, bound, entry["value"])
    method = record["method"]
    best = [float(e["value"]) for e in record["tried"] if e["method"] == method and "value" in e]
    if record["tried"] and not best:
        message = f"the method {printable(method, 40)!r} is not among those tried"
        yield Violation("bound", "bound", message)
    elif best and above(bound, max(best)):
        message = f"is {bound!r}, but {method} proves {max(best)!r}"
        yield Violation("bound", "bound", message, max(best), bound)


def _provenance(header: Record, records: Mapping[str, Sequence[Record]]) -> Iterator[Violation]:
    """A plan is younger than costs and groups; bounds, schedules and runs follow it in turn."""
    last: dict[str, int] = {}
    for position, entry in enumerate(header["provenance"]):
        last[entry["tool"]] = position
    for kind, makers, earlier in (
        ("plan", ("dnnp-partition", "dnnp-bound"), PRICING),
        ("bound", ("dnnp-bound",), (*PRICING, "dnnp-partition")),
        ("schedule", ("dnnp-schedule",), (*PRICING, "dnnp-partition", "dnnp-bound")),
        ("run", ("dnnp-run",), (*PRICING, "dnnp-partition", "dnnp-bound", "dnnp-schedule")),
    ):
        made = [tool for tool in makers if tool in last]
        if not records.get(kind) or not made:
            continue
        maker = max(made, key=last.__getitem__)
        for tool in earlier:
            if last.get(tool, -1) > last[maker]:
                message = f"{tool} ran after {maker}, yet the {kind} records are still there"
                yield Violation("provenance", "header", message, maker, tool)


OPTIONS = {
    "count": ("-k", "--cpus"),
    "memory_bytes": ("--memory",),
    "overhead_bytes": (),
    "fast_memory_bytes": (),
    "bandwidth_bytes_per_s": ("--bandwidth",),
    "cluster_size": ("--cluster-size",),
    "inner_bandwidth_bytes_per_s": ("--inner-bandwidth",),
    "larger_clusters": ("--cluster-size", "--inner-bandwidth"),
}
"""Fields that a plan takes from a device record -> options that override them."""


def check_made(header: Record, plan: Record, devices: Sequence[Record]) -> Iterator[Violation]:
    """Return what a plan that a command made cannot state of its devices.

    Its k counts the accelerators, and its devices are those of the device records but for what an
    option asked for; records that were edited later have no effect on it. Where nothing says how it
    was made, nothing is known.
    """
    made = [entry["arguments"] for entry in header["provenance"] if _makes_plans(entry)]
    if not made:
        return
    # Whole options, of the last command that made a plan; a value may follow -k at once.
    words = {word.partition("=")[0] for word in made[-1] if not word.startswith("-k")}
    words |= {"-k"} if any(word.startswith("-k") for word in made[-1]) else set()
    count = sum(d.get("count", 0) for d in plan["devices"] if d["kind"] != "cpu")
    if plan["k"] != count:
        message = f"k is {plan['k']}, but {count} accelerators are offered"
        yield Violation("stages", "plan", message, count, plan["k"])
    if "--devices" in words:
        return
    mine: dict[str, dict[str, Any]] = {}
    for device in plan["devices"]:  # limits of single devices divide a class
        name = device.get("of", device["class"])
        count = device.get("count", 0) + mine.get(name, {}).get("count", 0)
        mine[name] = {**device, "count": count}
    for record in devices:
        if record["class"] not in mine:
            continue
        device = mine[record["class"]]
        if device["kind"] == "cpu" != record["kind"] and "--cpus" in words:
            continue  # counted as CPUs: what its record states of an accelerator does not hold
        for name, options in OPTIONS.items():
            free = not words.isdisjoint(options)
            absent = name == "count" and name not in record
            inner = name.startswith("inner") and not record.get("cluster_size")
            if free or absent or inner or _double(device.get(name)) == _double(record.get(name)):
                continue
            if name == "cluster_size" and not (device.get(name) or record.get(name)):
                continue
            message = f"was made for devices with {name} {device.get(name)!r}, "
            message += f"the device record says {record.get(name)!r}"
            yield Violation("digest", "plan", message, record.get(name), device.get(name))


def _double(value: object) -> object:
    """A number as plans hold it: an integer beyond 2^53 is the nearest that a double can be."""
    return float(value) if isinstance(value, int) else value


def _makes_plans(entry: Record) -> bool:
    """Test whether a command surely made a plan; without -k dnnp-bound may have found it."""
    asked = any(word.startswith("-k") for word in entry["arguments"])
    return entry["tool"] == "dnnp-partition" or (entry["tool"] == "dnnp-bound" and asked)


def check_runs(records: Mapping[str, Sequence[Record]]) -> Iterator[Violation]:
    """Return what does not hold between runs, the stages of the plan and its schedule."""
    for number, run in enumerate(records.get("run", ())):
        yield from _names(run, records, f"run {number}")
        yield from _errors(run, f"run {number}")


def _names(
    run: Record, records: Mapping[str, Sequence[Record]], subject: str
) -> Iterator[Violation]:
    """Stages, passes and other runs that a run names are there."""
    entries: Sequence[Record] = run.get("stages", ())
    shards = {stage["id"]: stage.get("shards", 1) for stage in records.get("stage", ())}
    homes = sorted({(entry["stage"], entry.get("shard", 0)) for entry in entries})
    for name, shard in homes if shards else ():
        if shard >= shards.get(name, 0):
            message = f"there is no stage {name}; there are {len(shards)}"
            if name in shards:
                message = f"there is no shard {shard} of stage {name}, which has {shards[name]}"
            yield Violation("stages", subject, message, None, name)
    for link in run.get("links", ()):
        if link["from"] == link["to"] or max(link["from"], link["to"]) >= len(entries):
            message = f"link {link['from']} to {link['to']} is none of its {len(entries)} stages"
            yield Violation("stages", subject, message)
    passes = [row["kind"] for one in records.get("schedule", ())[:1] for row in one["passes"]]
    for move in run.get("transfers", {}).get("moves", ()):
        if passes[move["pass"] : move["pass"] + 1] != ["transfer"]:
            message = f"pass {move['pass']} of the schedule is no transfer, or there is none"
            yield Violation("value", subject, message, None, move["pass"])
    ran = {one["mode"] for one in records.get("run", ())}
    choice = run.get("choice", {})
    for mode in (choice.get("mode"), choice.get("second")):
        if mode is not None and mode not in ran:
            yield Violation("value", subject, f"the choice names {mode}, which did not run")


def _errors(run: Record, subject: str) -> Iterator[Violation]:
    """Errors are none together, and small where outputs are called equal."""
    if run.get("verified") and "mismatch" in run:
        yield Violation("value", subject, "says that it is verified, and names a mismatch")
    largest, relative = run.get("max_abs_error"), run.get("max_rel_error")
    if largest is None or relative is None:
        return
    if (largest == 0) != (relative == 0):
        message = f"max_abs_error is {largest!r}, max_rel_error {relative!r}: both are 0, or none"
        yield Violation("value", subject, message, largest, relative)
    if run.get("verified") and "rtol" in run and "atol" in run:
        allowed = run["rtol"] + max(run["atol"], run.get("self_rel_error", 0.0))
        if above(relative, allowed):
            message = f"says that it is verified, but max_rel_error is {relative!r}, above "
            yield Violation("value", subject, f"{message}{allowed!r}", allowed, relative)
