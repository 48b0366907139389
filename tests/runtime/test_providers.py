"""Providers: where stages run, what they leave to the CPU, how tensors move between them.

What this build has (CPU, Azure, which takes no node) runs as it is. For CUDA a session of the CPU
says that it is one of CUDA; nothing else is made up.
"""

from __future__ import annotations

import itertools
from collections import namedtuple
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

from dnnp.core.model.errors import UnavailableError, UsageError
from dnnp.core.runtime.model import providers
from dnnp.core.runtime.model.inputs import random_inputs
from dnnp.core.runtime.model.providers import (
    MEMORIES,
    CpuFallback,
    Place,
    SessionConfig,
    Target,
    copied_outputs,
    may_use_tf32,
    parse_options,
    parse_places,
    places,
    shape_nodes,
)
from dnnp.core.runtime.model.session import BoundStage, CpuStage, make_session, to_numpy
from dnnp.core.runtime.pipeline.prepare import Pipeline, prepare
from dnnp.core.runtime.pipeline.sources import RunCallbacks, Traffic
from dnnp.core.runtime.report.outcome import link_kind, run_fields
from dnnp.core.runtime.report.verify import Tolerance, tolerance_for
from support.run import dnnp
from support.running import SPLIT, network, planned, stage_of
from support.split_models import array, graph, make, node, value

HERE = Path()
EXACT = Tolerance(1e-6, 1e-6)
CUDA = "CUDAExecutionProvider"

needs_azure = pytest.mark.skipif(
    "AzureExecutionProvider" not in onnxruntime.get_available_providers(),
    reason="this build has no other provider",
)


def pipeline_of(
    parts: Sequence[Sequence[int]] = SPLIT, watch: RunCallbacks | None = None, **config: Any
) -> Pipeline:
    stages = [stage_of(part, i) for i, part in enumerate(parts)]
    return prepare(network(), HERE, stages, SessionConfig(**config), watch=watch)


