"""Sessions and stages on ONNX Runtime: every feature a split must get right, split and run."""

from __future__ import annotations

import itertools
import random
import threading
import time
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from dnnp.core.model.errors import FormatError, InputFileError, UnavailableError, UsageError
from dnnp.core.runtime.model import providers
from dnnp.core.runtime.model.inputs import random_inputs
from dnnp.core.runtime.model.providers import Place, SessionConfig, places
from dnnp.core.runtime.model.session import BoundStage, CpuStage, make_session, make_stage, to_numpy
from dnnp.core.runtime.pipeline.prepare import Pipeline, prepare
from dnnp.core.runtime.pipeline.sources import Traffic
from dnnp.core.runtime.report.verify import Tolerance
from support.running import stage_of, step_of
from support.split_models import MODELS, array, graph, make, node, value

EXACT = Tolerance(1e-6, 1e-6)
HERE = Path()


def ready(model: onnx.ModelProto, parts: list[list[int]], **config: object) -> Pipeline:
    stages = [stage_of(p, i) for i, p in enumerate(parts)]
    return prepare(model, HERE, stages, SessionConfig(**config))


def agrees(pipeline: Pipeline, samples: list[dict]) -> None:
    """Three rounds through the pipeline give what the whole model gives."""
    load = Traffic(samples, 3 * len(samples), 0)
    trace = pipeline.run(load, lambda s: True)
    verdict = pipeline.verify(trace, load, EXACT)
    assert verdict.ok, verdict.mismatch
    assert verdict.samples == 3 * len(samples)


def slices(count: int, stages: int) -> list[list[list[int]]]:
    """Every way to cut 0..count-1 into so many runs."""
    return [
        [list(range(a, b)) for a, b in itertools.pairwise((0, *cuts, count))]
        for cuts in itertools.combinations(range(1, count), stages - 1)
    ]


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("optimization", ["disable", "all"])
def test_splits_of_every_feature_run(name: str, optimization: str) -> None:
    model = MODELS[name]()
    samples = [random_inputs(model, [7, i], dims={"n": 3}) for i in range(2)]
    ran, refused = 0, []
    count = len(model.graph.node)
    thirds = slices(count, 3)
    for parts in [*slices(count, 2), *random.Random(0).sample(thirds, min(2, len(thirds)))]:
        try:
            pipeline = ready(model, parts, optimization=optimization)
        except FormatError as error:
            refused.append(str(error))
            continue
        agrees(pipeline, samples)
        ran += 1
    assert ran
    assert all("a sequence cannot be handed over" in reason for reason in refused)


@st.composite
def random_networks(draw: st.DrawFn) -> tuple[onnx.ModelProto, list[list[int]]]:
    """A DAG of small layers with equal shapes, and an ordered split of it."""
    rng = random.Random(draw(st.integers(0, 10**6)))
    count = draw(st.integers(2, 10))
    names, nodes, stored = ["x", "x2"], [], []
    for i in range(count):
        op = rng.choice(["MatMul", "Add", "Mul", "Relu", "Sub", "Tanh", "Concat"])
        inputs = [rng.choice(names[-4:])]
        if op == "MatMul":
            weight = np.random.default_rng(i).standard_normal((6, 6)) / 3
            stored.append(array(f"w{i}", weight))
            inputs.append(f"w{i}")
        elif op in ("Add", "Mul", "Sub", "Concat"):
            inputs.append(rng.choice(names))
        if op == "Concat":
            nodes.append(node("Max", inputs, [f"t{i}"]))
        else:
            nodes.append(node(op, inputs, [f"t{i}"]))
        names.append(f"t{i}")
    outputs = sorted({names[-1], *rng.sample(names[2:], min(2, count))})
    shape = [2, 6]
    model = make(
        graph(
            nodes,
            "net",
            [value("x", shape), value("x2", shape)],
            [value(n, shape) for n in outputs],
            stored,
        )
    )
    stages = draw(st.integers(1, min(4, count)))
    # Later nodes never go to earlier stages, except where nothing ties them to the order.
    cuts = sorted(rng.sample(range(1, count), stages - 1))
    parts = [list(range(a, b)) for a, b in itertools.pairwise((0, *cuts, count))]
    return model, parts


