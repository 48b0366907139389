"""Decode loops over stages: the tokens of the whole model, whatever runs beside them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from dnnp import generating, load, profile, split
from dnnp.core.model.errors import FormatError, UsageError, VerificationError
from dnnp.core.runtime.generate.decoder import Decoder
from dnnp.core.runtime.generate.loop import Pass, StageRunner
from dnnp.core.runtime.generate.sampling import Sampling
from dnnp.generating import read_prompts
from dnnp.options.run import RunOptions
from dnnp.samples.build import write
from support.decode_runs import MAKERS, PHASES, generated, planned, prompts_file
from support.decoder_models import WORDS, eager_decoder, grouped_decoder
from support.run import dnnp


def by_session(path: Path, ids: list[int], count: int) -> list[int]:
    """Greedy tokens of the whole model, fed anew with all ids each time: no cache is carried."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found: list[int] = []
    for _ in range(count):
        feeds: dict[str, Any] = {}
        now = np.array([ids + found], np.int64)
        for value in session.get_inputs():
            if value.name.startswith("past"):
                feeds[value.name] = np.zeros((1, value.shape[1], 0, value.shape[3]), np.float32)
        names = {value.name for value in session.get_inputs()}
        feeds |= {"input_ids": now}
        if "attention_mask" in names:
            feeds["attention_mask"] = np.ones_like(now)
        if "position_ids" in names:
            feeds["position_ids"] = np.arange(now.shape[1])[None, :]
        if "seqlens_k" in names:
            feeds["seqlens_k"] = np.array([now.shape[1] - 1], np.int32)
            feeds["total_sequence_length"] = np.array(now.shape[1], np.int32)
        logits = session.run(["logits"], feeds)[0]
        found.append(int(logits[0, -1].argmax()))
    return found


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("chunk", [None, 3])
def test_tokens_are_those_without_caches(
    tmp_path: Path, make: Callable[[Path], Path], k: int, chunk: int | None
) -> None:
    path = make(tmp_path / "m.onnx")
    rng = np.random.default_rng(k)
    rows = [{"ids": rng.integers(0, WORDS, n).tolist()} for n in (5, 11, 4, 7, 9, 4, 6, 8)]
    tokens, record = generated(
        planned(path, k), tmp_path, prompts=prompts_file(tmp_path, rows), chunk=chunk, verify=True
    )
    assert len(tokens) == len(rows)
    for row, found in zip(rows, tokens, strict=True):
        assert found == by_session(path, row["ids"], 12)
    assert record["rows"] == (1 if make is eager_decoder else 3)
    assert (record["sequences"], record["tokens"], record["ties"]) == (8, 96, 0)


def masked_decoder(path: Path) -> Path:
    """A decoder that reads lengths from a mask."""
    return write("llama-small", path.parent, 0)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[int, ...], int, int]]:
    """Rows, tokens and tokens before of each pass over prompts, by the first stage."""
    found: list[tuple[tuple[int, ...], int, int]] = []
    run = StageRunner.run

    def spied(stage: StageRunner, item: Pass) -> dict[str, Any]:
        if not item.whole and "input_ids" in stage.inputs:
            rows, tokens = item.feeds["input_ids"].shape
            assert rows == len(item.rows)
            found.append((item.rows, tokens, item.past))
        return run(stage, item)

    monkeypatch.setattr(StageRunner, "run", spied)
    return found


@pytest.mark.parametrize("make", [grouped_decoder, masked_decoder])
@pytest.mark.parametrize(
    ("lengths", "chunk", "first"),
    [
        ((6, 6, 6, 6), None, [((0, 1, 2, 3), 6, 0)]),
        ((6, 6, 5, 6), None, [((0, 1), 6, 0), ((2,), 5, 0), ((3,), 6, 0)]),
        ((6, 6, 6, 6), 12, [((0, 1), 6, 0), ((2, 3), 6, 0)]),
        ((7, 2, 2, 9), 4, [((0,), 4, 0), ((0,), 3, 4), ((1, 2), 2, 0), ((3,), 4, 0)]),
        ((1, 1, 1, 1), 4, [((0, 1, 2, 3), 1, 0)]),
    ],
)
def test_prompts_that_begin_together_share_a_pass(
    tmp_path: Path, passes: list[Any], make: Callable[[Path], Path],
    lengths: tuple[int, ...], chunk: int | None, first: list[Any],
) -> None:  # fmt: skip
    path = make(tmp_path / "m.onnx")
    rng = np.random.default_rng(len(first))
    ends = (12, 3, 3, 9)
    rows = [
        {"ids": rng.integers(3, WORDS, n).tolist(), "max_tokens": end}
        for n, end in zip((*lengths, *lengths, 6, 6), (*ends, *ends, 7, 7), strict=True)
    ]
    tokens, _ = generated(
        planned(path), tmp_path, prompts=prompts_file(tmp_path, rows), chunk=chunk,
        under_way=4, pass_rows=4,
    )  # fmt: skip
    assert passes[: len(first)] == first
    if len(first) == 1:  # two rows begin together while those around them go on
        assert ((1, 2), lengths[0], 0) in passes[len(first) :]
    read = [len(rows) * tokens for rows, tokens, _ in passes]
    assert sum(read) == sum(len(row["ids"]) for row in rows)
    for row, found in zip(rows, tokens, strict=True):
        assert found == by_session(path, row["ids"], row["max_tokens"])


