"""--eval: a split that was made elsewhere, as blocks."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from dnnp.core.model.errors import FormatError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dnnp.core.cost.problem import SplitProblem
    from dnnp.core.model.device import DeviceClass
    from dnnp.core.model.plan import Block, CostOptions
    from dnnp.formats.msr_split import Part


def given_split(data: bytes, name: str, problem: SplitProblem) -> list[Block]:
    """Read a split; the nodes of each part run in the graph's order.

    Raises
    ------
    FormatError
        The file is malformed, does not fit the graph, or gives one device to two parts.
    UsageError
        It uses a device that is not offered.
    """
    import numpy as np

    from dnnp.core.model.plan import Block
    from dnnp.formats.msr_split import read_split

    graph = problem.graph
    position = {node: i for i, node in enumerate(graph.node_ids.tolist())}
    parts = read_split(data, name)
    blocks: list[Block] = []
    for part in parts:
        unknown = next((i for i in part.nodes if i not in position), None)
        if unknown is not None:
            raise FormatError(f"the split does not fit the graph: there is no node {unknown}", name)
        nodes = np.array([position[i] for i in part.nodes], dtype=np.int64)
        device = _device_of(part, problem.devices, name)
        blocks.append(
            Block(nodes[np.argsort(graph.rank[nodes])], device, part.replicas, part.number)
        )
    _check_numbers(blocks, name)
    return blocks


def with_replicas(options: CostOptions, blocks: Sequence[Block], stated: int | None) -> CostOptions:
    """Options that allow the replicas of a split, if they are within the number stated.

    Raises
    ------
    UsageError
        A part has more replicas.
    """
    most = max((b.replicas for b in blocks), default=1)
    if stated is not None and most > stated:
        raise UsageError(f"the split runs a stage on {most} devices, above --max-replicas {stated}")
    return replace(options, max_replicas=max(most, options.max_replicas))


def _device_of(part: Part, devices: tuple[DeviceClass, ...], name: str) -> DeviceClass:
    """The class that a part names, or the first of its kind."""
    for device in devices:
        if device.name == part.device_class:
            return device
    if part.device_class not in ("", "cpu"):
        offered = ", ".join(d.name for d in devices)
        raise UsageError(
            f"{name}: the split uses a device of class '{part.device_class}'; "
            f"offered are: {offered}"
        )
    for device in devices:
        if device.kind == part.kind:
            return device
    raise UsageError(f"{name}: the split uses a device of kind {part.kind}; none is offered")


def _check_numbers(blocks: Sequence[Block], name: str) -> None:
    """Refuse numbers that some parts of a class have and others lack, or that overlap."""
    for device in dict.fromkeys(b.device for b in blocks):
        mine = sorted((b for b in blocks if b.device == device), key=lambda b: b.number)
        if mine[-1].number < 0:
            continue
        if mine[0].number < 0:
            raise FormatError(
                f"some parts on '{device.name}' have a device number, others not", name
            )
        for one, other in pairwise(mine):
            if one.number + one.replicas > other.number:
                raise FormatError(f"two parts are on {device.name}/{other.number}", name)