@settings(max_examples=30)
@given(random_networks())
def test_any_split_of_any_network_computes_the_same(
    network: tuple[onnx.ModelProto, list[list[int]]],
) -> None:
    model, parts = network
    agrees(ready(model, parts), [random_inputs(model, [1, i]) for i in range(2)])


@pytest.mark.parametrize("kind", [TensorProto.BFLOAT16, TensorProto.STRING, TensorProto.BOOL])
def test_types_that_numpy_does_not_know_pass_through(kind: int) -> None:
    """As inputs, between stages, and as outputs."""
    nodes = [node("Identity", [a], [b]) for a, b in ("xa", "ab", "ac", "by")]
    outputs = [value("y", [4], kind), value("c", [4], kind)]
    model = make(graph(nodes, "odd", [value("x", [4], kind)], outputs), opset=16)
    pipeline = ready(model, [[0], [1, 2], [3]])
    samples = [random_inputs(model, i) for i in range(2)]
    agrees(pipeline, samples)
    trace = pipeline.run(Traffic(samples, 1, 0), lambda s: True)
    for name in "yc":
        assert trace.outputs[0][name].tolist() == samples[0]["x"].tolist()


def chain() -> onnx.ModelProto:
    nodes = [node("Mul", ["x", "W"], ["a"]), node("Exp", ["a"], ["b"]), node("Neg", ["b"], ["y"])]
    return make(graph(nodes, "chain", [value("x")], [value("y")], [array("W", [1, 2, 3, 4])]))


def test_empty_stages_are_left_out() -> None:
    pipeline = ready(chain(), [[0], [], [1, 2], []])
    assert [s.name for s in pipeline.steps] == ["stage 0", "stage 1"]
    agrees(pipeline, [random_inputs(chain(), 0)])


def test_threads_and_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "available_cores", lambda: (2, 3, 5))
    spots, notices = places(2, SessionConfig())
    assert [s.cores for s in spots] == [(2,), (3,)]
    assert notices == []
    spots, notices = places(4, SessionConfig())
    assert [s.cores for s in spots] == [(2,), (3,), (5,), (2,)]
    assert "4 stages of 1 thread share 3 cores" in notices[0]
    spots, notices = places(2, SessionConfig(threads=2))
    assert [s.cores for s in spots] == [(2, 3), (5, 2)]
    spots, _ = places(2, SessionConfig(threads=8, pin=False))
    assert [s.cores for s in spots] == [(), ()]


def test_several_threads_run(tmp_path: Path) -> None:
    agrees(ready(chain(), [[0], [1, 2]], threads=2), [random_inputs(chain(), 0)])


def test_stages_share_gpus_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "count_gpus", lambda: 2)
    spots, notices = places(3, SessionConfig("cuda"))
    assert [s.device_id for s in spots] == [0, 1, 0]
    assert "3 stages share 2 GPUs" in notices


def test_a_missing_provider_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(UnavailableError, match=r"'cuda' is not in this build .* \(it has: cpu\)"):
        make_session(chain(), HERE, SessionConfig("cuda"))


def test_providers_by_any_name() -> None:
    for name in ("tensorrt", "TensorRT", "TensorrtExecutionProvider"):
        assert providers.provider_name(name) == "TensorrtExecutionProvider"
    assert providers.provider_name("CPUExecutionProvider") == providers.provider_name("cpu")
    with pytest.raises(UsageError, match="unknown provider 'cudda'; did you mean 'cuda'"):
        providers.provider_name("cudda")
    with pytest.raises(UsageError, match=r"unknown provider 'gpu'; known: .*cuda"):
        providers.provider_name("gpu")


