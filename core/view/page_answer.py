"""The head of a page: four figures, and a strip of the stages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from dnnp.core.model.plan import Plan
from dnnp.core.model.text import counted, printable, shown_bytes, shown_share, shown_time
from dnnp.core.view.drawing import PALETTE, schedule_words
from dnnp.core.view.facts import (
    OVERLAP,
    Facts,
    Part,
    amount,
    bar_bound,
    lacking,
    longest_bar,
    parts_overlap,
    plan_notes,
    shared_words,
    used_loads,
    verdict_words,
)
from dnnp.core.view.svg import FILLS

LOADS = {
    "in": "receiving", "compute": "computing", "overflow": "overflow of memory", "out": "sending",
    "sync": "adding up gradients",
}  # fmt: skip
"""Part of a load -> what the stage does."""
MOST_STAGES = 256
"""Stages of a strip."""


class Figure(NamedTuple):
    """A figure that the page opens on, and what explains it."""

    name: str
    value: str
    said: str
    kind: str = "plain"
    """`good`: as it should be; `bad`: a fault."""


def figures(facts: Facts) -> list[Figure]:
    """Failed verification, rate, slowest stage, gap, memory; without a plan what there is."""
    plan = facts.plan
    if plan is None:
        return _without_plan(facts)
    return [*_wrong(facts), _rate(facts, plan), _slowest(facts), _gap(facts, plan), _fits(facts)]


def _wrong(facts: Facts) -> list[Figure]:
    """The last verification, if outputs differ."""
    checked = [run for run in facts.runs if "verified" in run][-1:]
    return [
        Figure("Outputs", "NOT VERIFIED", verdict_words(run), "bad")
        for run in checked
        if not run["verified"]
    ]


def _rate(facts: Facts, plan: Plan) -> Figure:
    value, took = plan.value, shown_time(plan.value, facts.seconds, 3)
    if plan.tokens_per_s is not None:
        first, later = (shown_time(found, True, 3) for found in (plan.ttft_s, plan.tpot_s))
        said = f"first token after {first}, then one every {later}"
        return Figure("Rate", f"{plan.tokens_per_s:,.4g} tokens/s", said)
    if is_late(facts):
        return Figure("Time of one sample", took, "from its first transfer to its last result")
    if not facts.seconds or not value > 0:
        return Figure("Largest load", took, "" if facts.seconds else "the unit is not known")
    ran = facts.measured_per_s
    said = f"one every {took}" + ("" if ran is None else f"; measured {ran:.4g} samples/s")
    rate = f"{1 / value:,.0f}" if value < 1e-3 else f"{1 / value:.4g}"
    return Figure("Rate", f"{rate} samples/s", said)


def is_late(facts: Facts) -> bool:
    """True for plans of the time that one sample takes."""
    return facts.plan is not None and facts.plan.objective == "latency"


def _busy(facts: Facts) -> list[float]:
    """Load of each stage; of a plan for latency its compute."""
    return [p.stage.compute_s if is_late(facts) else p.stage.load_s for p in facts.parts]


def _slowest(facts: Facts) -> Figure:
    loads, late = _busy(facts), is_late(facts)
    if not loads:
        return Figure("Slowest stage", "-", "there are no stages")
    number = loads.index(max(loads))
    stage = facts.parts[number].stage
    said = f"{shown_time(loads[number], facts.seconds, 3)} on {stage.where}"
    if not late and loads[number] > 0:
        said += f", most of it {LOADS[max(LOADS, key=lambda name: amount(stage, name))]}"
    ran = [-1.0 if part.measured_s is None else part.measured_s for part in facts.parts]
    if min(ran) >= 0 and ran[number] < max(ran):
        said += f"; measured stage {ran.index(max(ran))}, {shown_time(max(ran), True, 3)}"
    return Figure("Busiest stage" if late else "Slowest stage", f"stage {number}", said)


def _gap(facts: Facts, plan: Plan) -> Figure:
    if facts.blind:
        return Figure("Gap", "unknown", "costs or sizes are not known")
    best = plan.status == "optimal"
    bound = shown_time(plan.bound, facts.seconds, 3)
    split = "split that keeps the rules" if plan.rules else "split"
    said = f"proven: no {split} is better" if best else f"no {split} can be below {bound}"
    return Figure(
        "Gap to the proven bound", facts.shown_gap(plan.gap), said, "good" if best else "plain"
    )


def _fits(facts: Facts) -> Figure:
    name, plan, share = "Fits in memory", facts.plan, facts.memory_share
    if plan is not None and plan.excess_bytes:
        return Figure(name, "no", lacking(plan.excess_bytes), "bad")
    most = max((p.stage.memory_bytes for p in facts.parts), default=0.0)
    if share is None:
        return Figure(name, "no limit", f"a stage needs up to {shown_bytes(most, 3)}")
    fits = ("yes", "good") if share <= 1 else ("no", "bad")
    return Figure(name, fits[0], f"{shown_share(share)} of the fullest device", fits[1])


def _without_plan(facts: Facts) -> list[Figure]:
    if facts.schedule is not None:
        took = shown_time(facts.schedule["makespan_s"], facts.seconds)
        return [Figure("Schedule", took, schedule_words(facts.schedule, facts.seconds))]
    total = float(facts.unit_times.sum())
    priced = shown_time(total, facts.seconds, 3) if 0 < total < math.inf else "not priced"
    said = "dnnp-profile prices operators" if priced == "not priced" else "on one device"
    none = Figure("Plan", "none yet", "dnnp-partition makes one")
    return [none, Figure("Compute", priced, said)]


def answer(facts: Facts, other: Facts | None) -> list[str]:
    """Figures and stages, of two plans side by side."""
    plans = [facts] if other is None else [facts, other]
    lines = []
    for letter, one in zip("AB", plans, strict=False):
        name = f"{letter}: {printable(one.stream.name.rpartition('/')[2])}"
        title = "" if other is None else f"<h2>{escape(name)}</h2>"
        lines += [f'<section class="answer">{title}', *_figures(one)]
        lines += [*_strip(one, plans), "</section>"]
    return lines


def _figures(facts: Facts) -> list[str]:
    lines = ['<dl class="figures">']
    for one in figures(facts):
        rows = f"<dt>{one.name}</dt><dd>{one.value}</dd><dd>{escape(printable(one.said))}</dd>"
        lines.append(f'<div class="{one.kind}">{rows}</div>')
    said = [*plan_notes(facts), *(f"{words} on every device" for words in shared_words(facts))]
    return [*lines, "</dl>", *(f"<p>{escape(printable(words))}</p>" for words in said)]


def _strip(facts: Facts, plans: Sequence[Facts]) -> list[str]:
    """A box a stage in the order of the pipeline, and what moves between them.

    `plans`: those of the page; boxes of the first lead to the graph.
    """
    plan, parts = facts.plan, facts.parts[:MOST_STAGES]
    if plan is None or not parts:
        return []
    late, bound, active = is_late(facts), bar_bound(plan, facts.parts), facts is plans[0]
    lines = ['<ol class="strip" tabindex="0" aria-label="stages, in the order of the pipeline">']
    for number in range(len(parts)):
        lines += [_between(facts, number, active)] if number else []
        lines.append(_stage(facts, plans, number, bound))
    notes = [] if late or bound is None else ["the dashed line is the proven bound"]
    notes += [OVERLAP] if not late and parts_overlap(facts.parts) else []
    if len(parts) < len(facts.parts):
        notes.append(f"the first {MOST_STAGES} of {len(facts.parts)} stages")
    used = [] if late else used_loads(facts.parts)
    keys = legend({LOADS[name]: FILLS[name] for name in used})
    return [*lines, f'</ol><p class="notes">{keys} {"; ".join(notes)}</p>']


def _stage(facts: Facts, plans: Sequence[Facts], number: int, bound: float | None) -> str:
    """Box of a stage: load against the bound, memory against capacity, measured, what moved."""
    part, loads, late = facts.parts[number], _busy(facts), is_late(facts)
    stage, load = part.stage, loads[number]
    layers = printable(part.layers) or counted(len(stage.nodes), "operator")
    rows = [f"<b>stage {number}</b><small>{escape(printable(stage.where))}</small>"]
    rows.append(f'<em title="{escape(layers)}">{escape(layers)}</em>')
    rows.append(_value("compute" if late else "load", shown_time(load, facts.seconds, 3)))
    longest = longest_bar([each for one in plans for each in one.parts])
    rows += [] if late else [_bar(facts, part, longest, bound)]
    rows.append(_memory(part))
    if part.measured_s is not None:
        ratio = f"{part.measured_s / load:.3g} x the load" if load > 0 else ""
        rows.append(_value("measured", shown_time(part.measured_s, True, 3), ratio))
    inside = facts.node_stages == number
    if moved := sum(int((inside & (one.node_stages != number)).sum()) for one in plans):
        said = f"{moved:,} of {counted(int(inside.sum()), 'operator')} moved"
        rows.append(f'<span class="moved" title="in another stage of the other plan">{said}</span>')
    if number == loads.index(max(loads)) and len(loads) > 1:
        rows.append(f'<span class="slowest">{"busiest" if late else "slowest"}</span>')
    return _item("stage", number, "".join(rows), facts is plans[0])


def _item(kind: str, number: int, inside: str, active: bool) -> str:
    """An element of the strip; one that is `active` is a button."""
    tag, about = ("button", f" data-{kind}={number}") if active else ("div", "")
    color = PALETTE[number % len(PALETTE)]
    return f'<li><{tag} class="{kind}" style="--c:{color}"{about}>{inside}</{tag}></li>'


def _value(name: str, text: str, more: str = "") -> str:
    return f"<span>{name} <strong>{text}</strong> <b>{more}</b></span>"


def _memory(part: Part) -> str:
    """Memory of a stage, with a bar of its share of the device if there is a limit."""
    held, capacity = part.stage.memory_bytes, part.capacity_bytes
    if not 0 < capacity < math.inf:
        return _value("memory", shown_bytes(held, 3))
    kind, wide = "over" if held > capacity else "held", min(100 * held / capacity, 100)
    bar = f'<div class="bar"><i class="{kind}" style="width:{wide:.2f}%"></i></div>'
    return _value("memory", shown_bytes(held, 3), f"of {shown_bytes(capacity, 3)}") + bar


def _between(facts: Facts, number: int, active: bool) -> str:
    """Number and bytes of the tensors that cross the border before a stage."""
    crossing = [
        cut.size_bytes
        for cut in facts.cuts
        if any(min(cut.source, t) < number <= max(cut.source, t) for t in cut.targets)
    ]
    text = f"<strong>{shown_bytes(sum(crossing), 3)}</strong>"
    text += f"<small>{counted(len(crossing), 'tensor')}</small>"
    return _item("border", number, text, active)


def legend(colors: Mapping[str, str]) -> str:
    """Legend of colours."""
    return " ".join(
        f'<span class="key"><i style="background:{color}"></i>{escape(name)}</span>'
        for name, color in colors.items()
    )


def _bar(facts: Facts, part: Part, scale: float, bound: float | None) -> str:
    """Bar of the parts of a stage's load."""
    pieces, said = [], []
    for name in LOADS:
        found = amount(part.stage, name)
        if found > 0:
            said.append(f"{name} {shown_time(found, facts.seconds)}")
            wide = 100 * found / scale
            pieces.append(f'<i style="width:{wide:.3f}%;background:{FILLS[name]}"></i>')
    if bound is not None:
        pieces.append(f'<b style="left:{min(100 * bound / scale, 100.0):.3f}%"></b>')
    text = escape(", ".join(said))
    return f'<div class="bar" role="img" aria-label="{text}" title="{text}">{"".join(pieces)}</div>'
