"""The examples of the manual pages run, in their order, in a folder with the files they name."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from support.decoder_models import grouped_decoder
from support.manual import PAGES, literal_blocks, section
from support.project import ROOT
from support.run import PATIENCE_S, dnnp
from support.served import served
from support.split_models import array, graph, make, node, value

pytestmark = pytest.mark.skipif(shutil.which("jq") is None, reason="the examples use jq")
WIDTH = 32
SMALLER = {
    "--nodes 1000": "--nodes 30",
    "--nodes 100": "--nodes 16",
    "--seed 7": "--nodes 16",
    "--time-limit 5": "--time-limit 1",
    "--duration 60": "--duration 0.5",
    "--rate sweep": "--rate sweep -n 8",
    "--effort 0.1": "--effort 0.01",
    "seed in 1 2 3": "seed in 1 2",
}
"""Parts of the examples that take long, and their stand-ins here."""


def layers(*leading: str | int) -> bytes:
    """A model of 16 operators in 8 layers; `leading` are the first dimensions of its input."""
    rng = np.random.default_rng(0)
    nodes, stored = [], []
    for i in range(8):
        stored.append(array(f"w{i}", rng.normal(size=(WIDTH, WIDTH))))
        nodes.append(node("MatMul", [f"x{i}", f"w{i}"], [f"m{i}"], name=f"/layer.{i}/MatMul"))
        nodes.append(node("Relu", [f"m{i}"], [f"x{i + 1}"], name=f"/layer.{i}/Relu"))
    ends = [value("x0", [*leading, WIDTH])], [value("x8", [*leading, WIDTH])]
    return make(graph(nodes, "layers", *ends, stored)).SerializeToString()


def merged() -> bytes:
    """Two models in one, of which an input says which one it is."""
    ends = [value("x", ["batch_size", WIDTH]), value("use_cache_branch", [1], TensorProto.BOOL)]
    branches = {
        f"{name}_branch": graph([node(op, ["x"], ["z"])], name, [], [value("z", None)])
        for name, op in (("then", "Relu"), ("else", "Tanh"))
    }
    nodes = [node("If", ["use_cache_branch"], ["y"], **branches)]
    whole = graph(nodes, "merged", ends, [value("y", ["batch_size", WIDTH])])
    return make(whole).SerializeToString()


def workload(*, training: bool) -> str:
    """A chain in the format of the 2020 paper, with its backward pass if for training."""
    node = {"supportedOnFpga": 1, "cpuLatency": 9, "fpgaLatency": 2, "size": 1}
    nodes = [
        {**node, "id": i, "name": f"n{i}", "isBackwardNode": int(training and i >= 4)}
        for i in range(8)
    ]
    for mirrored in nodes if training else []:
        mirrored["colorClass"] = min(mirrored["id"], 7 - mirrored["id"])
    edges = [{"sourceId": i, "destId": i + 1, "cost": 0.5} for i in range(7)]
    machine = {"maxFPGAs": 2, "maxCPUs": 1, "maxSizePerFPGA": 100}
    return json.dumps({**machine, "nodes": nodes, "edges": edges})


def profiled() -> list[dict]:
    """Output of ONNX Runtime's profiler about the model of `layers`."""
    return [
        {"cat": "Node", "name": f"/layer.{i}/{op}_kernel_time", "ts": 2 * i, "dur": 1, "args": {}}
        for i in range(8)
        for op in ("MatMul", "Relu")
    ]


def layered() -> list[dict]:
    """Output of trtexec about it."""
    names = (f"/layer.{i}/MatMul + /layer.{i}/Relu" for i in range(8))
    return [{"count": 9}, *({"name": name, "averageMs": 0.5} for name in names)]


def file_of(page: str, start: str) -> str:
    """The literal block of a page that starts so: an example of a file."""
    (found,) = [b for b in literal_blocks((ROOT / "man" / page).read_text()) if b.startswith(start)]
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files that examples start from; those that pages show are taken from there."""
    (tmp_path / "m.onnx").write_bytes(layers(4))
    grouped_decoder(tmp_path / "decoder.onnx")
    (tmp_path / "prompts.jsonl").write_text('{"ids": [3, 4, 5]}\n{"ids": [9, 8]}\n')
    for number, name in enumerate(("images", "more")):
        (tmp_path / name).mkdir()
        sample = np.full((4, WIDTH), number, np.float32)
        np.savez(tmp_path / name / f"{number}.npz", x0=sample)
    (tmp_path / "dynamic.onnx").write_bytes(layers("batch", "sequence"))
    (tmp_path / "theirs.dot").write_text("digraph { a [Weight=1]; b [Weight=2]; a -> b [Bytes=8] }")
    (tmp_path / "decoder_model_merged.onnx").write_bytes(merged())
    (tmp_path / "workload.json").write_text(workload(training=False))
    (tmp_path / "train.json").write_text(workload(training=True))
    (tmp_path / "ort_profile.json").write_text(json.dumps(profiled()))
    (tmp_path / "trtexec_layers.json").write_text(json.dumps(layered()))
    (tmp_path / "npu.json").write_text(file_of("man1/dnnp-profile.1", '{"name": "npu"'))
    (tmp_path / "cluster.json").write_text(file_of("man1/dnnp-partition.1", '[{"class": "npu"'))
    (tmp_path / "rules.json").write_text(file_of("man1/dnnp-coarsen.1", '{"name": "example"'))
    for name, start in (("nodes.csv", "name,op,"), ("edges.csv", "from,to,"), ("mine.dot", "digr")):
        (tmp_path / name).write_text(file_of("man1/dnnp-import.1", start))
    (tmp_path / "mine.json").write_text(file_of("man5/dnnp-graph.5", '{"devices": 2'))
    for command, source, target in (
        (("import", tmp_path / "m.onnx"), None, "m.dnnp"),
        (("profile",), "m.dnnp", "priced.dnnp"),
        (("partition", "-k", "4"), "priced.dnnp", "plan.dnnp"),
    ):
        stdin = b"" if source is None else (tmp_path / source).read_bytes()
        done = dnnp(*command, stdin=stdin)
        assert done.status == 0, done.err
        (tmp_path / target).write_bytes(done.out)
    export = dnnp("export", "--to", "stages", "-o", tmp_path / "stages", tmp_path / "plan.dnnp")
    assert export.status == 0, export.err
    return tmp_path


def scripts(path: Path) -> list[str]:
    """Commands that a page shows. Filters of dnnp-graph(5) get a plan to filter."""
    page = path.read_text()
    text = section(page, "EXAMPLES") if path.suffix == ".1" else page
    found = [b for b in literal_blocks(text) if re.match(r"dnnp-|dnnp |jq |for |set |cd ", b)]
    for long, short in SMALLER.items():
        found = [script.replace(long, short) for script in found]
    filters = path.stem == "dnnp-graph"
    return [f"< plan.dnnp {s}" if filters and s.startswith("jq ") else s for s in found]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_examples_run(path: Path, folder: Path) -> None:
    commands = [str(served() / "bin"), os.environ["PATH"]]
    assert scripts(path)
    for script in scripts(path):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PATH": os.pathsep.join(commands)},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, f"{script}{done.stdout[-2000:]}{done.stderr[-2000:]}"
