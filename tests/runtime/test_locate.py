"""Locating differences: the first tensor that parts, what makes it part, the smallest model."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, numpy_helper

from dnnp.core.model.text import located_words
from dnnp.core.runtime.model.inputs import random_inputs
from dnnp.core.runtime.model.providers import SessionConfig
from dnnp.core.runtime.pipeline import prepare as preparing
from dnnp.core.runtime.pipeline.prepare import prepare
from dnnp.core.runtime.pipeline.sources import Traffic
from dnnp.core.runtime.report.locate import Locator, shown
from dnnp.core.runtime.report.verify import Tolerance, tolerance_for
from dnnp.formats.onnx import stages as onnx_stages
from support.fused_models import int4, normalised
from support.run import dnnp
from support.running import planned, stage_of, swap
from support.split_models import array, graph, make, node, value

RNG = np.random.default_rng(7)
FLOAT16 = TensorProto.FLOAT16
EXACT = ("--rtol", "0", "--atol", "0")
SINGLE = ("--rtol", "1e-4", "--atol", "1e-5")
Change = Callable[[onnx.NodeProto, onnx.ModelProto], None]


def layers(count: int = 6) -> onnx.ModelProto:
    """Layers with names as exporters write them, of which the last sum reads several."""
    nodes, stored, last = [], [], "x"
    for i in range(count):
        stored.append(array(f"w{i}", RNG.standard_normal((8, 8)) / 3))
        name = f"/layers.{i}/mlp"
        nodes.append(node("MatMul", [last, f"w{i}"], [f"m{i}"], name=f"{name}/MatMul"))
        nodes.append(node("Tanh", [f"m{i}"], [f"t{i}"], name=f"{name}/Tanh"))
        last = f"t{i}"
    nodes.append(node("Sum", [last, "t2", "t0"], ["y"], name="/Sum"))
    return make(graph(nodes, "layers", [value("x", [4, 8])], [value("y", [4, 8])], stored))


STAGES = [[*range(5)], [*range(5, 9)], [*range(9, 13)]]


def planted(monkeypatch: pytest.MonkeyPatch, tensor: str, change: Change) -> None:
    """Let the stage that makes a tensor make it in another way than the whole model."""
    split = onnx_stages.split_model

    def wrong(*arguments: Any) -> Any:
        parts = split(*arguments)
        for part in parts:
            for made in part.model.graph.node:
                if tensor in made.output:
                    change(made, part.model)
        return parts

    monkeypatch.setattr(onnx_stages, "split_model", wrong)


def operator(name: str) -> Change:
    return lambda made, model: setattr(made, "op_type", name)


def factor(by: float) -> Change:
    """Multiply one weight that the node reads."""

    def change(made: onnx.NodeProto, model: onnx.ModelProto) -> None:
        stored = next(t for t in model.graph.initializer if t.name in made.input)
        changed = numpy_helper.to_array(stored) * np.asarray(
            by, numpy_helper.to_array(stored).dtype
        )
        stored.CopyFrom(numpy_helper.from_array(changed, stored.name))

    return change


def located(
    model: onnx.ModelProto, stages: Sequence[Sequence[int]], tolerance: Tolerance | None = None
) -> tuple[dict[str, str], onnx.ModelProto | None]:
    """Lines by their heads, and the smallest model; of the worst sample."""
    parts = [stage_of(nodes, i) for i, nodes in enumerate(stages)]
    pipeline = prepare(model, Path(), parts, SessionConfig())
    traffic = Traffic([random_inputs(model, i) for i in range(2)], 2, 1)
    limit = tolerance or tolerance_for(model)
    verdict = pipeline.verify(pipeline.run(traffic, lambda s: True), traffic, limit)
    if verdict.parting is None:
        return {}, None
    record, lines, smallest = Locator(pipeline, *verdict.parting, limit).located()
    words = {line[:12].strip(): line[12:] for line in lines}
    assert located_words(record).startswith(words["located"])
    assert record["reason"] == words.get("because", words["located"])
    if smallest is not None:
        check_by_itself(smallest, limit)
    return words, smallest


def check_by_itself(model: onnx.ModelProto, limit: Tolerance) -> None:
    """A model that shows a difference hands out two values that differ, and wants no input."""
    session = ort.InferenceSession(model.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    assert names[1] == f"{names[0]} of the whole model"
    got, expected = session.run(None, {})
    assert got.shape == expected.shape
    error = np.abs(got.astype(np.float64) - expected.astype(np.float64))
    scale = np.abs(expected[np.isfinite(expected)]).max(initial=0.0)
    assert not (error <= limit.atol * scale + limit.rtol * np.abs(expected)).all()


def operators(model: onnx.ModelProto | None) -> list[str]:
    return [] if model is None else [made.op_type for made in model.graph.node]


def drawn(seed: int) -> tuple[onnx.ModelProto, list[list[int]]]:
    """A graph at random of operators that hide little, and a split of it."""
    rng = np.random.default_rng(seed)
    count, nodes, known = int(rng.integers(8, 20)), [], ["x"]
    for i in range(count):
        one, two = (known[max(0, len(known) - 1 - int(rng.integers(0, 4)))] for _ in range(2))
        kind = rng.choice(["Add", "Mul", "Sub", "Sin", "Atan", "Erf"])
        reads = [one, two] if kind in ("Add", "Mul", "Sub") else [one]
        nodes.append(node(str(kind), reads, [f"v{i}"], name=f"n{i}"))
        known.append(f"v{i}")
    read = {name for made in nodes for name in made.input}
    ends = [value(name, [16]) for name in known[1:] if name not in read]
    model = make(graph(nodes, "drawn", [value("x", [16])], ends))
    cuts = sorted(rng.choice(range(1, count), size=2, replace=False).tolist())
    return model, [[*range(a, b)] for a, b in zip([0, *cuts], [*cuts, count], strict=True)]


def test_the_planted_operator_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of graphs at random; the smallest model is that operator alone."""
    found = 0
    for seed in range(60):
        model, stages = drawn(seed)
        at = int(np.random.default_rng(seed).integers(0, len(model.graph.node)))
        with monkeypatch.context() as patched:
            other = "Cos" if len(model.graph.node[at].input) == 1 else "Max"
            planted(patched, f"v{at}", operator(other))
            words, smallest = located(model, stages)
        if not words:  # nothing reaches an output
            continue
        found += 1
        stage = next(i for i, nodes in enumerate(stages) if at in nodes)
        op = model.graph.node[at].op_type
        assert words["located"].startswith(f"tensor 'v{at}' of stage {stage} is the first to part")
        assert f"made by {op} 'n{at}'" in words["located"]
        assert words["because"].startswith(f"stage {stage} makes it")
        assert operators(smallest) == [other]
    assert found > 40


