"""Where the stages of a plan sit: devices that exist, each used once, and their clusters.

A stage on `class/i` with r replicas occupies the devices i to i + r - 1 of the class. Stages that
all devices share (`dnnp.core.check.claims`) leave them to others.
"""

from __future__ import annotations

from collections.abc import Mapping

from dnnp.core.check.violation import Violation
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.plan import Plan, Stage


def check_devices(plan: Plan) -> list[Violation]:
    """Stages sit on distinct devices that exist, at most k of them accelerators."""
    devices = {device.name: device for device in plan.devices}
    most = plan.options.max_replicas if plan.hybrid is None else plan.hybrid.data_parallel
    found = []
    accelerators = 0
    if most < 1:
        found.append(Violation("replicas", "plan", f"allows {most} replicas", ">= 1", most))
    for number, stage in enumerate(plan.stages):
        subject = f"stage {number}"
        if stage.replicas < 1:
            message = f"has {stage.replicas} replicas, expected at least 1"
            found.append(Violation("replicas", subject, message, 1, stage.replicas))
        elif stage.replicas > max(most, 1):
            message = f"has {stage.replicas} replicas, the plan allows {most}"
            found.append(Violation("replicas", subject, message, most, stage.replicas))
        device = devices.get(stage.device_class)
        if device is None:
            message = f"device class '{stage.device_class}' is not among the plan's devices"
            found.append(Violation("device", subject, message))
            continue
        if not device.is_cpu and not stage.shared:
            accelerators += _width(stage)
        first = number_of(stage)
        if first is None or first >= device.count:
            message = f"there is no device '{stage.device}'"
            message += f"; class '{device.name}' has {device.count}"
            found.append(Violation("device", subject, message))
        elif first + _width(stage) > device.count:
            last = f"{device.name}/{first + _width(stage) - 1}"
            message = f"its {stage.replicas} replicas reach to device '{last}'"
            message += f"; class '{device.name}' has {device.count}"
            found.append(Violation("device", subject, message))
    found += _overlaps(plan)
    if accelerators > plan.k:
        message = f"{accelerators} accelerators are in use, but k is {plan.k}"
        found.append(Violation("stages", "plan", message, plan.k, accelerators))
    return found


def _width(stage: Stage) -> int:
    """Devices that a stage takes."""
    return max(stage.replicas, 1) * max(stage.shards, 1)


def number_of(stage: Stage) -> int | None:
    """Number of a stage's first device: the i of `class/i`; None if the name is not of this form.

    Numbers have no sign, no leading zeros and at most 18 digits.
    """
    owner, number = split_name(stage.device)
    return number if owner == stage.device_class else None


def split_name(device: str) -> tuple[str, int | None]:
    """Class and number of a device; no number if the name is not of the form `class/i`."""
    owner, slash, index = device.rpartition("/")
    if not slash or not (index.isascii() and index.isdigit() and len(index) <= 18):
        return owner, None
    return owner, int(index) if index == str(int(index)) else None


def _overlaps(plan: Plan) -> list[Violation]:
    """No device in two stages."""
    intervals = []
    for stage_number, stage in enumerate(plan.stages):
        first = number_of(stage)
        if first is not None and not stage.shared:
            end = first + _width(stage)
            intervals.append((stage.device_class, first, stage_number, end))
    found = []
    reach: dict[str, tuple[int, int]] = {}
    for owner, first, stage_number, end in sorted(intervals):
        furthest, other = reach.get(owner, (0, -1))
        if first < furthest:
            earlier, later = sorted((stage_number, other))
            message = f"device {owner}/{first} is already used by stage {earlier}"
            found.append(Violation("device", f"stage {later}", message))
        if end > furthest:
            reach[owner] = (end, stage_number)
    return found


Home = tuple[str, int, int]
"""A cluster: its class, the devices that it has, and its number among those of that size."""


def clusters_of(plan: Plan, devices: Mapping[str, DeviceClass]) -> list[list[tuple[Home, float]]]:
    """The clusters that hold all devices of each stage, the smallest first, and their bandwidths.

    A stage that reaches from one cluster into the next is in neither.
    """
    found = []
    for stage in plan.stages:
        device, first = devices.get(stage.device_class), number_of(stage)
        homes: list[tuple[Home, float]] = []
        if device is not None and first is not None:
            last = first + _width(stage) - 1
            for size, bandwidth in device.levels:
                if size > 0 and first // size == last // size:
                    homes.append(((device.name, size, first // size), bandwidth))
        found.append(homes)
    return found
