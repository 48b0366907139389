"""Pictures of a schedule: one row a unit, time to the right, micro-batches by number."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from dnnp.core.model.text import printable
from dnnp.formats.stream import Record

WIDTH = 100
"""Columns of the text chart."""
MOST_ROWS = 64
"""Units that are drawn."""
MOST_SHOWN = 20_000
"""Blocks that an SVG picture holds."""
MARKS = {"forward": "", "backward": "b", "weight": "w", "transfer": "t"}
COLORS = {
    "forward": "#8fb8de", "backward": "#f2b880", "weight": "#b8d8a8", "transfer": "#cccccc",
}  # fmt: skip


def _step(record: Record, blocks: Sequence[Record]) -> float:
    """Time that all blocks are multiples of, or the shortest one."""
    times = sorted({p["time_s"] for p in record["passes"] if p["time_s"] > 0})
    if not times:
        return 1.0
    least = float(times[0])
    for parts in (1, 2, 3, 4, 6, 8):
        unit = least / parts
        if all(abs(t / unit - round(t / unit)) < 1e-6 for t in times):
            return unit
    return least


def text_chart(record: Record, blocks: Sequence[Record], width: int = WIDTH) -> list[str]:
    """The lines of a chart of the beginning of a schedule.

    A block shows its micro-batch, backward blocks with a `b`, weight blocks with a `w`; `=` goes
    on, `.` is idle.
    """
    step = _step(record, blocks)
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
    shown = f"one column is {step:.6g}"
    if end * step < record["makespan_s"] * (1 - 1e-9):
        shown += f"; {end * step:.6g} of {record['makespan_s']:.6g} shown"
    return [*lines, shown]


def _escape(text: str) -> str:
    """Text of an XML document, which holds no control characters."""
    return escape(printable(text))


def svg_chart(record: Record, blocks: Sequence[Record]) -> str:
    """The schedule as an SVG picture; what comes after `MOST_SHOWN` blocks is left out."""
    shown = list(blocks)[:MOST_SHOWN]
    units = record["units"]
    end = max((b["end_s"] for b in shown), default=0.0) or 1.0
    shortest = min((p["time_s"] for p in record["passes"] if p["time_s"] > 0), default=end)
    scale = min(max(24.0 * end / shortest, 600.0), 30_000.0) / end
    left, height = 12 + 7 * max((len(printable(u["name"])) for u in units), default=0), 26
    width = left + end * scale + 10
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" '
        f'height="{height * len(units) + 34}" font-family="sans-serif" font-size="11">'
    ]
    for i, unit in enumerate(units):
        lines.append(f'<text x="4" y="{height * i + 17}">{_escape(unit["name"])}</text>')
    for block in shown:
        one = record["passes"][block["pass"]]
        x, wide = left + block["start_s"] * scale, (block["end_s"] - block["start_s"]) * scale
        title = (
            f"{one['name']}, micro-batch {block['micro_batch']}: "
            f"{block['start_s']:.6g} to {block['end_s']:.6g}"
        )
        for unit in block["units"]:
            y = height * unit + 3
            lines.append(
                f'<g><title>{_escape(title)}</title><rect x="{x:.2f}" y="{y}" width="{wide:.2f}" '
                f'height="{height - 5}" fill="{COLORS[one["kind"]]}" stroke="#555"/>'
            )
            if wide > 7 * len(str(block["micro_batch"])):
                middle = x + wide / 2
                lines.append(
                    f'<text x="{middle:.2f}" y="{y + 14}" text-anchor="middle">'
                    f"{block['micro_batch']}</text>"
                )
            lines.append("</g>")
    bottom = height * len(units) + 20
    text = f"0 to {end:.6g}; makespan {record['makespan_s']:.6g}, bubble {record['bubble']:.3g}"
    lines.append(f'<text x="{left}" y="{bottom}">{text}</text></svg>')
    return "\n".join(lines) + "\n"
