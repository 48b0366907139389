"""ONNX Runtime leaves no device id and no events among the user's files."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
import pytest

from support.run import Result, dnnp, dnnp_process

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[4] x) => (float[n] z) { f = NonZero(x) y = Cast <to = 1> (f) z = Exp(y) }"""


@pytest.fixture
def stream(tmp_path: Path) -> bytes:
    """A plan for a model some of whose shapes only a run can tell."""
    path = tmp_path / "m.onnx"
    path.write_bytes(onnx.parser.parse_model(TEXT).SerializeToString())
    return dnnp("partition", "-k", "2", stdin=dnnp("import", "--shapes", "run", path).out).out


@pytest.mark.parametrize(
    "words",
    [
        ("import", "--shapes", "run", "m.onnx"),
        ("profile", "--mode", "measure", "--repeats", "1"),
        ("run", "-n", "2"),
    ],
    ids=lambda words: words[0],
)
def test_no_telemetry(words: tuple[str, ...], stream: bytes, tmp_path: Path) -> None:
    home, temporary = tmp_path / "home", tmp_path / "temporary"
    home.mkdir()
    temporary.mkdir()
    env = {
        "HOME": home,
        "XDG_CACHE_HOME": home / "cache",
        "XDG_DATA_HOME": home / "data",
        "XDG_CONFIG_HOME": home / "config",
        "XDG_STATE_HOME": home / "state",
        "TMPDIR": temporary,
    }
    done = run_in(words, stream, tmp_path, {name: str(path) for name, path in env.items()})
    assert done.status == 0, done.err
    assert os.listdir(temporary) == []
    ours = home / "cache" / "dnnp"
    assert [p for p in home.rglob("*") if not p.is_dir() and ours not in p.parents] == []


def run_in(words: tuple[str, ...], stream: bytes, folder: Path, env: dict[str, str]) -> Result:
    """Run a command in a folder, in an empty environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
        return dnnp_process(words[0], *words[1:], stdin=stream, cwd=folder, env=env)


def test_what_the_user_has_set_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    import dnnp.core.runtime

    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "0")
    importlib.reload(dnnp.core.runtime)
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "0"
