"""What is known of a plan, in words: what is proven, what it was compared with."""

from __future__ import annotations

from dnnp.core.model.text import printable, shown_time, table
from dnnp.core.view.facts import Facts
from dnnp.core.view.words import shown_share
from dnnp.formats.stream import Record

SAYS = {
    "simple": "all devices share the work evenly, or the longest unit takes so long",
    "node-cut": "every stage that holds a certain unit computes and moves at least so much",
    "pairs": "pairs of units that share no stage make tensors move so often that the loads add up",
    "chain": "stages with smaller loads do not get to the end of a path through the graph",
    "zone-cut": "stages that pay at least for minimum cuts do not get to the end of a path",
    "same-block": "inequalities that every split meets, multiplied and added up",
    "cover": "units have prices, and too few stages with smaller loads to pay for all of them",
    "ideal": "all order ideals were searched",
    "halves": "a tree of cuts leaves no better split over two devices",
    "links": "not even the best links between the devices allow less",
    "exact": "an integer program of all splits, or its relaxation",
}
"""What the argument of a certificate means."""


def proof_lines(facts: Facts) -> list[str]:
    """The bound, what was tried for it, and what its certificate says."""
    record = facts.bound
    if record is None:
        return []
    value, gap = shown_time(record["value"], facts.seconds), max(record["gap"], 0.0)
    lines = [
        f"bound by {record['method']}: {value}, gap {shown_share(gap)}, {record['status']}, for "
        f"{record['validity']} splits"
    ]
    rows = [
        [
            entry["method"],
            entry["status"],
            shown_time(entry.get("value"), facts.seconds),
            printable(entry.get("reason", "")),
        ]
        for entry in record["tried"]
    ]
    if rows:
        lines += [line.rstrip() for line in table(["tried", "", "value", ""], rows, left=(0, 1, 3))]
    certificate = record.get("certificate")
    if certificate is not None:
        argument = str(certificate["argument"])
        meaning = SAYS.get(argument)
        said = f"certificate: {printable(argument)}" + (f": {meaning}" if meaning else "")
        if certificate.get("checkable") is False:
            lines += [said, "it cannot be verified without the search that found it"]
        else:
            lines += [said, "verify it with: dnnp-check --certificate"]
    return lines


METHODS = ("method", "value", "gap", "time", "", "")
"""What the columns of `method_rows` are; the last two are status and reason."""


def method_rows(facts: Facts) -> list[list[str]]:
    """What each method found, where several were tried."""
    if facts.plan is None:
        return []
    return [
        [
            one.method,
            shown_time(one.value, facts.seconds),
            "-" if one.value is None else shown_share(max(one.gap, 0.0)),
            "-" if one.time_s is None else shown_time(one.time_s, True),
            ", ".join(part for part in (one.validity, one.status) if part),
            one.reason,
        ]
        for one in facts.plan.tried
    ]


def way_rows(facts: Facts) -> list[list[str]]:
    """Each way to use the devices, and its value or why it has none, where ways were compared."""
    if facts.plan is None:
        return []
    return [
        [way.name, way.reason or shown_time(way.value, facts.seconds)] for way in facts.plan.ways
    ]


def advice(run: Record) -> str:
    """What a run that compared the plan with others says is to be deployed; empty: it did not."""
    found = run.get("choice")
    return f"to deploy: {found['mode']}, {found['reason']}" if found else ""