@pytest.mark.parametrize("tensor", ["m0", "t2", "m3", "t4", "m5"])
def test_a_weight_that_differs(tensor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change = factor(1.5) if tensor.startswith("m") else operator("Sigmoid")
    planted(monkeypatch, tensor, change)
    words, smallest = located(layers(), STAGES)
    assert f"tensor '{tensor}' of stage " in words["located"]
    assert f"in layer /layers.{tensor[1]}/mlp" in words["located"]
    assert operators(smallest) == ["MatMul" if tensor.startswith("m") else "Sigmoid"]


def test_two_of_them_the_one_that_is_first(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, "m4", factor(2.0))
    planted(monkeypatch, "t1", operator("Sigmoid"))
    assert "tensor 't1' of stage 0 " in located(layers(), STAGES)[0]["located"]


def test_nan_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, "t3", operator("Log"))
    words, smallest = located(layers(), STAGES)
    assert "tensor 't3' of stage 1 " in words["located"]
    assert "NaN or infinity at " in words[""]
    assert "NaN 0 and " in words[""]
    assert "NaN 0 and 0" not in words[""]
    assert operators(smallest) == ["Log"]


def test_what_is_equal_says_so(tmp_path: Path) -> None:
    assert located(layers(), STAGES) == ({}, None)
    kept = tmp_path / "shown.onnx"
    done = run(tmp_path, layers(), STAGES, "--save-located", kept)
    assert done.status == 0, done.err
    assert "\nlocated     nothing parts\n" in done.err
    assert not kept.exists()


