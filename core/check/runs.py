"""Validate the figures of runs: against each other, the plan that ran and its schedule.

Works on plain records, as decoded from JSON and already checked one by one. What was measured
cannot be recomputed, but its figures follow from each other in part, and bound each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dnnp.core.check.arrivals import Redrawn
from dnnp.core.check.moves import check_transfers
from dnnp.core.check.served import check_served
from dnnp.core.check.violation import Violation, above, same, wrong

Record = Mapping[str, Any]

SHARES = ("bubble", "taken")
"""Fields of a run, and of its stages, that are shares of a time."""


def check_runs(records: Mapping[str, Sequence[Record]]) -> list[Violation]:
    """Return what does not hold about the run records of a stream.

    Parameters
    ----------
    records
        Record type -> its records: runs, the plan, its stages and its schedule are looked at.
    """
    found, redrawn = [], Redrawn()
    for number, run in enumerate(records.get("run", ())):
        subject = f"run {number}"
        found += _ranges(run, subject) + _figures(run, subject)
        found += check_served(run, redrawn, subject)
        if run["mode"] == "pipeline":
            found += _stages(run, records, subject) + _predicted(run, records, subject)
            found += _links(run, subject)
        if "transfers" in run:
            found += check_transfers(run, records, subject)
        found += _restarts(run, subject)
        if "choice" in run:
            found += _choice(run, records["run"], subject)
    return found + _counts(records)


def _ranges(run: Record, subject: str) -> list[Violation]:
    """Shares are between 0 and 1, counts at least 1."""
    found = []
    shares = [(name, run.get(name)) for name in SHARES]
    for i, entry in enumerate(_entries(run)):
        shares += [(f"{name} of entry {i}", entry.get(name)) for name in SHARES]
    for name, share in shares:
        if share is not None and share > 1:
            found.append(Violation("value", subject, f"{name} is {share!r}, above 1", 1, share))
    for name in ("threads", "k", "rounds"):
        if run.get(name, 1) < 1:
            found.append(Violation("value", subject, f"{name} is {run[name]}", 1, run[name]))
    if run["mode"] == "whole" and run.get("k", 1) != 1:
        found.append(wrong(subject, "k", run["k"], 1))
    return found


def _restarts(run: Record, subject: str) -> list[Violation]:
    """Workers that were started again are workers of the run, and had a sample."""
    entries = _entries(run)
    known = set()
    for i, entry in enumerate(entries):
        copies = entry.get("replicas", 1)
        known |= {f"replica {j} of stage {i}" for j in range(copies)} if copies > 1 else {
            f"stage {i}"
        }  # fmt: skip
    found = []
    for i, loss in enumerate(run.get("restarts", ())):
        if loss["worker"] not in known:
            message = f"restart {i} names {loss['worker']!r}, which is no worker of the run"
            found.append(Violation("value", subject, message))
        if loss["sample"] < 0:
            message = f"restart {i} names sample {loss['sample']}"
            found.append(Violation("value", subject, message))
    if run.get("restarts") and "workers" not in run:
        message = "says that workers were started again, but threads cannot be lost"
        found.append(Violation("value", subject, message))
    return found


def _entries(run: Record) -> Sequence[Record]:
    """What a run says about stages."""
    entries: Sequence[Record] = run.get("stages", ())
    return entries


def _figures(run: Record, subject: str) -> list[Violation]:
    """What follows from other figures of the run."""
    found = []
    if "elapsed_s" in run and "throughput_per_s" in run:
        counted = float(run["throughput_per_s"]) * run["elapsed_s"] * run.get("rounds", 1)
        if not same(counted, run["samples"]):
            message = f"throughput_per_s, elapsed_s and rounds make {counted!r} samples, "
            message += f"but it states {run['samples']}"
            found.append(Violation("value", subject, message, counted, run["samples"]))
    makespan = run.get("makespan_measured_s")
    if makespan is not None and "elapsed_s" in run and not same(makespan, run["elapsed_s"]):
        found.append(wrong(subject, "makespan_measured_s", makespan, run["elapsed_s"]))
    low, high = run.get("latency_p50_s"), run.get("latency_p99_s")
    if low is not None and high is not None and above(low, high):
        message = f"half of the samples take more than {low!r}, 1 % of them more than {high!r}"
        found.append(Violation("value", subject, message, high, low))
    # In a pipeline a sample may have entered before the warm-up was done.
    inside = run["mode"] != "pipeline" or makespan is not None
    if inside and "elapsed_s" in run and high is not None and above(high, run["elapsed_s"]):
        message = f"samples take up to {high!r}, all of them {run['elapsed_s']!r}"
        found.append(Violation("value", subject, message, run["elapsed_s"], high))
    if "elapsed_s" in run and low is not None and run["mode"] != "pipeline":
        # Every copy runs one sample at a time, and half of all take the median or more.
        room, each = run["elapsed_s"] * run.get("k", 1), run["samples"] / run.get("rounds", 1)
        if run.get("rounds", 1) == 1 and above(each / 2 * low, room):
            message = f"{each:g} samples of a median of {low!r} do not fit into {room!r}"
            found.append(Violation("value", subject, message, room, low))
    for entry in _entries(run):
        took = entry.get("measured_s", 0.0) * entry.get("replicas", 1)
        if low is not None and above(took, low):
            message = f"a sample takes {took!r} in stage {entry['stage']}, but {low!r} in all"
            found.append(Violation("value", subject, message, low, took))
    idle = [entry["bubble"] for entry in _entries(run) if "bubble" in entry]
    if idle and "bubble" in run and run.get("rounds", 1) == 1 and makespan is None:
        share = run["bubble"]
        if above(min(idle), share) or above(share, max(idle)):
            message = f"the bubble is {share!r}, those of stages are {min(idle)!r} to {max(idle)!r}"
            found.append(Violation("value", subject, message, max(idle), share))
    return found + _errors(run, subject)


def _errors(run: Record, subject: str) -> list[Violation]:
    """Errors are none together, and small where outputs are called equal."""
    found = []
    largest, relative = run.get("max_abs_error"), run.get("max_rel_error")
    if largest is not None and relative is not None and (largest == 0) != (relative == 0):
        message = f"max_abs_error is {largest!r}, max_rel_error {relative!r}: both are 0, or none"
        found.append(Violation("value", subject, message, largest, relative))
    if run.get("verified") and "rtol" in run and "atol" in run and relative is not None:
        allowed = run["rtol"] + run["atol"]
        if above(relative, allowed):
            message = f"says that it is verified, but max_rel_error is {relative!r}, above "
            message += f"{allowed!r}"
            found.append(Violation("value", subject, message, allowed, relative))
    return found


def _stages(run: Record, records: Mapping[str, Sequence[Record]], subject: str) -> list[Violation]:
    """Entries are those of the plan's stages, of the passes of its schedule, or parts of stages."""
    stages = {stage["id"]: stage for stage in records.get("stage", ())}
    entries, found = _entries(run), []
    if not entries or not stages:
        return []
    if run.get("k", len(entries)) != len(entries):
        found.append(wrong(subject, "k", run["k"], len(entries)))
    for entry in entries:
        stage = stages.get(entry["stage"])
        if stage is None:
            message = f"there is no stage {entry['stage']}; there are {len(stages)}"
            found.append(Violation("stages", subject, message, None, entry["stage"]))
            continue
        shards = stage.get("shards", 1)
        if not 0 <= entry.get("shard", 0) < shards or ("shard" in entry) != (shards > 1):
            message = f"shard {entry.get('shard')} of stage {stage['id']}, which has {shards}"
            found.append(Violation("stages", subject, message, shards, entry.get("shard")))
            continue
        for name, default in (("device", ""), ("replicas", 1)):
            expected, stated = stage.get(name, default), entry.get(name, default)
            if name == "device" and shards > 1:
                kind, _, first = stage["device"].rpartition("/")
                expected = f"{kind}/{int(first) + entry['shard']}"
            if stated != expected:
                found.append(wrong(subject, f"{name} of stage {stage['id']}", stated, expected))
    taken = [entry["taken"] for entry in entries if "taken" in entry]
    if taken and run.get("taken") != max(taken):
        found.append(wrong(subject, "taken", run.get("taken"), max(taken)))
    count = Counter(entry["stage"] for entry in entries)
    missing = [s for s, stage in stages.items() if stage["nodes"] and not count[s]]
    if missing:
        message = f"says nothing about stage {missing[0]}"
        found.append(Violation("stages", subject, message, None, missing[0]))
    return found or _loads(run, stages, records, subject)


