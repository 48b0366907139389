"""The cost model that the options of a split ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dnnp.core.methods import SPLITS
from dnnp.core.model.errors import UsageError
from dnnp.core.model.plan import CostOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dnnp.core.model.device import DeviceClass, Link
    from dnnp.core.model.graph import Graph
    from dnnp.options.split import SplitOptions

LATENCY_ALONE = ("execution", "invocations", "transfers", "congestion")
"""Options that the objective latency alone has."""


def throughput_options(options: SplitOptions, graph: Graph) -> CostOptions:
    """The cost model that the options ask for, where the objective is not latency.

    Raises
    ------
    UsageError
        Options or methods that only latency has.
    """
    for name in LATENCY_ALONE:
        if getattr(options, name) is not None:
            raise UsageError(f"--{name} is for --objective latency")
    for method in options.methods:
        if method not in SPLITS:
            raise UsageError(f"method {method} is for --objective latency")
    stated = not np.isnan(graph.node_bytes).all()
    summed = stated or bool(graph.backward.any())
    return CostOptions(
        options.comm,
        options.memory_model or ("sum" if summed or options.parallel else "peak"),
        options.memory_mode,
        options.charge_io,
        options.objective,
        options.max_replicas or 1,
    )


def latency_options(
    options: SplitOptions,
    graph: Graph,
    devices: tuple[DeviceClass, ...],
    links: tuple[Link, ...],
) -> CostOptions:
    """The cost model that the options ask for, where the objective is latency.

    Raises
    ------
    UsageError
        Options that this objective does not have, or that do not go together.
    """
    if options.memory_model == "peak":
        raise UsageError("--objective latency adds memory up: no --memory-model peak")
    if options.memory_mode == "overflow":
        raise UsageError("--objective latency streams nothing: no --memory-mode overflow")
    if options.max_replicas not in (None, 1):
        raise UsageError("--objective latency runs every sample once: no --max-replicas")
    if options.validity is not None:
        raise UsageError("--objective latency: --execution says what a split may be, not validity")
    execution = options.execution or _execution(devices, links)
    cpus = [d.name for d in devices if d.is_cpu]
    if execution == "blocks":
        if len(cpus) > 1:
            raise UsageError(f"--execution blocks has one pool of CPUs, not {', '.join(cpus)}")
        if options.congestion is not None:
            raise UsageError("--congestion is for --execution operators")
        if links:
            raise UsageError("--execution blocks moves all through the host: links do not count")
    else:
        if options.invocations is not None:
            raise UsageError("--invocations is for --execution blocks")
        if options.charge_io:
            raise UsageError("--charge-io is for --execution blocks")
    if options.charge_io and options.transfers == "edge":
        raise UsageError("--charge-io needs --transfers tensor")
    stated_none = bool(np.isnan(graph.node_bytes).all())
    return CostOptions(
        memory_model=options.memory_model or ("weights" if stated_none else "sum"),
        memory_mode=options.memory_mode,
        charge_io=options.charge_io,
        objective="latency",
        execution=execution,
        invocations=options.invocations or 1,
        transfers=options.transfers or "tensor",
        congestion=options.congestion or "device",
    )


def _execution(devices: Sequence[DeviceClass], links: Sequence[Link]) -> str:
    """Blocks for the machines of the 2020 paper: accelerators, one class of CPUs, no links."""
    cpus = sum(d.is_cpu for d in devices)
    return "blocks" if cpus == 1 and len(devices) > 1 and not links else "operators"
