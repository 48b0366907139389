"""Memory of a run: order of nodes, weights that are not held twice, and what is measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import dnnp
from dnnp.core.cost.execution_order import default_order, file_order
from dnnp.core.model.graph import Graph
from dnnp.core.model.plan import CostOptions
from dnnp.core.runtime.model.providers import SessionConfig
from dnnp.core.runtime.model.session import make_session
from dnnp.formats.graph import graph_of
from dnnp.formats.onnx.load_model import load_with_hash
from support.run import dnnp as run_dnnp
from support.split_models import array, graph, make, node, value

STEPS, SIZE = 6, 1 << 18


def masks() -> onnx.ModelProto:
    """A chain; each link adds a mask of an input alone, 1 MiB each."""
    nodes = []
    for i in range(STEPS):
        nodes += [
            node("Mul", ["m", f"k{i}"], [f"n{i}"], f"scale{i}"),
            node("Expand", [f"n{i}", "shape"], [f"e{i}"], f"expand{i}"),
            node("Add", [f"y{i}", f"e{i}"], [f"a{i}"], f"add{i}"),
            node("Sigmoid", [f"a{i}"], [f"y{i + 1}"], f"act{i}"),
        ]
    stored = [array(f"k{i}", float(i)) for i in range(STEPS)] + [array("shape", [SIZE], np.int64)]
    inputs = [value("y0", [SIZE]), value("m", [1])]
    return make(graph(nodes, "masks", inputs, [value(f"y{STEPS}", [SIZE])], stored))


def executed(session: ort.InferenceSession, feeds: dict[str, np.ndarray]) -> list[str]:
    """Names of the nodes that a profiled session ran, in order."""
    session.run(None, feeds)
    path = session.end_profiling()
    events = json.loads(Path(path).read_text())
    os.unlink(path)
    ran = [e for e in events if e.get("cat") == "Node" and e["name"].endswith("_kernel_time")]
    return [e["name"].removesuffix("_kernel_time") for e in sorted(ran, key=lambda e: e["ts"])]


def drawn(seed: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A random graph of sums, some of them of inputs and weights alone."""
    rng = np.random.default_rng(seed)
    names, nodes = ["x", "w"], []
    for v in range(25):
        near = names[-6:] if rng.random() < 0.7 else names[:2]
        reads = [str(name) for name in rng.choice(near, size=min(2, len(near)), replace=False)]
        nodes.append(node("Sum", reads, [f"t{v}"], f"n{v}"))
        names.append(f"t{v}")
    read = {name for made in nodes for name in made.input}
    outputs = [value(n, [8]) for n in names[2:] if n not in read]
    model = make(graph(nodes, "drawn", [value("x", [8]), value("w", [8])], outputs))
    return model, {"x": np.ones(8, np.float32), "w": np.ones(8, np.float32)}


def imported(model: onnx.ModelProto, folder: Path) -> Graph:
    path = folder / "m.onnx"
    onnx.save(model, path)
    return graph_of(dnnp.load(path).stream())


@pytest.mark.parametrize("seed", range(12))
def test_default_order_is_that_of_onnxruntime(seed: int, tmp_path: Path) -> None:
    model, feeds = drawn(seed)
    found = imported(model, tmp_path)
    nodes = np.arange(found.n)
    for as_listed, order in ((True, nodes), (False, default_order(found, nodes))):
        config = SessionConfig(optimization="disable", as_listed=as_listed)
        session = make_session(model, tmp_path, config, profile=str(tmp_path / "p"))
        assert executed(session, feeds) == [f"n{v}" for v in order.tolist()]


def called(model: onnx.ModelProto, domain: str, opset: int) -> onnx.ModelProto:
    """The model with each Add as a call of a function of this domain and operator set."""
    function = onnx.helper.make_function(
        domain,
        "Join",
        ["a", "b"],
        ["c"],
        [node("Add", ["a", "b"], ["c"], "inner")],
        [onnx.helper.make_opsetid("", opset)],
    )
    for call in model.graph.node:
        if call.op_type == "Add":
            call.op_type, call.domain = "Join", domain
    model.functions.append(function)
    model.opset_import.add(domain=domain, version=1)
    return model


