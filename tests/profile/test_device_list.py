"""Devices and links that options name: the same records as those of a devices file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dnnp.core.model.errors import UsageError
from dnnp.core.model.text import shown_bytes
from dnnp.formats.inputs.amounts import parse_duration, parse_latency
from dnnp.formats.inputs.devices import (
    class_record,
    device_names,
    link_record,
    listed_records,
    load_cluster,
    load_device,
)
from support.run import Result, dnnp
from support.seeds import encode, graph_records

TOY = {
    "name": "toy", "kind": "cpu", "peak_flop_per_s": {"float32": 1e9}, "memory_bytes": 1e9,
    "memory_bandwidth_bytes_per_s": 1e9, "link_bandwidth_bytes_per_s": 1e9, "launch_overhead_s": 0,
}  # fmt: skip


def stream(*classes: str) -> bytes:
    """The seed graph, priced on some classes that come with the package."""
    words = [word for name in classes for word in ("--device", name)]
    plain = [{k: v for k, v in r.items() if k != "time_s"} for r in graph_records()]
    bare = encode([r for r in plain if r["type"] != "device"])
    result = dnnp("profile", "-q", *words, stdin=bare)
    assert result.status == 0, result.err
    return result.out


def partition(*words: str | Path, stdin: bytes) -> Result:
    return dnnp("partition", *words, stdin=stdin)


def test_a_list_makes_the_records_of_a_file(tmp_path: Path) -> None:
    rows = [{"class": "a100", "count": 4}, {"class": "t4", "count": 2}]
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(rows))
    assert listed_records("a100:4,t4:2", {}) == load_cluster(str(path))[0]
    priced = stream("a100", "t4")
    given = partition("--devices", path, stdin=priced)
    named = partition("--devices", "a100:4,t4:2", stdin=priced)
    assert given.status == 0, given.err
    assert named.records()[1:] == given.records()[1:]


def test_links_are_those_of_a_file(tmp_path: Path) -> None:
    rows = [
        {"class": "a100", "count": 2},
        {"class": "t4"},
        {"type": "link", "from": "a100", "to": "t4", "bandwidth_bytes_per_s": 1e10},
        {"type": "link", "from": "a100/1", "to": "t4/0", "bandwidth_bytes_per_s": 12.5e9,
         "latency_s": 5e-6},
    ]  # fmt: skip
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(rows))
    priced, words = stream("a100", "t4"), ("--objective", "latency", "--method", "heft")
    given = partition(*words, "--devices", path, stdin=priced)
    links = ("--link", "a100,t4=10G", "--link", "a100/1,t4/0=12.5GB/s,5us")
    named = partition(*words, "--devices", "a100:2,t4", *links, stdin=priced)
    assert given.status == 0, given.err
    assert named.one("plan") == given.one("plan")
    assert len(named.one("plan")["links"]) == 6  # the two A100 as their class says
    # Beside a file, and beside the devices of the stream.
    path.write_text(json.dumps(rows[:2]))
    both = partition(*words, "--devices", path, *links, stdin=priced)
    assert both.one("plan") == given.one("plan")
    counted = partition(*words, "-k", "2", "--link", "a100/0,a100/1=1G", stdin=stream("a100"))
    assert len(counted.one("plan")["links"]) == 2


def test_classes_of_the_stream_and_of_files(tmp_path: Path) -> None:
    """Those of the stream keep its records; without one a class is an accelerator."""
    known = {
        "npu": {"type": "device", "class": "npu", "kind": "cpu", "count": 7, "memory_bytes": 5},
        "own": {},
        "t4": {"type": "device", "class": "t4", "kind": "accelerator", "memory_bytes": 9},
    }
    path = tmp_path / "toy.json"
    path.write_text(json.dumps(TOY))
    assert listed_records(f"npu:2,own,{path}:3,t4:1", known) == [
        {"type": "device", "class": "npu", "kind": "cpu", "memory_bytes": 5, "count": 2},
        {"type": "device", "class": "own", "kind": "accelerator", "count": 1},
        {**class_record(load_device(str(path))), "count": 3},
        {"type": "device", "class": "t4", "kind": "accelerator", "memory_bytes": 9, "count": 1},
    ]
    priced = partition("--devices", "acc:2,cpu:1", stdin=encode(graph_records()))
    assert [(d["class"], d["count"]) for d in priced.one("plan")["devices"]] == [
        ("acc", 2), ("cpu", 1),
    ]  # fmt: skip


def test_a_file_of_that_name_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a:2,b"
    path.write_text('{"class": "a100", "count": 3}')
    assert partition("--devices", path, stdin=stream("a100")).one("plan")["k"] == 3


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["a10:4"], 2, "--devices a10:4: unknown device class 'a10'; did you mean 'a100'?"),
        (["ac:2"], 2, "unknown device class 'ac'; did you mean 'acc'?"),
        (["dsp:2"], 2, "unknown device class 'dsp'; known: a100, acc, "),
        (["acc:0"], 2, "in 'acc:0' '0' is no number of devices; write CLASS:COUNT"),
        (["acc:two"], 2, "no such file, and in 'acc:two' 'two' is no number"),
        (["acc:2,"], 2, "names no class"),
        (["acc:2,acc:1"], 2, "class 'acc' is there twice"),
        (["acc:99999999999999999999"], 2, "is no number of devices"),
        (["none.json:2"], 1, "none.json: No such file"),
        (["v100:2,acc"], 2, "(priced: acc, cpu); run dnnp-profile --device v100 --device acc\n"),
        (["acc:2", "--link", "acc=3G"], 2, "--link acc=3G: write two devices or classes"),
        (["acc:2", "--link", "acc,acc"], 2, "such as a100,t4=10G"),
        (["acc:2", "--link", "acc,acc=fast"], 2, "'fast' is not a bandwidth"),
        (["acc:2", "--link", "acc,acc=1G,5"], 2, "'5' is not a latency with its unit"),
        (["acc:2", "--link", "acc,acc=1G,-5us"], 2, "'-5us' is not a latency"),
        (["acc:2", "--link", "acc/0,ac/1=1G"], 2, "'ac/1' is not among the devices; did you mean"),
        (["acc:2", "--link", "acc,t4=1G"], 2, "--link acc,t4=1G: 't4' is not among"),
        (["acc:2", "--link", "acc/0,acc/0=1G"], 2, "a link from a device to itself"),
        (["acc:2", "--link", "acc,acc=1G", "--link", "acc,acc=2G"], 2, "a second link between"),
    ],
)
def test_mistakes(words: list[str], status: int, message: str) -> None:
    result = dnnp("partition", "--devices", *words, stdin=encode(graph_records()))
    assert (result.status, result.out) == (status, b"")
    assert message in result.err
    assert result.err.count("\n") == 1


def test_links_are_words() -> None:
    assert link_record("a100/0, t4/1=10G,0.5ms") == {
        "type": "link", "from": "a100/0", "to": "t4/1", "bandwidth_bytes_per_s": 1e10,
        "latency_s": 5e-4,
    }  # fmt: skip
    with pytest.raises(UsageError, match="two devices"):
        link_record("a,b,c=10G")


@pytest.mark.parametrize(
    ("text", "seconds"), [("5us", 5e-6), ("1e3ns", 1e-6), ("2ms", 2e-3), ("1s", 1.0), ("0", 0.0)]
)
def test_latencies(text: str, seconds: float) -> None:
    assert parse_latency(text) == pytest.approx(seconds)


@pytest.mark.parametrize("command", ["profile", "partition", "bound"])
def test_devices_are_listed(command: str) -> None:
    result = dnnp(command, "--list-devices", stdin=None)
    assert (result.status, result.err) == (0, "")
    lines = result.out.decode().splitlines()
    assert [line.split()[0] for line in lines] == device_names()
    for line in lines:
        spec = load_device(line.split()[0])
        name, kind, memory, link, words = (cell for cell in line.split("  ") if cell.strip())
        assert (name, kind.strip(), words.strip()) == (spec.name, spec.kind, spec.description)
        assert memory.strip() == shown_bytes(spec.memory_bytes)
        assert link.strip() == f"{shown_bytes(spec.link_bandwidth_bytes_per_s)}/s"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("5s", 5), ("2m", 120), ("1.5h", 5400), ("500ms", 0.5), ("0", 0), ("1e2s", 100)],
)
def test_durations(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "2 days", "-1s", "nan", "infh", "5us", "2mm", "1e999"])
def test_no_durations(text):
    with pytest.raises(ValueError, match="is not a time, such as 90, 5s or 2m"):
        parse_duration(text)
