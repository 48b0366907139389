"""Live tensors of a plan of the objective latency, recomputed from the times that it states.

A device holds the parameters of its units, each unit its own, and the tensors that are alive on it.
With `operators` (Moirai, Eq. 5) one is held where it is made from the start of its unit until the
last unit there that reads it and the last transfer of it end, an output of the model to the end;
where it is sent from the start of the transfer until the last unit there that reads it ends; an
input of the model from the first start on. What only the nodes of one unit know is held while that
runs, as much as the peak over its nodes. All that a unit reads and makes counts together. With
`blocks` an invocation holds what a stage of a pipeline does; the pool holds what it likes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dnnp.core.check.latency_case import PlanCase
from dnnp.core.check.load import peak_memory
from dnnp.core.check.violation import ROUNDING, TOLERANCE
from dnnp.core.model.graph import CONSTANT, PARAMETER
from dnnp.core.model.plan import Transfer

Span = tuple[float, float, float]
"""Begin, end and bytes of a tensor on a device."""


def peaks_of_blocks(case: PlanCase, is_cpu: Callable[[int], bool]) -> list[float | None]:
    """Peak of live tensors of each stage, bytes; None of the pool."""
    return [
        None if is_cpu(number) else peak_memory(case.tables, nodes)[1]
        for number, nodes in enumerate(case.blocks)
    ]


def peaks_of_operators(
    case: PlanCase,
    start: dict[int, float],
    length: dict[int, float],
    receives: Sequence[Sequence[Transfer]],
) -> list[float | None]:
    """Peak of live tensors of each stage, bytes.

    `start` and `length` are those of the units, `receives` what each stage receives; all times
    count from the first start.
    """
    tables, of_node = case.tables.in_memory, case.units.of_node
    end = {unit: _less(start[unit] + length[unit], length[unit]) for unit in start}
    finish = max(end.values(), default=0.0)
    place = {name: t for t, name in enumerate(case.tensor_ids)}
    spans: list[list[Span]] = [[] for _ in receives]
    floor = dict.fromkeys(start, 0.0)
    until: dict[tuple[int, int], float] = {}
    readers: dict[tuple[int, int], set[int]] = {}
    for t, size in enumerate(tables.size):
        if tables.kind[t] in (PARAMETER, CONSTANT):
            continue
        maker = of_node[tables.writer[t]] if t in tables.writer else -1
        units = {of_node[v] for v in tables.users.get(t, ())} - {maker}
        for unit in units & start.keys():
            floor[unit] += size
            stage = case.stage_of[unit]
            readers.setdefault((t, stage), set()).add(unit)
            until[t, stage] = max(until.get((t, stage), 0.0), end[unit])
        if maker in start and (units or tables.output[t]):
            floor[maker] += size
            last = max(end[maker], until.get((t, case.stage_of[maker]), 0.0))
            until[t, case.stage_of[maker]] = finish if tables.output[t] else last
    for number, moves in enumerate(receives):
        waiting: dict[tuple[int, ...], list[int]] = {}
        for move in sorted(moves, key=lambda m: m.start_s):
            tensors = [place[i] for i in move.tensors if i in place]
            tensors = [t for t in tensors if tables.kind[t] < PARAMETER]
            done = _less(move.end_s, move.end_s - move.start_s)
            last = max((until.get((t, number), 0.0) for t in tensors), default=0.0)
            if case.edge:
                # As in `_keys`: of the units that read just these the first to start takes it.
                last = _first(case, number, tensors, readers, start, end, waiting)
            for t in tensors:
                spans[number].append((move.start_s, last, tables.size[t]))
                maker = of_node[tables.writer[t]] if t in tables.writer else -1
                if maker in start:
                    home = t, case.stage_of[maker]
                    until[home] = max(until.get(home, 0.0), done)
    for (t, number), last in until.items():
        maker = of_node[tables.writer[t]] if t in tables.writer else -1
        if maker < 0:
            spans[number].append((0.0, last, tables.size[t]))
        elif case.stage_of.get(maker) == number:
            spans[number].append((start[maker], last, tables.size[t]))
    found: list[float | None] = []
    for number, spanned in enumerate(spans):
        held = [unit for unit in case.held(number) if unit in start]
        own = {unit: _inner(case, unit) for unit in held}
        spanned += [(start[unit], end[unit], own[unit]) for unit in held]
        found.append(max([_peak(spanned), *(floor[unit] + own[unit] for unit in held)]))
    return found


def _less(end: float, length: float) -> float:
    """An end that what begins then is not before, as in `early`."""
    return max(end - TOLERANCE * length - ROUNDING * end, end - length)


def _peak(spans: Sequence[Span]) -> float:
    """Most bytes at a time; what ends is gone before anything begins."""
    events = [(begin, 1, size) for begin, _, size in spans]
    events += [(max(end, begin), 0, -size) for begin, end, size in spans]
    events.sort()
    most = total = 0.0
    for _, _, change in events:
        total += change
        most = max(most, total)
    return most


def _inner(case: PlanCase, unit: int) -> float:
    """Peak over the nodes of a unit of what only they know."""
    tables, nodes = case.tables.in_memory, case.members[unit]
    stage = set(nodes)
    ordered = [v for v in case.blocks[case.stage_of[unit]] if v in stage]
    step = {v: i for i, v in enumerate(ordered)}
    spans: list[Span] = []
    for v in ordered:
        for t in tables.writes[v]:
            users = tables.users.get(t, ())
            if not tables.output[t] and all(u in step for u in users):
                last = max([step[v], *(step[u] for u in users)])
                spans.append((step[v], last + 1, tables.size[t]))
    return _peak(spans)


def _first(
    case: PlanCase,
    number: int,
    tensors: Sequence[int],
    readers: dict[tuple[int, int], set[int]],
    start: dict[int, float],
    end: dict[int, float],
    waiting: dict[tuple[int, ...], list[int]],
) -> float:
    """End of the unit of a stage that a transfer is for: one that reads just these of a maker."""
    key = tuple(sorted(tensors))
    if key not in waiting:
        sets = [readers.get((t, number), set()) for t in key]
        units = set.intersection(*sets) if sets else set()
        writer = case.tables.in_memory.writer
        maker = {case.units.of_node[writer[t]] for t in key if t in writer}
        exact = [u for u in units if _carried(case, u, maker) == set(key)]
        waiting[key] = sorted(exact, key=lambda u: (start[u], u), reverse=True)
    return end[waiting[key].pop()] if waiting[key] else 0.0


def _carried(case: PlanCase, unit: int, makers: set[int]) -> set[int]:
    """Tensors that a unit reads of some others."""
    tables, of_node = case.tables.in_memory, case.units.of_node
    return {
        t
        for v in case.members[unit]
        for t in tables.reads[v]
        if t in tables.writer and of_node[tables.writer[t]] in makers
    }