def agrees(pipeline: Pipeline) -> None:
    """Samples come out as they do of the whole model on the CPU."""
    samples = [random_inputs(network(), i) for i in range(3)]
    load = Traffic(samples, 9, 0)
    trace = pipeline.run(load, lambda s: True)
    whole = CpuStage(make_session(network(), HERE, SessionConfig()), pipeline.outputs)
    for s, got in trace.outputs.items():
        for name, expected in whole(samples[s % 3]).items():
            np.testing.assert_allclose(got[name], expected, rtol=1e-5, atol=1e-6)
    assert len(trace.outputs) == 9
    verdict = pipeline.verify(trace, load, EXACT)
    assert verdict.ok, verdict.mismatch


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of them."""
    monkeypatch.setattr(providers, "count_gpus", lambda: 2)


Node = namedtuple("Node", "name op_type")


class Part:
    """Nodes of a graph that a provider was given."""

    def __init__(self, provider: str, nodes: Sequence[Node]) -> None:
        self.ep_name, self._nodes = provider, nodes

    def get_nodes(self) -> Sequence[Node]:
        return self._nodes


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, gpus: None) -> Iterator[list[tuple[str, dict]]]:
    """A fake CUDA provider; providers and options of its sessions."""
    if CUDA in onnxruntime.get_available_providers():
        pytest.skip("this build has CUDA")
    found: list[tuple[str, dict]] = []
    real = onnxruntime.InferenceSession

    class Session(real):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, providers: Sequence[Any], **more: Any) -> None:
            super().__init__(*args, providers=["CPUExecutionProvider"], **more)
            self.asked = providers[0]
            if isinstance(self.asked, tuple):
                found.append(self.asked)

        def get_providers(self) -> Sequence[str]:
            return (
                [CUDA, "CPUExecutionProvider"]
                if isinstance(self.asked, tuple)
                else ["CPUExecutionProvider"]
            )

        def get_provider_options(self) -> dict[str, dict]:
            return {CUDA: self.asked[1]}

        def get_provider_graph_assignment_info(self) -> Sequence[Part]:
            nodes = [n for p in super().get_provider_graph_assignment_info() for n in p.get_nodes()]
            left = [Node(n.name, n.op_type) for n in nodes if n.op_type in LEFT]
            return [
                Part(CUDA, [n for n in nodes if n.op_type not in LEFT]),
                Part("CPUExecutionProvider", left),
            ]

    LEFT.clear()
    both = [CUDA, "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: both)
    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    yield found
    LEFT.clear()


LEFT: set[str] = set()
"""Operators that the provider of `made` leaves to the CPU."""


# --- where stages run


def test_rules() -> None:
    rules = parse_places(["t4=CUDA", "t4/1=cuda:1", "cpu-core=cpu"])
    assert rules == {"t4": Target("cuda"), "t4/1": Target("cuda", 1), "cpu-core": Target("cpu")}


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("t4", "write CLASS=PROVIDER"),
        ("=cuda", "write CLASS=PROVIDER"),
        ("t4=", "write CLASS=PROVIDER"),
        ("t4=cuda:", "write CLASS=PROVIDER or CLASS=PROVIDER:NUMBER"),
        ("t4=cuda:-1", "write CLASS=PROVIDER"),
        ("t4=cudda", "unknown provider 'cudda'; did you mean 'cuda'"),
        ("t4=azure:1", "nothing is known of numbers of devices of azure"),
        ("t4=cpu:0", "nothing is known of numbers of devices of cpu"),
    ],
)
def test_rules_that_make_no_sense(word: str, reason: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_places([word])
    assert str(error.value).startswith(f"--place {word}: ")
    assert reason in str(error.value)


def test_a_rule_stands_once() -> None:
    with pytest.raises(UsageError, match="'t4' is there twice"):
        parse_places(["t4=cpu", "t4=cuda"])


def test_options() -> None:
    assert parse_options(["a=1", "b=x=y", "c="], ["cuda"]) == (("a", "1"), ("b", "x=y"), ("c", ""))
    for words, reason in (
        (["a"], "write NAME=VALUE"),
        (["=1"], "write NAME=VALUE"),
        (["a=1", "a=2"], "'a' is there twice"),
    ):
        with pytest.raises(UsageError, match=reason):
            parse_options(words, ["cuda"])
    with pytest.raises(UsageError, match="'cpu' has no options"):
        parse_options(["a=1"], ["cpu", "cpu"])


def test_gpus_in_turn_and_by_number(gpus: None) -> None:
    targets = [Target("cuda"), Target("cpu"), Target("cuda"), Target("cuda", 0), Target("cuda")]
    spots, notices = places(5, SessionConfig(pin=False), "stage", targets)
    assert [(s.provider, s.device_id) for s in spots] == [
        ("cuda", 0), ("cpu", 0), ("cuda", 1), ("cuda", 0), ("cuda", 0),
    ]  # fmt: skip
    assert "4 stages share 2 GPUs" in notices
    assert not [n for n in places(2, SessionConfig("cuda"))[1] if "GPU" in n]
    alone = [Target("cuda", 1), Target("cuda", 1)]
    assert "2 stages share 1 GPU" in places(2, SessionConfig(), "stage", alone)[1]


def test_a_gpu_that_is_not_there(gpus: None) -> None:
    with pytest.raises(UnavailableError, match="cuda:2: the last of 2 GPUs is number 1"):
        places(1, SessionConfig(), "stage", [Target("cuda", 2)])


def test_stages_on_the_cpu_and_on_gpus(made: list[tuple[str, dict]]) -> None:
    """A device by name, before its class, before all others; replicas are devices of their own."""
    stages = [stage_of(SPLIT[0], 0), stage_of(SPLIT[1], 1, replicas=2), stage_of(SPLIT[2], 3)]
    targets = parse_places(["cpu-core=cuda", "cpu-core/2=cuda:1", "cpu-core/3=cpu"])
    config = SessionConfig(targets=targets, options=(("use_tf32", "0"),))
    pipeline = prepare(network(), HERE, stages, config)
    assert [[(p.provider, p.device_id) for p in home] for home in pipeline.homes] == [
        [("cuda", 0)], [("cuda", 1), ("cuda", 1)], [("cpu", 0)],
    ]  # fmt: skip
    assert made == [(CUDA, {"use_tf32": "0", "device_id": device}) for device in ("0", "1", "1")]
    kinds = [[type(w.call) for w in step.workers] for step in pipeline.steps]
    assert kinds == [[BoundStage], [BoundStage] * 2, [CpuStage]]
    fields = run_fields(pipeline.steps, pipeline.homes, pipeline.config)
    assert fields == {
        "provider": "cuda+cpu",
        "provider_options": ["use_tf32=0"],
        "links": [
            {"from": 0, "to": 1, "how": "peer"},
            {"from": 0, "to": 2, "how": "host"},
            {"from": 1, "to": 2, "how": "host"},
        ],
    }
    agrees(pipeline)


def test_a_rule_for_nothing() -> None:
    with pytest.raises(
        UsageError, match=r"--place cpu-cor: the plan does not use it; did you mean"
    ):
        pipeline_of(targets={"cpu-cor": Target("cpu")})


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("device_id", "1", "--place says"),
        ("device_id", "0", "--place says"),
        ("enable_cuda_graph", "1", "a graph would read the memory of its first sample"),
        ("enable_cuda_graph", "True", "a graph would"),
        ("user_compute_stream", "4711", "a stream of its own"),
    ],
)
def test_options_that_would_make_results_wrong(
    name: str, value: str, reason: str, made: list[tuple[str, dict]]
) -> None:
    with pytest.raises(UsageError, match=f"--provider-option {name}: .*{reason}"):
        pipeline_of(provider="cuda", options=((name, value),))
    assert not made


def test_graphs_may_be_off(made: list[tuple[str, dict]]) -> None:
    pipeline_of(provider="cuda", options=(("enable_cuda_graph", "0"),))
    assert len(made) == 3


SOURCE = "/onnxruntime_src/onnxruntime/core/"
PARSED = (
    f"{SOURCE}providers/cuda/cuda_execution_provider_info.cc:63 static onnxruntime::CUDAExecution"
    "ProviderInfo onnxruntime::CUDAExecutionProviderInfo::FromProviderOptions(const onnxruntime::"
    "ProviderOptions&) [ONNXRuntimeError] : 1 : FAIL : "
)
"""Beginning of the message of onnxruntime-gpu 1.31.1 about options."""


@pytest.mark.parametrize(
    ("said", "kind", "shown"),
    [
        (
            f'{PARSED}provider_options_utils.h:182 Parse Unknown provider option: "devise_id".\n',
            UsageError,
            "--provider-option: provider 'cuda': Unknown provider option: \"devise_id\".",
        ),
        (
            f'{PARSED}provider_options_utils.h:187 Parse Failed to parse provider option "use_tf32"'
            ': parse_string.h:116 ParseStringWithClassicLocale Failed to parse value: "1"\n',
            UsageError,
            'Failed to parse provider option "use_tf32": ',
        ),
        (
            f'{PARSED}provider_options_utils.h:187 Parse Failed to parse provider option "device_id'
            '": CUDA failure 36: API call is not supported in the installed CUDA driver ; GPU=-1',
            UnavailableError,
            "provider 'cuda' does not start: CUDA failure 36: API call is not supported in the "
            "installed CUDA driver",
        ),
        (
            "Invalid TensorRT EP option: device_typo\n",
            UsageError,
            "--provider-option: provider 'tensorrt': Invalid TensorRT EP option: device_typo",
        ),
        (
            "Please install TensorRT libraries as mentioned in the GPU requirements page, make "
            "sure they're in the PATH or LD_LIBRARY_PATH, and that your GPU is supported.",
            UnavailableError,
            "provider 'tensorrt' does not start: Please install TensorRT libraries",
        ),
    ],
)
def test_options_that_the_provider_refuses(
    said: str, kind: type[Exception], shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError(said)

    names = [CUDA, "TensorrtExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: names)
    monkeypatch.setattr(onnxruntime, "InferenceSession", refuse)
    provider = "tensorrt" if "TensorRT" in said else "cuda"
    with pytest.raises(kind) as error:
        make_session(network(), HERE, SessionConfig(provider))
    assert shown in str(error.value)
    assert "\n" not in str(error.value).rstrip()


def test_a_missing_driver_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> int:
        raise UnavailableError("no CUDA driver: libcuda.so.1: no such file")

    monkeypatch.setattr(providers, "load_libraries", lambda: "")
    monkeypatch.setattr(providers, "count_gpus", no_driver)
    error = str(providers.not_started("cuda", "it does not"))
    assert error.endswith("it does not; no CUDA driver: libcuda.so.1: no such file")


# --- what is left to the CPU


SHAPES = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,4,2] x) => (float[a,b] y)
<int64[1] minus = {-1}, int64[1] index = {0}>
{
  [shape] s = Shape (x)
  [axis] axis = Constant <value = int64[1] {1}> ()
  [first] n = Gather (s, index)
  to = Concat <axis = 0> (n, minus)
  [reshape] flat = Reshape (x, to)
  [cast] scale = Cast <to = 1> (n)
  [scaled] m = Mul (flat, scale)
  [sum] a = ReduceSum <keepdims = 1> (m, axis)
  LAST
}
"""
"""A reshape to a computed shape, beside arithmetic."""


