"""Elements of pictures: colours that everybody can tell apart, text that fits, marks, ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from dnnp.core.model.text import printable

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
    """A text of a picture, within `width` pixels; the whole of it for who points there."""
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
    said: str
    """Description in words."""


def line(x: float, y: float, length: float, opacity: float = 0.15) -> str:
    """A faint line from left to right."""
    return (
        f'<path d="M{x:.1f} {y:.1f}h{length:.1f}" stroke="currentColor" '
        f'stroke-opacity="{opacity}"/>'
    )


def box(x: float, y: float, wide: float, high: float, fill: str, said: str, text: str = "") -> str:
    """A box with a text, if that fits; `said` is for who points there."""
    inside = ""
    if text and text_width(text, 11) <= wide - 2:
        inside = label(x + wide / 2, y + high / 2 + 4, text, 11, "middle")
    return (
        f"<g><title>{escape(printable(said))}</title>"
        f'<rect x="{x:.2f}" y="{y:.1f}" width="{wide:.2f}" height="{high:.1f}" fill="{fill}" '
        f'fill-opacity="0.55" stroke="currentColor" stroke-width="0.6"/>{inside}</g>'
    )


def legend(entries: Sequence[tuple[str, str]], x: float, y: float) -> list[str]:
    """Colours (or patterns) and what they stand for, from left to right; `y` is the base line."""
    body = []
    for fill, text in entries:
        body.append(
            f'<rect x="{x:.1f}" y="{y - 10:.1f}" width="14" height="12" fill="{fill}" '
            'fill-opacity="0.55" stroke="currentColor" stroke-width="0.6"/>'
        )
        body.append(label(x + 20, y, text))
        x += 36 + text_width(text, 11)
    return body


def marker(number: int, x: float, y: float, size: float = 4.5) -> str:
    """A mark of a series: its colour differs from that of seven others, its shape as well."""
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


def picture(width: float, height: float, title: str, said: str, body: list[str]) -> bytes:
    """A picture as SVG, with what it shows in words; on dark pages its ink is light."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img" aria-labelledby="title said" '
        f'font-family="{escape(FONT)}" fill="currentColor">',
        f'<title id="title">{escape(printable(title))}</title>',
        f'<desc id="said">{escape(printable(said))}</desc>',
        "<style>svg{color:#1b1b1b;background:#ffffff}.paper{fill:#ffffff}"
        "@media(prefers-color-scheme:dark){svg{color:#e8e8e8;background:#161616}"
        ".paper{fill:#161616}}</style>",
        *body,
        "</svg>\n",
    ]
    return "\n".join(lines).encode()