@pytest.mark.parametrize("installed", [("onnxruntime",), ("onnxruntime", "onnxruntime-gpu"), ()])
def test_how_to_get_the_provider(
    installed: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The packages share their files: what is there goes first."""

    def version(name: str) -> str:
        if name not in installed:
            raise PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr("importlib.metadata.version", version)
    remove = f"pip uninstall {' '.join(installed)}, then " if installed else ""
    advice = providers.how_to_install()
    assert advice.endswith(f"{remove}pip install 'onnxruntime-gpu[cuda,cudnn]'")
    assert advice.startswith("onnxruntime and onnxruntime-gpu are both") == (len(installed) == 2)


CODE = "/onnxruntime_src/onnxruntime/core/providers"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Add node. "
            f"Name:'a' Status Message: {CODE}/cpu/math/element_wise_ops.h:583 void "
            "onnxruntime::BroadcastIterator::Append(ptrdiff_t, ptrdiff_t) axis == 1 || axis == "
            "largest was false. Attempting to broadcast an axis by a dimension other than 1. 128 "
            "by 5",
            "Add node 'a': Attempting to broadcast an axis by a dimension other than 1. 128 by 5",
        ),
        (
            f"{CODE}/cuda/cuda_call.cc:123 Status onnxruntime::CudaCall(ERRTYPE, int) [with "
            "ERRTYPE = cudaError; bool THRW = true] CUDA failure 2: out of memory",
            "CUDA failure 2: out of memory",
        ),
        (f"{CODE}/x.cc:7 oh", "oh"),
        ("plain\nand more", "plain"),
    ],
)
def test_what_the_runtime_says_comes_without_its_source(said: str, shown: str) -> None:
    assert providers.first_line(RuntimeError(said)) == shown


def test_missing_libraries_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def preload() -> None:
        print("Failed to load libcublasLt.so.13: no such file\nFailed to load libcudnn.so.9")

    monkeypatch.setattr(onnxruntime, "preload_dlls", preload, raising=False)
    providers.load_libraries.cache_clear()
    try:
        error = providers.not_started("cuda", "it fell over")
    finally:
        providers.load_libraries.cache_clear()
    assert str(error) == (
        "provider 'cuda' does not start: it fell over; Failed to load libcublasLt.so.13: no such "
        "file; pip install 'onnxruntime-gpu[cuda,cudnn]' has its libraries"
    )


def test_a_replaced_provider_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build that offers CUDA but lacks its libraries falls back to the CPU."""
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this build has CUDA")
    both = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: both)
    with pytest.raises(UnavailableError, match="'cuda' does not start: ONNX Runtime uses CPU"):
        make_session(chain(), HERE, SessionConfig("cuda"))


def test_a_machine_without_driver_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(providers.ctypes, "CDLL", no_driver)
    with pytest.raises(UnavailableError, match="no CUDA driver"):
        providers.count_gpus()


def test_bound_stages_hand_over_values_of_the_runtime() -> None:
    """The path that GPUs take, with the CPU as the device."""
    whole = CpuStage(make_session(chain(), HERE, SessionConfig()), ("y",))
    pipeline = ready(chain(), [[0], [1], [2]])
    steps = []
    for step in pipeline.steps:
        host = frozenset({"y"})
        (worker,) = step.workers
        bound = BoundStage(worker.call.session, step.outputs, host, device="cpu")
        steps.append(step_of(step.name, step.inputs, step.outputs, bound))
    pipeline.steps[:] = steps
    samples = [random_inputs(chain(), i) for i in range(3)]
    agrees(pipeline, samples)
    middle = steps[0].workers[0].call({"x": samples[0]["x"]})["a"]
    assert middle.data_type() == "tensor(float)"
    np.testing.assert_allclose(to_numpy(middle), samples[0]["x"] * [1, 2, 3, 4], rtol=1e-6)
    host = CpuStage(whole.session, ("y",), memory="host")
    np.testing.assert_array_equal(host(samples[0])["y"], whole(samples[0])["y"])


