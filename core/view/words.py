"""Numbers and names as people read them."""

from __future__ import annotations

from dataclasses import dataclass

from dnnp.core.model.text import printable, shown_bytes, shown_time, table
from dnnp.core.view.facts import Facts
from dnnp.formats.stream import Record


@dataclass(frozen=True)
class Page:
    """Layout of a text."""

    width: int = 100
    """Columns."""
    plain: bool = False
    """ASCII alone."""
    color: bool = False
    """Bars in colours of a terminal."""
    more: bool = False
    """All rows; else the most important ones."""
    rows: int = 16
    """Rows of a list, unless `more`."""

    def most(self, count: int) -> int:
        """Number of rows of a list that are shown."""
        return count if self.more else min(count, self.rows)


def lacking(excess_bytes: float) -> str:
    """Describe a plan that needs so much more memory than a device has."""
    return f"infeasible: a device lacks {shown_bytes(excess_bytes)} of memory"


def shown_rate(value: float) -> str:
    """Format samples a second, from the time that one takes.

    >>> shown_rate(0.002), shown_rate(8.667e-5), shown_rate(0.0)
    ('500/s', '11538/s', '-')
    """
    if not value > 0:
        return "-"
    return f"{1 / value:.0f}/s" if 1e-9 < value < 1e-3 else f"{1 / value:.4g}/s"


def shortened(text: str, width: int) -> str:
    """A name on at most `width` columns, without its middle if it is longer.

    >>> shortened("/encoder/layer.11/attention/MatMul", 20)
    '/encoder...on/MatMul'
    >>> shortened("short", 20)
    'short'
    """
    text = printable(text)
    if len(text) <= width:
        return text
    if width < 6:
        return text[:width]
    head = (width - 3) // 2
    return f"{text[:head]}...{text[len(text) - (width - 3 - head) :]}"


SAYS = {
    "simple": "all devices share the work evenly, or the longest unit takes so long",
    "node-cut": "every stage that holds a certain unit computes and moves at least so much",
    "cpu-cut": "units that cost accelerators more are too many for the CPUs",
    "pairs": "pairs of units that share no stage make tensors move so often that the loads add up",
    "chain": "stages with smaller loads do not get to the end of a path through the graph",
    "zone-cut": "stages that pay at least for minimum cuts do not get to the end of a path",
    "same-block": "inequalities that every split meets, multiplied and added up",
    "cover": "units have prices, and too few stages with smaller loads to pay for all of them",
    "cover-cut": "units have prices; with smaller loads all devices hold less than there is",
    "ideal": "all order ideals were searched",
    "halves": "a tree of cuts leaves no better split over two devices",
    "links": "not even the best links between the devices allow less",
    "exact": "an integer program of all splits, or its relaxation",
}
"""Argument of a certificate -> its meaning."""


def proof_lines(facts: Facts) -> list[str]:
    """The bound, what was tried for it, and what its certificate says."""
    record = facts.bound
    if record is None:
        return []
    value, gap = shown_time(record["value"], facts.seconds), facts.shown_gap(record["gap"])
    lines = [
        f"bound by {record['method']}: {value}, gap {gap}, {record['status']}, for "
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
"""Columns of `method_rows`; the last two are status and reason."""


def method_rows(facts: Facts) -> list[list[str]]:
    """Cells of what each method found, where several were tried."""
    if facts.plan is None:
        return []
    return [
        [
            one.method,
            shown_time(one.value, facts.seconds),
            "-" if one.value is None else facts.shown_gap(one.gap),
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
    """Say what a run that compared ways advises to deploy; empty: it compared none."""
    found = run.get("choice")
    return f"to deploy: {found['mode']}, {found['reason']}" if found else ""
