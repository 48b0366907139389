"""A folder with weight files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.stage_folders import SIZE


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Folder with two weight files of the same bytes."""
    folder = tmp_path / "source"
    (folder / "sub").mkdir(parents=True)
    weights = (np.arange(4 * SIZE, dtype=np.float32) / SIZE).tobytes()
    (folder / "w.bin").write_bytes(weights)
    (folder / "sub" / "v.bin").write_bytes(weights)
    return folder
