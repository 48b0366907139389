"""Stages of a parallel plan that all devices of a class share, and what a device has with them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dnnp.core.check.devices import number_of
from dnnp.core.check.violation import Violation
from dnnp.core.model.plan import Plan


def fullest(plan: Plan, amounts: Sequence[float]) -> float:
    """The most that a device has of something, of which stages have these amounts on each device.

    A device has its own stage, of which there is one at most, and its part of each shared stage.
    """
    pairs = list(zip(plan.stages, amounts, strict=True))
    own = max((amount for stage, amount in pairs if not stage.shared), default=0.0)
    return own + math.fsum(amount for stage, amount in pairs if stage.shared)


def check_shared(plan: Plan) -> list[Violation]:
    """Shared stages are on all devices of their class, one shard each; there are not too many."""
    found = []
    most = 0 if plan.hybrid is None else plan.hybrid.shared_stages
    count = sum(stage.shared for stage in plan.stages)
    if count > most:
        message = f"{count} stages are shared, the plan allows {most}"
        found.append(Violation("replicas", "plan", message, most, count))
    devices = {device.name: device for device in plan.devices}
    for number, stage in enumerate(plan.stages):
        device = devices.get(stage.device_class)
        if not stage.shared or device is None:
            continue
        if (number_of(stage), stage.shards, stage.replicas) != (0, device.count, 1):
            width = f"{stage.device} x{stage.replicas} / {stage.shards}"
            message = f"is shared, but on {width}, not on all {device.count} devices"
            found.append(Violation("device", f"stage {number}", message))
    return found


def together(plan: Plan, stages: Sequence[int]) -> bool:
    """Whether what is in these stages is on the same devices."""
    there = {plan.stages[s].device for s in stages}
    return len(stages) < 2 or (len(there) == 1 and all(plan.stages[s].shared for s in stages))
