"""Manual pages say what is true: terms, exit statuses, the manifest and how to run stages."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx.parser

from dnnp.core.model import errors
from dnnp.formats.export.manifest import MANIFEST
from dnnp.formats.fields import Field
from dnnp.samples.build import write
from support.exports import KINDS, exported, plan_of_kind
from support.manual import PAGES, literal_blocks, section, tags
from support.project import ROOT
from support.run import PATIENCE_S, dnnp, output_of
from support.split_models import feeds_of, graph, make, node, run_whole, value
from support.stage_folders import SIZE, model_with

CONCEPTS = (ROOT / "man/man7/dnnp.7").read_text()
STAGES = (ROOT / "man/man5/dnnp-stages.5").read_text()
PYTHON = (ROOT / "man/man3/dnnp.3").read_text()


def test_exit_statuses_are_the_same_everywhere() -> None:
    listed = tags(section(CONCEPTS, "EXIT STATUS"))
    raised = {str(e.exit_status) for e in errors.DnnpError.__subclasses__()}
    assert raised <= listed
    pages = [
        tags(section(path.read_text(), "EXIT STATUS")) for path in PAGES if path.suffix == ".1"
    ]
    assert {*set().union(*pages), "141"} == listed


def test_lines_of_two_fonts_hold_no_sentence() -> None:  # its words would be joined
    lines = [x for page in PAGES for x in re.findall(r"^\.[BIR]{2} .*", page.read_text(), re.M)]
    assert len(lines) > 500
    assert not [x for x in lines if re.search(" [a-z]+ [a-z]+ ", re.sub('"[^"]*"', "", x))]


def test_the_status_of_a_pipeline_is_what_the_manual_says(tmp_path: Path) -> None:
    for text in (CONCEPTS, (ROOT / "man/man1/dnnp-check.1").read_text()):
        assert "pipefail" in text
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for options, status in (("", 0), ("set -o pipefail; ", 1)):
        done = subprocess.run(
            ["bash", "-c", f"{options}dnnp-import absent.onnx | cat"],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == status
        assert b"absent.onnx" in done.stderr


def test_the_synopsis_for_python_runs(tmp_path: Path) -> None:
    program, *_ = literal_blocks(PYTHON)
    write("bert-small", tmp_path)
    (tmp_path / "bert-small.onnx").rename(tmp_path / "model.onnx")
    said = output_of([sys.executable, "-c", program], cwd=tmp_path)
    value, gap, *loads = said.replace("[", "").replace("]", "").replace(",", "").split()
    assert float(value) == max(map(float, loads))
    assert 0 <= float(gap) < 1
    assert (tmp_path / "stages" / "manifest.json").exists()


def exports(folder: Path) -> Iterator[Path]:
    """Exports of all kinds: with weight files, without them, with replicas, with sequences."""
    (folder / "w.bin").write_bytes(np.arange(4 * SIZE, dtype=np.float32).tobytes())
    (folder / "m.onnx").write_bytes(model_with().SerializeToString())
    # Of these prices the best plan has transfers.
    imported = dnnp("profile", "--device", "a100", stdin=dnnp("import", folder / "m.onnx").out).out
    plan = dnnp("partition", "-k", "4", "--max-replicas", "2", stdin=imported).out
    for name in ("copied", "missing"):
        done = dnnp("export", "--to", "stages", "-o", folder / name, stdin=plan)
        assert done.status == 0, done.err
        yield folder / name
        (folder / "w.bin").unlink(missing_ok=True)
    text = "g (seq(float[2]) q, float[2] x) => (seq(float[2]) y) { y = SequenceInsert(q, x) }"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    (folder / "s.onnx").write_bytes(model.SerializeToString())
    plan = dnnp("partition", "-k", "1", stdin=dnnp("import", folder / "s.onnx").out).out
    done = dnnp("export", "--to", "stages", "-o", folder / "sequences", stdin=plan)
    assert done.status == 0, done.err
    yield folder / "sequences"


def paths_in(entry: object, path: str = "") -> Iterator[str]:
    """Fields at any depth, those of items of lists as if there were no list."""
    if isinstance(entry, dict):
        for name, value in entry.items():
            yield f"{path}{name}"
            yield from paths_in(value, f"{path}{name}.")
    elif isinstance(entry, list):
        for value in entry:
            yield from paths_in(value, path)


def paths_of(fields: Mapping[str, Field], path: str = "") -> Iterator[str]:
    """Fields that a table has, likewise."""
    for name, field in fields.items():
        yield f"{path}{name}"
        inner = field.fields or (field.items.fields if field.items is not None else {})
        yield from paths_of(inner, f"{path}{name}.")


def test_the_fields_of_the_manifest_are_those_of_the_manual(tmp_path: Path) -> None:
    found = set()
    for target in exports(tmp_path):
        found |= {*paths_in(json.loads((target / "manifest.json").read_text()))}
    for kind in KINDS:
        (tmp_path / kind).mkdir()
        stream = plan_of_kind(kind, tmp_path / kind)
        found |= {*paths_in(exported(stream, tmp_path / kind / "out"))}
    described = {*paths_of(MANIFEST)}
    found -= {"dimensions.n"}
    assert found <= described, "fields that the manual does not describe"
    rare = re.compile(
        r"devices\.|device_links|triton|settings|files|collectives|stages\.shards?|decoder"
    )
    assert {p for p in described - found if not rare.match(p)} == set()
    page = section(STAGES, "FIELDS").replace("\\-", "-")
    for path in described:
        assert f"\\fB{path.rpartition('.')[2]}\\fR" in page


def test_the_program_of_the_manual_runs_the_stages(tmp_path: Path) -> None:
    ends = [value("x/1", ["n", 4]), value("z", ["n", 4])], [value("y", ["n", 4])]
    nodes = [
        node("Relu", ["x/1"], ["a"]),
        node("Add", ["a", "z"], ["b"]),
        node("Mul", ["b", "a"], ["y"]),
    ]
    model = make(graph(nodes, "two inputs", *ends, []))
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    plan = dnnp(
        "partition", "-k", "3", stdin=dnnp("import", "--dim", "n=2", tmp_path / "m.onnx").out
    )
    folder = tmp_path / "stages"
    assert dnnp("export", "--to", "stages", "-o", folder, stdin=plan.out).status == 0
    (program,) = [b for b in literal_blocks(STAGES) if b.startswith("import ")]
    (tmp_path / "run.py").write_text(program)
    feeds = {name: np.resize(array, (5, 4)) for name, array in feeds_of(model).items()}
    np.savez(tmp_path / "in.npz", **feeds)
    output_of([sys.executable, "run.py", folder, "in.npz", "out.npz"], cwd=tmp_path)
    with np.load(tmp_path / "out.npz") as found:
        assert list(found) == ["y"]
        np.testing.assert_array_equal(found["y"], run_whole(model, feeds)["y"])
