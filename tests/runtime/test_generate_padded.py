"""Rows of different lengths in a pass over tokens where caches grow: padding that a mask hides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from dnnp import load, load_stages, profile, split
from dnnp.core.model.errors import UsageError
from dnnp.core.runtime.generate.decoder import Decoder, State
from dnnp.core.runtime.generate.loop import Pass, StageRunner
from dnnp.exporting import export
from support.decode_runs import PHASES, generated, planned, prompts_file
from support.decoder_models import WORDS, eager_decoder, grouped_decoder, masked_decoder
from support.run import dnnp

LENGTHS = (5, 11, 4, 7, 9, 4, 6, 8, 17, 3)
ENDS = (12, 3, 7, 12, 2, 9, 2, 12, 5, 12)
PADDED = {"given": masked_decoder, "counted": partial(masked_decoder, places="counted")}
REFUSED = {
    "range": partial(masked_decoder, places="range"),
    "sliced": partial(masked_decoder, places="sliced"),
    "not hidden": partial(masked_decoder, hides=False),
    "not hidden, counted": partial(masked_decoder, places="counted", hides=False),
    "no mask": eager_decoder,
    "in place": grouped_decoder,
}


def prompts(tmp_path: Path, seed: int) -> str:
    rng = np.random.default_rng(seed)
    rows = [
        {"ids": rng.integers(3, WORDS, n).tolist(), "max_tokens": end}
        for n, end in zip(LENGTHS, ENDS, strict=True)
    ]
    return prompts_file(tmp_path, rows)


@pytest.fixture
def widths(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Rows of each pass over tokens of a stage, different lengths, and states held twice."""
    found: list[tuple[int, int, int]] = []
    run = StageRunner.run

    def spied(stage: StageRunner, item: Pass) -> dict[str, Any]:
        values = run(stage, item)
        if item.whole and stage.states:
            lengths = {*item.feeds["attention_mask"].sum(axis=1).tolist()}
            held = stage._grown[item.group]
            assert all(held[row].rows == item.rows for row in item.rows)
            others = [each.rows for row, each in held.items() if row not in item.rows]
            twice = sum(not {*rows}.isdisjoint(item.rows) for rows in others)
            found.append((len(item.rows), len(lengths), twice))
        return values

    monkeypatch.setattr(StageRunner, "run", spied)
    return found


@pytest.mark.parametrize("name", PADDED)
@pytest.mark.parametrize("chunk", [None, 3])
def test_tokens_are_those_of_one_row(
    tmp_path: Path, widths: list[tuple[int, int, int]], name: str, chunk: int | None
) -> None:
    graph = planned(PADDED[name](tmp_path / "m.onnx"), 3)
    assert all(state["padded"] for state in graph.stream().get("state"))
    given = prompts(tmp_path, 1)
    many, record = generated(graph, tmp_path, prompts=given, chunk=chunk, verify=True, pass_rows=4)
    assert (record["rows"], record["ties"]) == (4, 0)
    assert sum(rows > 1 and lengths > 1 for rows, lengths, _ in widths) > 10
    assert not any(twice for _, _, twice in widths)
    one, record = generated(graph, tmp_path, prompts=given, chunk=chunk, pass_rows=1)
    assert (many, record["rows"]) == (one, 1)
    assert [len(tokens) for tokens in many] == [*ENDS]


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_shown_is_not_padded(tmp_path: Path, name: str) -> None:
    graph = planned(REFUSED[name](tmp_path / "m.onnx"))
    states = graph.stream().get("state")
    assert len(states) == 8
    assert not any("padded" in state for state in states)
    _, record = generated(graph, tmp_path, prompts=prompts(tmp_path, 2), verify=True, pass_rows=4)
    assert (record["rows"], record["ties"]) == (4 if name == "in place" else 1, 0)


@pytest.mark.parametrize("name", ["range", "sliced", "not hidden"])
def test_padding_of_what_is_refused_would_be_wrong(tmp_path: Path, name: str) -> None:
    graph = planned(REFUSED[name](tmp_path / "m.onnx"))
    given = prompts(tmp_path, 3)
    right, _ = generated(graph, tmp_path, prompts=given)
    stream = graph.stream()
    for state in stream.get("state"):
        state["padded"] = True
    wrong, record = generated(type(graph)(stream), tmp_path, prompts=given, pass_rows=4)
    assert record["rows"] == 4
    assert wrong != right


def test_a_batch_that_is_fixed_is_one_row(tmp_path: Path) -> None:
    path = masked_decoder(tmp_path / "m.onnx")
    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == "batch_size":
                dim.dim_value = 1
    onnx.save(model, path)
    priced = profile(load(path, phase=["prompt:seq=4..40", "token:past=4..60"]))
    graph = split(priced, k=2, workload=[(8, 12)])
    _, record = generated(graph, tmp_path, samples=4, pass_rows=3, verify=True)
    assert (record["rows"], record["ties"]) == (1, 0)


def changed(path: Path, reader: str) -> Path:
    """A decoder whose mask is read, besides, by an operator that no rule covers."""
    model = onnx.load(masked_decoder(path))
    graph = model.graph
    ends = {
        "sum": [helper.make_node("ReduceSum", ["hidden"], ["all"], keepdims=0),
                helper.make_node("Mul", ["x4", "all"], ["x4.more"])],
        "size": [helper.make_node("Shape", ["hidden"], ["four"]),
                 helper.make_node("Cast", ["four"], ["four.float"], to=TensorProto.FLOAT),
                 helper.make_node("ReduceSum", ["four.float"], ["all"], keepdims=0),
                 helper.make_node("Mul", ["x4", "all"], ["x4.more"])],
    }  # fmt: skip
    head = graph.node.pop()
    head.input[0] = "x4.more"
    graph.node.extend([*ends[reader], head])
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("reader", ["sum", "size"])
def test_other_readers_of_the_padding(tmp_path: Path, reader: str) -> None:
    states = load(changed(tmp_path / "m.onnx", reader), phase=PHASES).stream().get("state")
    assert len(states) == 8
    assert not any("padded" in state for state in states)


