"""Placements of the models of Tessel on V100s, as placement files of dnnp-schedule.

Stages of V are cut as Piper does (Tarnawski et al. 2021, without data parallelism): any cut into
stages on groups of 1, 2, 4, ... devices within their memory, of the shortest largest time. Those of
the other shapes run on four equal groups of devices; shared blocks on all devices.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from dnnp.samples.papers.tessel_costs import (
    ROOM_BYTES,
    STATES,
    WORD,
    Held,
    Layer,
    Model,
    held,
    sending_s,
    times_s,
)

GROUPS = 4
"""Groups of devices of the shapes X, M, NN and K."""


class Stage(NamedTuple):
    """Layers on a group of devices."""

    layers: tuple[Layer, ...]
    homes: tuple[int, ...]


def cut(model: Model, layers: Sequence[Layer], batch: int, training: bool) -> list[Stage] | None:
    """Stages on as many devices as there are or fewer, in their order; None: nothing fits.

    A stage has memory for as many micro-batches as there are stages from it on.
    """
    cuts = _Cuts(model, layers, batch, training)
    times = cuts.times()
    answer = cuts.within(times[-1])
    if answer is None:
        return None
    low, high = 0, len(times) - 1
    while low < high:
        middle = (low + high) // 2
        found = cuts.within(times[middle])
        if found is None:
            low = middle + 1
        else:
            answer, high = found, middle
    stages, i, first = [], 0, 0
    for j, width in answer:
        stages.append(Stage(tuple(layers[i:j]), tuple(range(first, first + width))))
        i, first = j, first + width
    return stages


class _Cuts:
    """Which layers fit on which groups of devices."""

    def __init__(self, model: Model, layers: Sequence[Layer], batch: int, training: bool) -> None:
        self.model, self.layers, self.batch, self.training = model, layers, batch, training
        # At least two stages, as in the authors' program; for inference one on each device.
        self.widths = [2**p for p in range((model.devices // 2).bit_length() if training else 1)]
        self.sums = {width: _prefix(layers, width, batch) for width in self.widths}
        self.reached: dict[tuple[int, int, int], int] = {}

    def times(self) -> list[float]:
        """Of all stages that there could be."""
        count = len(self.layers)
        found = (
            self.sums[width][j] - self.sums[width][i]
            for width in self.widths
            for i in range(count)
            for j in range(i + 1, count + 1)
        )
        return sorted(set(found))

    def within(self, most: float) -> list[tuple[int, int]] | None:
        """Ends and widths of stages that take at most this time, the fewest stages there can be."""
        count, devices = len(self.layers), self.model.devices
        # Devices that stages from a layer on need, and what they are.
        last: dict[int, tuple[int, list[tuple[int, int]]]] = {count: (0, [])}
        for left in range(1, min(devices, count) + 1):
            now: dict[int, tuple[int, list[tuple[int, int]]]] = {}
            for i, width in itertools.product(range(count), self.widths):
                j = self._reach(i, width, left)
                # As far as the time allows: fewer layers never need more devices.
                j = min(j, bisect_right(self.sums[width], self.sums[width][i] + most) - 1)
                if j <= i or j not in last or last[j][0] + width > devices:
                    continue
                if i not in now or last[j][0] + width < now[i][0]:
                    now[i] = last[j][0] + width, [(j, width), *last[j][1]]
            if 0 in now:
                return now[0][1]
            last = now
        return None

    def _reach(self, i: int, width: int, left: int) -> int:
        """The furthest end of a stage from layer i on that fits; `left` stages from it on."""
        key = i, width, left
        if key not in self.reached:
            j = i
            while j < len(self.layers) and self._fits(self.layers[i : j + 1], width, left, i == 0):
                j += 1
            self.reached[key] = j
        return self.reached[key]

    def _fits(self, layers: Sequence[Layer], width: int, left: int, first: bool) -> bool:
        need = held(layers, width, self.batch, training=self.training)
        if need.always_bytes + left * need.each_bytes > ROOM_BYTES:
            return False
        parameters = sum(layer.parameters for layer in layers) * WORD * STATES / width
        return not (first and self.training and parameters >= self.model.first_bytes)


def _prefix(layers: Sequence[Layer], width: int, batch: int) -> list[float]:
    """Sums of the times of a forward and a backward pass."""
    sums = [0.0]
    for layer in layers:
        sums.append(sums[-1] + sum(times_s([layer], width, batch)))
    return sums


class Plan:
    """A placement that is being made."""

    def __init__(self, model: Model, batch: int, *, training: bool = True) -> None:
        self.model, self.batch, self.training = model, batch, training
        self.blocks: list[dict[str, Any]] = []
        self.always = [0.0] * model.devices
        self.stages: dict[str, Stage] = {}

    def chain(self, stages: Sequence[tuple[str, Stage]], after: Sequence[str] = ()) -> list[str]:
        """Forward blocks after one another; the name of the last."""
        for name, stage in stages:
            after = [self._block("forward", name, stage, after)]
        return list(after)

    def back(self, stages: Sequence[tuple[str, Stage]], after: Sequence[str]) -> None:
        """Backward blocks the other way round."""
        for name, stage in reversed(stages):
            after = [self._block("backward", name, stage, after)]

    def holds(self, stage: Stage) -> None:
        """Count what a stage always holds."""
        memory = self._held(stage)
        for d in stage.homes:
            self.always[d] += memory.always_bytes

    def file(self, name: str) -> dict[str, Any] | None:
        """The placement file; None: its parameters do not fit."""
        if max(self.always) > ROOM_BYTES:
            return None
        devices = [
            {"name": f"v100/{d}", "memory_bytes": ROOM_BYTES, "fixed_bytes": always}
            for d, always in enumerate(self.always)
        ]
        return {"name": name, "devices": devices, "blocks": self.blocks}

    def _wait(self, name: str, stage: Stage, *, forward: bool) -> dict[str, Any]:
        """What a block waits for: the output of a stage, or the gradient of it, moves to its group.

        Nothing moves to devices that have it.
        """
        before = self.stages[name]
        source = before if forward else stage
        moved = source.layers[-1].output_bytes * self.batch
        if set(stage.homes) <= set(before.homes):
            return {"block": name}
        return {"block": name, "transfer_s": sending_s(moved, before.homes, stage.homes)}

    def _held(self, stage: Stage) -> Held:
        return held(stage.layers, len(stage.homes), self.batch, training=self.training)

    def _block(self, kind: str, name: str, stage: Stage, after: Sequence[str]) -> str:
        forward, backward = times_s(stage.layers, len(stage.homes), self.batch)
        is_forward = kind == "forward"
        each = self._held(stage).each_bytes
        block = {
            "name": f"{kind[0].upper()}{name}",
            "kind": kind,
            "devices": list(stage.homes),
            "time_s": forward if is_forward else backward,
            "memory_bytes": each if is_forward else -each,
            "after": [self._wait(name, stage, forward=is_forward) for name in after],
        }
        self.blocks.append(block)
        self.stages[str(block["name"])] = stage
        return str(block["name"])


@cache
def placement(
    model: Model, shape: str, batch: int, *, training: bool = True
) -> dict[str, Any] | None:
    """A placement file of shape V, X, M, NN-eager or K; None: it does not fit."""
    plan = Plan(model, batch, training=training)
    whole = [layer for part in model.parts for layer in part]
    everywhere = tuple(range(model.devices))
    if shape == "K":
        _two_branches(plan, everywhere)
    elif shape == "V":
        # The table, for all look-ups, on the first stage.
        table = (_all_look_ups(model.tables),) if model.tables else ()
        stages = cut(model, [*table, *whole], batch, training)
        if stages is None:
            return None
        _there_and_back(plan, [(str(i), stage) for i, stage in enumerate(stages)])
    elif shape == "X":
        table = (_all_look_ups(model.tables),) if model.tables else ()
        # Memory is looked at in the end: two stages share a device.
        stages = _equal([*table, *whole], model.devices, batch)
        for label, order in (("a", 1), ("b", -1)):
            homes = [stage.homes for stage in stages][::order]
            named = [
                (f"{label}{i}", Stage(stage.layers, home))
                for i, (stage, home) in enumerate(zip(stages, homes, strict=True))
            ]
            _there_and_back(plan, named)
    else:
        stages = _equal(whole, model.devices, batch)
        named = [(str(i), stage) for i, stage in enumerate(stages)]
        if shape == "NN-eager":
            # The second look-up is in the table of the first.
            named.insert(1, ("t", Stage((model.tables[1]._replace(parameters=0.0),), everywhere)))
        _there_and_back(plan, [("s", Stage((model.tables[0],), everywhere)), *named])
    return plan.file(f"{model.name}-{shape}-{model.devices}")


def _all_look_ups(tables: Sequence[Layer]) -> Layer:
    """One layer that does all look-ups in one table."""
    moved = sum(table.summed_bytes for table in tables)
    return Layer(0.0, tables[0].parameters, moved, moved, 0.0)


def _there_and_back(plan: Plan, stages: Sequence[tuple[str, Stage]]) -> None:
    """Forward and backward blocks of a chain."""
    for _, stage in stages:
        plan.holds(stage)
    last = plan.chain(stages)
    if plan.training:
        plan.back(stages, last)


def _equal(layers: Sequence[Layer], devices: int, batch: int) -> list[Stage]:
    """Four stages of nearly equal times on equal groups, whatever they hold."""
    width = devices // GROUPS
    sums = _prefix(layers, width, batch)
    count = len(layers)

    @cache
    def best(i: int, left: int) -> tuple[float, tuple[int, ...]]:
        if left == 1:
            return sums[count] - sums[i], (count,)
        options = (
            (max(sums[j] - sums[i], best(j, left - 1)[0]), (j, *best(j, left - 1)[1]))
            for j in range(i + 1, count - left + 2)
        )
        return min(options)

    ends = best(0, GROUPS)[1]
    return [
        Stage(tuple(layers[i:j]), tuple(range(g * width, (g + 1) * width)))
        for g, (i, j) in enumerate(zip((0, *ends), ends, strict=False))
    ]


def _two_branches(plan: Plan, everywhere: tuple[int, ...]) -> None:
    """Shape K for inference: two branches of two stages each, then a block on all devices."""
    width = len(everywhere) // GROUPS
    *branches, joint = plan.model.parts
    ends: list[str] = []
    for b, part in enumerate(branches):
        half = len(part) // 2
        stages = [
            (f"{'ab'[b]}{i}", Stage(tuple(layers), everywhere[g * width : (g + 1) * width]))
            for i, (layers, g) in enumerate(((part[:half], 2 * b), (part[half:], 2 * b + 1)))
        ]
        for _, stage in stages:
            plan.holds(stage)
        ends += plan.chain(stages)
    last = Stage(tuple(joint), everywhere)
    plan.holds(last)
    plan.chain([("s", last)], ends)
