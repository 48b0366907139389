"""Fixtures that several areas share."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from dnnp.cmds.shell import context
from dnnp.core.runtime.report import (
    statistics,  # turns telemetry off, before a test imports onnxruntime
)
from support.served import end_server

settings.register_profile(
    "dnnp", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("dnnp")


@pytest.fixture(scope="session", autouse=True)
def _server() -> Iterator[None]:
    """Nothing that was started for the tests is left when they end; and no run in this process is
    too disturbed to count, however busy the machine is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "MOST_TAKEN", math.inf)
        yield
    end_server()


@pytest.fixture(autouse=True)
def _impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in this process measure at once, and once, however busy the machine is."""
    monkeypatch.setattr(statistics, "SETTLE_S", 0.0)
    monkeypatch.setattr(statistics, "TRIES", 1)
    # Nor do they say that they are still at it, which would be in some message that is compared.
    monkeypatch.setattr(context, "FIRST_S", context.LINE_S)


SHARED = Path(__file__).resolve().parents[2] / "shared"


def _folder(name: str) -> Path:
    folder = SHARED / name
    if not folder.is_dir():
        pytest.skip(f"needs the folder {name} beside the project")
    return folder


@pytest.fixture(scope="session")
def shared_models() -> Path:
    """Folder of larger example models, when it stands beside the project."""
    return _folder("models")


@pytest.fixture(scope="session")
def shared_workloads() -> Path:
    """Folder of the 2020 paper's input graphs, when it stands beside the project."""
    return _folder("workloads")


@pytest.fixture(scope="session")
def shared_makespans() -> Path:
    """Folder of task graphs with published optimal makespans, when it stands beside the project."""
    return _folder("makespans")
