"""Validate what runs say of the transfers of a schedule.

Works on plain records, as decoded from JSON and already checked one by one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dnnp.core.check.violation import Violation, above, same, wrong

Record = Mapping[str, Any]


def check_transfers(
    run: Record, records: Mapping[str, Sequence[Record]], subject: str
) -> list[Violation]:
    """Transfers are those of the schedule, and their figures fit each other and the makespan."""
    schedules, stated = records.get("schedule", ()), run["transfers"]
    if not schedules:
        message = "transfers are stated, but there is no schedule"
        return [Violation("value", subject, message)]
    schedule = schedules[0]
    own = {n: row for n, row in enumerate(schedule["passes"]) if row["kind"] == "transfer"}
    named = [move["pass"] for move in stated["moves"]]
    if named != list(own):
        message = f"moves are of the passes {named}, the transfers of the schedule are {list(own)}"
        return [Violation("value", subject, message)]
    carriers = {unit for row in own.values() for home in row["homes"] for unit in home}
    homes = all(row["homes"] for row in own.values())
    if not homes or not all(0 <= unit < len(schedule["units"]) for unit in carriers):
        return []  # the schedule does not hold, as others say
    found = []
    for move in stated["moves"]:
        found += _move(run, move, schedule, subject)
    return found + _shares(run, own, len(carriers), records, subject)


def _move(run: Record, move: Record, schedule: Record, subject: str) -> list[Violation]:
    """What is said of one transfer."""
    row = schedule["passes"][move["pass"]]
    links = {schedule["units"][unit].get("link", False) for home in row["homes"] for unit in home}
    what, measured, found = f"transfer {row['name']}", move["measured_s"], []
    if move["blocking"] == (links == {True}):
        found.append(wrong(subject, f"blocking of {what}", move["blocking"], links != {True}))
    if not same(move["predicted_s"], row["time_s"]):
        name = f"predicted_s of {what}"
        found.append(wrong(subject, name, move["predicted_s"], row["time_s"]))
    emulated = run["transfers"]["how"] == "emulated" and run["samples"] > 0
    if emulated and above(row["time_s"], measured):
        message = f"an emulated {what} takes {measured!r}, less than {row['time_s']!r}"
        found.append(Violation("value", subject, message, row["time_s"], measured))
    return found


def _shares(
    run: Record,
    own: Mapping[int, Record],
    carriers: int,
    records: Mapping[str, Sequence[Record]],
    subject: str,
) -> list[Violation]:
    """The share that was predicted is that of the schedule, that measured holds what moved."""
    stated, found = run["transfers"], []
    spent = math.fsum(
        len(row["units"]) * (row["end_s"] - row["start_s"])
        for row in records.get("block", ())
        if row["pass"] in own
    )
    whole = records["schedule"][0]["makespan_s"] * carriers
    share = min(spent / whole, 1.0) if whole > 0 else 0.0
    if not same(stated["share_predicted"], share):
        found.append(wrong(subject, "share_predicted", stated["share_predicted"], share))
    if stated["share_measured"] > 1:
        message = f"share_measured is {stated['share_measured']!r}, above 1"
        return [*found, Violation("value", subject, message, 1, stated["share_measured"])]
    # Half of all samples take the median or more.
    least = math.fsum(
        run["samples"] / 2 * min(map(len, own[move["pass"]]["homes"])) * move["measured_s"]
        for move in stated["moves"]
    )
    room = carriers * run.get("makespan_measured_s", math.inf) * stated["share_measured"]
    if run.get("rounds", 1) == 1 and above(least, room):
        message = f"transfers take {least!r} at least, but share_measured leaves {room!r}"
        found.append(Violation("value", subject, message, room, least))
    return found