def test_a_stage_may_receive_the_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stage 0 differs by less than the tolerance, and little is left of what stage 1 subtracts."""
    nodes = [node("Mul", ["x", "w"], ["a"]), node("Relu", ["a"], ["b"])]
    nodes += [node("Sub", ["b", "near"], ["c"]), node("Tanh", ["c"], ["y"])]
    near = np.float32([1.0, 2.0, 3.0, 4.0]) - np.float32(1e-4)
    stored = [array("w", np.ones(4)), array("near", near)]
    ends = [value("x")], [value("y")]
    model = make(graph(nodes, "near", *ends, stored))
    planted(monkeypatch, "a", factor(1 + 2e-5))
    parts = [stage_of(nodes, i) for i, nodes in enumerate([[0, 1], [2, 3]])]
    pipeline = prepare(model, Path(), parts, SessionConfig())
    traffic = Traffic([{"x": np.float32([1, 2, 3, 4])}], 1, 1)
    limit = tolerance_for(model)
    verdict = pipeline.verify(pipeline.run(traffic, lambda s: True), traffic, limit)
    assert verdict.parting is not None
    _, lines, smallest = Locator(pipeline, *verdict.parting, limit).located()
    assert "tensor 'c' of stage 1 " in lines[0]
    assert "stage 1 receives it: it is right for the whole model's tensors" in lines[2]
    assert operators(smallest) == ["Sub"]


def test_tensors_that_were_mixed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        node("Mul", ["x", "w"], ["a"]),
        node("Exp", ["x"], ["b"]),
        node("Sub", ["a", "b"], ["y"]),
    ]
    model = make(graph(nodes, "two", [value("x")], [value("y")], [array("w", [1, 2, -3, 4])]))
    swap(monkeypatch)
    words, smallest = located(model, [[0, 1], [2]])
    assert words["located"].startswith(
        "nothing parts stage by stage: tensors were mixed up or drawn"
    )
    assert smallest is None


def wide() -> onnx.ModelProto:
    """A product and a sum, which ONNX Runtime makes one operator of."""
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Add", ["m", "bias"], ["y"])]
    stored = [array("w", RNG.standard_normal((512, 512))), array("bias", RNG.random(512))]
    ends = [value("x", [2, 8, 512])], [value("y", [2, 8, 512])]
    return make(graph(nodes, "wide", *ends, stored))


def test_a_cut_through_a_kernel_hides_it() -> None:
    """The whole model computes otherwise as soon as it hands out what the cut goes through."""
    words, smallest = located(wide(), [[0], [1]], Tolerance(0.0, 0.0))
    assert "tensor 'y' of stage 1 " in words["located"]
    assert words["because"].startswith("ONNX Runtime fuses across the cut at m")
    assert "results change when m is handed out" in words["because"]
    assert operators(smallest) == ["Add"]


UNOPTIMISED = [
    (wide, [[0, 1]], EXACT, "y", "m", ["MatMul", "Add"]),
    (normalised, [[*range(5)]], EXACT, "l", "s", ["Add", "LayerNormalization"]),
    (int4, [[*range(6)]], SINGLE, "m1", "d1", ["DequantizeLinear", "MatMul"]),
]


@pytest.mark.parametrize(("model", "stages", "limits", "tensor", "hidden", "ops"), UNOPTIMISED)
def test_a_fused_kernel_that_rounds_otherwise(
    model: Callable[[], onnx.ModelProto],
    stages: list[list[int]],
    limits: Sequence[str],
    tensor: str,
    hidden: str,
    ops: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The whole model runs without optimisation, the stage with it."""
    reference = preparing.reference_config

    def plain(*arguments: Any) -> SessionConfig:
        return replace(reference(*arguments), optimization="disable")

    monkeypatch.setattr(preparing, "reference_config", plain)
    kept = tmp_path / "shown.onnx"
    done = run(tmp_path, model(), stages, *limits, "--save-located", kept)
    assert done.status == 6, done.err
    assert f"located     tensor '{tensor}' of stage 0 is the first to part" in done.err
    assert "because     stage 0 makes it" in done.err
    assert hidden in done.err.partition("results change when ")[2].partition(" is handed out")[0]
    assert f"smallest    a model of {len(ops)} of the " in done.err
    assert f"wrote the smallest model that shows it to {kept}" in done.err
    assert operators(onnx.load(kept)) == ops


