"""Plans side by side, and which are alike enough for that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dnnp.core.cost.items import VALIDITIES
from dnnp.core.model.plan import Plan, status_words
from dnnp.core.model.text import printable, shown_bytes, shown_share, shown_time, table
from dnnp.core.view.facts import Facts
from dnnp.core.view.text import laid_out, load_lines, timeline
from dnnp.core.view.words import Page, shortened, shown_rate

BEST = "*"
"""Marks the smallest value of what can be compared."""
NAME = 24
"""Most columns of the name of a stream."""
LEGEND = f"{BEST} best for this number of devices and validity"


def draw(streams: Sequence[Facts], page: Page) -> bytes:
    """A line a plan; those of one model, objective and unit of time belong together.

    With `page.more` the stages of each plan follow.
    """
    paragraphs: list[list[str]] = []
    found = families(streams)
    for family in found:
        paragraphs.append([_title(family[0]), *_lines(family, page)])
        if page.more:
            paragraphs += [_stages(facts, page) for facts in family]
    missing = [facts for facts in streams if facts.plan is None]
    if missing:
        names = ", ".join(printable(facts.stream.name) for facts in missing)
        paragraphs.append([f"without a plan: {names}"])
    if any(len(family) > 1 for family in found):
        paragraphs.append([LEGEND])
    return laid_out(paragraphs, page)


def _stages(facts: Facts, page: Page) -> list[str]:
    """The stages of a plan, below the name of its stream."""
    lines = load_lines(facts, page) or timeline(facts, page)
    return [f"{_name(facts)}:", *lines]


def _name(facts: Facts) -> str:
    """Name of a stream in a line."""
    return shortened(facts.stream.name.rpartition("/")[2], NAME)


DROPPED = ("memory", "stages", "cut", "rate", "balance", "bound", "share", "status", "time")
"""Columns that go first where the page is narrow; tables (`--as csv`) have all."""


def _title(facts: Facts) -> str:
    objective = "" if facts.plan is None else facts.plan.objective
    return f"{printable(facts.model)}: {objective}"


def _lines(family: Sequence[Facts], page: Page) -> list[str]:
    """The table of a family, with as many columns as the page has room for."""
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
            "rate": shown_rate(plan.value),
            "bound": shown_time(plan.bound, facts.seconds),
            "gap": facts.shown_gap(plan.gap),
            "status": status_words(plan),
            "time": "-" if facts.solving_s is None else shown_time(facts.solving_s, True),
            "stages": str(len(facts.parts)),
            "balance": shown_share(facts.balance),
            "cut": shown_bytes(moved),
            "memory": shown_bytes(memory),
            "share": "-" if share is None else shown_share(share),
        }
        if not facts.seconds or plan.objective == "latency":
            del row["rate"]
        if not mixed:
            del row["validity"]
        rows.append(row)
    return rows


LACKING = ("infeasible",)
"""Status of plans that cannot run, so that none of them is the best."""


def families(streams: Sequence[Facts]) -> list[list[Facts]]:
    """Streams whose values mean the same: of one model, objective and unit of time."""
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
    """Tell whether no rival with as many devices that promises as much has a smaller value.

    A plan whose stages form a pipeline is also one that promises less: a free plan has to be
    better than it, not the other way round.
    """
    return plan.status not in LACKING and not any(
        rival.value < plan.value
        for rival in rivals
        if rival.status not in LACKING and rival.k == plan.k and _promises(rival) >= _promises(plan)
    )


def shared_bound(plans: Sequence[Plan], known: Sequence[Plan]) -> float:
    """The best bound that holds for each of some plans, of all that are known.

    A bound holds for plans of the same graph, costs, devices and cost model that promise as much
    as the plan that it was proven for.
    """
    return min(
        max(q.bound for q in known if _promises(q) <= _promises(plan) and _asked(q) == _asked(plan))
        for plan in plans
    )


def _asked(plan: Plan) -> tuple[object, ...]:
    """Key of what a plan was to be found for."""
    return plan.digest, plan.k, plan.options, plan.devices, plan.links


def _promises(plan: Plan) -> int:
    """Rank of a plan's validity: more is stronger."""
    return VALIDITIES.index(plan.validity)
