"""Blocking against non-blocking transfers (Tessel, IV-D and figure 17): predicted and run.

Blocks of the shapes of the paper sleep for their times, and so do the links; so a run measures what
a schedule is worth when devices and links follow its order, and not its times.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from dnnp.core.runtime.model.session import Values
from dnnp.core.runtime.pipeline.schedule_orders import (
    orders_of_units,
    schedule_steps,
)
from dnnp.core.runtime.report.statistics import share_of, summarize_schedule
from dnnp.core.schedule.auto import solve
from dnnp.core.schedule.problem import Wanted, peak_memory, problem_of
from dnnp.core.schedule.shapes import SHAPES, shape
from dnnp.core.schedule.transfers import global_order, with_transfers
from dnnp.formats.schedule import schedule_records
from support.bench import table
from support.running import run_pipeline
from support.scheduled import stand_ins

DEVICES = 4
MICRO_BATCHES = 8
FORWARD_S = 8e-3
"""Of a stage; its backward block takes three times as long, a shared block as long."""
RATIOS = (1 / 8, 1 / 4, 1 / 2, 1.0)
"""Time of a transfer over that of a forward block."""
MODES = ("blocking", "non-blocking")
ROUNDS = 3

Record = dict[str, Any]


class Case(NamedTuple):
    """A schedule to run."""

    shape: str
    ratio: float
    mode: str
    schedule: Record
    blocks: list[Record]


def scheduled(name: str, ratio: float, mode: str) -> Case:
    """Schedule by dnnp-schedule of a shape with such transfers."""
    placement = shape(
        name, DEVICES, forward_s=FORWARD_S, backward_s=3 * FORWARD_S, shared_s=FORWARD_S
    )
    placement = with_transfers(placement, mode, time_s=ratio * FORWARD_S)
    found = solve(placement, Wanted(MICRO_BATCHES))
    problem = problem_of(found.placement, MICRO_BATCHES)
    start = found.start_s.ravel()
    peak, order = peak_memory(problem, start), global_order(problem, start)
    schedule, blocks = schedule_records(found, peak.tolist(), order.tolist(), None, None)
    return Case(name, ratio, mode, schedule, blocks)


class Figures(NamedTuple):
    """Time that a schedule predicts, or that a run takes."""

    makespan_s: float
    bubble: float
    transfers: float
    """Share of the time of the units that carry them."""


def predicted(case: Case) -> Figures:
    """By the schedule."""
    unit_orders = orders_of_units(case.schedule, case.blocks, {})
    spent = (unit_orders.end_s - unit_orders.start_s).sum(axis=1)
    occupied = sum(t.width * float(spent[t.step]) for t in unit_orders.transfers)
    makespan = case.schedule["makespan_s"]
    share = share_of(unit_orders.transfers, occupied, makespan)
    return Figures(makespan, case.schedule["bubble"], share)


def measured(case: Case) -> Figures:
    """By blocks and links that sleep; medians of rounds."""
    passes = case.schedule["passes"]

    def call_of(number: int) -> Callable[[Values], Values]:
        def call(_: Values) -> Values:
            time.sleep(passes[number]["time_s"])
            return {str(number): None}

        return call

    steps, step_of = stand_ins(passes, call_of)
    unit_orders = orders_of_units(case.schedule, case.blocks, step_of)
    count, units = case.schedule["micro_batches"], case.schedule["units"]
    devices = sum(not unit.get("link") for unit in units)
    widths = np.array([len(passes[number]["homes"][0]) for number in step_of])
    last = [str(number) for number in step_of]
    rounds = []
    for _ in range(ROUNDS):
        scheduled = schedule_steps(steps, unit_orders, emulate=True)
        orders = scheduled.device_orders(last, 2)
        trace = run_pipeline(scheduled.steps, [{}], count, last, orders=orders)
        trace = scheduled.apart(trace)
        timing, moved = summarize_schedule(trace, devices), trace.moved
        busy = (widths * (trace.end_ns - trace.start_ns).sum(axis=1)).sum()
        busy += 0 if moved is None else moved.blocking_ns
        idle = 1 - busy * 1e-9 / (timing.makespan_s * devices)
        rounds.append(
            Figures(timing.makespan_s, idle, 0.0 if timing.moved is None else timing.moved.share)
        )
    return Figures(*(statistics.median(column) for column in zip(*rounds, strict=True)))


def rows_of(cases: Sequence[Case]) -> Iterator[tuple[str, ...]]:
    """A row for each way of transfers, with what the makespan is over that of the other way."""
    blocked: dict[tuple[str, float], tuple[float, float]] = {}
    for case in cases:
        said, took = predicted(case), measured(case)
        key = case.shape, case.ratio
        gain = "", ""
        if case.mode == MODES[0]:
            blocked[key] = said.makespan_s, took.makespan_s
        else:
            both = zip(blocked[key], (said.makespan_s, took.makespan_s), strict=True)
            gain = tuple(f"{before / now:.2f}" for before, now in both)
        yield (
            f"{case.shape}, {case.ratio:g}, {case.mode}",
            *(f"{1e3 * x:.0f}" for x in (said.makespan_s, took.makespan_s)),
            f"{took.makespan_s / said.makespan_s:.3f}",
            *(f"{x:.1%}" for x in (said.bubble, took.bubble, said.transfers, took.transfers)),
            *gain,
        )


HEADER = (
    "shape, transfer over forward block, way",
    "predicted (ms)",
    "run (ms)",
    "ratio",
    "bubble predicted",
    "run",
    "transfers predicted",
    "run",
    "gain predicted",
    "run",
)


def main() -> None:
    """Print the section."""
    cases = [scheduled(name, r, mode) for name in SHAPES for r in RATIOS for mode in MODES]
    print(
        f"Schedules of {MICRO_BATCHES} micro-batches of the shapes of Tessel on {DEVICES} devices, "
        f"run by threads that sleep: {FORWARD_S * 1e3:g} ms for a forward block of a stage or a "
        "shared block, three times that for a backward block. Medians of "
        f"{ROUNDS} runs. Transfers: share of the makespan that devices with blocking transfers, or "
        "links, are occupied by them. Gain: blocking over non-blocking makespan.\n"
    )
    print(table(HEADER, list(rows_of(cases))))


if __name__ == "__main__":
    main()
