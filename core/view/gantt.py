"""Pictures of a schedule: one row a unit, time to the right, micro-batches by number."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_low

from dnnp.core.model.text import printable, shown_share, shown_time
from dnnp.core.view.drawing import BOLD, Drawn, box, label, legend, line, text_width
from dnnp.formats.stream import Record

WIDTH = 100
"""Columns of the text chart."""
MOST_ROWS = 64
"""Units that are drawn."""
MOST_SHOWN = 20_000
"""Blocks that an SVG picture holds."""
MOST_CELLS, FEW_CELLS = 24, 4
"""Cells of the text chart that the longest block takes at most, and where it would take more."""
MARKS = {"forward": "", "backward": "b", "weight": "w", "transfer": "t"}
COLORS = {
    "forward": "#56B4E9", "backward": "#E69F00", "weight": "#009E73", "transfer": "#999999",
}  # fmt: skip
ROW, HEAD, SIZE, WIDEST = 26.0, 28.0, 11, 30_000.0
"""Pixels of a picture: a row, what is above the rows, text, and the rows at most."""


def _step(record: Record) -> float:
    """Time that all blocks are multiples of, or the shortest one; a part of the longest one where
    others are far shorter."""
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
    """The lines of a chart of the beginning of a schedule.

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
    """The schedule as a picture; what comes after `MOST_SHOWN` blocks is left out, and said."""
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
        said = f"{one['name']} of micro-batch {block['micro_batch']}: {times}"
        mark = f"{block['micro_batch']}{MARKS[one['kind']]}"
        for unit in block["units"]:
            body.append(
                box(x, HEAD + ROW * unit + 2, length, ROW - 5, COLORS[one["kind"]], said, mark)
            )
    kinds = [kind for kind in COLORS if any(p["kind"] == kind for p in record["passes"])]
    y = HEAD + ROW * len(units) + 20
    body += legend([(COLORS[kind], kind) for kind in kinds], left, y)
    text = schedule_words(record, seconds)
    if len(shown) < len(blocks):
        text += f"; the first {len(shown)} of {len(blocks)} blocks"
    body.append(label(6, 16, text, 12, extra=BOLD, width=left + wide - 12))
    return Drawn(left + wide + 12, y + 16, body, f"schedule: {text}")
