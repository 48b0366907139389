"""The manifest: its schema, what it says of every kind of plan, and reading it."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from graphlib import TopologicalSorter
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import dnnp
from dnnp.core.model.errors import FormatError, InputFileError
from dnnp.formats.export.manifest import MANIFEST, check_files, manifest_schema, read_manifest
from dnnp.formats.fields import Field, describe_fault, fault
from dnnp.formats.stream import read_bytes
from support.exports import KINDS, exported, plan_of_kind
from support.project import ROOT
from support.stage_folders import export, model_with

Manifest = dict[str, Any]


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return {kind: plan_of_kind(kind, tmp_path_factory.mktemp(kind)) for kind in KINDS}


@pytest.fixture(scope="module")
def exports(
    plans: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Manifest, Path]]:
    folders = {kind: tmp_path_factory.mktemp("exports") / kind for kind in plans}
    return {k: (exported(plans[k], folder), folder) for k, folder in folders.items()}


def test_the_schema_is_a_schema_and_comes_along() -> None:
    schema = json.loads((ROOT / "formats/dnnp-stages.schema.json").read_text())
    assert schema == manifest_schema()
    jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("kind", KINDS)
def test_who_feeds_whom(kind: str, exports: dict[str, tuple[Manifest, Path]]) -> None:
    """Links, `from` and `to` agree, and stages are in topological order."""
    found, folder = exports[kind]
    made = {t["name"]: s["id"] for s in found["stages"] for t in s["outputs"]}
    crossing = {
        (t["from"], s["id"], t["name"])
        for s in found["stages"]
        for t in s["inputs"]
        if t["from"] != "model"
    }
    assert all(made[name] == maker < reader for maker, reader, name in crossing)
    assert crossing == {
        (link["from"], link["to"], n) for link in found["links"] for n in link["tensors"]
    }
    for stage in found["stages"]:
        for tensor in stage["outputs"]:
            readers = {to for maker, to, name in crossing if name == tensor["name"]}
            assert {to for to in tensor["to"] if to != "model"} == readers
            assert ("model" in tensor["to"]) == (
                tensor["name"] in {t["name"] for t in found["outputs"]}
            )
            assert tensor["size_bytes"] == 4 * prod(tensor["planned_shape"])
            sizes = zip(tensor["shape"], tensor["planned_shape"], strict=True)
            assert all(size in (planned, "n") for size, planned in sizes)
        data = (folder / stage["file"]).read_bytes()
        assert (stage["sha256"], stage["size_bytes"]) == (
            hashlib.sha256(data).hexdigest(),
            len(data),
        )
    for link in found["links"]:
        sent = [t for t in found["stages"][link["from"]]["outputs"] if t["name"] in link["tensors"]]
        assert link["size_bytes"] == sum(t["size_bytes"] for t in sent)
    assert found["dimensions"] == {"n": 8}
    assert found["inputs"][0]["shape"] == ["n", 64]


@pytest.mark.parametrize("kind", KINDS)
def test_parts_make_up_the_stages_of_the_plan(
    kind: str, plans: dict[str, bytes], exports: dict[str, tuple[Manifest, Path]]
) -> None:
    stream, (found, _) = read_bytes(plans[kind]), exports[kind]
    stages = [s for s in stream.get("stage") if s["nodes"]]
    assert found["plan"]["digest"] == stream.get("plan")[0]["digest"]
    for stage in stages:
        mine = [s for s in found["stages"] if s["stage"] == stage["id"]]
        assert sum(s["nodes"] for s in mine) == len(stage["nodes"])
        assert {s["device"] for s in mine} == {stage["device"]}
        assert {s["replicas"] for s in mine} == {stage.get("replicas", 1)}
        assert all(len(s["devices"]) == s["replicas"] for s in mine)
        if kind != "turns":  # times of passes have transfers in them
            compute = sum(s["load"].get("compute_s", s["load"]["load_s"]) for s in mine)
            assert compute == pytest.approx(stage["compute_s"])
        if len(mine) == 1:
            assert mine[0]["load"]["in_s"] == stage["in_s"]
            assert mine[0]["load"]["load_s"] == stage["load_s"]
    assert {s["stage"] for s in found["stages"]} == {s["id"] for s in stages}


def test_a_plan_that_goes_back_and_forth_has_parts(
    exports: dict[str, tuple[Manifest, Path]],
) -> None:
    counts = {kind: (len(f["stages"]), f["plan"]["stages"]) for kind, (f, _) in exports.items()}
    for kind in ("latency", "free", "turns"):
        parts, stages = counts[kind]
        assert parts > stages == 2
    assert any(s["replicas"] > 1 for s in exports["replicas"][0]["stages"])


@pytest.mark.parametrize("kind", ["scheduled", "turns"])
def test_a_schedule_gives_the_order(kind: str, exports: dict[str, tuple[Manifest, Path]]) -> None:
    """Every stage runs every sample once, and the orders of devices have no deadlock."""
    found, _ = exports[kind]
    schedule = found["schedule"]
    assert schedule["micro_batches"] == 4
    jobs = [(row["device"], *job) for row in schedule["devices"] for job in row["jobs"]]
    assert sorted((stage, n) for _, stage, _, n in jobs) == [
        (stage["id"], n) for stage in found["stages"] for n in range(4)
    ]
    for device, stage, replica, _ in jobs:
        assert found["stages"][stage]["devices"][replica] == device
    waits: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for row in schedule["devices"]:
        line = [(stage, n) for stage, _, n in row["jobs"]]
        for before, after in pairwise(line):
            waits.setdefault(after, set()).add(before)
    for link in found["links"]:
        for n in range(4):
            waits.setdefault((link["to"], n), set()).add((link["from"], n))
    TopologicalSorter(waits).prepare()
    assert "schedule" not in exports["ordered"][0]


@pytest.fixture
def manifest(source: Path, tmp_path: Path) -> tuple[Manifest, Path]:
    export(model_with(), source, tmp_path / "out")
    return json.loads((tmp_path / "out/manifest.json").read_text()), tmp_path / "out"


def set_to(*path: Any, to: Any) -> Callable[[Manifest], None]:
    def change(found: Manifest) -> None:
        entry: Any = found
        for key in path[:-1]:
            entry = entry[key]
        entry[path[-1]] = to

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_to("format", to="other"), "not a manifest"),
        (set_to("version", to=2), r"field 'version': 2 is not 3"),
        (lambda found: found.pop("stages"), "field 'stages': is missing"),
        (set_to("stages", 0, "inputs", 0, "shape", to=[-1]), r"stages\[0\].inputs\[0\].shape"),
        (set_to("stages", 0, "inputs", 0, "shape", to=[True]), "a size, a name or null"),
        (set_to("stages", 1, "inputs", 0, "from", to="nobody"), "an id, or one of model"),
        (set_to("stages", 1, "inputs", 0, "from", to=1), "is not there by then"),
        (set_to("stages", 1, "inputs", 0, "name", to="?"), "is not there by then"),
        (set_to("stages", 1, "id", to=0), "0 is not 1, its position"),
        (set_to("stages", 0, "file", to="../m.onnx"), r"'stages\[0\].file': '../m.onnx' is not i"),
        (set_to("weights", 0, "file", to="/etc/passwd"), "'/etc/passwd' is not inside"),
        (set_to("outputs", 0, "name", to="z"), "field 'outputs': 'z' is not made"),
        (set_to("stages", 1, "outputs", 0, "name", to="x"), "'x' has another maker"),
        (lambda found: found["inputs"].append(found["inputs"][0]), "'x' has another maker"),
        (lambda found: found["outputs"].append(found["outputs"][0]), "'y' is there twice"),
        (set_to("links", to=[]), "'links': none from stage 0 to stage 1, which reads"),
        (lambda found: found["links"].append(found["links"][0]), r"'links\[1\]': is not what"),
        (lambda found: found["links"].append({**found["links"][0], "tensors": []}), "is not what"),
        (lambda found: found["links"][0].update({"from": 1, "to": 0}), "from stage 1 back to"),
        (set_to("links", 0, "to", to=2), "there is no stage 2"),
        (set_to("links", 0, "tensors", to=["a", "b"]), "is not what stage 1 reads from stage 0"),
        (set_to("links", 0, "tensors", to=[]), "is not what stage 1 reads from stage 0"),
        (set_to("stages", 0, "outputs", 0, "to", to=["model"]), "'a': 'to' names others"),
        (set_to("inputs", 0, "to", to=[0, 1]), "'x': 'to' names others"),
        (set_to("weights", 0, "stage", to=2), "there is no stage 2"),
    ],
)
def test_bad_manifests(
    change: Callable[[Manifest], None], message: str, manifest: tuple[Manifest, Path]
) -> None:
    found, folder = manifest
    assert read_manifest(folder) == found
    change(found)
    (folder / "manifest.json").write_text(json.dumps(found))
    with pytest.raises(FormatError, match=message) as caught:
        read_manifest(folder)
    assert "\n" not in str(caught.value)
    assert "manifest.json" in str(caught.value)


@pytest.mark.parametrize("name", ["manifest.json", "stage-1/model.onnx", "stage-0"])
def test_links_out_of_the_folder_are_not_followed(
    name: str, manifest: tuple[Manifest, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any model is opened; within the folder, and to it, they may lead anywhere."""
    _, folder = manifest
    (tmp_path / "way").symlink_to(folder)
    (folder / name).rename(folder / "inside")
    (folder / name).symlink_to(folder / "inside")
    assert dnnp.load_stages(tmp_path / "way").loaded == [0, 1]
    (folder / "inside").rename(tmp_path / "outside")
    (folder / name).unlink()
    (folder / name).symlink_to(tmp_path / "outside")
    monkeypatch.setattr("dnnp.formats.export.manifest.open_regular", pytest.fail)
    monkeypatch.setattr("dnnp.formats.onnx.load_model.load_with_hash", pytest.fail)
    with pytest.raises(FormatError, match="a link out of the folder") as caught:
        dnnp.load_stages(tmp_path / "way", verify=False)
    assert "\n" not in str(caught.value)


