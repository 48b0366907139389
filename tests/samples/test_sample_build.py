"""The command that writes sample models, and the files it leaves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from dnnp.samples import build, weights


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_list_names_every_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert build.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(build.CATALOG)


def test_list_can_be_narrowed(capsys: pytest.CaptureFixture[str]) -> None:
    assert build.main(["--list", "--size", "giant", "swin"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["swin-1.8b", "swin-6.6b", "swin-13b"]


@pytest.mark.parametrize(
    ("given", "size", "expected"),
    [
        (["bert"], None, ["bert-small"]),
        (["bert"], "full", ["bert-full"]),
        (["bert-full", "bert"], None, ["bert-full", "bert-small"]),
        (["raft-small", "raft"], "small", ["raft-small"]),
        (["gpt3"], None, ["gpt3-330m", "gpt3-1.3b", "gpt3-2.7b", "gpt3-13b"]),
    ],
)
def test_names_and_families(given: list[str], size: str | None, expected: list[str]) -> None:
    assert build.select(given, size) == expected


def test_default_is_all_small_models() -> None:
    chosen = build.select([], None)
    assert len(chosen) == 11
    assert all(build.CATALOG[name].size == "small" for name in chosen)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonesuch"], "no model called 'nonesuch'"),
        (["bert", "--size", "giant"], "no model called 'bert' of size giant"),
        (["bert-full", "--size", "small"], "no model called 'bert-full' of size small"),
        (["--seed", "-1"], "--seed: must not be negative"),
        (["--size", "huge"], "invalid choice"),
    ],
)
def test_wrong_arguments_are_usage_errors(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        build.main(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert build.main(["bert", "-o", str(blocked)]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_a_small_model_is_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new" / "folder"
    assert build.main(["resnet50", "-o", str(folder), "--seed", "3"]) == 0
    assert names(folder) == ["resnet50-small.onnx"]
    content = (folder / "resnet50-small.onnx").read_bytes()
    assert content == build.make("resnet50-small", 3).SerializeToString(deterministic=True)
    assert "6.2 MB" in capsys.readouterr().out


def test_a_giant_leaves_no_weight_file(tmp_path: Path) -> None:
    path = build.write("gpt3-330m", tmp_path)
    assert names(tmp_path) == ["gpt3-330m.onnx"]
    model = onnx.load(path, load_external_data=False)
    table = next(t for t in model.graph.initializer if t.name == "transformer.wte.weight")
    fields = {item.key: item.value for item in table.external_data}
    assert fields["location"] == "gpt3-330m.onnx.data"


def test_large_weights_go_to_a_data_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "EXTERNAL_ABOVE_BYTES", 1000)
    path = build.write("mobilenet-v2-small", tmp_path)
    assert names(tmp_path) == ["mobilenet-v2-small.onnx", "mobilenet-v2-small.onnx.data"]
    assert path.stat().st_size < 200_000
    feed = {"pixel_values": np.full((1, 3, 224, 224), 0.5, np.float32)}
    inside = build.make("mobilenet-v2-small").SerializeToString()
    results = [
        onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feed)[0]
        for model in (str(path), inside)
    ]
    assert np.array_equal(results[0], results[1])
