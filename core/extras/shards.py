"""Times of nodes on several devices at once; `dnnp-profile --tensor-parallel`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dnnp.core.cost.load_formula import ALL_GATHER, ALL_REDUCE, collective_time
from dnnp.core.extras.shard_times import ShardTimes, ends_of, weighted
from dnnp.core.extras.training_shards import paired, state_training
from dnnp.core.model.errors import UsageError
from dnnp.core.model.graph import PARAMETER, Graph
from dnnp.core.model.shards import WHOLE, axis_of, blocks_of
from dnnp.core.profile.work import work_of
from dnnp.core.tensor_parallel.layout import Layout, choose
from dnnp.core.tensor_parallel.rules import Operator, Rule, part, rules, with_blocks
from dnnp.formats.graph import graph_of, units_of
from dnnp.formats.inputs.devices import DeviceSpec
from dnnp.formats.stream import Stream

MEETING_S = 20e-6
"""Cost of an exchange besides the time of its bytes when a layout is chosen, seconds: devices
wait for each other, which plans do not price."""


def price_shards(stream: Stream, devices: Sequence[DeviceSpec], most: int) -> None:
    """State `shards` of nodes and tensors for 2, 4, 8, ... up to `most` devices.

    The layout is the cheapest on the first of `devices`, by its link. A part of a node takes the
    time of the node by the ratio of their rooflines. Without a backward pass each entry states the
    layout of its node, which dnnp-run and dnnp-export follow.

    Raises
    ------
    UsageError
        Nodes without times for a device, or a backward pass that tells not what its nodes are.
    """
    nodes, tensors = stream.get("node"), stream.get("tensor")
    for device in devices:
        if any(device.name not in record.get("time_s", {}) for record in nodes):
            raise UsageError(f"--tensor-parallel: nodes have no times for {device.name}")
    graph = graph_of(stream)
    units = units_of(stream, graph)
    work = work_of(graph, nodes, tensors)
    seen = operators_of(stream, graph)
    passes = paired(stream, graph) if graph.backward.any() else None
    for record in (*nodes, *tensors):
        record.pop("shards", None)
    t = 2
    while t <= most:
        clock = ShardTimes.of(nodes, units, work, devices, t)
        if passes is None:
            _state(stream, graph, seen, clock)
        else:
            state_training(stream, graph, passes, seen, clock)
        t *= 2


def operators_of(stream: Stream, graph: Graph) -> list[Operator]:
    """The nodes as rules see them."""
    shapes = [tuple(r["shape"]) if "shape" in r else None for r in stream.get("tensor")]
    stored = (graph.tensor_kind >= PARAMETER).tolist()
    reads, writes = ends_of(graph)
    seen = [
        Operator(
            op,
            tuple(shapes[x] for x in inputs),
            tuple(shapes[x] for x in outputs),
            tuple(stored[x] for x in inputs),
            unequal=not graph.backward.any(),
        )
        for op, inputs, outputs in zip(graph.ops, reads, writes, strict=True)
    ]
    order = graph.order.tolist()
    sides = [reads[v] for v in order], [writes[v] for v in order]
    informed = with_blocks([seen[v] for v in order], *sides)
    return [node for _, node in sorted(zip(order, informed, strict=True), key=lambda p: p[0])]


def _state(stream: Stream, graph: Graph, seen: Sequence[Operator], clock: ShardTimes) -> None:
    """Add the entries for `clock.t` devices to the records."""
    nodes, tensors = stream.get("node"), stream.get("tensor")
    shapes = [tuple(record["shape"]) if "shape" in record else None for record in tensors]
    size, leaves = graph.tensor_bytes.tolist(), graph.is_output.tolist()
    stored = (graph.tensor_kind >= PARAMETER).tolist()
    reads, writes = ends_of(graph)
    t, devices = clock.t, clock.devices
    band = devices[0].link_bandwidth_bytes_per_s

    def times(v: int, rule: Rule) -> list[float]:
        if not rule.divided:
            return clock.whole(v)
        ends = [
            *zip(reads[v], rule.inputs, strict=True),
            *zip(writes[v], rule.outputs, strict=True),
        ]
        most = max((share(x, state) for x, state in ends if state != WHOLE), default=1.0)
        return clock.shared(v, weighted((size[x], share(x, state)) for x, state in ends), most)

    def share(x: int, state: int) -> float:
        return part(state, t, shapes[x])

    def exchange(kind: str, x: int) -> float:
        return MEETING_S + collective_time(kind, size[x], t, band)

    def price(v: int, rule: Rule) -> float:
        own = times(v, rule)[0] * clock.factor[v]
        if rule.reduced:
            own += sum(exchange(ALL_REDUCE, x) for x in writes[v])
        for x, state in zip(writes[v], rule.outputs, strict=True):
            own += exchange(ALL_GATHER, x) if leaves[x] and state != WHOLE else 0.0
        return own

    order = graph.order.tolist()
    layout: Layout = choose(
        [reads[v] for v in order],
        [writes[v] for v in order],
        [rules(seen[v], t) for v in order],
        lambda i, rule: price(order[i], rule),
        lambda x: exchange(ALL_GATHER, x),
    )
    gathered = {x for made in layout.gathered for x in made}
    gathered |= {x for x, state in layout.state.items() if leaves[x] and state != WHOLE}
    counted: set[int] = set()
    for v, rule in zip(order, layout.rules, strict=True):
        weights = {
            x: size[x] * share(x, state)
            for x, state in zip(reads[v], rule.inputs, strict=True)
            if stored[x]
        }
        made = sum(
            size[x] if x in gathered else size[x] * share(x, state)
            for x, state in zip(writes[v], rule.outputs, strict=True)
        )
        seconds = times(v, rule)
        entry = {
            "devices": t,
            "time_s": {device.name: s for device, s in zip(devices, seconds, strict=True)},
            "memory_bytes": sum(weights.values()) + made,
            "weight_bytes": sum(
                b
                for x, b in weights.items()
                if x not in counted and tensors[x]["kind"] == "parameter"
            ),
        }
        counted |= weights.keys()
        said = [{"kind": ALL_REDUCE, "bytes": size[x]} for x in writes[v] if rule.reduced]
        said += [{"kind": ALL_GATHER, "bytes": size[x]} for x in writes[v] if x in gathered]
        if said:
            entry["collectives"] = said
        entry["layout"] = layout_record(rule)
        nodes[v].setdefault("shards", []).append(entry)
    for x, state in layout.state.items():
        if state != WHOLE and x not in gathered:
            moved = size[x] * (t - 1) / t
            tensors[x].setdefault("shards", []).append({"devices": t, "out_bytes": moved})


def layout_record(rule: Rule) -> dict[str, Any]:
    """Layout of a node, as its record states it."""
    made: dict[str, Any] = {}
    for name, states in (("input", rule.inputs), ("output", rule.outputs)):
        made[f"{name}s"] = [WHOLE if state == WHOLE else axis_of(state) for state in states]
        blocks = [1 if state == WHOLE else blocks_of(state) for state in states]
        if max(blocks, default=1) > 1:
            made[f"{name}_blocks"] = blocks
    return {**made, "reduced": True} if rule.reduced else made
