"""Weights of exported stages: what each stage gets, what is missing or wrong."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

from dnnp.core.model.errors import FormatError, InputFileError
from dnnp.core.model.text import shown_bytes
from dnnp.formats.export import stage_folder, stage_weights
from dnnp.formats.export.stage_weights import find_originals, place_weights
from dnnp.formats.onnx.stages import split_model
from dnnp.formats.onnx.weights import Span, span_of
from support.run import dnnp, executable
from support.split_models import TRUE, array, graph, make, node, session, value
from support.stage_folders import SIZE, chain, export, external, model_with, write_stages
from support.usage import usage


def initializers(file: Path) -> dict[str, tuple[str, int, int]]:
    """Location, offset and length of each initializer of a model with external data alone."""
    model = onnx.load(file, load_external_data=False)
    fields = {t.name: {e.key: e.value for e in t.external_data} for t in model.graph.initializer}
    assert all(sorted(f) == ["length", "location", "offset"] for f in fields.values())
    return {name: (f["location"], int(f["offset"]), int(f["length"])) for name, f in fields.items()}


def entries(target: Path) -> list[dict]:
    """Entries of the manifest about weights."""
    return json.loads((target / "manifest.json").read_text())["weights"]


def check_runs(source: Path, *folders: Path) -> None:
    """Compare the stages, each in a folder, with the whole model, loaded from its file."""
    x = np.linspace(-1, 1, SIZE, dtype=np.float32)
    (expected,) = session(str(source / "m.onnx")).run(["y"], {"x": x})
    (a,) = session(str(folders[0] / "model.onnx")).run(["a"], {"x": x})
    (y,) = session(str(folders[1] / "model.onnx")).run(["y"], {"a": a})
    np.testing.assert_array_equal(y, expected)


def check_export(source: Path, target: Path) -> None:
    check_runs(source, target / "stage-0", target / "stage-1")


def test_each_stage_gets_what_it_reads(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "stages"
    weights = export(model_with(), source, target)
    first, second = target / "stage-0", target / "stage-1"
    assert sorted(os.listdir(target)) == ["manifest.json", "stage-0", "stage-1"]
    for folder in (first, second):
        assert sorted(os.listdir(folder)) == ["model.onnx", "model.onnx.data"]
        onnx.load(folder / "model.onnx")
    data = (source / "w.bin").read_bytes()
    assert (first / "model.onnx.data").read_bytes() == data[4096:8192]
    assert (second / "model.onnx.data").read_bytes() == data[4096:12288]
    assert initializers(first / "model.onnx") == {"A": ("model.onnx.data", 0, 4096)}
    assert initializers(second / "model.onnx") == {
        "A": ("model.onnx.data", 0, 4096),
        "B": ("model.onnx.data", 4096, 4096),
    }
    assert weights.repeated_bytes == 4096
    assert entries(target) == [
        {
            "stage": i,
            "file": f"stage-{i}/model.onnx.data",
            "placed": "copy",
            "sources": [str(source / "w.bin")],
            "size_bytes": size,
            "padding_bytes": 0,
            "sha256": hashlib.sha256(data[4096 : 4096 + size]).hexdigest(),
        }
        for i, size in enumerate([4096, 8192])
    ]
    onnx.load(source / "m.onnx")


def test_stages_load_alone_elsewhere(source: Path, tmp_path: Path) -> None:
    export(model_with("sub/v.bin"), source, tmp_path / "out")
    places = [tmp_path / "device" / name for name in ("one", "two")]
    places[0].parent.mkdir()
    for i, place in enumerate(places):
        (tmp_path / "out" / f"stage-{i}").rename(place)
    check_runs(source, *places)


def test_three_folders_add_up_to_the_model(tmp_path: Path) -> None:
    """As a user does it; tests/tools/weights_check.py does the same with 1 GiB and more."""
    layers, width = 9, 256
    model = chain(tmp_path, layers, width)
    plan = dnnp("partition", "-q", "-k", "3", stdin=dnnp("import", model).out).out
    out = tmp_path / "out"
    done = dnnp("export", "--to", "stages", "-o", out, stdin=plan)
    size = 4 * width * width
    assert done.err == (
        f"dnnp-export: copied {shown_bytes((layers + 1) * size)} of weights, {shown_bytes(size)} "
        "of them again, as stages share parameters\n"
        f"dnnp-export: wrote 3 stages to {out}\n"
    )
    found = entries(out)
    assert [(entry["stage"], entry["placed"]) for entry in found] == [(i, "copy") for i in range(3)]
    held = sum(entry["size_bytes"] - entry["padding_bytes"] for entry in found)
    assert held == (tmp_path / "w.bin").stat().st_size + size
    x = np.linspace(-1, 1, width, dtype=np.float32)[None]
    (expected,) = session(str(model)).run(None, {"x": x})
    for i in range(3):
        place = tmp_path / f"device-{i}"
        (out / f"stage-{i}").rename(place)
        ours = session(str(place / "model.onnx"))
        (x,) = ours.run(None, {ours.get_inputs()[0].name: x})
    np.testing.assert_array_equal(x, expected)
    onnx.load(model)


def test_memory_does_not_grow_with_the_weights(tmp_path: Path) -> None:
    """256 MiB of weights take no more than 1 MiB of them does."""
    peaks = []
    for name, width in (("small", 256), ("large", 4096)):
        folder = tmp_path / name
        folder.mkdir()
        imported = dnnp("import", chain(folder, 4, width, sparse=True))
        plan = folder / "plan.dnnp"
        assert dnnp("partition", "-q", "-k", "3", "-o", plan, stdin=imported.out).status == 0
        words = [executable("export"), "--to", "stages", "-o", folder / "out"]
        peaks.append(usage(words, plan).peak_bytes)
        held = sum(e["size_bytes"] - e["padding_bytes"] for e in entries(folder / "out"))
        assert held == 5 * 4 * width * width
    assert peaks[1] < peaks[0] + (32 << 20)
    assert peaks[1] < 400_000_000


def test_large_data_starts_at_pages_and_small_data_at_lines(tmp_path: Path) -> None:
    large, small = 1 << 18, 3
    nodes = [
        node("Add", ["x", "s"], ["a"]),
        node("Mul", ["a", "l"], ["b"]),
        node("Add", ["b", "t"], ["y"]),
    ]
    stored = [
        external("s", "w.bin", 1, 4 * small, dims=(1, small)),
        external("l", "w.bin", 20, 4 * large, dims=(large, 1)),
        external("t", "w.bin", 20 + 4 * large, 4 * small, dims=(1, small)),
    ]
    ends = [value("x", [1, small])], [value("y", [large, small])]
    model = make(graph(nodes, "aligned", *ends, stored))
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    data = np.random.default_rng(1).bytes(20 + 4 * large + 4 * small)
    (tmp_path / "w.bin").write_bytes(data)
    stages = split_model(model, [[0, 1, 2]])
    write_stages(stages, model, path, tmp_path / "out")
    places = initializers(tmp_path / "out/stage-0/model.onnx")
    assert {name: place[1] for name, place in places.items()} == {
        "s": 0,
        "l": 4096,
        "t": 4096 + 4 * large,
    }
    (entry,) = entries(tmp_path / "out")
    assert entry["padding_bytes"] == 4096 - 4 * small
    copy = (tmp_path / "out/stage-0/model.onnx.data").read_bytes()
    assert copy[: 4 * small] == data[1 : 1 + 4 * small]
    assert copy[4 * small : 4096] == bytes(4096 - 4 * small)
    assert copy[4096:] == data[20:]


def test_every_byte_is_stored_once(source: Path, tmp_path: Path) -> None:
    """Tensors that are the same, overlap, are empty, or state no length; also ones out of order."""
    places = {
        "late": (8192, 4096),
        "same": (8192, 4096),
        "over": (6144, 4096),
        "bare": (0, None),
        "zero": (4, 0),
        "last": (4 * SIZE * 4, 0),
    }
    empty = {"last": (0,)}
    stored = [
        external(name, "w.bin", *place, dims=empty.get(name, (SIZE,)))
        for name, place in places.items()
    ]
    stored[1].external_data.add(key="checksum", value="of the other file")
    nodes = [
        node("Concat", ["last", "x"], ["t0"], axis=0),
        *(
            node("Add", [f"t{i}", name], [f"t{i + 1}"])
            for i, name in enumerate(name for name in places if name != "last")
        ),
    ]
    model = make(graph(nodes, "g", [value("x", [SIZE])], [value("t5", [SIZE])], stored))
    path = source / "m.onnx"
    path.write_bytes(model.SerializeToString())
    stages = split_model(model, [range(6)])
    target = tmp_path / "out"
    weights = write_stages(stages, model, path, target)
    data = (source / "w.bin").read_bytes()
    # `bare` and `zero` are bytes 0 to 4100, the others 6144 to 12288.
    assert (target / "stage-0/model.onnx.data").read_bytes() == (
        data[:4100] + bytes(60) + data[6144:12288]
    )
    assert [file.padding_bytes for file in weights.files] == [60]
    assert weights.repeated_bytes == 0
    assert initializers(target / "stage-0/model.onnx")["zero"] == ("model.onnx.data", 4, 4096)
    x = np.linspace(-1, 1, SIZE, dtype=np.float32)
    (expected,) = session(str(path)).run(None, {"x": x})
    (got,) = session(str(target / "stage-0/model.onnx")).run(None, {"x": x})
    np.testing.assert_array_equal(got, expected)


def test_weights_in_bodies_constants_and_functions(source: Path, tmp_path: Path) -> None:
    held = [external(name, "w.bin", 4096 * i) for i, name in enumerate("pqr")]
    ends = [], [value("o", [SIZE])]
    branches = {
        "then_branch": graph([node("Identity", ["p"], ["o"])], "then", *ends, [held[0]]),
        "else_branch": graph([node("Neg", ["p"], ["o"])], "else", *ends, [held[0]]),
    }
    function = onnx.helper.make_function(
        "local",
        "Shift",
        ["i"],
        ["o"],
        [node("Constant", [], ["r"], value=held[2]), node("Add", ["i", "r"], ["o"])],
        [onnx.helper.make_opsetid("", 17)],
    )
    nodes = [
        node("If", ["yes"], ["b"], **branches),
        node("Constant", [], ["q"], value=held[1]),
        node("Add", ["x", "b"], ["a"]),
        node("Mul", ["a", "q"], ["m"]),
        node("Shift", ["m"], ["y"], domain="local"),
    ]
    ends = [value("x", [SIZE])], [value("y", [SIZE])]
    model = make(graph(nodes, "nested", *ends, [TRUE]), functions=[function])
    path = source / "m.onnx"
    path.write_bytes(model.SerializeToString())
    stages = split_model(model, [[0, 2], [1, 3, 4]])
    target = tmp_path / "out"
    write_stages(stages, model, path, target)
    data = (source / "w.bin").read_bytes()
    assert (target / "stage-0/model.onnx.data").read_bytes() == data[:4096]
    assert (target / "stage-1/model.onnx.data").read_bytes() == data[4096:12288]
    check_export(source, target.rename(tmp_path / "moved"))


def test_the_model_is_still_read_while_an_export_exists(source: Path, tmp_path: Path) -> None:
    """onnx refuses external data in files with several names, the user's own file too."""
    before = (source / "w.bin").stat()
    export(model_with(), source, tmp_path / "out")
    after = (source / "w.bin").stat()
    assert after.st_nlink == 1
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
    for path in (source / "m.onnx", *(tmp_path / "out").rglob("model.onnx")):
        onnx.load(path)


