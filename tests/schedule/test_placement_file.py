"""Placement files: what they say, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dnnp.core.model.errors import FormatError, InfeasibleError, UsageError
from dnnp.core.model.schedule import Wait
from dnnp.core.schedule.shapes import EVEN, SHAPES, shape
from dnnp.formats.inputs.placement import read_placement

F0 = {"name": "F0", "kind": "forward", "devices": [0], "time_s": 1, "memory_bytes": 1}
F1 = {"name": "F1", "devices": ["device/1"], "time_s": 2.5, "after": ["F0"]}
B0 = {
    "name": "B0", "kind": "backward", "turns": [[0], [1, 0]], "time_s": 0, "memory_bytes": 0,
    "after": [{"block": "F1", "delay_s": 0.5, "transfer_s": 2}],
}  # fmt: skip


def read(**changes: Any):
    document = {"devices": 2, "memory_bytes": 4, "blocks": [F0, F1, B0], **changes}
    return read_placement(json.dumps(document).encode(), "p.json")


def block(**changes: Any):
    """The same with one block changed."""
    return read(blocks=[F0, {**F1, **changes}])


def test_what_a_file_says() -> None:
    placement = read()
    assert [u.name for u in placement.units] == ["device/0", "device/1"]
    assert [u.memory_bytes for u in placement.units] == [4, 4]
    assert [b.kind for b in placement.blocks] == ["forward", "forward", "backward"]
    assert [b.homes for b in placement.blocks] == [((0,),), ((1,),), ((0,), (0, 1))]
    assert [b.memory_bytes for b in placement.blocks] == [1, 0, 0]
    assert placement.blocks[2].after == (Wait(1, 0.5, 2.0),)
    assert placement.turns == 2
    named = read(devices=[{"name": "a", "memory_bytes": 9, "fixed_bytes": 2}, {"name": "device/1"}])
    assert [(u.name, u.memory_bytes, u.fixed_bytes) for u in named.units] == [
        ("a", 9, 2),
        ("device/1", 4, 0),
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"devices": 0}, "field 'devices': at least 1 device"),
        ({"devices": 10**9}, "field 'devices': 1000000000 is above 4096"),
        ({"devices": -1}, "field 'devices': -1 is not"),
        ({"devices": [{"name": "a"}, {"name": "a"}]}, "field 'devices[0].name': 'a' is the name"),
        ({"blocks": []}, "field 'blocks': there is no block"),
        ({"blocks": [F0, F0]}, "field 'blocks[1].name': 'F0' is the name of another"),
        ({"memory_bytes": "4"}, "field 'memory_bytes': '4' is not a number"),
    ],
)
def test_bad_files(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError) as error:
        read(**changes)
    assert str(error.value).startswith(f"p.json: {message}")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"time_s": -1}, "field 'blocks[1].time_s': -1 is not"),
        ({"time_s": float("nan")}, "field 'blocks[1].time_s'"),
        ({"time_s": float("inf")}, "field 'blocks[1].time_s'"),
        ({"memory_bytes": float("nan")}, "field 'blocks[1].memory_bytes'"),
        ({"memory_bytes": None}, "field 'blocks[1].memory_bytes'"),
        ({"kind": "sideways"}, "field 'blocks[1].kind': 'sideways' is not one of"),
        ({"devices": [2]}, "field 'blocks[1].devices': there is no device 2; there are 2"),
        ({"devices": ["x"]}, "field 'blocks[1].devices': there is no device 'x'"),
        ({"devices": []}, "field 'blocks[1].devices': [] is not a list of devices"),
        ({"devices": [0, "device/0"]}, "field 'blocks[1].devices': names a device twice"),
        ({"tmie_s": 1}, "field 'blocks[1].tmie_s': is not known; did you mean 'time_s'?"),
        ({"after": [{"block": "F0", "dealy_s": 1}]}, "field 'blocks[1].after[0].dealy_s': is not"),
        ({"turns": [[0]]}, "field 'blocks[1].devices': give devices, or turns"),
        ({"after": "F0"}, "field 'blocks[1].after': 'F0' is not a list"),
        ({"after": ["F9"]}, "field 'blocks[1].after[0]': there is no block 'F9'"),
        ({"after": ["F0", "F0"]}, "field 'blocks[1].after[1]': names a block twice"),
        ({"after": [{"block": "F0", "delay_s": -1}]}, "field 'blocks[1].after[0].delay_s'"),
        ({"after": ["F1"]}, "blocks wait for each other in a circle: F1 -> F1"),
    ],
)
def test_bad_blocks(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError) as error:
        block(**changes)
    assert str(error.value).startswith(f"p.json: {message}")


def test_circles_are_named() -> None:
    with pytest.raises(FormatError, match=r"in a circle: (F0 -> F1 -> F0|F1 -> F0 -> F1)"):
        read(blocks=[{**F0, "after": ["F1"]}, F1])


def test_limit_below_one_block() -> None:
    with pytest.raises(InfeasibleError) as error:
        read(memory_bytes=0.5)
    assert str(error.value) == ("device/0 may hold 0.5 B, but block 'F0' alone needs 1 B")
    assert error.value.exit_status == 4


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_and_their_devices(name: str) -> None:
    for devices in (1, 2, 3, 4, 8):
        if devices % 2 and name in EVEN:
            with pytest.raises(UsageError, match="even number of devices"):
                shape(name, devices)
            continue
        for inference in (False, True):
            placement = shape(name, devices, inference=inference)
            kinds = [b.kind for b in placement.blocks]
            assert len(placement.units) == devices
            assert kinds.count("backward") == (0 if inference else kinds.count("forward"))
            assert inference == all(b.memory_bytes == 0 for b in placement.blocks)
    with pytest.raises(UsageError, match="at least 1 device"):
        shape(name, 0)


def test_shape_sizes() -> None:
    blocks = {name: len(shape(name, 8).blocks) for name in SHAPES}
    assert blocks == {"V": 16, "X": 32, "M": 18, "NN": 20, "K": 18}
