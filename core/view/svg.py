"""Pictures of a plan: what loads are made of, the schedule, the graph coloured by stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from dnnp.core.model.errors import UsageError
from dnnp.core.model.graph import row_of
from dnnp.core.model.plan import OBJECTIVES, Plan
from dnnp.core.model.text import printable, shown_bytes, shown_time
from dnnp.core.view.drawing import (
    BOLD,
    PALETTE,
    Drawn,
    box,
    dashed,
    label,
    legend,
    picture,
    schedule_picture,
    text_width,
)
from dnnp.core.view.facts import (
    LOADS,
    OVERLAP,
    Facts,
    Part,
    amount,
    bar_bound,
    lacking,
    longest_bar,
    most_loaded,
    parts_overlap,
    plan_notes,
    shared_words,
    used_loads,
    working,
)
from dnnp.core.view.layout import (
    Box,
    Edges,
    Layout,
    bows,
    boxes_of,
    edges_of,
    heaviest,
    lay_out,
    levels_of,
)
from dnnp.formats.stream import Stream

MOST_BOXES, MOST_EDGES, MOST_STAGES = 300, 1500, 64
"""Boxes and lines of a graph, and stages, that a picture shows."""
BAR, ROW, HEAD = 460.0, 30.0, 34.0
"""Pixels: the longest bar, a row of a stage, what is above the rows."""
BOX, HIGH, GAP, DROP = 150.0, 34.0, 14.0, 34.0
"""Pixels: a box of a graph, wide and high, and what lies between two."""
FILLS = {
    "in": "#56B4E9", "compute": "#0072B2", "overflow": "#D55E00", "out": "#E69F00",
    "sync": "#CC79A7",
}  # fmt: skip


def draw(facts: Facts, which: str) -> bytes:
    """Pictures below each other.

    `which`: `schedule`, `loads`, `graph`, or `all` that there are. Raises `UsageError` if there is
    nothing to draw.
    """
    made = {name: make(facts) for name, make in PICTURES.items() if which in (name, "all")}
    drawn = [one for one in made.values() if one is not None]
    if not drawn:
        needs = {"schedule": "schedule", "graph": "graph"}.get(which, "plan")
        raise UsageError(f"there is nothing to draw: the stream has no {needs}")
    body, height = [label(12, 26, facts.model, 15, extra=BOLD, width=680)], 40.0
    for one in drawn:
        body.append(f'<g transform="translate(12 {height:.0f})">')
        body += [*one.body, "</g>"]
        height += one.height + 24
    width = max(720.0, *(one.width + 24 for one in drawn))
    return picture(width, height, facts.model, "; ".join(one.summary for one in drawn), body)


def schedule_svg(stream: Stream) -> bytes:
    """The schedule of a stream alone."""
    record = stream.get("schedule")[0]
    one = schedule_picture(record, stream.get("block"), stream.in_seconds)
    return picture(one.width, one.height, str(stream.header["model"]), one.summary, one.body)


def _schedule(facts: Facts) -> Drawn | None:
    if facts.schedule is None:
        return None
    return schedule_picture(facts.schedule, facts.stream.get("block"), facts.seconds)


def _loads(facts: Facts) -> Drawn | None:
    """A bar a stage; of a plan for latency when it works."""
    plan = facts.plan
    if plan is None:
        return None
    late = plan.objective == "latency"
    numbers = most_loaded(facts.parts, MOST_STAGES)
    names = [
        " · ".join(filter(None, (str(number), part.stage.where, part.layers)))
        for number, part in ((number, facts.parts[number]) for number in numbers)
    ]
    sizes = [_numbers(facts, facts.parts[number]) for number in numbers]
    left = min(max((text_width(name, 11) for name in names), default=0.0), 300.0) + 14
    scale = BAR / ((plan.value or 1.0) if late else longest_bar(facts.parts))
    body = []
    for i, number in enumerate(numbers):
        y, part = HEAD + ROW * i, facts.parts[number]
        body.append(label(0, y + 18, names[i], 11, width=left - 8))
        if late:
            body += [
                box(left + a * scale, y + 3, (b - a) * scale, ROW - 8, PALETTE[number % 8],
                    f"stage {number}: {shown_time(a, facts.seconds)} to "
                    f"{shown_time(b, facts.seconds)}")
                for a, b in working(part)
            ]  # fmt: skip
        else:
            body += _bar(facts, part, left, y + 3, scale)
        body.append(label(left + BAR + 12, y + 18, sizes[i], 11))
    bottom = HEAD + ROW * len(numbers)
    if late:
        end = shown_time(plan.value, facts.seconds)
        body.append(label(left, bottom + 14, "0"))
        body.append(label(left + BAR, bottom + 14, end, 11, "end"))
    bound = None if late else bar_bound(plan, facts.parts)
    if bound is not None:
        x = left + min(bound * scale, BAR)
        body.append(dashed(f"M{x:.1f} {HEAD - 4:.1f}V{bottom:.1f}"))
    if not late:
        used = used_loads(facts.parts)
        body += legend([(FILLS[name], name) for name in used], left, bottom + 18)
    if not late and parts_overlap(facts.parts):
        bottom += 18
        body.append(label(left, bottom + 18, OVERLAP))
    text = _said(facts, plan, len(numbers))
    wide = left + BAR + 12 + max((text_width(words, 11) for words in sizes), default=0.0)
    body.append(label(0, 16, text, 12, extra=BOLD, width=wide))
    notes = plan_notes(facts)
    body += [label(0, bottom + 36 + 18 * i, words, width=wide) for i, words in enumerate(notes)]
    return Drawn(wide, bottom + 28 + 18 * len(notes), body, "; ".join((text, *notes)))


def _said(facts: Facts, plan: Plan, shown: int) -> str:
    """A plan in one line."""
    text = (
        f"{len(facts.parts)} stages by {plan.method}, {OBJECTIVES[plan.objective]} "
        f"{shown_time(plan.value, facts.seconds)}"
    )
    text += f", {facts.rate}" if facts.rate else ""
    dashed = "" if bar_bound(plan, facts.parts) is None else " (dashed)"
    text += f"; bound {shown_time(plan.bound, facts.seconds)}{dashed}, gap "
    text += facts.shown_gap(plan.gap)
    text += "".join(f"; {words} on every device" for words in shared_words(facts))
    if plan.excess_bytes:
        text += f"; {lacking(plan.excess_bytes)}"
    left_out = len(facts.parts) - shown
    return text + (f"; {left_out} stages with smaller loads are left out" if left_out else "")


def _numbers(facts: Facts, part: Part) -> str:
    """Load, predicted and measured, and memory of a stage."""
    stage = part.stage
    time = stage.compute_s if facts.plan and facts.plan.objective == "latency" else stage.load_s
    text = f"{shown_time(time, facts.seconds)}, {shown_bytes(stage.memory_bytes)}"
    if part.memory_share:
        text += f" ({part.memory_share})"
    if part.measured_s is not None:
        text += f"; measured {shown_time(part.measured_s, True)}"
    return text


def _bar(facts: Facts, part: Part, x: float, y: float, scale: float) -> list[str]:
    body = []
    for name in LOADS:
        found = amount(part.stage, name)
        if found > 0:
            tooltip = f"{name}: {shown_time(found, facts.seconds)}"
            body.append(box(x, y, found * scale, ROW - 8, FILLS[name], tooltip))
            x += found * scale
    return body


def _graph(facts: Facts) -> Drawn | None:
    """The graph from top to bottom, a box a unit or a layer."""
    graph = facts.unit_graph
    if graph is None or not graph.n:
        return None
    boxes, what = boxes_of(facts, MOST_BOXES)
    owner = row_of((one.units for one in boxes), graph.n)
    every = edges_of(graph, owner)
    edges = heaviest(every, MOST_EDGES)
    level = levels_of(graph)
    layout = lay_out([float(level[one.units].mean()) for one in boxes], every)
    swings = bows(layout, edges)
    left, right = _margins(layout, edges, swings)
    xs = [(x + left) * (BOX + GAP) for x in layout.x]
    ys = [HEAD + y * (HIGH + DROP) for y in layout.y]
    most = max(edges.values(), default=0.0)
    body = []
    for ((a, b), size), bow in zip(edges.items(), swings, strict=True):
        thick = 0.6 + 2.4 * (size / most if most > 0 else 0.0)
        aside = bow * (BOX + GAP)
        body.append(_edge((xs[a], ys[a]), (xs[b], ys[b]), aside, thick, shown_bytes(size)))
    body += [_drawn_box(facts, one, x, y) for one, x, y in zip(boxes, xs, ys, strict=True)]
    text = f"graph: {graph.n} units"
    if what != "unit":
        text += f" as {len(boxes)} boxes, each a {what} of units of one stage"
    if len(edges) < len(every):
        text += f"; the {len(edges)} of {len(every)} lines that carry the most"
    wide = (left + right) * (BOX + GAP)
    body.append(label(0, 16, text, 12, extra=BOLD, width=max(wide, 680.0)))
    bottom = HEAD + layout.rows * (HIGH + DROP)
    return Drawn(max(wide, 680.0), bottom, body, text)


def _margins(layout: Layout, edges: Edges, swings: Sequence[float]) -> tuple[float, float]:
    """Columns left of the first box, and right of that line, that edges need."""
    left, right = 0.0, layout.columns
    for (a, b), swing in zip(edges, swings, strict=True):
        # A curve goes three quarters as far as its control points.
        middle = (layout.x[a] + layout.x[b]) / 2 + 0.5 + 0.75 * swing
        left, right = max(left, 0.1 - middle), max(right, middle + 0.1)
    return left, right


def _edge(
    tail: tuple[float, float], head: tuple[float, float], aside: float, thick: float, tooltip: str
) -> str:
    """A curve from below one box to above another, which swings aside."""
    ax, ay, bx, by = tail[0] + BOX / 2, tail[1] + HIGH, head[0] + BOX / 2, head[1]
    bend = max(abs(by - ay) / 2, DROP / 2)
    return (
        f'<path d="M{ax:.1f} {ay:.1f}C{ax + aside:.1f} {ay + bend:.1f} {bx + aside:.1f} '
        f'{by - bend:.1f} {bx:.1f} {by:.1f}" fill="none" stroke="currentColor" '
        f'stroke-opacity="0.4" stroke-width="{thick:.2f}"><title>{escape(tooltip)}</title></path>'
    )


def _drawn_box(facts: Facts, one: Box, x: float, y: float) -> str:
    time = shown_time(one.time, facts.seconds)
    stage = "" if one.stage < 0 else f"stage {one.stage}"
    count = "" if len(one.units) == 1 else f"{len(one.units)} units, "
    fill = PALETTE[one.stage % len(PALETTE)] if one.stage >= 0 else PALETTE[-1]
    tooltip = f"{one.name}: {count}{time}" + (f", {stage}" if stage else "")
    return (
        f"<g><title>{escape(printable(tooltip))}</title>"
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{BOX:g}" height="{HIGH:g}" class="paper"/>'
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{BOX:g}" height="{HIGH:g}" fill="{fill}" '
        'fill-opacity="0.35" stroke="currentColor" stroke-width="0.7"/>'
        + label(x + 6, y + 14, one.name, 10, width=BOX - 12)
        + label(x + 6, y + 28, " · ".join(filter(None, (time, stage))), 9, width=BOX - 12)
        + "</g>"
    )


PICTURES: dict[str, Callable[[Facts], Drawn | None]] = {
    "loads": _loads,
    "schedule": _schedule,
    "graph": _graph,
}
"""Pictures by name; None: the stream does not hold it."""
