"""Elements of pictures: colours, text that fits, marks, ticks; and charts of schedules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from statistics import median_low
from typing import NamedTuple

from dnnp.core.model.text import printable, shown_share, shown_time
from dnnp.formats.stream import Record

PALETTE = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999",
)  # fmt: skip
"""Okabe and Ito's colours (2008, "Color universal design"): colour-blind people tell them apart."""

FONT = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
_NARROW, _WIDE = frozenset("iljtfrI.,:;|!'()[]/ -"), frozenset("mwMW@%")


def text_width(text: str, size: float) -> float:
    """Width of a text in this font at most, in pixels: the widest of the usual fonts counts."""
    units = sum(0.42 if c in _NARROW else 0.98 if c in _WIDE else 0.68 for c in text)
    return units * size


def fitted(text: str, width: float, size: float) -> str:
    """A text without its middle, if it is wider than `width` pixels; empty: nothing fits."""
    text = printable(text)
    if text_width(text, size) <= width:
        return text
    for kept in range(len(text) - 1, 1, -1):
        head = (kept + 1) // 2
        made = f"{text[:head]}…{text[len(text) - (kept - head) :]}"
        if text_width(made, size) <= width:
            return made
    return ""


def label(
    x: float,
    y: float,
    text: str,
    size: float = 11,
    anchor: str = "start",
    extra: str = "",
    width: float = math.inf,
) -> str:
    """A text of a picture, within `width` pixels; the whole of it as a tooltip."""
    shown = fitted(text, width, size)
    whole = "" if shown == printable(text) else f"<title>{escape(printable(text))}</title>"
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" text-anchor="{anchor}"{extra}>'
        f"{escape(shown)}{whole}</text>"
    )


BOLD = ' font-weight="bold"'


class Drawn(NamedTuple):
    """A picture that may stand in a larger one."""

    width: float
    height: float
    body: list[str]
    summary: str
    """Description in words."""


def line(x: float, y: float, length: float, opacity: float = 0.15) -> str:
    """A faint line from left to right."""
    return (
        f'<path d="M{x:.1f} {y:.1f}h{length:.1f}" stroke="currentColor" '
        f'stroke-opacity="{opacity}"/>'
    )


def dashed(way: str) -> str:
    """The line of a bound along a path, as SVG has it."""
    return f'<path d="{way}" stroke="currentColor" stroke-dasharray="5 4"/>'


def box(
    x: float, y: float, wide: float, high: float, fill: str, tooltip: str, text: str = ""
) -> str:
    """A box with a text, if that fits; `tooltip` shows on pointing."""
    inside = ""
    if text and text_width(text, 11) <= wide - 2:
        inside = label(x + wide / 2, y + high / 2 + 4, text, 11, "middle")
    return (
        f"<g><title>{escape(printable(tooltip))}</title>"
        f'<rect x="{x:.2f}" y="{y:.1f}" width="{wide:.2f}" height="{high:.1f}" fill="{fill}" '
        f'fill-opacity="0.55" stroke="currentColor" stroke-width="0.6"/>{inside}</g>'
    )


def legend(entries: Sequence[tuple[str, str]], x: float, y: float) -> list[str]:
    """Colours (or patterns) and their meanings, from left to right; `y` is the base line."""
    body = []
    for fill, text in entries:
        body.append(
            f'<rect x="{x:.1f}" y="{y - 10:.1f}" width="14" height="12" fill="{fill}" '
            'fill-opacity="0.55" stroke="currentColor" stroke-width="0.6"/>'
        )
        body.append(label(x + 20, y, text))
        x += 36 + text_width(text, 11)
    return body


def marker(number: int, x: float, y: float) -> str:
    """A mark of a series: its colour differs from that of seven others, its shape as well."""
    size = 4.5
    shape = (number + number // len(PALETTE)) % 4
    color = PALETTE[number % len(PALETTE)]
    style = f'fill="{color}" stroke="currentColor" stroke-width="0.7"'
    if shape == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}" {style}/>'
    corners = {
        1: ((-1, -1), (1, -1), (1, 1), (-1, 1)),
        2: ((0, -1.3), (1.2, 0.9), (-1.2, 0.9)),
        3: ((0, -1.4), (1.4, 0), (0, 1.4), (-1.4, 0)),
    }[shape]
    points = " ".join(f"{x + a * size:.1f},{y + b * size:.1f}" for a, b in corners)
    return f'<polygon points="{points}" {style}/>'


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from `low` to `high`, both within."""
    if not high > low:
        return [low]
    step = 10.0 ** math.floor(math.log10((high - low) / most))
    step *= next(f for f in (1, 2, 5, 10) if (high - low) / (step * f) <= most)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def powers(low: float, high: float) -> list[float]:
    """Ticks of a logarithmic axis: 1, 2, 5 and tens of them."""
    found = []
    for exponent in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        found += [f * 10.0**exponent for f in (1, 2, 5)]
    return [value for value in found if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]


def picture(width: float, height: float, title: str, summary: str, body: list[str]) -> bytes:
    """A picture as SVG, with its description; on dark pages its ink is light."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img" aria-labelledby="title said" '
        f'font-family="{escape(FONT)}" fill="currentColor">',
        f'<title id="title">{escape(printable(title))}</title>',
        f'<desc id="said">{escape(printable(summary))}</desc>',
        "<style>svg{color:#1b1b1b;background:#ffffff}.paper{fill:#ffffff}"
        "@media(prefers-color-scheme:dark){svg{color:#e8e8e8;background:#161616}"
        ".paper{fill:#161616}}</style>",
        *body,
        "</svg>\n",
    ]
    return "\n".join(lines).encode()