def _links(run: Record, subject: str) -> list[Violation]:
    """Links join stages of the run, each pair once, in ways that these can hand over."""
    entries, found = _entries(run), []
    seen = Counter((link["from"], link["to"]) for link in run.get("links", ()))
    for link in run.get("links", ()):
        ends = (link["from"], link["to"])
        name = f"link {ends[0]} to {ends[1]}"
        if ends[0] == ends[1] or max(ends) >= len(entries) or seen[ends] > 1:
            message = f"{name} is no link of two of its {len(entries)} stages, or is there twice"
            found.append(Violation("stages", subject, message, None, max(ends)))
            continue
        tail, head = (entries[i] for i in ends)
        gpus = tail.get("gpus"), head.get("gpus")
        on_cpu = all(e.get("provider", run["provider"]) == "cpu" for e in (tail, head))
        wrong = {
            "shared": not on_cpu,
            "device": gpus[0] != gpus[1] or len(gpus[0] or ()) != 1,
            "peer": None in gpus or (gpus[0] == gpus[1] and len(gpus[0] or ()) == 1),
            "host": on_cpu,
        }
        if run.get("workers") is not None:  # nothing stays on a GPU; Ray may cross machines
            remote = run["workers"] == "ray"
            wrong |= {"device": True, "peer": True, "host": on_cpu and not remote}
            wrong["shared"] = remote or not on_cpu
        if wrong[link["how"]]:
            message = f"{name} is '{link['how']}', which is not how its stages could hand over"
            found.append(Violation("value", subject, message, None, link["how"]))
    return found