def test_triangles_are_evaluated(tmp_path: Path) -> None:
    path = masked_decoder(tmp_path / "m.onnx")
    model = onnx.load(path)
    at, add = next((i, n) for i, n in enumerate(model.graph.node) if n.output[0] == "hidden")
    add.input[0] = "triangle"
    model.graph.node.insert(at, helper.make_node("Trilu", ["later", "one"], ["triangle"]))
    onnx.save(model, path)
    graph = planned(path)
    assert all(state["padded"] for state in graph.stream().get("state"))
    _, record = generated(graph, tmp_path, prompts=prompts(tmp_path, 4), verify=True, pass_rows=4)
    assert (record["rows"], record["ties"]) == (4, 0)


def test_rows_side_by_side() -> None:
    rng = np.random.default_rng(0)
    for axes in ((0, 2), (2, 0), (1, 3), (3, 1)):
        shape = [2, 3, 4, 5]
        shape[axes[0]], shape[axes[1]] = 1, 0
        state = State("a", "b", tuple(shape), np.dtype(np.float32), *axes, shared=False)
        parts, rows = [], []
        for count, tokens, row, padding in ((1, 5, 0, 0), (3, 9, 2, 4), (2, 7, 0, 1), (2, 7, 1, 0)):
            array = state.buffer(count, tokens)
            array[...] = rng.standard_normal(array.shape)
            parts.append((array, row, padding))
            rows.append(np.moveaxis(array, axes, (0, 1))[row, padding:])
        whole, padding = state.side_by_side(parts)
        assert padding == [2, 2, 1, 0]
        for made, row, start in zip(np.moveaxis(whole, axes, (0, 1)), rows, padding, strict=True):
            np.testing.assert_array_equal(made[start:], row)
            assert not made[:start].any()


def test_masks_of_rows_end_together() -> None:
    decoder = Decoder({"mask": ("mask", np.dtype(np.int64))}, [], "logits")
    mask = decoder.feeds(np.zeros((3, 1), np.int64), np.array([2, 4, 1]))["mask"]
    assert mask.tolist() == [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 1, 1]]


def notes(tmp_path: Path, make: Any, batch: str, *more: str) -> tuple[Sequence[str], int]:
    """Notes of dnnp-partition, and the rows of its plan."""
    words = ["--phase", "prompt:seq=4..40", "--phase", f"token:batch={batch},past=4..60"]
    first, plan = tmp_path / "m.dnnp", tmp_path / "plan.dnnp"
    assert dnnp("import", make(tmp_path / "m.onnx"), *words, "-o", first).status == 0
    made = dnnp(
        "partition", "-k", "2", "--workload", "prompt=8,tokens=12", *more, first, "-o", plan
    )
    assert made.status == 0, made.err
    assert dnnp("check", plan).status == 0
    record = load(plan).stream().get("plan")[0]
    return made.err.splitlines(), record["workload"]["rows"]


def test_a_plan_is_for_the_rows_that_a_run_has(tmp_path: Path) -> None:
    said, rows = notes(tmp_path, eager_decoder, "4|1")
    assert (rows, any("1 sequence a pass over tokens: rows cannot" in s for s in said)) == (1, True)
    said, rows = notes(tmp_path, masked_decoder, "4|1", "--in-flight", "8")
    assert (rows, any("4 sequences a pass over tokens" in s for s in said)) == (4, True)
    assert not any("cannot be padded" in s for s in said)
    said, rows = notes(tmp_path, eager_decoder, "4")
    assert rows == 4
    assert any("cannot be padded: dnnp-run --generate has one sequence a pass" in s for s in said)


def test_stages_of_an_export_generate_and_refuse_as_the_command_does(tmp_path: Path) -> None:
    graph = planned(masked_decoder(tmp_path / "m.onnx"))
    given = [[7, 9, 4], [5, 6, 7, 8, 11], [30]]
    file = prompts_file(tmp_path, [{"ids": ids} for ids in given])
    right, _ = generated(graph, tmp_path, prompts=file, verify=True)
    export(graph, tmp_path / "out", to="stages")
    stages = load_stages(tmp_path / "out")
    found: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for number, token in stages.generate(given, 12, rows=3, in_flight=3):
        found[number].append(token)
    assert [*found.values()] == right
    asked: dict[str, Any] = {"prompts": np.array([[3, 1], [4, WORDS - 1]]), "max_tokens": 2}
    assert len(list(stages.generate(**asked))) == 4
    wrong: list[dict[str, Any]] = [
        {"temperature": -1.0}, {"temperature": math.nan}, {"top_k": -1},
        {"temperature": 1.0, "top_p": 0.0}, {"temperature": 1.0, "top_p": 1.5},
        *({"prompts": [[3], [4, word]]} for word in (-1, WORDS, 2**70, 1.5, "a")),
    ]  # fmt: skip
    for one in wrong:
        says = f"{one['prompts'][1][1]} is no word of the model" if "prompts" in one else "temp"
        with pytest.raises(UsageError, match=f"^{says}"):
            stages.generate(**{**asked, **one})
