"""Small models of `shared/cases/models`, one for each kind of earlier failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.project import ROOT
from support.run import Result, dnnp

CASES = ROOT.parent / "shared" / "cases" / "models"
OPTIONS = {
    "stale-value-info-rank": ["--dim", "N=2"],
    "sequence-input": ["--inputs", str(CASES / "sequence-input-data")],
}
SAYS = {
    "random_op": (6, "run", "draws other numbers each time (RandomNormalLike 'n')"),
}
"""Commands and messages of models that end with another status."""

pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason="no folder shared/cases")


def steps(path: Path, k: int) -> tuple[str, Result, Result]:
    """Import, coarsen, profile, partition and run, up to what fails: its name, it, and the plan."""
    commands = [
        ["import", path, *OPTIONS.get(path.stem, [])],
        ["coarsen"],
        ["profile"],
        ["partition", "-k", k, "--method", "uniform"],
        ["run", "-n", 4, "--warmup", 4, "--verify"],
    ]
    done = Result(0, b"", "")
    for command in commands:
        before, done = done, dnnp(*command, stdin=done.out)
        if done.status:
            break
    return str(command[0]), done, before


@pytest.mark.parametrize("k", [2, 6])
@pytest.mark.parametrize("path", sorted(CASES.glob("*.onnx")), ids=lambda path: path.stem)
def test_runs_verified_or_is_refused(path: Path, k: int) -> None:
    name, done, before = steps(path, k)
    assert "Traceback" not in done.err
    if path.stem in SAYS:
        status, command, message = SAYS[path.stem]
        assert (done.status, name) == (status, command)
        assert message in done.err
        return
    assert done.status == 0, done.err
    assert done.one("run")["verified"] is True
    plan = before.one("plan")
    assert not plan.get("unknown", {}).get("sizes")
    unpriced = plan.get("unknown", {}).get("time", 0)
    assert (unpriced > 0) == (path.stem == "loop_maxint")
    assert plan["value"] < 1e-3