def _loads(
    run: Record,
    stages: Mapping[int, Record],
    records: Mapping[str, Sequence[Record]],
    subject: str,
) -> list[Violation]:
    """The loads that were predicted are those of the plan, or of the passes that ran."""
    entries = _entries(run)
    schedules = records.get("schedule", ())
    expected: list[float] = []
    if schedules and "makespan_predicted_s" in run:
        rows = [
            (row["stage"], number, row)
            for number, row in enumerate(schedules[0]["passes"])
            if row["kind"] == "forward" and row.get("stage") in stages and row.get("nodes") != []
        ]
        for number, _, row in sorted(rows, key=lambda r: r[:2]):
            stage = stages[number]
            whole = len(row.get("nodes", stage["nodes"])) == len(stage["nodes"])
            time = row["time_s"] / stage.get("replicas", 1)
            expected.append(float(stage["load_s"] if whole else time))
        if len(expected) != len(entries):
            message = f"has {len(entries)} entries, the schedule {len(expected)} passes that run"
            return [Violation("stages", subject, message, len(expected), len(entries))]
        pairs = list(zip([e["predicted_s"] for e in entries], expected, strict=True))
    else:
        total: dict[tuple[int, int], list[float]] = {}
        for entry in entries:
            home = entry["stage"], entry.get("shard", 0)
            total.setdefault(home, []).append(float(entry["predicted_s"]))
        pairs = []
        for (s, _), parts in total.items():
            # Parts of a stage are predicted by their computation alone.
            copies = 1 if len(parts) == 1 else stages[s].get("replicas", 1)
            load = stages[s]["load_s" if len(parts) == 1 else "compute_s"]
            pairs.append((sum(parts), float(load) / copies))
    return [
        wrong(subject, "predicted_s", stated, load)
        for stated, load in pairs
        if not same(stated, load)
    ]


def _predicted(
    run: Record, records: Mapping[str, Sequence[Record]], subject: str
) -> list[Violation]:
    """What plan and schedule predicted is what they say."""
    found = []
    plans, schedules = records.get("plan", ()), records.get("schedule", ())
    if "latency_predicted_s" in run:
        late = [plan["value"] for plan in plans if plan["objective"] == "latency"]
        if not late:
            message = "latency_predicted_s is stated, but the plan is not one for latency"
            found.append(Violation("value", subject, message))
        elif not same(run["latency_predicted_s"], late[0]):
            found.append(wrong(subject, "latency_predicted_s", run["latency_predicted_s"], late[0]))
    if "makespan_predicted_s" in run:
        if not schedules:
            message = "makespan_predicted_s is stated, but there is no schedule"
            found.append(Violation("value", subject, message))
            return found
        makespan, count = schedules[0]["makespan_s"], schedules[0]["micro_batches"]
        if not same(run["makespan_predicted_s"], makespan):
            name = "makespan_predicted_s"
            found.append(wrong(subject, name, run[name], makespan))
        wanted = count * run.get("rounds", 1)
        if run["samples"] > wanted or (not run.get("interrupted") and run["samples"] < wanted):
            found.append(wrong(subject, "samples", run["samples"], wanted))
    return found


def _choice(run: Record, runs: Sequence[Record], subject: str) -> list[Violation]:
    """What is to be deployed is the fastest of what ran, by so much."""
    choice = run["choice"]
    rates = {one["mode"]: float(one.get("throughput_per_s", 0.0)) for one in runs}
    base = float(run.get("throughput_per_s", 0.0))
    mode, second = choice["mode"], choice.get("second")
    found = []
    for name in (mode, second):
        if name is not None and name not in rates:
            message = f"the choice names {name}, which did not run"
            found.append(Violation("value", subject, message))
    if found or base <= 0:
        return found
    for one in choice.get("ruled_out", ()):
        if one["mode"] in rates:
            message = f"the choice rules {one['mode']} out, which ran"
            found.append(Violation("value", subject, message))
    others = {name: rate for name, rate in rates.items() if name != mode}
    best = max(others, key=others.__getitem__, default=None)
    if best is not None and above(others[best], rates[mode]):
        found.append(wrong(subject, "the mode of the choice", mode, best))
    figures = {"ratio": rates[mode] / base}
    if best is not None:
        if second is None or above(others[best], rates[second]):
            found.append(wrong(subject, "the second of the choice", second, best))
        elif rates[second]:
            figures["lead"] = rates[mode] / rates[second]
    for name, expected in figures.items():
        if not same(choice.get(name, 0.0), expected):
            found.append(wrong(subject, f"{name} of the choice", choice.get(name), expected))
    return found


def _counts(records: Mapping[str, Sequence[Record]]) -> list[Violation]:
    """Ways to run a model that are compared ran as many samples."""
    runs = records.get("run", ())
    if any(run.get("interrupted") for run in runs):
        return []
    counts = {number: run["samples"] for number, run in enumerate(runs)}
    if len(set(counts.values())) < 2:
        return []
    shown = ", ".join(map(str, counts.values()))
    message = f"the runs that are compared have {shown} samples"
    return [Violation("value", "run", message)]
