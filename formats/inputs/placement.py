"""Placement files: what a micro-batch consists of and where it runs (see dnnp-graph(5)).

{"devices": 2, "memory_bytes": 4, "blocks": [
  {"name": "F0", "kind": "forward", "devices": [0], "time_s": 1, "memory_bytes": 1},
  {"name": "F1", "kind": "forward", "devices": [1], "time_s": 1, "after": ["F0"]}]}
"""

from __future__ import annotations

import math
from typing import Any

from dnnp.core.model.schedule import KINDS, PlacedBlock, Placement, Unit, Wait, check_placement
from dnnp.formats.fields import MAX_NUMBER, shown
from dnnp.formats.inputs.checked_json import Fields, parse_json

MOST_DEVICES = 4096
"""Devices of a placement; schedules show every one of them."""


def read_placement(data: bytes, file: str) -> Placement:
    """Read a placement file.

    Raises
    ------
    FormatError
        Not JSON, or a field that is not what it should be; the message names it.
    InfeasibleError
        A limit below what one block needs.
    """
    root = Fields(parse_json(data, file), "", file)
    root.only("name", "devices", "memory_bytes", "blocks")
    units = _units(root, file)
    numbers = {unit.name: i for i, unit in enumerate(units)}
    rows = root.objects("blocks")
    if not rows:
        raise root.fault("blocks", "there is no block")
    names: dict[str, int] = {}
    for i, row in enumerate(rows):
        name = row.text("name")
        if name in names:
            raise row.fault("name", f"{shown(name)} is the name of another block, too")
        names[name] = i
    blocks = tuple(_block(row, numbers, names) for row in rows)
    placement = Placement(root.text("name", "placement"), units, blocks)
    check_placement(placement, file)
    return placement


def _units(root: Fields, file: str) -> tuple[Unit, ...]:
    limit = _limit(root, math.inf)
    if isinstance(root.get("devices"), list):
        rows = root.objects("devices")
        for row in rows:
            row.only("name", "memory_bytes", "fixed_bytes")
        units = tuple(
            Unit(row.text("name"), _limit(row, limit), float(row.number("fixed_bytes", 0)))
            for row in rows
        )
        for row, unit in zip(rows, units, strict=True):
            if sum(unit.name == other.name for other in units) > 1:
                raise row.fault("name", f"{shown(unit.name)} is the name of another device, too")
    else:
        count = root.count("devices")
        if count > MOST_DEVICES:
            raise root.fault("devices", f"{count} is above {MOST_DEVICES}")
        units = tuple(Unit(f"device/{i}", limit) for i in range(count))
    if not units:
        raise root.fault("devices", "at least 1 device is needed")
    if len(units) > MOST_DEVICES:
        raise root.fault("devices", f"{len(units)} are more than {MOST_DEVICES}")
    return units


def _limit(row: Fields, default: float) -> float:
    return float(row.number("memory_bytes")) if "memory_bytes" in row else default


def _block(row: Fields, numbers: dict[str, int], names: dict[str, int]) -> PlacedBlock:
    row.only("name", "kind", "devices", "turns", "time_s", "memory_bytes", "after")
    kind = row.text("kind", "forward")
    if kind not in KINDS:
        raise row.fault("kind", f"{shown(kind)} is not one of {', '.join(KINDS)}")
    if ("devices" in row) == ("turns" in row):
        raise row.fault("devices", "give devices, or turns: a list of lists of devices")
    if "turns" in row:
        turns = row.get("turns")
        if not isinstance(turns, list) or not turns:
            raise row.fault("turns", f"{shown(turns)} is not a list of lists of devices")
        homes = tuple(_devices(row, f"turns[{i}]", t, numbers) for i, t in enumerate(turns))
    else:
        homes = (_devices(row, "devices", row.get("devices"), numbers),)
    return PlacedBlock(
        row.text("name"),
        kind,
        homes,
        float(row.number("time_s")),
        float(row.number("memory_bytes", 0, least=-MAX_NUMBER)),
        _waits(row, names),
    )


def _devices(row: Fields, field: str, value: Any, numbers: dict[str, int]) -> tuple[int, ...]:
    """Positions of devices that are given by name or by position."""
    if not isinstance(value, list) or not value:
        raise row.fault(field, f"{shown(value)} is not a list of devices")
    found = []
    for device in value:
        if isinstance(device, str) and device in numbers:
            found.append(numbers[device])
        elif type(device) is int and 0 <= device < len(numbers):
            found.append(device)
        else:
            reason = f"there is no device {shown(device)}; there are {len(numbers)}"
            raise row.fault(field, reason)
    if len(set(found)) < len(found):
        raise row.fault(field, "names a device twice")
    return tuple(sorted(found))


def _waits(row: Fields, names: dict[str, int]) -> tuple[Wait, ...]:
    given = row.get("after", [])
    if not isinstance(given, list):
        raise row.fault("after", f"{shown(given)} is not a list")
    waits: dict[int, Wait] = {}
    for i, entry in enumerate(given):
        try:
            if isinstance(entry, str):
                wait = Wait(names[entry])
            else:
                fields = Fields(entry, row.place(f"after[{i}]"), row.file)
                fields.only("block", "delay_s", "transfer_s")
                delay, transfer = fields.number("delay_s", 0), fields.number("transfer_s", 0)
                wait = Wait(names[fields.text("block")], float(delay), float(transfer))
        except KeyError as error:
            reason = f"there is no block {shown(error.args[0])}"
            raise row.fault(f"after[{i}]", reason) from None
        if wait.block in waits:
            raise row.fault(f"after[{i}]", "names a block twice")
        waits[wait.block] = wait
    return tuple(waits.values())
