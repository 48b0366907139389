"""A plan as one page for browsers, which needs nothing but itself.

Figures, stages and tables are plain HTML; scripts draw the graph, where time goes and the schedule
from data in the page. Its policy for contents forbids everything that would come from elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from html import escape
from string import Template

from dnnp.core.model.graph import PARAMETER
from dnnp.core.model.text import counted, printable, shown_bytes
from dnnp.core.view.drawing import COLORS, schedule_words
from dnnp.core.view.facts import Facts
from dnnp.core.view.page_answer import answer, legend
from dnnp.core.view.page_data import MOST_BLOCKS, packed, page_data
from dnnp.core.view.page_tables import moved, tables

LIBRARIES = ("libs.min.js", "layout.js")
SCRIPTS = ("words.js", "tree.js", "board.js", "graph.js", "panel.js", "charts.js", "page.js")
FILES = ("page.html", "page.css", *LIBRARIES, *SCRIPTS)
"""Files of a page besides data, in the folder `web` beside this file."""


def draw(facts: Facts, files: Mapping[str, str], other: Facts | None = None) -> bytes:
    """The page; of two plans side by side, if `other` has a second one of the same graph.

    `files`: what `FILES` hold, by name.
    """
    data = page_data(facts, other)
    libraries, scripts = (
        "\n".join(files[name] for name in names) for names in (LIBRARIES, SCRIPTS)
    )
    lines = tables(facts)
    if facts.graph is not None and "nodes" not in data:
        lines.insert(0, f"<p>the graph is too large for a page: {facts.graph.n} nodes</p>")
    text = Template(files["page.html"]).substitute(
        allowed=" ".join(map(_allowed, (libraries, scripts))),
        title=escape(printable(facts.model)),
        style=files["page.css"],
        about=escape(_about(facts)),
        answer="\n".join(answer(facts, other)),
        timeline="When stages work" if data["late"] else "Schedule",
        graph="" if "nodes" in data else "hidden data-empty",
        runs="" if "runs" in data else "hidden data-empty",
        compared="" if other is not None else "hidden data-empty",
        schedule=_schedule(facts),
        moved="" if other is None else "\n".join(moved(facts, other)),
        tables="\n".join(lines),
        data=packed(data),
        libraries=libraries,
        scripts=scripts,
    )
    return text.encode()


def _allowed(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _about(facts: Facts) -> str:
    """The model and its plan in a line."""
    graph, plan, said = facts.graph, facts.plan, []
    if plan is not None:
        said.append(f"{counted(len(facts.parts), 'stage')} by {plan.method}")
    if graph is not None and facts.units is not None:
        said.append(f"{graph.n:,} operators")
        if facts.units.g != graph.n:
            said.append(f"{facts.units.g:,} groups")
        weights = float(graph.tensor_bytes[graph.tensor_kind == PARAMETER].sum())
        said.append(f"{shown_bytes(weights, 3)} of weights")
    return " · ".join(map(printable, said))


def _schedule(facts: Facts) -> str:
    """The schedule in words, and what its colours mean."""
    record = facts.schedule
    if record is None:
        return "one sample, from left to right; a click lights up a stage"
    text = f"{schedule_words(record, facts.seconds)}; a click lights up a micro-batch"
    if len(facts.stream.get("block")) > MOST_BLOCKS:
        text += f"; the first {MOST_BLOCKS} blocks"
    held = {one["kind"] for one in record["passes"]}
    keys = legend({kind: color for kind, color in COLORS.items() if kind in held})
    return f"{keys} {escape(printable(text))}"