def test_files_are_compared_with_their_digests(manifest: tuple[Manifest, Path]) -> None:
    found, folder = manifest
    check_files(folder, found)
    names = [e["file"] for kind in ("stages", "weights") for e in found[kind]]
    assert len(names) == 4
    for name in names:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(FormatError, match=r"not what was exported: its SHA-256 is"):
            check_files(folder, found)
        (folder / name).write_bytes(data + b"!")
        with pytest.raises(FormatError, match="bytes long; the manifest says"):
            check_files(folder, found)
        (folder / name).unlink()
        with pytest.raises(InputFileError, match=name):
            check_files(folder, found)
        (folder / name).write_bytes(data)
    (folder / "stage-1/model.onnx").unlink()
    check_files(folder, found, [0])


def test_new_kinds_of_fields_are_checked_as_the_schema_does() -> None:
    """A size, and a place: the reader refuses what the schema refuses."""
    fields = {"a": Field("size", ""), "b": Field("place", "", enum=("model",))}
    schema = {"type": "object", "properties": _properties(fields)}
    for name in fields:
        for value in (0, 7, -1, 1.5, True, None, "n", "model", [], {}):
            allowed = fault(fields, [{name: value}]) is None
            valid = jsonschema.Draft202012Validator(schema).is_valid({name: value})
            assert allowed == valid, (name, value)
            assert allowed == (describe_fault(fields, {name: value}) is None)


def _properties(fields: dict[str, Field]) -> dict[str, Any]:
    from dnnp.formats.fields import object_schema

    return copy.deepcopy(object_schema(fields)["properties"])


def test_every_field_is_described() -> None:
    def walk(fields: dict[str, Field], path: str) -> None:
        for name, field in fields.items():
            inner = field.fields or (field.items.fields if field.items is not None else {})
            assert field.doc, f"{path}{name}"
            walk(dict(inner), f"{path}{name}.")

    walk(MANIFEST, "")
