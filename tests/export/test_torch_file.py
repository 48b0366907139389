"""dnnp-export --to torch: stages and schedule of training as one file, which PyTorch runs."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import dnnp as package
from dnnp.formats import export
from dnnp.samples.models import gpt, mt5
from dnnp.samples.weights import save
from support.run import dnnp, ended

WIDTH = 16
SIZES = {
    "M": gpt.Size(8, 64, 4, vocabulary=16384, context=16, length=16),
    "NN": mt5.Transformer(4, 64, 4, vocabulary=16384, length=16),
}
"""Models whose table of words does not fit beside their layers."""


def layers(names: Sequence[str], joined: Sequence[str] = (), op: str = "Tanh") -> onnx.ModelProto:
    """Products and what follows them; a name is its stage and what it reads; `joined` are added."""
    rng = np.random.default_rng(0)
    nodes, weights, inputs = [], [], []
    if joined:
        nodes.append(helper.make_node("Add", joined, ["sum"], name="/4/Add"))
    for word in names:
        stage, x, y, width = word.split(",")
        if x.startswith("in") and x not in inputs:
            inputs.append(x)
        have = next((w.dims[1] for w in weights if w.name == f"{x}.w"), WIDTH)
        shape = (have, int(width))
        weights.append(numpy_helper.from_array(rng.normal(0, 0.3, shape).astype("f"), f"{y}.w"))
        nodes.append(helper.make_node("MatMul", [x, f"{y}.w"], [f"{y}.m"], name=f"/{stage}/{y}"))
        nodes.append(helper.make_node(op, [f"{y}.m"], [y], name=f"/{stage}/{y}.op"))
    known = {name for node in nodes for name in node.output}
    nodes.sort(key=lambda node: node.op_type == "Add" or "/4/" in node.name)
    assert known
    info = helper.make_tensor_value_info
    last = names[-1].split(",")
    graph = helper.make_graph(
        nodes,
        "layers",
        [info(name, TensorProto.FLOAT, [4, WIDTH]) for name in inputs],
        [info(last[2], TensorProto.FLOAT, [4, int(last[3])])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


CHAIN = ("0,in,a,16", "1,a,b,16", "2,b,c,16")
BRANCHES = ("0,in0,a,16", "1,a,b,16", "2,in1,c,16", "3,c,d,16", "4,sum,e,32", "4,e,f,8")


def planned(folder: Path, model: onnx.ModelProto) -> Path:
    """A plan for training whose stages are what the names of nodes begin with."""
    onnx.save(model, folder / "model.onnx")
    graph = package.load(folder / "model.onnx", training=True)
    graph = package.profile(graph, device=["a100"])
    nodes = graph.records("node")
    own = {r["id"]: int(r["name"].split("/")[1]) for r in nodes if not r.get("backward")}
    rows: list[list[int]] = [[] for _ in range(1 + max(own.values()))]
    for r in nodes:
        rows[own.get(r["id"], own.get(r.get("of", -1), len(rows) - 1))].append(r["id"])
    package.split(graph, k=len(rows), eval=rows).save(folder / "plan.dnnp")
    return folder / "plan.dnnp"


def of_shape(folder: Path, name: str) -> str:
    """The file of a shape: what is shared comes from a plan, X and K from their own schedules."""
    words: list[Any] = []
    if name in SIZES:
        size = SIZES[name]
        sample = gpt.build(size) if isinstance(size, gpt.Size) else mt5.build(size)
        save(replace(sample, planning=False), folder / "model.onnx")
        graph = package.coarsen(package.load(folder / "model.onnx", training=True), layers=True)
        graph = package.profile(graph, device=["a100"], tensor_parallel=4)
        plan = package.split(graph, k=4, shared_stages=2, micro_batches=6, memory=10e6)
        package.schedule(plan, micro_batches=6).save(folder / "plan.dnnp")
    else:
        parts = (BRANCHES, ("b", "d")) if name == "K" else (CHAIN,)
        planned(folder, layers(*parts))
        devices = 4 if name == "K" else 3
        shape = dnnp("schedule", "-q", "--shape", name, "--devices", devices, "-n", "4")
        (folder / "shape.dnnp").write_bytes(shape.out)
        words = ["--schedule", folder / "shape.dnnp"]
    done = dnnp("export", "--to", "torch", *words, folder / "plan.dnnp")
    assert (done.status, done.err) == (0, "")
    return done.out.decode()


def tables(text: str) -> dict[str, Any]:
    """Parts of the file from plan and schedule."""
    wanted = {"PARAMETERS", "SCHEDULE"}
    return {
        name: ast.literal_eval(node.value)
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and (name := ast.unparse(node.targets[0])) in wanted
    }


def test_a_table_is_cut_by_rows(tmp_path: Path) -> None:
    text = of_shape(tmp_path, "M")
    written = tables(text)
    assert written["PARAMETERS"]["transformer.wte.weight"] == (0, 1, 1)
    (plan,) = [graph.records("block") for graph in [package.load(tmp_path / "plan.dnnp")]]
    assert len(written["SCHEDULE"]) == len(plan) == 6 * 2 * 6
    assert {home for *_, home in written["SCHEDULE"]} == {(0,), (1,), (2,), (3,), (0, 1, 2, 3)}
    assert "self.add_up(GatherRows(self.w0, x0, first=self.j * (16384 // self.t)))" in text
    assert "self.gather(v1, 2, 1)" in text  # the scores of the words
    assert "def Conv" not in text
    assert "def Gather(" in text


def test_columns_then_rows(tmp_path: Path) -> None:
    text = of_shape(tmp_path, "K")
    written = tables(text)["PARAMETERS"]
    assert (written["e.w"], written["f.w"], written["a.w"]) == (
        (1, 1, 1), (0, 1, 1), (None, 1, 1),
    )  # fmt: skip


def test_chains_take_turns(tmp_path: Path) -> None:
    schedule = tables(of_shape(tmp_path, "X"))["SCHEDULE"]
    homes = {(s, b): home for what, s, b, home in schedule if what == "F"}
    assert len(homes) == 3 * 8
    assert all(home == ((2 - s,) if b % 2 else (s,)) for (s, b), home in homes.items())


@pytest.mark.parametrize(
    ("op", "words", "said"),
    [
        ("Tanh", [], "no schedule to export"),
        ("Tanh", ["--shape", "V", "--devices", "2"], "forward passes in the schedule: 2"),
        ("Tanh", ["--shape", "V", "--devices", "3", "--inference"], "backward passes in the"),
        ("Tanh", ["--shape", "V", "--devices", "2", "--split-backward"], "a weight pass"),
        ("Sinh", ["--shape", "V", "--devices", "3"], "the operator Sinh of '/0/a.op'"),
    ],
)
def test_what_cannot_be_written(tmp_path: Path, op: str, words: list[str], said: str) -> None:
    plan = planned(tmp_path, layers(CHAIN, op=op))
    more: list[Any] = []
    if words:
        (tmp_path / "s.dnnp").write_bytes(dnnp("schedule", "-q", "-n", "2", *words).out)
        more = ["--schedule", tmp_path / "s.dnnp"]
    done = dnnp("export", "--to", "torch", *more, plan)
    assert done.status == 2
    assert said in done.err


def test_a_schedule_of_another_plan(tmp_path: Path) -> None:
    plan = planned(tmp_path, layers(CHAIN))
    (tmp_path / "s.dnnp").write_bytes(dnnp("schedule", "-q", plan).out)
    (tmp_path / "other").mkdir()
    other = planned(tmp_path / "other", layers(CHAIN[:2]))
    done = dnnp("export", "--to", "torch", "--schedule", tmp_path / "s.dnnp", other)
    assert done.status == 3
    assert "made for another plan" in done.err


def test_a_plan_without_training(tmp_path: Path) -> None:
    onnx.save(layers(CHAIN), tmp_path / "model.onnx")
    graph = package.profile(package.load(tmp_path / "model.onnx"), device=["a100"])
    package.schedule(package.split(graph, k=2)).save(tmp_path / "plan.dnnp")
    done = dnnp("export", "--to", "torch", tmp_path / "plan.dnnp")
    assert done.status == 2
    assert "no graph of training" in done.err


TWICE = {"VV": [], "zb-v": ["--split-backward", "--method", "zb-v"]}
"""Schedules of shape VV."""


def of_two_stages_a_device(folder: Path, name: str) -> str:
    """The file of a schedule of shape VV: the last stage is its own neighbour."""
    planned(folder, layers((*CHAIN, "3,c,d,16")))
    shape = dnnp("schedule", "-q", "--shape", "VV", "--devices", "2", "-n", "4", *TWICE[name])
    (folder / "shape.dnnp").write_bytes(shape.out)
    words = ["--schedule", folder / "shape.dnnp", folder / "plan.dnnp"]
    return dnnp("export", "--to", "torch", *words).out.decode()


def test_gradients_of_weights_have_blocks_of_their_own(tmp_path: Path) -> None:
    text = of_two_stages_a_device(tmp_path, "zb-v")
    schedule = tables(text)["SCHEDULE"]
    assert [sum(what == w for what, *_ in schedule) for w in "FBW"] == [16, 16, 16]
    at = {entry[:3]: i for i, entry in enumerate(schedule)}
    assert all(at["B", s, b] < at["W", s, b] for s in range(4) for b in range(4))
    assert any(at["W", s, b] - at["B", s, b] > 1 for s in range(4) for b in range(4))
    assert "v0 = self.apart(torch.matmul, x0, self.w0)" in text
    assert "self.apart" not in of_two_stages_a_device(tmp_path, "VV").partition("Stage0")[2]


def trained(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Output of a file that runs on CPUs."""
    (folder / "train.py").write_text(text)
    devices = 1 + max(d for *_, home in tables(text)["SCHEDULE"] for d in home)
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(devices)]
    run += ["--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    return ended([*run, "train.py", "--verify", "--backend", "gloo"], cwd=folder)


@pytest.mark.parametrize("name", ["V", "X", "M", "NN", "K", *TWICE])
def test_gradients_are_those_of_the_whole_model(tmp_path: Path, name: str) -> None:
    pytest.importorskip("torch")
    text = (of_two_stages_a_device if name in TWICE else of_shape)(tmp_path, name)
    devices = 1 + max(d for *_, home in tables(text)["SCHEDULE"] for d in home)
    done = trained(tmp_path, text)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(" gradients differ by ") == devices


@pytest.mark.parametrize(
    ("backend", "gpus", "found"),
    [
        (None, 0, ("gloo", ("cpu",))),
        (None, 3, ("gloo", ("cpu",))),
        (None, 4, ("nccl", ("cuda", 2))),
        ("gloo", 4, ("gloo", ("cpu",))),
        ("nccl", 8, ("nccl", ("cuda", 2))),
        ("nccl", 3, "--backend nccl: 4 processes on a machine with 3 GPUs"),
    ],
)
def test_nccl_wants_a_gpu_for_each_process(backend: str | None, gpus: int, found: Any) -> None:
    """The third of four processes."""
    text = (Path(export.__file__).parent / "torch" / "train.py").read_text()
    (placed,) = (n for n in ast.parse(text).body if getattr(n, "name", "") == "placed")
    cuda = SimpleNamespace(is_available=lambda: gpus > 0, device_count=lambda: gpus)
    names: dict[str, Any] = {"torch": SimpleNamespace(cuda=cuda, device=lambda *given: given)}
    exec(ast.get_source_segment(text, placed) or "", names)
    if isinstance(found, str):
        with pytest.raises(SystemExit, match=found):
            names["placed"](backend, 2, 4)
    else:
        assert names["placed"](backend, 2, 4) == found


LATE = """
take, forward = Run.hand_on, Run.forward

def waiting(run, what, s, b, home):
    if run.rank == 1 and not b:
        begin = time.monotonic()
        while not os.path.exists("ahead"):
            assert time.monotonic() < begin + 60, "the first device waits for the second one"
            time.sleep(0.01)
    take(run, what, s, b, home)

def noting(run, s, b, *given):
    if (run.rank, b) == (0, 1):
        open("ahead", "w").close()
    return forward(run, s, b, *given)

Run.hand_on, Run.forward = waiting, noting

if __name__"""
"""The second device receives nothing until the first one has begun another micro-batch."""


def test_nobody_waits_for_what_it_sends(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = of_shape(tmp_path, "V").replace("\nif __name__", LATE)
    done = trained(tmp_path, text)
    assert done.returncode == 0, done.stderr