def shapes_model(last: str = "[joined] y = Concat <axis = 1> (m, a)") -> onnx.ModelProto:
    return onnx.parser.parse_model(SHAPES.replace("LAST", last))


def test_nodes_that_compute_shapes() -> None:
    assert shape_nodes(shapes_model()) == {
        ("shape", "Shape"), ("first", "Gather"), ("", "Concat"), ("cast", "Cast"),
    }  # fmt: skip
    # Now this name stands for nodes of both kinds.
    twice = shapes_model("y = Concat <axis = 1> (m, a)")
    assert ("", "Concat") not in shape_nodes(twice)
    large = shapes_model()
    large.graph.initializer[1].CopyFrom(array("index", np.zeros(101, np.int64)))
    assert shape_nodes(large) == {("shape", "Shape")}


def test_shapes_are_no_fallback(made: list[tuple[str, dict]]) -> None:
    LEFT.update({"Gather", "Concat", "Shape", "Cast"})
    with pytest.raises(
        UnavailableError, match=r"leaves 1 of \d nodes to the CPU: Concat 'joined';"
    ):
        make_session(shapes_model(), HERE, SessionConfig("cuda"))
    make_session(shapes_model("[added] y = Add (m, a)"), HERE, SessionConfig("cuda"))


def test_what_is_left_in_words() -> None:
    left = CpuFallback(tuple(f"Op 'n{i}'" for i in range(6)), 9)
    assert left.words("cuda") == (
        "provider 'cuda' leaves 6 of 9 nodes to the CPU: Op 'n0', Op 'n1', Op 'n2', Op 'n3' and 2 "
        "more"
    )


