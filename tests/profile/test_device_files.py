"""Device files: those that come with the package, and what is said about broken ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dnnp.core.model.errors import FormatError, InputFileError, UsageError
from dnnp.formats.fields import describe_fault
from dnnp.formats.inputs.devices import (
    class_record,
    device_names,
    load_cluster,
    load_device,
    parse_device,
)
from dnnp.formats.records import RECORDS

NAMES = (
    "a100", "cpu-core", "cpu-core-avx512", "h100", "h200", "p100", "p4", "rtx2080ti", "rtx3060ti",
    "t4", "tpu-v3", "v100",
)  # fmt: skip

GOOD = {
    "name": "toy",
    "kind": "accelerator",
    "peak_flop_per_s": {"float32": 1e12, "float16": 2e12},
    "memory_bytes": 1e9,
    "memory_bandwidth_bytes_per_s": 1e11,
    "link_bandwidth_bytes_per_s": 1e10,
    "launch_overhead_s": 0,
    "efficiency": {"matrix": 0.5},
    "sources": ["somebody: something"],
}


def test_names() -> None:
    assert device_names() == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_bundled_device(name: str) -> None:
    device = load_device(name)
    assert device.name == name
    assert device.sources
    assert all(": " in source for source in device.sources)
    assert device.peak_flop_per_s.get("float16", 1e99) > device.peak_flop_per_s["float32"]
    # A core moves about as much as its peak divided by 5 to 20; accelerators by 5 to 40.
    assert 4 < device.peak_flop_per_s["float32"] / device.memory_bandwidth_bytes_per_s < 40
    assert describe_fault(RECORDS["device"], class_record(device)) is None
    # On-chip memory is a small part of all memory; the file says where it is.
    assert device.fast_memory_bytes is not None
    assert 2**20 <= device.fast_memory_bytes < device.memory_bytes / 500
    assert class_record(device)["fast_memory_bytes"] == device.fast_memory_bytes


def test_fast_memory_need_not_be_stated() -> None:
    device = parse_device(json.dumps(GOOD).encode(), "toy.json")
    assert device.fast_memory_bytes is None
    assert "fast_memory_bytes" not in class_record(device)


def test_file_by_path(tmp_path: Path) -> None:
    path = tmp_path / "toy.json"
    path.write_text(json.dumps(GOOD))
    device = load_device(str(path))
    assert (device.name, device.efficiency) == ("toy", {"matrix": 0.5})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": None}, "field 'name': null"),
        ({"name": "a b"}, "field 'name': 'a b' is not a name"),
        ({"kind": "gpu"}, "field 'kind': 'gpu' is not one of accelerator, cpu"),
        ({"memory_bytes": -1}, "field 'memory_bytes': -1"),
        ({"memory_bytes": 0}, "field 'memory_bytes': 0 is not above 0"),
        ({"memory_bytes": "16G"}, "field 'memory_bytes': '16G' is not a number"),
        ({"fast_memory_bytes": 0}, "field 'fast_memory_bytes': 0 is not above 0"),
        ({"fast_memory_bytes": "40M"}, "field 'fast_memory_bytes': '40M' is not a number"),
        ({"launch_overhead_s": True}, "field 'launch_overhead_s': true is not a number"),
        ({"peak_flop_per_s": 1e12}, "field 'peak_flop_per_s'"),
        ({"peak_flop_per_s": {"float16": 1}}, "field 'peak_flop_per_s.float32': is missing"),
        ({"peak_flop_per_s": {"float32": 1, "fp8": 1}}, "field 'peak_flop_per_s.fp8'"),
        ({"efficiency": {"matrix": 1.5}}, "field 'efficiency.matrix': 1.5 is above 1"),
        ({"efficiency": []}, "field 'efficiency'"),
        ({"sources": "me"}, "field 'sources'"),
        ({"description": 7}, "field 'description'"),
        ({"memroy_bytes": 7}, "field 'memroy_bytes': is not known; did you mean 'memory_bytes'?"),
        ({"operators": []}, "field 'operators': [] is not an object"),
        (
            {"operators": {"convv": {}}},
            "field 'operators.convv': is not known; did you mean 'conv'",
        ),
        ({"operators": {"conv": {}}}, "field 'operators.conv.float32': is missing"),
        (
            {"operators": {"conv": {"float32": {}, "int9": {}}}},
            "field 'operators.conv.int9': is not known; did you mean 'int8'",
        ),
        (
            {"operators": {"conv": {"float32": {"compute": 0}}}},
            "field 'operators.conv.float32.compute': 0 is not above 0",
        ),
        (
            {"operators": {"conv": {"float32": {"lunch": 1}}}},
            "field 'operators.conv.float32.lunch': is not known; did you mean 'launch'?",
        ),
        (
            {"operators": {"conv": {"float32": {"half_length": -1}}}},
            "field 'operators.conv.float32.half_length': -1",
        ),
        ({"caches": {}}, "field 'caches': {} is not a list"),
        ({"caches": [{"bytes": 1}]}, "field 'caches[0].bandwidth_bytes_per_s': is missing"),
        (
            {"caches": [{"bytes": 2, "bandwidth_bytes_per_s": 1}] * 2},
            "field 'caches[1].bytes': 2.0 is not above that of the cache before it",
        ),
        ({"fitted": 2}, "field 'fitted': 2 is not true, false, 1 or 0"),
        ({"channel_block": 1.5}, "field 'channel_block': 1.5 is not an integer"),
        ({"efficiency": {"matrx": 1}}, "field 'efficiency.matrx': is not known; did you mean"),
    ],
)
def test_fault_names_its_field(change: dict, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_device(json.dumps({**GOOD, **change}).encode(), "toy.json")
    assert message in str(caught.value)
    assert str(caught.value).startswith("toy.json: ")


@pytest.mark.parametrize("field", [name for name in GOOD if name not in ("efficiency", "sources")])
def test_missing_field(field: str) -> None:
    record = {name: value for name, value in GOOD.items() if name != field}
    with pytest.raises(FormatError, match=f"field '{field}': is missing"):
        parse_device(json.dumps(record).encode(), "toy.json")


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b"\xff", b'{"name": NaN}', b"[" * 100_000])
def test_not_a_device_file(data: bytes) -> None:
    with pytest.raises(FormatError):
        parse_device(data, "x.json")


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"unknown device 'foo'; known: a100, cpu-core.*v100, or"):
        load_device("foo")
    with pytest.raises(UsageError, match="unknown device 'v1000'; did you mean 'v100'"):
        load_device("v1000")


@pytest.mark.parametrize("path", ["./none.json", "none.json", "/", "a/\0.json"])
def test_missing_file(path: str) -> None:
    with pytest.raises(InputFileError):
        load_device(path)


def records(tmp_path: Path, text: str) -> list[dict]:
    path = tmp_path / "devices.json"
    path.write_text(text)
    return load_cluster(str(path))[0]


def test_known_class_is_filled_in(tmp_path: Path) -> None:
    (found,) = records(tmp_path, '[{"class": "v100", "count": 2, "memory_bytes": 5}]')
    assert found["count"] == 2
    assert found["memory_bytes"] == 5
    assert found["bandwidth_bytes_per_s"] == load_device("v100").link_bandwidth_bytes_per_s
    assert (found["type"], found["kind"]) == ("device", "accelerator")


def test_json_lines(tmp_path: Path) -> None:
    text = '{"class": "t4", "count": 1}\n\n{"class": "mine", "kind": "cpu", "count": 3}\n'
    assert [r["class"] for r in records(tmp_path, text)] == ["t4", "mine"]


def test_unknown_class_needs_a_kind(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"unknown device class 'mine'"):
        records(tmp_path, '[{"class": "mine", "count": 1}]')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "no devices"),
        ("", "no devices"),
        ("[3]", "3 is not an object"),
        ("{", "devices.json:1: not JSON"),
        ('{"class": "t4"}\n{"class": "t4"}', "devices.json:2: field 'class': 't4' is there twice"),
        ('[{"class": 4}]', "field 'class': 4"),
        ('[{"count": 4}]', "field 'class': is missing"),
        ('{"class": "t4"}\n{"class": "v100", "count": -1}', "devices.json:2: field 'count': -1"),
        ('[{"class": "t4", "kind": "gpu"}]', "field 'kind'"),
        ('[{"type": "node", "class": "t4"}]', "field 'type'"),
        ('[{"class": "t4", "cuont": 2}]', "field 'cuont': is not known; did you mean 'count'?"),
        (
            '{"class": "t4"}\n{"type": "link", "from": "t4", "to": "t4", "bandwith": 1}',
            "devices.json:2: field 'bandwith': is not known; known: from, to",
        ),
    ],
)
def test_malformed_list(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        records(tmp_path, text)
    assert message in str(caught.value)
