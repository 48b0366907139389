"""Plans side by side: which are comparable, a table and a chart of their values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from dnnp.core.model.errors import UsageError
from dnnp.core.model.plan import OBJECTIVES, VALIDITIES, Plan, status_words
from dnnp.core.model.text import printable, shown_bytes, shown_share, shown_time, table
from dnnp.core.view.drawing import (
    PALETTE,
    dashed,
    label,
    marker,
    picture,
    powers,
    text_width,
    ticks,
)
from dnnp.core.view.facts import Facts, Page, rule_words, shortened
from dnnp.core.view.text import laid_out, load_lines, timeline

BEST = "*"
"""Marks the smallest value of what can be compared."""
NAME = 24
"""Most columns of the name of a stream."""
LEGEND = f"{BEST} best for this number of devices and validity"


def draw(streams: Sequence[Facts], page: Page) -> bytes:
    """A line for each plan, in families of one model, objective and unit of time.

    With `page.more` the stages of each plan follow.
    """
    paragraphs: list[list[str]] = []
    found = families(streams)
    for family in found:
        plan = family[0].plan
        title = f"{printable(family[0].model)}: {'' if plan is None else plan.objective}"
        paragraphs.append([title, *_lines(family, page)])
        if page.more:
            paragraphs += [
                [f"{_name(facts)}:", *(load_lines(facts, page) or timeline(facts, page))]
                for facts in family
            ]
    missing = [facts for facts in streams if facts.plan is None]
    if missing:
        names = ", ".join(printable(facts.stream.name) for facts in missing)
        paragraphs.append([f"without a plan: {names}"])
    if any(len(family) > 1 for family in found):
        paragraphs.append([LEGEND])
    return laid_out(paragraphs, page)


def _name(facts: Facts) -> str:
    """Name of a stream in a line."""
    return shortened(facts.stream.name.rpartition("/")[2], NAME)


DROPPED = (
    "memory", "stages", "cut", "rate", "balance", "bound", "share", "status", "time", "rules",
)  # fmt: skip
"""Columns that go first where the page is narrow; tables (`--as csv`) have all."""


def _lines(family: Sequence[Facts], page: Page) -> list[str]:
    """The table of a family, with as many columns as fit the page."""
    rows = _rows(family)
    names = list(rows[0])
    for name in ("", *DROPPED):
        names = [other for other in names if other != name]
        lines = table(names, [[row[n] for n in names] for row in rows], left=(0, 2))
        if max(map(len, lines)) <= page.width:
            break
    return lines


def _rows(family: Sequence[Facts]) -> list[dict[str, str]]:
    """Cells of each plan, by column."""
    plans = [facts.plan for facts in family if facts.plan is not None]
    rows = []
    mixed = len({plan.validity for plan in plans}) > 1
    for facts, plan in zip(family, plans, strict=True):
        moved = sum(cut.size_bytes * len(cut.targets) for cut in facts.cuts)
        memory = max((part.stage.memory_bytes for part in facts.parts), default=0.0)
        share, mark = facts.memory_share, " " * len(BEST)
        if len(plans) > 1 and is_best(plan, plans):
            mark = BEST
        row = {
            "plan": _name(facts),
            "k": str(plan.k),
            "method": shortened(plan.method, 20),
            "value": f"{shown_time(plan.value, facts.seconds)} {mark}",
            "validity": plan.validity,
            "rate": facts.rate,
            "bound": shown_time(plan.bound, facts.seconds),
            "gap": facts.shown_gap(plan.gap),
            "status": status_words(plan),
            "rules": shortened(rule_words(facts), 40),
            "time": "-" if facts.solving_s is None else shown_time(facts.solving_s, True),
            "stages": str(len(facts.parts)),
            "balance": shown_share(facts.balance),
            "cut": shown_bytes(moved),
            "memory": shown_bytes(memory),
            "share": "-" if share is None else shown_share(share),
        }
        if not facts.rate:
            del row["rate"]
        if not any(other.rules for other in plans):
            del row["rules"]
        if not mixed:
            del row["validity"]
        rows.append(row)
    return rows


LACKING = ("infeasible",)
"""Status of plans that cannot run, so that none of them is the best."""


def families(streams: Sequence[Facts]) -> list[list[Facts]]:
    """Group streams with comparable values: one model, objective and unit of time."""
    found: dict[tuple[str, str, bool], list[Facts]] = {}
    for facts in streams:
        if facts.plan is not None:
            found.setdefault((facts.model, facts.plan.objective, facts.seconds), []).append(facts)
    return list(found.values())


def outcomes(plan: Plan) -> list[Plan]:
    """List what the methods found that were tried for a plan, as plans without stages."""
    return [
        replace(
            plan, stages=(), tried=(), method=one.method, value=one.value, bound=one.bound,
            validity=one.validity, status=one.status,
        )
        for one in plan.tried
        if one.value is not None
    ] or [plan]  # fmt: skip


def is_best(plan: Plan, rivals: Sequence[Plan]) -> bool:
    """True if no rival of equal k that keeps at least its validity and rules has a smaller value.

    A plan whose stages form a pipeline is also one that promises less: a free plan has to be
    better than it, not the other way round.
    """
    return plan.status not in LACKING and not any(
        rival.value < plan.value
        for rival in rivals
        if rival.status not in LACKING and rival.k == plan.k and _promises(rival, plan)
    )


def shared_bound(plans: Sequence[Plan], known: Sequence[Plan]) -> float:
    """Best known bound that holds for all of `plans`.

    A bound holds for plans of the same graph, costs, devices and cost model that promise as much
    as the plan that it was proven for, and keep its rules.
    """
    return min(
        max(q.bound for q in known if _promises(plan, q) and _requested(q) == _requested(plan))
        for plan in plans
    )


def _requested(plan: Plan) -> tuple[object, ...]:
    """Key of the problem that a plan solves."""
    return plan.digest, plan.k, plan.options, plan.devices, plan.links


def _promises(plan: Plan, other: Plan) -> bool:
    """True if a plan has at least the validity and the rules of another."""
    ranks = VALIDITIES.index(plan.validity), VALIDITIES.index(other.validity)
    return ranks[0] >= ranks[1] and {*plan.rules} >= {*other.rules}


LEFT, TOP, WIDE, HIGH, LEGEND_WIDE, BOTTOM = 96.0, 44.0, 520.0, 240.0, 210.0, 68.0
"""Pixels: of the axis, the title, a plot at least, the legend, and what is below a plot."""
LOGARITHMIC = 20.0
"""Ratio of the largest value to the smallest one from which an axis is logarithmic."""
SIZE, MOST_NAME = 11, 160.0
"""Pixels: of text, and of the longest name below a plot that is not shortened."""


class _Panel(NamedTuple):
    """Plans of one model."""

    title: str
    value: str
    """Name of its values."""
    seconds: bool
    columns: list[str]
    """Places on the axis from left to right."""
    series: dict[str, list[float | None]]
    """Best value at each place, by name."""
    bounds: list[float | None]
    """Best bound that holds for all plans at each place."""

    @property
    def wide(self) -> float:
        """Pixels of the plot: as many as the names below it need."""
        names = [part for column in self.columns for part in column.split(", ", 1)]
        longest = max(text_width(name, SIZE) for name in names)
        return max(WIDE, len(self.columns) * (min(longest, MOST_NAME) + 8))


def plot(streams: Sequence[Facts], axis: str) -> bytes:
    """The chart, with a panel for each model.

    Raises `UsageError` if no stream has a plan.
    """
    panels = [_panel(family, axis) for family in families(streams)]
    if not panels:
        raise UsageError("--plot: none of the streams has a plan")
    body: list[str] = []
    height = 0.0
    for panel in panels:
        rows = max(HIGH, 20.0 * (len(panel.series) + 2))
        body += _drawn(panel, axis, height, rows)
        height += TOP + rows + BOTTOM
    summary = "; ".join(_in_words(panel) for panel in panels)
    wide = max(panel.wide for panel in panels)
    return picture(LEFT + wide + LEGEND_WIDE, height, f"values of plans over {axis}", summary, body)


def _panel(family: Sequence[Facts], axis: str) -> _Panel:
    made = [facts.plan for facts in family if facts.plan is not None]
    plans = [outcome for plan in made for outcome in outcomes(plan)]
    mixed = len({plan.validity for plan in plans}) > 1
    ks = sorted({plan.k for plan in plans})
    methods = list(dict.fromkeys(_called(plan, mixed) for plan in plans))
    columns = [str(k) for k in ks] if axis == "k" else methods
    names = methods if axis == "k" else [f"k = {k}" for k in ks]

    def place(plan: Plan) -> tuple[str, str]:
        method = _called(plan, mixed)
        return (method, str(plan.k)) if axis == "k" else (f"k = {plan.k}", method)

    found: dict[tuple[str, str], float] = {}
    for plan in plans:
        found[place(plan)] = min(plan.value, found.get(place(plan), math.inf))
    # A bound holds for one number of devices.
    single = axis == "k" or len(ks) == 1
    there = [[plan for plan in plans if place(plan)[1] == column] for column in columns]
    return _Panel(
        family[0].model,
        OBJECTIVES[plans[0].objective],
        family[0].seconds,
        columns,
        {name: [found.get((name, column)) for column in columns] for name in names},
        [shared_bound(each, [*plans, *made]) if single else None for each in there],
    )


def _called(plan: Plan, mixed: bool) -> str:
    """Method of a plan, with its validity or status if that is weaker than others."""
    lacking = [plan.validity] if mixed and plan.validity != VALIDITIES[-1] else []
    if plan.status in LACKING:
        lacking.append(plan.status)
    return ", ".join([plan.method, *lacking])


def _drawn(panel: _Panel, axis: str, top: float, high: float) -> list[str]:
    """The panel from `top` on; `high` is the height of its plot."""
    values = [v for row in panel.series.values() for v in row if v is not None]
    known = values + [b for b in panel.bounds if b]
    most, least = max(known), min(v for v in known if v > 0) if any(known) else 0.0
    logarithmic = least > 0 and most / least > LOGARITHMIC
    low = least / 1.2 if logarithmic else 0.0
    upper = (most or 1.0) * (1.2 if logarithmic else 1.06)
    base = top + TOP + high

    def y_of(value: float) -> float:
        if logarithmic:
            share = math.log(max(value, low) / low) / math.log(upper / low)
        else:
            share = value / upper
        return base - share * high

    step = panel.wide / len(panel.columns)
    xs = [LEFT + step * (i + 0.5) for i in range(len(panel.columns))]
    lines = [label(LEFT, top + 22, panel.title, 14, extra=' font-weight="bold"', width=panel.wide)]
    for value in powers(low, upper) if logarithmic else ticks(0.0, upper):
        y = y_of(value)
        lines.append(
            f'<path d="M{LEFT} {y:.1f}h{panel.wide}" stroke="currentColor" stroke-opacity="0.15"/>'
        )
        lines.append(label(LEFT - 8, y + 4, shown_time(value, panel.seconds), SIZE, "end"))
    lines.append(f'<path d="M{LEFT} {base - high:.1f}v{high:.1f}h{panel.wide}" fill="none" '
                 'stroke="currentColor"/>')  # fmt: skip
    for x, column in zip(xs, panel.columns, strict=True):
        method, _, lacking = column.partition(", ")
        lines.append(label(x, base + 17, method, SIZE, "middle", width=step - 6))
        if lacking:
            lines.append(label(x, base + 31, lacking, SIZE, "middle", width=step - 6))
    title = "devices (k)" if axis == "k" else "method"
    lines.append(label(LEFT + panel.wide / 2, base + 50, title, SIZE, "middle"))
    unit = panel.value if panel.seconds else f"{panel.value}, unit not known"
    if logarithmic:
        unit += ", logarithmic"
    turned = f' transform="rotate(-90 14 {base - high / 2:.1f})"'
    lines.append(label(14, base - high / 2, unit, SIZE, "middle", turned))
    for x, bound in zip(xs, panel.bounds, strict=True):
        if bound:
            lines.append(dashed(f"M{x - step / 2 + 2:.1f} {y_of(bound):.1f}h{step - 4:.1f}"))
    for number, row in enumerate(panel.series.values()):
        # Marks of equal values stand side by side.
        aside = (number - (len(panel.series) - 1) / 2) * min(8.0, step / (len(panel.series) + 1))
        points = [(x + aside, y_of(v)) for x, v in zip(xs, row, strict=True) if v is not None]
        if axis == "k" and len(points) > 1:
            way = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            color = PALETTE[number % len(PALETTE)]
            lines.append(
                f'<polyline points="{way}" fill="none" stroke="{color}" stroke-width="1.6"/>'
            )
        lines += [marker(number, x, y) for x, y in points]
    return lines + _legend(panel, top + TOP)


def _legend(panel: _Panel, top: float) -> list[str]:
    """Names of the series beside the panel."""
    x = LEFT + panel.wide + 22
    lines = []
    for number, name in enumerate(panel.series):
        y = top + 10 + 20 * number
        lines.append(marker(number, x, y - 4))
        lines.append(label(x + 12, y, name, SIZE, width=LEGEND_WIDE - 46))
    if any(panel.bounds):
        y = top + 10 + 20 * len(panel.series)
        lines.append(dashed(f"M{x - 8} {y - 4}h18"))
        lines.append(label(x + 16, y, "proven bound", SIZE))
    return lines


def _in_words(panel: _Panel) -> str:
    """Describe a panel in words."""
    parts = []
    for name, row in panel.series.items():
        found = ", ".join(
            f"{column}: {shown_time(value, panel.seconds)}"
            for column, value in zip(panel.columns, row, strict=True)
            if value is not None
        )
        parts.append(f"{name}: {found}")
    return f"{panel.title}, {panel.value}: " + "; ".join(parts)