@needs_azure
def test_a_fallback_is_an_error_unless_allowed(tmp_path: Path) -> None:
    stream = planned(network(), tmp_path, SPLIT)
    words = ("run", "-n", "8", "--warmup", "1", "--place", "cpu-core/1=azure", "--verify")
    refused = dnnp(*words, "-q", stdin=stream)
    assert (refused.status, refused.out) == (7, b"")
    assert refused.err == (
        "dnnp-run: provider 'azure' leaves 3 of 3 nodes to the CPU: Gather:e, Mul:m, "
        "MatMul:b; "
        "--allow-fallback lets them run there\n"
    )
    result = dnnp(*words, "--allow-fallback", "--provider-option", "key=1", stdin=stream)
    assert result.status == 0, result.err
    run = result.one("run")
    assert (run["provider"], run["provider_options"]) == ("cpu+azure", ["key=1"])
    assert [s.get("fallback") for s in run["stages"]] == [
        None,
        ["Gather:e", "Mul:m", "MatMul:b"],
        None,
    ]
    assert [s["provider"] for s in run["stages"]] == ["cpu", "azure", "cpu"]
    assert {(link["from"], link["to"]): link["how"] for link in run["links"]} == {
        (0, 1): "host", (0, 2): "shared", (1, 2): "host",
    }  # fmt: skip
    assert "stage 1: provider 'azure' leaves 3 of 3 nodes" in result.err
    assert "does not say whether it took key" in result.err
    assert "cpu-core/1 on azure" in result.err


