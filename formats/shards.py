"""What records state about nodes and tensors on several devices at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dnnp.core.model.errors import FormatError
from dnnp.core.model.shards import WHOLE, Collective, Costs, Shards, Share, block_state

if TYPE_CHECKING:
    from dnnp.formats.stream import Record, Stream

MOST_DEGREES = 64
"""Tensor-parallel degrees that a graph may state."""

MOST_AXES = 64
"""Axes of a tensor of unknown shape."""


def shards_of(stream: Stream) -> Shards | None:
    """Costs of nodes by tensor-parallel degree; None: no node states any.

    At degree 1 a node costs what it states outside `shards`, where it states no more.

    Raises
    ------
    FormatError
        A degree that is there twice, too many of them, held bytes that exceed the memory, or a
        layout that does not fit the tensors of its node.
    """
    nodes, tensors = stream.get("node"), stream.get("tensor")
    stated = sorted({one["devices"] for node in nodes for one in node.get("shards", ())})
    if not stated:
        return None
    degrees = sorted({1, *stated})
    if len(degrees) > MOST_DEGREES:
        raise FormatError(
            f"nodes are stated on {len(degrees)} numbers of devices; at most {MOST_DEGREES} are "
            "read",
            stream.name,
            field="shards",
        )
    place = {t: i for i, t in enumerate(degrees)}
    shape = len(degrees), len(nodes)
    classes = sorted({c for node in nodes for c in node.get("time_s", ())})
    plain, again = _empty(shape, classes), _empty(shape, classes)
    weight = np.full(shape, np.nan)
    collectives, shares = [], []
    shapes = {tensor["id"]: tensor.get("shape") for tensor in tensors}
    for v, node in enumerate(nodes):
        _put(plain, 0, v, node)
        seen = _degrees(stream, "node", v, node)
        for where, one in zip(seen, node.get("shards", ()), strict=True):
            i = place[one["devices"]]
            _put(plain, i, v, one)
            weight[i, v] = one.get("weight_bytes", 0.0)
            made = one.get("collectives", ())
            collectives += [Collective(i, v, c["kind"], float(c["bytes"])) for c in made]
            if "layout" in one:
                _check_layout(stream, v, f"{where}.layout", one, shapes)
                said = one["layout"]
                ends = (_states(said, "input"), _states(said, "output"))
                shares.append(Share(i, v, *ends, said.get("reduced", False)))
            if "recomputed" in one:
                _put(again, i, v, one["recomputed"])
            for costs, field in ((one, ""), (one.get("recomputed", {}), ".recomputed")):
                if costs.get("held_bytes", 0) > costs.get("memory_bytes", np.inf):
                    raise stream.fault_at(
                        "node", v, f"{where}{field}.held_bytes", "more than memory_bytes"
                    )
    moved = np.zeros((2, len(degrees), len(tensors)))
    for t, tensor in enumerate(tensors):
        _degrees(stream, "tensor", t, tensor)
        for one in tensor.get("shards", ()):
            if one["devices"] in place:  # at others no node can run
                moved[:, place[one["devices"]], t] = (
                    one.get("in_bytes", 0.0),
                    one.get("out_bytes", 0.0),
                )
    stated_again = any("recomputed" in s for node in nodes for s in node.get("shards", ()))
    return Shards(
        degrees=np.array(degrees, dtype=np.int64),
        plain=plain,
        again=again if stated_again else None,
        weight=weight,
        collectives=tuple(collectives),
        in_bytes=moved[0],
        out_bytes=moved[1],
        shares=tuple(sorted(shares)),
    )


def _check_layout(
    stream: Stream, v: int, where: str, one: Record, shapes: Mapping[int, list[int] | None]
) -> None:
    """Refuse a layout that names axes which the tensors of its node have not got."""
    node = stream.get("node")[v]
    for side in ("inputs", "outputs"):
        axes, ids = one["layout"][side], node[side]
        if len(axes) != len(ids):
            reason = f"{len(axes)} axes for {len(ids)} tensors"
            raise stream.fault_at("node", v, f"{where}.{side}", reason)
        for j, (axis, x) in enumerate(zip(axes, ids, strict=True)):
            shape = shapes.get(x)
            rank = MOST_AXES if shape is None else len(shape)
            if not WHOLE <= axis < rank:
                reason = f"{axis} is no axis of tensor {x}, which has {rank}"
                raise stream.fault_at("node", v, f"{where}.{side}[{j}]", reason)
            if axis != WHOLE and shape is not None and shape[axis] < one["devices"]:
                reason = f"{one['devices']} parts of axis {axis} of tensor {x}, of {shape[axis]}"
                raise stream.fault_at("node", v, f"{where}.{side}[{j}]", reason)
        name = f"{side[:-1]}_blocks"
        blocks = one["layout"].get(name, [1] * len(ids))
        if len(blocks) != len(ids):
            reason = f"{len(blocks)} numbers for {len(ids)} tensors"
            raise stream.fault_at("node", v, f"{where}.{name}", reason)
        for j, (axis, count, x) in enumerate(zip(axes, blocks, ids, strict=True)):
            shape = shapes.get(x)
            pieces = count * one["devices"]
            uneven = axis == WHOLE or (shape is not None and shape[axis] % pieces)
            if count > 1 and uneven:
                reason = f"{pieces} equal pieces of axis {axis} of tensor {x}"
                raise stream.fault_at("node", v, f"{where}.{name}[{j}]", reason)
    if one["layout"].get("reduced") and any(a != WHOLE for a in one["layout"]["outputs"]):
        raise stream.fault_at("node", v, f"{where}.reduced", "outputs are added up and cut, too")


def _states(layout: Record, side: str) -> tuple[int, ...]:
    """States of the inputs or outputs of a node."""
    axes = layout[f"{side}s"]
    blocks = layout.get(f"{side}_blocks", [1] * len(axes))
    pairs = zip(axes, blocks, strict=True)
    return tuple(a if a == WHOLE else block_state(a, b) for a, b in pairs)


def _empty(shape: tuple[int, int], classes: list[str]) -> Costs:
    times = {name: np.full(shape, np.inf) for name in classes}
    return Costs(times, np.full(shape, np.nan), np.zeros(shape))


def _put(costs: Costs, i: int, v: int, stated: Record) -> None:
    """Enter what a record states of a node at a degree."""
    for name, seconds in stated.get("time_s", {}).items():
        if name in costs.times:
            costs.times[name][i, v] = seconds
    if "memory_bytes" in stated:
        costs.memory[i, v] = stated["memory_bytes"]
    costs.held[i, v] = stated.get("held_bytes", 0.0)


def _degrees(stream: Stream, kind: str, at: int, record: Record) -> list[str]:
    """Fields of the entries of a record, none of which may be for a degree that was there."""
    seen: set[int] = set()
    fields: list[str] = []
    for j, one in enumerate(record.get("shards", ())):
        if one["devices"] in seen:
            raise stream.fault_at(
                kind, at, f"shards[{j}].devices", f"{one['devices']} devices are there twice"
            )
        seen.add(one["devices"])
        fields.append(f"shards[{j}]")
    return fields


def arrays_of(shards: Shards | None) -> Iterator[tuple[str, NDArray[Any]]]:
    """All that is stated, as named flat arrays, for a digest."""
    if shards is None:
        return
    yield "degrees", shards.degrees
    for name, costs in (("plain", shards.plain), ("again", shards.again)):
        if costs is not None:
            for c in sorted(costs.times):
                yield f"shards/{name}/{c}", costs.times[c].ravel()
            yield f"shards/{name}/memory", costs.memory.ravel()
            yield f"shards/{name}/held", costs.held.ravel()
    yield "shards/weight", shards.weight.ravel()
    yield "shards/in", shards.in_bytes.ravel()
    yield "shards/out", shards.out_bytes.ravel()
    for i, v, inputs, outputs, reduced in shards.shares:
        row = [i, v, len(inputs), *inputs, *outputs, reduced]
        yield "shards/layout", np.array(row, dtype=np.int64)
    for i, v, kind, size in shards.collectives:
        yield f"shards/{kind}", np.array([i, v, size], dtype=np.float64)