def test_weights_in_folders_behind_links_and_with_awkward_names(
    source: Path, tmp_path: Path
) -> None:
    (source / "w.bin").rename(source / "else where\N{SNOWMAN}")
    (source / "model.onnx.data").symlink_to("else where\N{SNOWMAN}")
    model = model_with("sub/../sub/v.bin", "model.onnx.data")
    weights = export(model, source, tmp_path / "copied")
    assert [[s.name for s in f.sources] for f in weights.files] == [
        ["v.bin"],
        ["model.onnx.data", "v.bin"],
    ]
    # ONNX Runtime's own rules for the original are stricter: no links.
    (source / "model.onnx.data").unlink()
    (source / "model.onnx.data").write_bytes((source / "else where\N{SNOWMAN}").read_bytes())
    check_export(source, tmp_path / "copied")


def test_names_of_missing_files_are_not_mixed_up(source: Path, tmp_path: Path) -> None:
    (source / "w.bin").unlink()
    weights = export(model_with("model.onnx", "weights-model.onnx"), source, tmp_path / "out")
    assert [(file.sources[0].name, file.file) for file in weights.files if file.stage == 1] == [
        ("model.onnx", "stage-1/weights-weights-model.onnx"),
        ("weights-model.onnx", "stage-1/weights-model.onnx"),
    ]