def test_prompts_of_growing_caches_share_no_pass(tmp_path: Path, passes: list[Any]) -> None:
    generated(planned(eager_decoder(tmp_path / "m.onnx")), tmp_path, samples=6)
    assert [len(rows) for rows, _, _ in passes] == [1] * 6


@pytest.mark.parametrize("make", MAKERS)
def test_ends_make_room(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    path = make(tmp_path / "m.onnx")
    graph = planned(path)
    rows = [{"ids": [i + 3, 7, 9, 11], "max_tokens": 1 + i % 4} for i in range(20)]
    tokens, _ = generated(graph, tmp_path, prompts=prompts_file(tmp_path, rows), under_way=3)
    assert [len(t) for t in tokens] == [row["max_tokens"] for row in rows]
    full, _ = generated(
        graph, tmp_path, prompts=prompts_file(tmp_path, [{"ids": r["ids"]} for r in rows])
    )
    assert [t == f[: len(t)] for t, f in zip(tokens, full, strict=True)] == [True] * 20
    stops = [{"ids": row["ids"], "stop": [f[2]]} for row, f in zip(rows, full, strict=True)]
    stopped, _ = generated(graph, tmp_path, prompts=prompts_file(tmp_path, stops))
    assert all(t == f[: f.index(f[2]) + 1] for t, f in zip(stopped, full, strict=True))


@pytest.mark.parametrize("make", MAKERS)
def test_drawn_tokens_depend_on_the_seed_alone(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    graph = planned(make(tmp_path / "m.onnx"))
    draw = {"temperature": 1.5, "top_k": 20, "top_p": 0.95, "samples": 7}
    one, _ = generated(graph, tmp_path, **draw, under_way=1, verify=True)
    six, _ = generated(graph, tmp_path, **draw, under_way=6)
    assert one == six
    greedy, _ = generated(graph, tmp_path, samples=7)
    assert greedy != one


def test_inputs_change_in_place() -> None:
    every = ("ids", np.int64), ("mask", np.int32), ("positions", np.int64)
    every += ("lengths", np.int32), ("total", np.int32), ("mask", np.bool_)
    roles = {f"{role}{i}": (role, np.dtype(kind)) for i, (role, kind) in enumerate(every)}
    decoder = Decoder(roles, [], "logits")
    rng = np.random.default_rng(0)
    now = decoder.feeds(np.zeros((3, 1), np.int64), np.zeros(3, np.int64), 20)
    for _ in range(50):
        ids, past = rng.integers(0, 99, (3, 1)), rng.integers(0, 20, 3)
        decoder.refresh(now, ids, past)
        right = decoder.feeds(ids, past, 20)
        assert len(right) == len(every)
        for name, array in right.items():
            assert array.dtype == now[name].dtype
            np.testing.assert_array_equal(array, now[name])


def test_sampling() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    rng = np.random.default_rng(0)
    every = [Sampling(1.0).choose(logits, rng, "") for _ in range(4000)]
    shares = np.bincount(every, minlength=4) / 4000
    assert np.abs(shares - [0.5, 0.3, 0.15, 0.05]).max() < 0.03
    assert {Sampling(1.0, top_k=2).choose(logits, rng, "") for _ in range(200)} == {0, 1}
    assert {Sampling(1.0, top_p=0.8).choose(logits, rng, "") for _ in range(200)} == {0, 1}
    assert Sampling().choose(np.array([1.0, 2.0, 2.0]), rng, "") == 1
    with pytest.raises(VerificationError, match="x: the logits hold NaN"):
        Sampling().choose(np.array([1.0, np.nan]), rng, "x")


def test_nan_is_no_token(tmp_path: Path) -> None:
    path = grouped_decoder(tmp_path / "m.onnx")
    model = onnx.load(path)
    weight = next(t for t in model.graph.initializer if t.name == "head")
    values = numpy_helper.to_array(weight).copy()
    values[0, 3] = np.nan
    weight.CopyFrom(numpy_helper.from_array(values, "head"))
    onnx.save(model, path)
    with pytest.raises(VerificationError, match="sequence 0, token 0: the logits hold NaN"):
        generated(planned(path), tmp_path, samples=1)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"), ('{"ids": []}', "'ids': is no list of ids"), ("[1]", "'ids'"),
        ('{"ids": [1.5]}', "'ids'"), ('{"ids": [-1]}', "'ids'"), ('{"idz": [1]}', "'idz'"),
        ('{"ids": [1], "stop": 3}', "'stop'"), ('{"ids": [1], "max_tokens": 0}', "'max_tokens'"),
        ("", "no prompts"), ('{"ids": [1], "x_a": 1, "stopp": [2]}', "'stopp': is none of ids"),
    ],
)  # fmt: skip
def test_malformed_prompts(line: str, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        read_prompts(line.encode(), "p.jsonl", 4)


def test_what_is_refused(tmp_path: Path) -> None:
    path = grouped_decoder(tmp_path / "m.onnx")
    graph = planned(path)
    sizes = {"batch_size": 1, "sequence_length": 4, "past_sequence_length": 2}
    plain = split(profile(load(path, dims=sizes, state=["none"])), k=2)
    for one, more, reason, kind in (
        (graph, {"provider": "cuda"}, "has no --provider", UsageError),
        (graph, {"workers": "process", "retries": 1}, "has no --retries", UsageError),
        (graph, {"rate": 3.0}, "has no --rate", UsageError),
        (profile(load(path, phase=PHASES)), {}, "no plan to run", UsageError),
        (plain, {}, "no state", FormatError),
    ):
        with pytest.raises(kind, match=reason):
            generated(one, tmp_path, **more)


def test_the_command(tmp_path: Path) -> None:
    path = grouped_decoder(tmp_path / "m.onnx")
    planned(path).save(tmp_path / "plan.dnnp")
    ran = dnnp("run", "--generate", "5", "--verify", "-n", "4", "--tokens", tmp_path / "t.jsonl",
               tmp_path / "plan.dnnp", "-o", tmp_path / "ran.dnnp")  # fmt: skip
    assert ran.status == 0, ran.err
    assert "20 tokens of 4 sequences" in ran.err
    assert "verified: 4 sequences as by the whole model" in ran.err
    assert len((tmp_path / "t.jsonl").read_text().splitlines()) == 20
    assert dnnp("check", tmp_path / "ran.dnnp").status == 0
    gates = ("--measured", "--max-ttft", "99s", "--max-tpot", "99s", "--min-tokens-per-s", "1e-3/s")
    assert dnnp("check", tmp_path / "ran.dnnp", *gates).status == 0
    slow = dnnp("check", tmp_path / "ran.dnnp", "--measured", "--max-ttft", "1us")
    assert (slow.status, "its TTFT is" in slow.err) == (8, True)
    assert dnnp("check", tmp_path / "plan.dnnp", *gates).status == 3


def test_each_token_is_verified_after_those_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = planned(eager_decoder(tmp_path / "m.onnx")).stream()
    setting = generating._Setting(stream, RunOptions(generate=6, samples=2))
    done, _ = generating._over_stages(setting, [s.nodes for s in setting.plan.stages])
    assert generating._verify(setting, done, setting.caller) == 0
    last = done[1].tokens.pop()
    with pytest.raises(VerificationError, match="sequence 1 at its end;"):
        generating._verify(setting, done, setting.caller)
    done[1].tokens.append(last + 1 if last < WORDS - 1 else 0)
    with pytest.raises(VerificationError, match=r": sequence 1 at token 5 \(by 0\.\d+\);"):
        generating._verify(setting, done, setting.caller)
    drawn = generating._Setting(stream, RunOptions(generate=6, samples=2, temperature=50.0))
    with pytest.raises(VerificationError, match=r"token \d \(by 0\.\d+\)"):
        generating._verify(drawn, done[:1], drawn.caller)  # the most likely is no tie by itself
    monkeypatch.setattr(generating, "TIE", {False: 2.0})
    assert generating._verify(setting, done, setting.caller) == 1