@pytest.mark.parametrize("op", ["Mul", "MatMul"])
def test_half_precision_overflows_where_it_crosses(op: str) -> None:
    """ONNX Runtime computes halves in 32 bits on a CPU, and what crosses is rounded to 16."""
    large, small = (f(16) * np.float16(by) for f, by in [(np.eye, 1000.0), (np.eye, 0.001)])
    if op == "Mul":
        large, small = np.float16(1000.0), np.float16(0.001)
    steps = [("x", "large", "a"), ("a", "large", "b"), ("b", "small", "c"), ("c", "small", "y")]
    nodes = [node(op, [one, two], [made]) for one, two, made in steps]
    stored = [array("large", large, np.float16), array("small", small, np.float16)]
    ends = [value("x", [4, 16], FLOAT16)], [value("y", [4, 16], FLOAT16)]
    words, smallest = located(make(graph(nodes, "halves", *ends, stored)), [[0, 1], [2, 3]])
    assert "tensor 'c' of stage 1 " in words["located"]
    assert "tolerance for float16: rtol 0.01, atol 0.002" in words[""]
    assert "Inf 0 and 0" not in words[""] or "NaN 0 and 0" not in words[""]
    assert words["because"].startswith("the cut makes it")
    assert operators(smallest) == [op]


def quantised() -> onnx.ModelProto:
    """Activations of 8 bits, and a product behind them."""
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("QuantizeLinear", ["a", "scale", "zero"], ["q"]),
        node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
        node("MatMul", ["d", "w"], ["m"]),
        node("Softplus", ["m"], ["y"]),
    ]
    stored = [array("scale", 0.02), array("zero", 3, np.uint8)]
    stored.append(array("w", RNG.standard_normal((32, 32))))
    ends = [value("x", [4, 32])], [value("y", [4, 32])]
    return make(graph(nodes, "quantised", *ends, stored))


def test_a_step_of_8_bits_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values between two steps may be rounded to either: what is wrong is the product."""
    planted(monkeypatch, "a", lambda made, model: setattr(made, "op_type", "Elu"))
    planted(monkeypatch, "m", factor(3.0))
    words, _ = located(quantised(), [[0, 1], [2, 3, 4]], Tolerance(2e-2, 1.0))
    assert "tensor 'm' of stage 1 " in words["located"]


COMMAND = ("run", "-n", "3", "--warmup", "1", "--verify", "--locate")


def run(folder: Path, model: onnx.ModelProto, stages: Sequence[Sequence[int]], *more: Any) -> Any:
    return dnnp(*COMMAND, *more, stdin=planned(model, folder, stages))


def test_what_was_found_is_said_and_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, "m3", factor(1.5))
    kept = tmp_path / "shown.onnx"
    done = run(tmp_path, layers(), STAGES, "--save-located", kept)
    assert done.status == 6
    assert "located     tensor 'm3' of stage 1 is the first to part, made by MatMul " in done.err
    (ran,) = [record for record in done.records("run") if "verified" in record]
    assert ran["mismatch"].startswith("output 'y' of sample ")
    because = done.err.partition("because     ")[2].partition("\n")[0]
    wanted = ("m3", 1, "MatMul", because)
    found = ran["located"]
    assert tuple(found[x] for x in ("tensor", "stage", "operator", "reason")) == wanted
    assert (found["node"] in done.err, found["layer"] in done.err) == (True, True)
    assert f"located     {located_words({**found, 'reason': ''})}".removesuffix(": ") in done.err
    assert "'/layers.3/mlp/MatMul' in layer /layers.3/mlp\n" in done.err
    assert "tolerance for float32: rtol 0.0001, atol 1e-05" in done.err
    assert "\nbecause     stage 1 makes it, also of the whole model's tensors\n" in done.err
    assert "\nsmallest    a model of 1 of the 4 operators of the stage shows it\n" in done.err
    check_by_itself(onnx.load(kept), Tolerance(1e-4, 1e-5))
    again = tmp_path / "again.onnx"
    assert (
        dnnp(
            *COMMAND,
            "--save-located",
            again,
            stdin=planned(tmp_path / "model.onnx", tmp_path, STAGES),
        ).status
        == 6
    )
    assert kept.read_bytes() == again.read_bytes()


def transposed(made: onnx.NodeProto, model: onnx.ModelProto) -> None:
    """A product with the weight's transpose."""
    made.op_type = "Gemm"
    made.attribute.append(onnx.helper.make_attribute("transB", 1))