def test_missing_weights(source: Path, tmp_path: Path) -> None:
    """Existing weights are copied; missing ones are expected beside the stage."""
    data = (source / "w.bin").read_bytes()
    (source / "w.bin").unlink()
    target = tmp_path / "out"
    export(model_with("sub/v.bin", "w.bin"), source, target)
    assert [(e["stage"], e["file"], e["placed"], e["size_bytes"]) for e in entries(target)] == [
        (0, "stage-0/model.onnx.data", "copy", 4096),
        (1, "stage-1/w.bin", "missing", 0),
        (1, "stage-1/model.onnx.data", "copy", 4096),
    ]
    assert initializers(target / "stage-1/model.onnx") == {
        "A": ("model.onnx.data", 0, 4096),
        "B": ("w.bin", 8192, 4096),
    }
    for folder in (source, target / "stage-1"):
        (folder / "w.bin").write_bytes(data)
    check_export(source, target)


@pytest.mark.parametrize("location", ["", ".", "..", "../w.bin", "a/../../w.bin", "/etc/passwd"])
def test_weights_outside_the_folder_are_refused(
    source: Path, tmp_path: Path, location: str
) -> None:
    with pytest.raises(FormatError, match=r"'A' is at .* outside the model's folder"):
        export(model_with(location), source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_bad_weight_files(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    with pytest.raises(FormatError, match="16384 bytes long, but the model's tensors need 18192"):
        export(model_with(length=10_000), source, target)
    with pytest.raises(FormatError, match="the length of 'B' is '-4', not a number"):
        export(model_with(length=-4), source, target)
    with pytest.raises(FormatError, match="need 4000000008192"):
        export(model_with(length=None, dims=(10**12,)), source, target)
    with pytest.raises(FormatError, match="'B': a dimension of -1"):
        export(model_with(length=None, dims=(-1,)), source, target)
    with pytest.raises(FormatError, match="'B' holds strings, which cannot be external data"):
        export(model_with(length=None, kind=TensorProto.STRING), source, target)
    with pytest.raises(FormatError, match="'B' holds elements of an unknown type"):
        export(model_with(length=None, kind=99), source, target)
    (source / "w.bin").unlink()
    (source / "w.bin").mkdir()
    with pytest.raises(InputFileError, match="not a regular file"):
        export(model_with(length=None), source, target)
    assert not target.exists()


def test_weights_that_become_shorter(source: Path, tmp_path: Path) -> None:
    (stage,) = split_model(model_with(), [[0, 1, 2]])
    originals = find_originals([stage.model], source / "m.onnx")
    os.truncate(source / "w.bin", 10_000)
    with pytest.raises(InputFileError, match=r"w\.bin: became shorter while it was read"):
        place_weights(0, stage.model, tmp_path, originals)


def test_nothing_stays_of_an_export_that_cannot_be_written(source: Path, tmp_path: Path) -> None:
    """A full disk has the same effect."""
    target = tmp_path / "out"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (6000, before[1]))
        with pytest.raises(InputFileError, match=r"out: File too large$"):
            export(model_with(), source, target)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not target.exists()


def test_copies_of_any_chunk_size(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(model_with(), source, tmp_path / "one")
    monkeypatch.setattr(stage_weights, "CHUNK_BYTES", 1000)
    export(model_with(), source, tmp_path / "two")
    names = ("manifest.json", "stage-1/model.onnx", "stage-1/model.onnx.data")
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_weights_inside_the_model_stay_inside(tmp_path: Path) -> None:
    nodes = [node("Add", ["x", "A"], ["a"]), node("Mul", ["a", "A"], ["y"])]
    model = make(graph(nodes, "g", [value("x")], [value("y")], [array("A", [1, 2, 3, 4])]))
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    stages = split_model(model, [[0], [1]])
    target = tmp_path / "out"
    weights = write_stages(stages, model, path, target)
    assert weights == stage_folder.Weights((), 0)
    assert [os.listdir(target / f"stage-{i}") for i in range(2)] == [["model.onnx"]] * 2


PIECE = st.tuples(
    st.sampled_from(["a", "b/c"]), st.integers(0, 200), st.integers(0, 99), st.booleans()
)
"""Location, offset and size of a tensor, and whether the length is stated."""


@given(st.lists(PIECE, min_size=1, max_size=12))
def test_any_places_keep_their_bytes(pieces: list[tuple[str, int, int, bool]]) -> None:
    stored = [
        external(
            f"t{i}",
            location,
            offset,
            size if stated else None,
            dims=(size,),
            kind=TensorProto.UINT8,
        )
        for i, (location, offset, size, stated) in enumerate(pieces)
    ]
    model = make(graph([], "places", [], [], stored))
    with tempfile.TemporaryDirectory() as name:
        home, target = Path(name), Path(name, "stage-0")
        target.mkdir()
        (home / "b").mkdir()
        data = {"a": bytes(range(1, 256)) * 2, "b/c": bytes(range(255, 0, -1)) * 2}
        for location, content in data.items():
            (home / location).write_bytes(content)
        originals = find_originals([model], home / "m.onnx")
        placed = place_weights(0, model, target, originals)
        copy = (target / "model.onnx.data").read_bytes()
    used = {
        (location, at)
        for location, offset, size, _ in pieces
        for at in range(offset, offset + size)
    }
    (entry,) = placed.files
    assert entry.size_bytes - entry.padding_bytes == len(used)
    assert entry.padding_bytes == copy.count(0) < 64 * len(pieces)
    for tensor, (location, offset, size, _) in zip(
        placed.model.graph.initializer, pieces, strict=True
    ):
        span = span_of(tensor)
        assert span is not None
        assert span.location == "model.onnx.data"
        assert copy[span.offset : span.end] == data[location][offset : offset + size]


def test_spans_of_one_file_are_merged_where_they_overlap() -> None:
    spans = [Span("a", 0, 8), Span("a", 8, 0), Span("a", 8, 8), Span("a", 12, 8), Span("b", 12, 4)]
    assert stage_weights._merged(spans[::-1]) == [
        Span("a", 0, 8),
        Span("a", 8, 0),
        Span("a", 8, 12),
        Span("b", 12, 4),
    ]