def test_older_versions_do_not_tell(
    made: list[tuple[str, dict]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        onnxruntime.InferenceSession, "get_provider_graph_assignment_info", None, raising=False
    )
    notes: list[str] = []
    pipeline = pipeline_of(watch=RunCallbacks(note=notes.append), provider="cuda")
    assert [left.nodes for left in pipeline.fallbacks] == [()] * 3
    assert sum("does not tell what" in note for note in notes) == 3


# --- how tensors move


def test_links() -> None:
    gpu, other = ("cuda", 0), ("cuda", 1)
    table = {
        (None, None): "shared", (None, gpu): "host", (gpu, None): "host", (gpu, gpu): "device",
        (gpu, other): "peer", ("host", "host"): "host", ("host", None): "host",
        (gpu, ("npu", 0)): "host",
    }  # fmt: skip
    for (tail, head), how in table.items():
        assert link_kind([tail], [head]) == how
    assert link_kind([gpu], [gpu, other]) == "peer"
    assert link_kind([gpu, None], [gpu]) == "host"


def test_what_is_copied_by_whom() -> None:
    """Against the rules, for all ways to place two readers and the end."""
    spots = [Place(0, (), "cpu"), Place(0, (), "cuda"), Place(1, (), "cuda")]
    for a, b, end, overlap in itertools.product(spots, spots, (False, True), (False, True)):
        readers = [0, 1] + [-1] * end
        host, ahead = copied_outputs({"t": readers}, [(a,), (b,)], overlap=overlap)
        all_on_host = a.provider == b.provider == "cpu"
        assert (host == ["t"]) == (all_on_host and (end or not overlap))
        one_gpu = a == b and a.provider == "cuda"
        assert ("t" in ahead) == (overlap and one_gpu and not end)
        if ahead:
            assert ahead == {"t": ("cuda", a.device_id)}


@needs_azure
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("on", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)])
def test_tensors_through_every_mixture(
    on: Sequence[int], overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bound stages beside others; the device they are bound to is the CPU."""
    monkeypatch.setitem(MEMORIES, "azure", "cpu")
    targets = {f"cpu-core/{i}": Target("azure") for i in on}
    pipeline = pipeline_of(targets=targets, allow_fallback=True, overlap=overlap)
    kinds = [type(step.workers[0].call) for step in pipeline.steps]
    assert kinds == [BoundStage if i in on else CpuStage for i in range(3)]
    fields = run_fields(pipeline.steps, pipeline.homes, pipeline.config)
    for link in fields["links"]:
        both = [link["from"] in on, link["to"] in on]
        assert link["how"] == ("device" if all(both) else "host" if any(both) else "shared")
    assert fields.get("overlap", False) == (overlap and 0 < len(on) < 3)
    agrees(pipeline)


def test_a_stage_on_the_cpu_brings_tensors_to_a_device() -> None:
    session = make_session(network(), HERE, SessionConfig())
    stage = CpuStage(session, ("y", "m"), {"m": ("cpu", 0)})
    made = stage(random_inputs(network(), 0))
    assert isinstance(made["y"], np.ndarray)
    assert made["m"].device_name() == "cpu"
    np.testing.assert_array_equal(
        to_numpy(made["m"]), CpuStage(session, ("m",))(random_inputs(network(), 0))["m"]
    )


@needs_azure
def test_a_provider_of_unknown_memory_takes_tensors_from_the_host() -> None:
    pipeline = pipeline_of(provider="azure", allow_fallback=True)
    assert {step.workers[0].call.memory for step in pipeline.steps} == {"host"}
    fields = run_fields(pipeline.steps, pipeline.homes, pipeline.config)
    assert {link["how"] for link in fields["links"]} == {"host"}
    agrees(pipeline)


# --- what is said and checked


def test_tolerance_of_tf32(gpus: None) -> None:
    tf32, coarse = tolerance_for(network(), tf32=True), tolerance_for(half())
    assert tf32.rtol == coarse.rtol
    assert tf32.atol > coarse.atol
    assert tolerance_for(network(), tf32=True).rtol > tolerance_for(network()).rtol
    on_gpu, on_cpu = [(Place(0, (), "cuda"),)], [(Place(0, (), "cpu"),)]
    assert may_use_tf32([*on_cpu, *on_gpu], SessionConfig())
    assert not may_use_tf32(on_cpu, SessionConfig())
    assert not may_use_tf32(on_gpu, SessionConfig(options=(("use_tf32", "0"),)))


def half() -> onnx.ModelProto:
    kind = TensorProto.FLOAT16
    return make(
        graph([node("Relu", ["x"], ["y"])], "h", [value("x", [2], kind)], [value("y", [2], kind)])
    )
