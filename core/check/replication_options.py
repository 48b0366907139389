"""Validate the ways to use the devices that a plan was compared with.

The whole model on one device, and replicas of it, are priced again: they have no choice but that of
the class and the number of devices. What searches found of the others cannot be recomputed, but it
is not better than the plan, and fits the devices. What was predicted for a way that ran is priced
by the same sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from dnnp.core.check.case import Units
from dnnp.core.check.devices import Alone, Mesh
from dnnp.core.check.graph import Tables
from dnnp.core.check.load import Cost, Footprint, footprint_of, price
from dnnp.core.check.violation import Violation, above, fits, same
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.plan import Plan, Way


def check_ways(plan: Plan, tables: Tables, units: Units, order: Sequence[int]) -> list[Violation]:
    """Return what does not hold about the ways of a plan.

    Parameters
    ----------
    order
        All nodes (positions) in an order in which one device may run them.
    """
    found, whole = _chosen(plan), _Whole(plan, tables, units, order)
    offered = sum(device.count for device in plan.devices)
    for way in plan.ways:
        if not way.stages <= way.devices <= offered or way.stages > len(units.ids):
            message = f"has {way.stages} stages on {way.devices} devices, of {offered} devices and "
            found.append(_wrong(way, f"{message}{len(units.ids)} {units.what}s"))
        if way.value is None and not way.reason:
            found.append(_wrong(way, "has neither a value nor a reason"))
        if way.value is not None and above(plan.value, way.value):
            message = f"has the value {way.value!r}, better than the plan's {plan.value!r}"
            found.append(_wrong(way, message, plan.value, way.value))
        if way.name in ("whole", "replicas"):
            found += whole.check(way)
    return found


def check_predicted(
    plan: Plan,
    tables: Tables,
    units: Units,
    order: Sequence[int],
    runs: Sequence[Mapping[str, Any]],
) -> list[Violation]:
    """Return where runs state another rate of what is to be deployed than the cost model predicts.

    Replicas of the whole model run on as many devices of the plan as they say, in its order, and
    share nothing; the rate is over that of the plan. `order` is as in `check_ways`.
    """
    whole = _Whole(plan, tables, units, order)
    sessions, found = {run["mode"]: run.get("k") for run in runs}, []
    for number, run in enumerate(runs):
        choice = run.get("choice", {})
        stated, mode = choice.get("predicted_ratio"), choice.get("mode")
        if stated is None or mode not in sessions:
            continue
        low, high = (1.0, 1.0) if mode == "pipeline" else whole.ratios(sessions[mode] or 1)
        if above(low, stated) or above(stated, high):
            message = f"predicted_ratio of the choice is {stated!r}, recomputed {low!r}"
            found.append(Violation("value", f"run {number}", message, low, stated))
    return found


def _wrong(
    way: Way, message: str, expected: float | None = None, got: float | None = None
) -> Violation:
    return Violation("value", f"way {way.name}", message, expected, got)


def _chosen(plan: Plan) -> list[Violation]:
    """Each way stands there once, what it uses fits its name, and the plan is one of them."""
    names = [way.name for way in plan.ways]
    if len(set(names)) < len(names):
        return [Violation("value", "plan", "a way is listed twice")]
    found = []
    for way in plan.ways:
        if way.value is not None and way.name != _name(way.stages, way.devices):
            message = f"is one of {way.stages} stages on {way.devices} devices"
            found.append(_wrong(way, message))
    devices = sum(stage.replicas for stage in plan.stages)
    name = _name(len(plan.stages), devices)
    mine = [way for way in plan.ways if way.name == name and way.value is not None]
    if not mine:
        message = f"the plan is a {name}, which is not among the ways that were compared"
        return [*found, Violation("value", "plan", message)]
    (way,) = mine
    if not same(way.value or 0.0, plan.value):
        message = f"has the value {way.value!r}, but it is the plan, of {plan.value!r}"
        found.append(_wrong(way, message, plan.value, way.value))
    if (way.stages, way.devices) != (len(plan.stages), devices):
        message = f"has {way.stages} stages on {way.devices} devices, but it is the plan, with "
        message += f"{len(plan.stages)} on {devices}"
        found.append(_wrong(way, message))
    return found


def _name(stages: int, devices: int) -> str:
    """The way that so many stages on so many devices are."""
    if stages < 2:
        return "replicas" if devices > 1 else "whole"
    return "replicated-pipeline" if devices > stages else "pipeline"


class _Whole:
    """The whole model on devices of each class."""

    def __init__(self, plan: Plan, tables: Tables, units: Units, order: Sequence[int]) -> None:
        self.plan, self.tables, self.units, self.order = plan, tables, units, order
        self.free = plan.options.memory_model == "peak"
        """Memory depends on the order of the nodes: another one may need less."""
        self._widest: dict[str, list[float]] = {}

    def check(self, way: Way) -> list[Violation]:
        """Price the whole model, or replicas of it, again."""
        least = 1 if way.name == "whole" else 2
        offered = [d for d in self.plan.devices if d.count >= least]
        if way.value is None:
            holds = [d.name for d in offered if self.fits(d)]
            if holds:
                return [_wrong(way, f"cannot be, it says, but '{holds[0]}' holds the whole model")]
            return []
        devices = [d for d in offered if d.name == way.device_class]
        if not devices or not least <= way.devices <= devices[0].count:
            message = f"there are no {way.devices} devices of class '{way.device_class}'"
            return [_wrong(way, message)]
        value, memory = self.value(devices[0], way.devices)
        # Overflow is part of the value, and less in an order of smaller peak.
        exact = not self.free or self.plan.options.memory_mode == "hard"
        lower = above(value, way.value) and (exact or self.least(devices[0], way) > way.value)
        if above(way.value, value) or lower:
            message = f"the value is {way.value!r}, recomputed {value!r}"
            return [_wrong(way, message, value, way.value)]
        if not self.free and not self.holds(devices[0], memory):
            return [_wrong(way, f"class '{way.device_class}' cannot hold the whole model")]
        better = [
            d.name
            for d in offered
            for replicas in self.numbers(d, least)
            if self.fits(d) and above(way.value, self.value(d, replicas)[0])
        ]
        return [_wrong(way, f"is better on class '{better[0]}'")] if better else []

    def numbers(self, device: DeviceClass, least: int) -> Iterable[int]:
        """Numbers of devices of which one is best: the ends where all pairs are alike."""
        if least == 1:
            return (1,)
        if not self.joined:
            return {least, device.count}
        return range(least, len(self.widest(device)) + 1)

    def value(self, device: DeviceClass, replicas: int) -> tuple[float, float]:
        """The objective, and the memory of a device."""
        cost = self.cost(device, replicas)
        if self.plan.objective == "gpipe":
            return (cost.forward_s or 0.0) + (cost.backward_s or 0.0), cost.memory_bytes
        return cost.load_s, cost.memory_bytes

    def ratios(self, sessions: int) -> tuple[float, float]:
        """The least and the largest rate of so many copies of the model, over that of the plan.

        They differ where another order of the nodes may need less memory.
        """
        classes = {device.name: device for device in self.plan.devices}
        names = [stage.device_class for stage in self.plan.stages for _ in range(stage.replicas)]
        used = [classes[name] for name in names if name in classes]
        used = [device for device in used if math.isfinite(self.value(device, 1)[0])]
        holding = [device for device in used if self.fits(device)]
        if not self.free or (self.plan.options.memory_mode == "hard" and len(holding) == len(used)):
            rate = sum(self.rate(device) for device in holding[:sessions]) * self.plan.value
            return rate, rate
        best = [self.rate(replace(device, memory_bytes=math.inf)) for device in used]
        return 0.0, sum(sorted(best)[-sessions:]) * self.plan.value

    def rate(self, device: DeviceClass) -> float:
        """Samples a time unit of the whole model on a device; 0 where its value is."""
        value = self.value(device, 1)[0]
        return 1 / value if value else 0.0

    def least(self, device: DeviceClass, way: Way) -> float:
        """What the value is at least, in any order of the nodes: that without overflow."""
        return self.value(replace(device, memory_bytes=math.inf), way.devices)[0]

    def cost(self, device: DeviceClass, replicas: int) -> Cost:
        times = self.units.times.get(device.name, [math.inf] * len(self.units.ids))
        late = self.units.backward
        ahead = math.fsum(t for t, back in zip(times, late, strict=True) if not back)
        back = math.fsum(t for t, back in zip(times, late, strict=True) if back)
        wires = None
        if self.joined and replicas > 1:
            widest = self.widest(device)
            wires = Alone(widest[replicas - 1] if replicas <= len(widest) else 0.0)
        options, compute = self.plan.options, (ahead, back)
        return price(self.tables, self.footprint, compute, device, options, replicas, wires=wires)

    @property
    def joined(self) -> bool:
        """Whether it matters which devices replicas run on: weights go over links."""
        return bool(self.plan.links) and self.footprint.weight_bytes > 0

    def widest(self, device: DeviceClass) -> list[float]:
        """The largest bandwidth between the worst pair of 1, 2, ... devices in a row.

        It ends with the devices that links name: others are not joined to any.
        """
        if device.name not in self._widest:
            ends = {end for link in self.plan.links for end in (link.source, link.target)}
            count = sum(end.rpartition("/")[0] == device.name for end in ends)
            names = [f"{device.name}/{i}" for i in range(min(device.count, count))]
            mesh, found = Mesh(self.plan), [math.inf] * len(names)
            for first in range(len(names)):
                worst = math.inf
                for size, name in enumerate(names[first + 1 :], 2):
                    for other in names[first : first + size - 1]:
                        for path in (mesh.path(name, other), mesh.path(other, name)):
                            worst = min(worst, 0.0 if path is None else path.bandwidth)
                    row = found[size - 1]
                    found[size - 1] = worst if math.isinf(row) else max(row, worst)
            self._widest[device.name] = found
        return self._widest[device.name]

    @cached_property
    def footprint(self) -> Footprint:
        """What all nodes move and hold."""
        return footprint_of(self.tables, self.order, self.plan.options)

    def fits(self, device: DeviceClass) -> bool:
        """Whether a device surely holds and runs the whole model."""
        value, memory = self.value(device, 1)
        return math.isfinite(value) and self.holds(device, memory)

    def holds(self, device: DeviceClass, memory: float) -> bool:
        """Whether a device has so much memory, or may stream what is above it."""
        free = device.is_cpu or self.plan.options.memory_mode == "overflow"
        return free or fits(memory, device.memory_bytes)
