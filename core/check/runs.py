"""Validate runs: what they name is there, shares and counts are some, `verified` fits the errors.

Works on plain records, as decoded from JSON and already checked one by one: their numbers are
finite and not negative. What was measured is taken as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dnnp.core.check.violation import Violation, above, wrong

Record = Mapping[str, Any]

SHARES = ("bubble", "taken", "share_predicted", "share_measured")
"""Fields that are shares of a time."""

COUNTS = ("threads", "k", "rounds")
"""Fields that are at least 1."""


def check_runs(records: Mapping[str, Sequence[Record]]) -> list[Violation]:
    """Return what does not hold about the run records of a stream.

    Parameters
    ----------
    records
        Record type -> its records: runs, the stages of the plan and its schedule are looked at.
    """
    found = []
    for number, run in enumerate(records.get("run", ())):
        subject = f"run {number}"
        found += [*_ranges(run, subject), *_names(run, records, subject), *_errors(run, subject)]
    return found


def _ranges(run: Record, subject: str) -> Iterator[Violation]:
    """Shares are at most 1, counts at least 1, and the whole model is one."""
    for row in (run, *run.get("stages", ()), run.get("transfers", {})):
        for name in SHARES:
            if row.get(name, 0) > 1:
                message = f"{name} is {row[name]!r}, above 1"
                yield Violation("value", subject, message, 1, row[name])
    for name in COUNTS:
        if run.get(name, 1) < 1:
            yield Violation("value", subject, f"{name} is {run[name]}", 1, run[name])
    if run["mode"] == "whole" and run.get("k", 1) != 1:
        yield wrong(subject, "k", run["k"], 1)


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
    largest, relative = run.get("max_abs_error"), run.get("max_rel_error")
    if largest is None or relative is None:
        return
    if (largest == 0) != (relative == 0):
        message = f"max_abs_error is {largest!r}, max_rel_error {relative!r}: both are 0, or none"
        yield Violation("value", subject, message, largest, relative)
    if run.get("verified") and "rtol" in run and "atol" in run:
        allowed = run["rtol"] + run["atol"]
        if above(relative, allowed):
            message = f"says that it is verified, but max_rel_error is {relative!r}, above "
            yield Violation("value", subject, f"{message}{allowed!r}", allowed, relative)