def test_the_first_run_of_some_shapes_has_the_device_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inside: list[int] = []
    most: dict[int, int] = {}

    def run(stage: BoundStage, held: dict) -> list:
        width = held["x"].shape()[0]
        inside.append(width)
        time.sleep(0.02)
        most[width] = max(most.get(width, 0), len(inside))
        inside.remove(width)
        return [held["x"]]

    monkeypatch.setattr(BoundStage, "_run", run)
    one, other = (BoundStage(None, ("x",), frozenset(), "cpu", 7) for _ in range(2))

    def both(*widths: int) -> None:
        feeds = [{"x": np.zeros(width, np.float32)} for width in widths]
        threads = [
            threading.Thread(target=stage, args=(feed,))
            for stage, feed in zip((one, other), feeds, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    both(1, 1)
    assert most == {1: 1}
    for _ in range(50):
        both(1, 1)
    assert most == {1: 2}
    both(2, 1)
    assert most[2] == 1


def test_stages_are_bound_where_their_types_allow() -> None:
    words = make(
        graph(
            [node("Identity", ["s"], ["t"])],
            "words",
            [value("s", [1], TensorProto.STRING)],
            [value("t", [1], TensorProto.STRING)],
        )
    )
    gpu = SessionConfig("cuda")
    for model, outputs, kind in ((chain(), ["y"], BoundStage), (words, ["t"], CpuStage)):
        session = make_session(model, HERE, SessionConfig())
        assert type(make_stage(session, outputs, outputs, gpu.at(Place(1)))) is kind


def test_weights_beside_the_model_are_found(tmp_path: Path) -> None:
    model = chain()
    (tmp_path / "w.bin").write_bytes(b"\0" * 16 + np.full(4, 2, np.float32).tobytes())
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in (("location", "w.bin"), ("offset", "16"), ("length", "16")):
        tensor.external_data.add(key=key, value=text)
    session = make_session(model, tmp_path, SessionConfig())
    y = CpuStage(session, ("y",))({"x": np.ones(4, np.float32)})["y"]
    np.testing.assert_allclose(y, -np.exp(2 * np.ones(4)), rtol=1e-6)
    (tmp_path / "w.bin").unlink()
    with pytest.raises(InputFileError, match=r"w\.bin: no such file; it holds weights .*'W'"):
        make_session(model, tmp_path, SessionConfig())


def test_what_the_runtime_cannot_load_is_one_line() -> None:
    model = make(graph([node("NoSuchOp", ["x"], ["y"])], "m", [value("x")], [value("y")]))
    with pytest.raises(InputFileError, match=r"cannot load the model: .*NoSuchOp") as e:
        make_session(model, HERE, SessionConfig())
    assert "\n" not in str(e.value)


def test_what_fails_while_running_is_one_line() -> None:
    nodes = [node("Identity", ["i"], ["j"]), node("Gather", ["W", "j"], ["y"])]
    at = value("i", [1], TensorProto.INT64)
    model = make(graph(nodes, "m", [at], [value("y", [1])], [array("W", [1, 2])]))
    pipeline = ready(model, [[0], [1]])
    with pytest.raises(
        InputFileError, match=r"stage 1: sample \d: ONNX .* fails: .*Gather"
    ) as caught:
        pipeline.run(Traffic([{"i": np.array([9])}], 5, 0))
    assert "\n" not in str(caught.value)


def test_a_stopped_stage_ends_its_run() -> None:
    stage = CpuStage(make_session(chain(), HERE, SessionConfig()), ("y",))
    stage.stop()
    with pytest.raises(InputFileError, match="terminate"):
        stage({"x": np.ones(4, np.float32)})


@pytest.mark.parametrize("kind", ["INT4", "UINT4", "INT2", "UINT2", "FLOAT8E5M2"])
def test_elements_that_numpy_knows_by_a_package_only(kind: str) -> None:
    number = TensorProto.DataType.Value(kind)
    nodes = [
        node("Cast", ["x"], ["a"], to=1),
        node("Cast", ["a"], ["c"], to=number),
        node("Cast", ["c"], ["y"], to=1),
    ]
    ends = [value("x", [3], number)], [value("c", [3], number), value("y", [3])]
    model = make(graph(nodes, "g", *ends), ir=13, opset=25)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(number)
    samples = [{"x": np.array([1, 0, 1]).astype(dtype)}]
    pipeline = ready(model, [[0, 1], [2]])
    agrees(pipeline, samples)
    made = pipeline.run(Traffic(samples, 1, 0), lambda s: True).outputs[0]
    assert to_numpy(made["c"]).dtype == dtype
    assert [np.asarray(to_numpy(v), np.float32).tolist() for v in made.values()] == [[1, 0, 1]] * 2