@pytest.mark.parametrize("how", ["external", "random", "process"])
def test_weights_from_elsewhere(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file holds its weights: from a file beside the model, or drawn; workers vary too."""
    path, kept = tmp_path / "model.onnx", tmp_path / "shown.onnx"
    more = {"random": ("--random-weights", "1"), "process": ("--workers", "process")}.get(how, ())
    where = {"save_as_external_data": how != "process", "size_threshold": 0, "location": "w.bin"}
    onnx.save(layers(), path, **where)
    stream = planned(path, tmp_path, STAGES)
    if how == "random":
        (tmp_path / "w.bin").unlink()
    planted(monkeypatch, "m3", transposed)
    done = dnnp(*COMMAND, *more, "--save-located", kept, stdin=stream)
    assert done.status == 6, done.err
    assert "tensor 'm3' of stage 1 is the first to part" in done.err
    assert operators(onnx.load(kept)) == ["Gemm"]
    assert "w3" in {tensor.name for tensor in onnx.load(kept).graph.initializer}
    check_by_itself(onnx.load(kept, load_external_data=False), Tolerance(1e-4, 1e-5))


def test_inputs_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of files that went through once each."""
    stream, given = planned(layers(), tmp_path, STAGES), tmp_path / "given"
    given.mkdir()
    for i in range(3):
        np.savez(given / f"{i}.npz", x=np.full((4, 8), i, np.float32))
    planted(monkeypatch, "t3", operator("Relu"))
    files = ("--inputs", given, "--outputs", tmp_path / "made")
    done = dnnp("run", *files, "--verify", "--locate", stdin=stream)
    assert done.status == 6, done.err
    assert re.search(r"verified    NO: output 'y' of \S+/given/[12]\.npz: ", done.err)
    assert "located     tensor 't3' of stage 1 is the first to part" in done.err


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        (["--locate"], 2, "--locate is for --verify"),
        (["--verify", "--save-located", "shown.onnx"], 2, "--save-located is for --locate"),
        (["--verify", "--locate", "--save-located", "no/shown.onnx"], 1, "No such file"),
        (["--verify", "--locate", "--save-located", "."], 1, "Is a directory"),
        (["--verify", "--locate", "--save-located", "o", "-o", "o"], 2, "name the same file"),
        (["--verify", "--locate", "--save-located", "model.onnx"], 2, "would overwrite the model"),
    ],
)
def test_mistakes(
    options: list[str], status: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = planned(layers(), tmp_path, STAGES)
    monkeypatch.chdir(tmp_path)
    done = dnnp("run", *options, stdin=stream)
    assert (done.status, words in done.err) == (status, True), done.err


def test_values_in_words() -> None:
    limit = Tolerance(1e-4, 1e-5)
    nan, inf = float("nan"), float("inf")
    one, two = np.float32([[1, nan, 3], [inf, 5, 6]]), np.float32([[1, nan, 3.5], [inf, nan, 6]])
    assert shown(one, two, limit) == (
        "; at [1, 1] of [2, 3]: 5 in the whole model, nan in the stage; NaN 1 and 2, Inf 1 and 1; "
        "tolerance for float32: rtol 0.0001, atol 1e-05"
    )
    assert "; at [0] of [2]: 3 in the whole model, 9 in the stage;" in shown(
        np.array([3, 5]), np.array([9, 5]), limit
    )
    assert shown(one, two[:1], limit) == shown(np.array(["a"]), np.array(["b"]), limit) == ""
