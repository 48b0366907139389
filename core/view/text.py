"""A plan as text: what a person wants to know of it, on a terminal."""

from __future__ import annotations

import numpy as np

from dnnp.core.model.text import counted, printable, table
from dnnp.core.view.facts import Facts
from dnnp.formats.amounts import shown_bytes, shown_seconds


def draw(facts: Facts, width: int) -> bytes:
    """The whole text, of at most `width` columns."""
    lines = [printable(facts.model), *_stages(facts)]
    return "".join(f"{line[:width]}\n" for line in lines).encode()


def shown_time(facts: Facts, value: float) -> str:
    """A time of the stream, for people."""
    if not np.isfinite(value):
        return "-"
    return shown_seconds(value) if facts.seconds else f"{value:.4g}"


def _stages(facts: Facts) -> list[str]:
    """A line a stage."""
    if facts.plan is None:
        return ["no plan"]
    header = ["stage", "device", "layers", "load", "memory"]
    rows = [
        [
            str(number), part.stage.device, part.layers or counted(len(part.stage.nodes), "node"),
            shown_time(facts, part.stage.load_s), shown_bytes(part.stage.memory_bytes),
        ]
        for number, part in enumerate(facts.parts)
    ]  # fmt: skip
    return table(header, rows)