def test_what_functions_hold_runs_as_listed(tmp_path: Path) -> None:
    model = called(masks(), "local", 17)
    feeds = {"y0": np.zeros(SIZE, np.float32), "m": np.ones(1, np.float32)}
    config = SessionConfig(optimization="disable")
    session = make_session(model, tmp_path, config, profile=str(tmp_path / "p"))
    names = executed(session, feeds)
    assert names.index("act0") < names.index("scale1") < names.index("act1")


def test_functions_of_other_operator_sets_are_left_to_onnxruntime(tmp_path: Path) -> None:
    session = make_session(called(masks(), "local", 16), tmp_path, SessionConfig())
    assert session.get_outputs()[0].name == f"y{STEPS}"


def test_file_order_makes_the_default_order_small(tmp_path: Path) -> None:
    found = imported(masks(), tmp_path)
    given = np.arange(found.n)
    options = CostOptions(memory_model="peak")
    order = file_order(found, given, options)
    assert sorted(order.nodes.tolist()) == given.tolist()
    assert order.default < 3.1 * 4 * SIZE < 5 * 4 * SIZE < order.listed
    assert default_order(found, order.nodes).tolist() == given.tolist()


def peak_of(found: Graph, order: np.ndarray) -> float:
    """Peak of live tensors over the nodes of a model, bytes."""
    place = {int(v): i for i, v in enumerate(order)}
    uses = [max((place[int(v)] for v in found.readers(t)), default=-1) for t in range(found.m)]
    most = 0.0
    for step in range(len(order)):
        live = 0.0
        for t in range(found.m):
            maker = int(found.producer[t])
            begins = 0 if maker < 0 else place[maker]
            ends = len(order) if found.is_output[t] else max(uses[t], begins)
            live += found.tensor_bytes[t] * (begins <= step <= ends)
        most = max(most, live)
    return most


@pytest.mark.parametrize("seed", range(12))
def test_file_order_is_never_worse(seed: int, tmp_path: Path) -> None:
    found = imported(drawn(seed)[0], tmp_path)
    options = CostOptions(memory_model="peak")
    given = np.arange(found.n)
    order = file_order(found, given, options)
    reads = {v: {int(found.producer[t]) for t in found.reads(v)} - {-1} for v in given.tolist()}
    done: set[int] = set()
    for v in order.nodes.tolist():
        assert reads[v] <= done
        done.add(v)
    peaks = {"listed": order.nodes, "default": default_order(found, order.nodes)}
    for name, nodes in peaks.items():
        assert getattr(order, name) == peak_of(found, nodes)
    assert order.default <= peak_of(found, default_order(found, given))


def test_exported_stages_say_both_peaks_and_run_by_the_smaller(tmp_path: Path) -> None:
    onnx.save(masks(), tmp_path / "m.onnx")
    imported = dnnp.profile(dnnp.load(tmp_path / "m.onnx"))
    plan = dnnp.split(imported, k=1, memory_model="peak")
    dnnp.export(plan, tmp_path / "out", to="stages")
    stage = json.loads((tmp_path / "out" / "manifest.json").read_text())["stages"][0]
    assert stage["default_peak_bytes"] < stage["peak_bytes"]
    assert stage["default_peak_bytes"] == pytest.approx(plan.stages[0].record["peak_bytes"])
    feeds = {"y0": np.zeros(SIZE, np.float32), "m": np.ones(1, np.float32)}
    file = tmp_path / "out" / stage["file"]
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "p")
    session = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    names = executed(session, feeds)
    assert names.index("add0") < names.index("expand1")
    whole = ort.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    found = dnnp.load_stages(tmp_path / "out").run(feeds)
    np.testing.assert_array_equal(found[f"y{STEPS}"], whole.run(None, feeds)[0])


def heavy(rows: int = 300, **extra: object) -> onnx.ModelProto:
    """A product with a weight of 4 * rows**2 bytes, and small ones."""
    rng = np.random.default_rng(0)
    nodes = [node("MatMul", ["x", "w"], ["a"]), node("Add", ["a", "b"], ["y"])]
    stored = [array("w", rng.standard_normal((rows, rows))), array("b", rng.standard_normal(rows))]
    body = graph(nodes, "heavy", [value("x", [1, rows])], [value("y", [1, rows])], stored)
    return make(body, **extra)