WIDTH = 100
"""Columns of the text chart."""
MOST_ROWS = 64
"""Units that are drawn."""
MOST_SHOWN = 20_000
"""Blocks that an SVG picture holds."""
MOST_CELLS, FEW_CELLS = 24, 4
"""Cells of the longest block in the text chart: limit, and number used above the limit."""
MARKS = {"forward": "", "backward": "b", "weight": "w", "transfer": "t"}
COLORS = {
    "forward": "#56B4E9", "backward": "#E69F00", "weight": "#009E73", "transfer": "#999999",
}  # fmt: skip
ROW, HEAD, SIZE, WIDEST = 26.0, 28.0, 11, 30_000.0
"""Pixels of a picture: a row, what is above the rows, text, and the rows at most."""


def _step(record: Record) -> float:
    """Time of a cell: a common divisor of all blocks, or the shortest block; if others are far
    shorter than the longest, a part of that."""
    times = sorted({p["time_s"] for p in record["passes"] if p["time_s"] > 0})
    if not times:
        return 1.0
    least, most = float(times[0]), float(times[-1])
    if most > MOST_CELLS * least:
        return most / FEW_CELLS
    for parts in (1, 2, 3, 4, 6, 8):
        unit = least / parts
        if all(abs(t / unit - round(t / unit)) < 1e-6 for t in times):
            return unit
    return least


def text_chart(
    record: Record, blocks: Sequence[Record], seconds: bool, width: int = WIDTH
) -> list[str]:
    """Lines of a text chart of the first part of a schedule.

    A block shows its micro-batch, backward blocks with a `b`, weight blocks with a `w`; `=` goes
    on, `.` is idle. `seconds`: times are in seconds; else their unit is not known.
    """
    step = _step(record)
    cell = len(str(max((b["micro_batch"] for b in blocks), default=0))) + 2
    columns = max(width // cell, 1)
    names = [printable(unit["name"]) for unit in record["units"][:MOST_ROWS]]
    rows = [[".".ljust(cell)] * columns for _ in names]
    for block in blocks:
        first, last = round(block["start_s"] / step), round(block["end_s"] / step)
        mark = MARKS[record["passes"][block["pass"]]["kind"]]
        for unit in block["units"]:
            for at in range(first, min(max(last, first), columns) if last > first else first):
                if unit < len(names):
                    text = f"{block['micro_batch']}{mark}" if at == first else "="
                    rows[unit][at] = text.ljust(cell)
    end = min(columns, round(record["makespan_s"] / step))
    wide = max(map(len, names), default=0)
    lines = [
        f"{name.ljust(wide)} |{''.join(row[:end]).rstrip()}"
        for name, row in zip(names, rows, strict=True)
    ]
    if len(record["units"]) > MOST_ROWS:
        lines.append(f"... and {len(record['units']) - MOST_ROWS} more")
    shown = f"one column is {shown_time(step, seconds)}"
    if record["makespan_s"] - end * step > step / 2:
        part, whole = (shown_time(t, seconds) for t in (end * step, record["makespan_s"]))
        shown += f"; {part} of {whole} shown"
    if any(0 < one["time_s"] < step / 2 for one in record["passes"]):
        shown += "; blocks of less than half a column may be left out"
    return [*lines, shown]


def schedule_words(record: Record, seconds: bool) -> str:
    """Describe a schedule in one line."""
    return (
        f"{record['micro_batches']} micro-batches by {record['method']}: "
        f"{shown_time(record['makespan_s'], seconds)}, bound "
        f"{shown_time(record['bound_s'], seconds)}, bubble {shown_share(record['bubble'])}"
    )


def schedule_picture(record: Record, blocks: Sequence[Record], seconds: bool) -> Drawn:
    """The schedule as a picture, of its first `MOST_SHOWN` blocks."""
    shown, units = list(blocks)[:MOST_SHOWN], record["units"]
    end = max((b["end_s"] for b in shown), default=0.0) or 1.0
    computing = (p["time_s"] for p in record["passes"] if p["kind"] != "transfer")
    found = [time for time in computing if time > 0]
    usual = median_low(found) if found else end
    left = 16 + max((text_width(printable(u["name"]), SIZE) for u in units), default=0.0)
    wide = min(max(26.0 * end / usual, 720.0), WIDEST)
    scale = wide / end
    body = []
    for i, unit in enumerate(units):
        y = HEAD + ROW * i
        body.append(label(6, y + 17, unit["name"]))
        body.append(line(left, y + ROW - 1, wide, 0.12))
    for block in shown:
        one = record["passes"][block["pass"]]
        x, length = left + block["start_s"] * scale, (block["end_s"] - block["start_s"]) * scale
        times = " to ".join(shown_time(block[at], seconds) for at in ("start_s", "end_s"))
        tooltip = f"{one['name']} of micro-batch {block['micro_batch']}: {times}"
        mark = f"{block['micro_batch']}{MARKS[one['kind']]}"
        for unit in block["units"]:
            body.append(
                box(x, HEAD + ROW * unit + 2, length, ROW - 5, COLORS[one["kind"]], tooltip, mark)
            )
    kinds = [kind for kind in COLORS if any(p["kind"] == kind for p in record["passes"])]
    y = HEAD + ROW * len(units) + 20
    body += legend([(COLORS[kind], kind) for kind in kinds], left, y)
    text = schedule_words(record, seconds)
    if len(shown) < len(blocks):
        text += f"; the first {len(shown)} of {len(blocks)} blocks"
    body.append(label(6, 16, text, 12, extra=BOLD, width=left + wide - 12))
    return Drawn(left + wide + 12, y + 16, body, f"schedule: {text}")
