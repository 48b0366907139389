"""The package `dnnp` itself: quick to import, typed, and in the wheel."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import dnnp
from support.project import DOOR, ROOT

HEAVY = ("numpy", "numba", "onnx", "onnxruntime", "scipy", "mip", "orjson", "argparse")


def test_the_import_is_light() -> None:
    """Every command imports it first."""
    script = f"import dnnp, sys; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout.split() == [b"[]"]


def test_loading_a_stream_takes_numpy_alone(tmp_path: Path) -> None:
    path = tmp_path / "graph.jsonl"
    example = (ROOT / "man" / "sections" / "example.jsonl").read_bytes()
    path.write_bytes(example)
    script = (
        "import dnnp, sys; dnnp.load(sys.argv[1]); "
        "print([name for name in ('numpy', 'scipy', 'numba', 'onnx') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, check=True)
    assert done.stdout == b"['numpy']\n"


def test_every_public_name_is_there() -> None:
    assert dnnp.__all__ == sorted(dnnp.__all__)
    assert dir(dnnp) == dnnp.__all__
    for name in dnnp.__all__:
        assert getattr(dnnp, name).__doc__, name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        getattr(dnnp, "nothing")  # noqa: B009


def test_it_has_one_name() -> None:
    """In the wheel there is no `dnnp.core.api`: a second import would be another package."""
    for path in [*ROOT.glob("c*/**/*.py"), *(ROOT / "formats").glob("*.py")]:
        assert "import dnnp.core.api" not in path.read_text(), path
        assert "from dnnp.core.api" not in path.read_text(), path


def test_the_wheel_has_it(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    ours = {f"dnnp/{p.relative_to(DOOR)}" for p in (*DOOR.rglob("*.py"), DOOR / "py.typed")}
    assert ours <= set(names)
    assert "dnnp/formats/dnnp-stages.schema.json" in names
    assert not [name for name in names if name.startswith("dnnp/core/api")]


def test_the_manual_page_has_every_name() -> None:
    page = (ROOT / "man" / "man3" / "dnnp.3").read_text().replace("\\-", "-")
    page = re.sub(r"\\f.", "", page)
    missing = [name for name in dnnp.__all__ if not re.search(rf"\b{name}\b", page)]
    assert not missing
    for name in ("split", "bound", "schedule", "coarsen", "profile", "run"):
        for option in inspect.signature(getattr(dnnp, name)).parameters:
            assert option in page, f"{name}: {option}"