def test_light_model_is_the_model(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(heavy(doc_string="kept", producer_name="test"), path)
    plain, digest = load_with_hash(path)
    light, same = load_with_hash(path, light=True)
    assert digest == same
    assert light.ByteSize() < 10_000 < plain.ByteSize()
    assert [t.name for t in light.graph.initializer if t.external_data] == ["w"]
    back = onnx.load_model_from_string(light.SerializeToString())
    onnx.external_data_helper.load_external_data_for_model(back, str(tmp_path))
    for tensor in (*back.graph.initializer, *plain.graph.initializer):
        tensor.ClearField("data_location")
        del tensor.external_data[:]
    assert back == plain


@pytest.mark.parametrize("kind", ["link", "repeated", "small", "cut"])
def test_light_model_falls_back(kind: str, tmp_path: Path) -> None:
    model, path = heavy(30 if kind == "small" else 300), tmp_path / "m.onnx"
    if kind == "repeated":
        model.graph.initializer.append(model.graph.initializer[0])
    onnx.save(model, path)
    if kind == "link":
        (tmp_path / "there").mkdir()
        path = path.rename(tmp_path / "there" / "m.onnx")
        (tmp_path / "m.onnx").symlink_to(path)
        path = tmp_path / "m.onnx"
    if kind == "cut":
        path.write_bytes(path.read_bytes()[:-2000])
        with pytest.raises(dnnp.DnnpError, match="cut off"):
            load_with_hash(path, light=True)
        return
    light, _ = load_with_hash(path, light=True)
    assert light == load_with_hash(path)[0]
    assert not any(t.external_data for t in light.graph.initializer)


def plan_of(path: Path, **options: object) -> dnnp.Graph:
    return dnnp.split(dnnp.profile(dnnp.load(path)), **options)


WEIGHT = 2600
"""Rows of a weight of 27 MB."""


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_measured_memory_stands_beside_the_predicted(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(heavy(WEIGHT), path)
    plan = plan_of(path, k=1)
    ran = dnnp.run(plan, samples=3, workers=kind)
    stage = ran.runs[-1]["stages"][0]
    overhead = 6e6 if kind == "process" else 0
    assert stage["memory_bytes"] == plan.stages[0].memory + overhead
    assert stage["resident_bytes"] > 4 * WEIGHT**2
    if kind == "process":  # in a thread, what other tests have freed may be used again
        assert stage["resident_bytes"] < 1.1 * stage["memory_bytes"]


_LOADED = """
import resource, sys
import numpy, dnnp
from dnnp.core.runtime.usage import resident_bytes
from dnnp.core.runtime.model.session import empty_session_bytes
import dnnp.stage_loading, dnnp.formats.export.manifest, dnnp.core.runtime.model.inputs
before = empty_session_bytes()
stages = dnnp.load_stages(sys.argv[1])
for _ in range(3):
    stages.run({"x": numpy.ones((1, int(sys.argv[2])), numpy.float32)})
print(resident_bytes() - before)
"""


def test_loaded_stages_hold_weights_once(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(heavy(WEIGHT), path)
    dnnp.export(plan_of(path, k=1), tmp_path / "out", to="stages")
    command = [sys.executable, "-c", _LOADED, str(tmp_path / "out"), str(WEIGHT)]
    grown = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert 4 * WEIGHT**2 < grown < 1.5 * 4 * WEIGHT**2


def test_text_shows_memory(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(heavy(), path)
    plan = plan_of(path, k=1).to_bytes()
    done = run_dnnp("run", "-n", "2", "--workers", "process", stdin=plan)
    head = next(line for line in done.err.splitlines() if line.startswith("stage"))
    assert head.split()[-2:] == ["memory", "resident"]


def layers(kind: str, width: int = 560, depth: int = 28) -> onnx.ModelProto:
    """A deep model of 35 MB of small weights, with an input of one row."""
    rng = np.random.default_rng(0)
    nodes, stored = [], []
    for i in range(depth):
        shape, dtype = (width, width), np.int8 if kind == "unpacked" else np.float32
        drawn = rng.integers(-90, 90, shape) if kind == "unpacked" else rng.standard_normal(shape)
        stored.append(array(f"w{i}", drawn, dtype))
        weight, reads = f"w{i}", f"x{i}"
        if kind == "unpacked":
            nodes += [
                node("Cast", [weight], [f"c{i}"], to=1),
                node("Mul", [f"c{i}", "s"], [f"u{i}"]),
            ]
            weight = f"u{i}"
        elif kind == "transposed":
            nodes.append(node("Transpose", [weight], [f"t{i}"], perm=[1, 0]))
            weight = f"t{i}"
        elif kind == "table":
            nodes.append(node("Gather", [weight, "ids"], [f"g{i}"]))
        if kind == "gemm":
            nodes.append(node("Gemm", [reads, weight], [f"m{i}"], transB=1))
        elif kind == "table":
            nodes.append(node("Add", [reads, f"g{i}"], [f"m{i}"]))
        else:
            nodes.append(node("MatMul", [reads, weight], [f"m{i}"]))
        act = "Erf" if kind == "split" else "Tanh"
        nodes.append(node(act, [f"m{i}"], [f"x{i + 1}"]))
    stored.append(array("s", [0.01]))
    inputs = [value("x0", [1, width])]
    if kind == "table":
        inputs.append(value("ids", [1], onnx.TensorProto.INT64))
    return make(graph(nodes, kind, inputs, [value(f"x{depth}", [1, width])], stored))


_LIMITED = """
import resource, sys
import numpy, dnnp
import dnnp.stage_loading, dnnp.formats.export.manifest, dnnp.core.runtime.model.inputs
from dnnp.core.runtime.model.session import empty_session_bytes
empty_session_bytes()
status = open("/proc/self/status").read().split("VmData:")[1]
limit = 1024 * int(status.split()[0]) + int(1.15 * float(sys.argv[2]))
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
stages = dnnp.load_stages(sys.argv[1])
for _ in range(3):
    given = {"x0": numpy.ones((1, int(sys.argv[3])), numpy.float32), "ids": numpy.array([3])}
    stages.run({name: given[name] for name in stages.inputs})
"""


@pytest.mark.parametrize("kind", ["product", "gemm", "table", "transposed", "unpacked", "split"])
def test_what_is_accepted_runs_in_little_more(kind: str, tmp_path: Path) -> None:
    """A plan that fits M bytes runs within 1.15 M beyond an empty session."""
    model, path = layers(kind), tmp_path / "m.onnx"
    onnx.save(model, path)
    count = 2 if kind == "split" else 1
    most = max(stage.memory for stage in plan_of(path, k=count).plan.stages)
    plan = plan_of(path, k=count, memory=most)
    dnnp.export(plan, tmp_path / "out", to="stages")
    total = sum(stage.memory for stage in plan.stages)
    width = model.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    words = [sys.executable, "-c", _LIMITED, str(tmp_path / "out"), str(total), str(width)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-300:]


def test_weights_in_bodies_count(tmp_path: Path) -> None:
    """The branches of an If hold weights, which are there whichever is taken."""
    bodies = {}
    for name in ("then_branch", "else_branch"):
        stored = [array("w", np.ones((300, 300)))]
        out = value(f"{name}_y", [1, 300])
        nodes = [node("MatMul", ["x", "w"], [f"{name}_y"])]
        bodies[name] = graph(nodes, name, [], [out], stored)
    nodes = [node("If", ["c"], ["y"], **bodies)]
    inputs = [value("x", [1, 300]), value("c", [], onnx.TensorProto.BOOL)]
    onnx.save(make(graph(nodes, "g", inputs, [value("y", [1, 300])])), tmp_path / "m.onnx")
    (stage,) = plan_of(tmp_path / "m.onnx", k=1).plan.stages
    assert stage.memory - stage.record["peak_bytes"] == 2 * 4 * 300**2
