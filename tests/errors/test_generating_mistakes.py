"""Mistakes about models that generate: more tokens than positions, arguments of wrong types."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import dnnp as api
from dnnp.core.model.errors import UsageError
from dnnp.formats.phases import check_positions
from dnnp.graph import Graph
from support.decoder_models import eager_decoder, grouped_decoder
from support.generating import random_decoder
from support.run import dnnp

ROWS = 256
"""Positions that `grouped_decoder` has."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return grouped_decoder(tmp_path_factory.mktemp("model") / "m.onnx")


def phases(prompt: int, past: int) -> list[str]:
    return ["--phase", f"prompt:seq=4..{prompt}", "--phase", f"token:batch=2,past=4..{past}"]


def refusal(what: str, tokens: int) -> str:
    return f"{what}: {tokens} tokens; the model has {ROWS} positions ('cos')\n"


@pytest.mark.parametrize(
    ("prompt", "past", "says"),
    [
        (ROWS + 1, 20, refusal("--phase prompt", ROWS + 1)),
        (20, ROWS, refusal("--phase token", ROWS + 1)),
    ],
)
def test_phases_beyond_the_positions(model: Path, prompt: int, past: int, says: str) -> None:
    done = dnnp("import", model, *phases(prompt, past))
    assert (done.status, done.out, done.err) == (2, b"", f"dnnp-import: {says}")


def test_sequences_beyond_the_positions(model: Path) -> None:
    stream = dnnp("import", "-q", model, *phases(ROWS, ROWS - 1)).out
    priced = dnnp("profile", "-q", stdin=stream).out
    for words, tokens, status in (
        (("--workload", f"prompt={ROWS - 6},tokens=6"), ROWS, 0),
        (("--workload", f"prompt={ROWS - 6},tokens=7"), ROWS + 1, 2),
        (("--max-length", f"{ROWS}", "--workload", "prompt=9,tokens=9"), ROWS, 0),
        (("--max-length", f"{ROWS + 1}", "--workload", "prompt=9,tokens=9"), ROWS + 1, 2),
        ((), ROWS, 0),
    ):
        done = dnnp("partition", "-q", "-k", "2", *words, stdin=priced)
        says = f"dnnp-partition: {refusal(words[0], tokens)}" if status else ""
        assert (done.status, done.err) == (status, says)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_that_of_the_tokens(model: Path) -> None:
    stream = dnnp("import", "-q", model, *phases(20, 20)).out
    words = "-q", "-k", "2", "--workload", "prompt=6,tokens=6"
    plan = dnnp("partition", *words, stdin=dnnp("profile", "-q", stdin=stream).out)
    done = dnnp("run", "-q", "--generate", "3", "--tokens", "/dev/full", stdin=plan.out)
    assert (done.status, done.out) == (1, b"")
    assert done.err == "dnnp-run: /dev/full: No space left on device\n"


def test_a_model_without_such_tables_has_no_limit(tmp_path: Path) -> None:
    path = eager_decoder(tmp_path / "m.onnx")
    assert dnnp("import", path, *phases(5000, 5000)).status == 0


ROTATIONS = {
    "of onnxruntime": (
        "float[1,4,8,16] x, int64[1,8] p",
        "y = com.microsoft.RotaryEmbedding (x, p, c, c)",
    ),
    "of ONNX": ("float[1,4,8,16] x, int64[1,8] p", "y = RotaryEmbedding (x, c, c, p)"),
    "known positions": ("float[1,4,8,16] x", "y = com.microsoft.RotaryEmbedding (x, q, c, c)"),
}


@pytest.mark.parametrize("name", ROTATIONS)
def test_tables_of_other_operators(name: str, tmp_path: Path) -> None:
    inputs, node = ROTATIONS[name]
    text = '<ir_version: 10, opset_import: ["": 23, "com.microsoft": 1]>\n'
    text += f"g ({inputs}) => (float[1,4,8,16] y) {{ {node} }}"
    made = onnx.parser.parse_model(text)
    made.graph.initializer.append(numpy_helper.from_array(np.ones((9, 8), np.float32), "c"))
    if name == "known positions":
        made.graph.initializer.append(numpy_helper.from_array(np.arange(8)[None], "q"))
    onnx.save(made, tmp_path / "m.onnx")
    stream = api.load(tmp_path / "m.onnx").stream()
    check_positions(stream, 9, "a prompt")
    with pytest.raises(
        UsageError, match=r"^a prompt: 10 tokens; the model has 9 positions \('c'\)"
    ):
        check_positions(stream, 10, "a prompt")


def decoder() -> Graph:
    return Graph(random_decoder(1, phased=True))


def split(**asked: Any) -> object:
    return api.split(decoder(), k=2, **asked)


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "phase": (lambda m: api.load(m, phase=[1]), "--phase"),  # type: ignore[list-item]
    "phase in a text": (lambda m: api.load(m, phase="prompt:seq=8"), "--phase"),
    "phase by name": (lambda m: api.load(m, phase={"prompt": "seq=8"}), "--phase"),  # type: ignore[arg-type]
    "state": (lambda m: api.load(m, state=[1]), "--state"),  # type: ignore[list-item]
    "size": (lambda m: api.load(m, dims={"batch": "y"}), "--dim"),  # type: ignore[dict-item]
    "name": (lambda m: api.load(m, name=3), "--name"),  # type: ignore[arg-type]
    "workload": (lambda _: split(workload={"prompt": 8, "tokens": 4}), "--workload"),
    "number": (lambda _: split(workload=5), "--workload"),
    "lengths": (lambda _: split(workload=[8, 4]), "--workload"),
    "three": (lambda _: split(workload=[(8, 4, 1)]), "--workload"),
    "text": (lambda _: split(workload=[("8", 4)]), "--workload"),
    "half": (lambda _: split(workload=[(8.5, 4)]), "--workload"),
    "none": (lambda _: split(workload=[(0, 4)]), "--workload"),
    "in flight": (lambda _: split(in_flight="8"), "--in-flight"),
    "half a sequence": (lambda _: split(in_flight=8.5), "--in-flight"),
    "sequences": (lambda _: split(in_flight=[8]), "--in-flight"),
    "truth": (lambda _: split(in_flight=True), "--in-flight"),
    "length": (lambda _: split(max_length="x"), "--max-length"),
    "time": (lambda _: split(max_ttft=[1]), "--max-ttft"),
    "method": (lambda _: split(method=3), "--method"),
    "devices": (lambda _: split(devices=3), "--devices"),
    "tokens": (lambda _: api.run(decoder(), generate=2.5), "--generate"),  # type: ignore[arg-type]
    "prompts": (lambda _: api.run(decoder(), generate=2, prompts=[1]), "--prompts"),  # type: ignore[arg-type]
    "config": (lambda _: api.export(decoder(), "x", to="genai", config={"a": 2}), "--config"),  # type: ignore[arg-type]
    "gate": (lambda _: api.check(decoder(), min_tokens_per_s="x"), "--min-tokens-per-s"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_types_are_named(name: str, model: Path) -> None:
    call, flag = WRONG[name]
    with pytest.raises(UsageError, match=f"^{flag}[ :]"):
        call(model)


def test_what_stands_for_a_type_is_taken() -> None:
    whole = split(workload=[(8, 6)], in_flight=4)
    others = split(workload=[np.array([8, 6]).tolist()], in_flight=np.int64(4))
    assert isinstance(whole, Graph)
    assert isinstance(others, Graph)
    assert others.records("plan") == whole.records("plan")
