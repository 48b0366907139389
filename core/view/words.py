"""Numbers and names as people read them."""

from __future__ import annotations

from dataclasses import dataclass

from dnnp.core.model.text import printable, shown_bytes


@dataclass(frozen=True)
class Page:
    """How a text is laid out."""

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
        """How many rows of a list are shown."""
        return count if self.more else min(count, self.rows)


def shown_share(value: float) -> str:
    """A share in percent: `12 %`, and below ten with a digit more.

    >>> shown_share(0.123), shown_share(0.0123), shown_share(0.0), shown_share(1e-6)
    ('12 %', '1.2 %', '0 %', '<0.001 %')
    """
    if value >= 0.0995:
        return f"{100 * value:.0f} %"
    if 0 < value < 1e-5:
        return "<0.001 %"
    return f"{100 * value:.2g} %"


def lacking(excess_bytes: float) -> str:
    """What is wrong with a plan that needs so much more memory than a device has."""
    return f"infeasible: a device lacks {shown_bytes(excess_bytes)} of memory"


def shown_rate(value: float) -> str:
    """How many samples a second, from the time that one takes.

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
