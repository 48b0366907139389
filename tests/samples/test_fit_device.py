"""The tool that fits a device file: a quick grid, from measuring to pricing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dnnp
from dnnp.core.extras.operator_grid import QUICK, grid
from dnnp.core.extras.operator_times import block_time
from dnnp.core.model.errors import InputFileError, UsageError
from dnnp.fits import device as fitting
from dnnp.formats.inputs.devices import load_device
from dnnp.samples import build, fit_device


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fit") / "mine.json"
    words = ["--quick", "--seconds", "0.005", "--name", "mine", "-o", str(path)]
    assert fit_device.main(words) == 0
    return path


def test_the_file_is_a_device(fitted: Path) -> None:
    device = load_device(str(fitted))
    assert (device.name, device.is_fitted) == ("mine", True)
    # On a busy machine a point may take less than can be told: the notes then name it.
    notes = json.loads(fitted.read_text())["notes"]
    unmeasured = next((note for note in notes if note.startswith("not measured: ")), "")
    assert all(kind in unmeasured for kind in {"product", "softmax", "view"} - {*device.operators})
    assert all(": " in source for source in device.sources)


def test_notes_say_what_was_done(fitted: Path) -> None:
    notes = " ".join(json.loads(fitted.read_text())["notes"])
    assert "residuals: median" in notes
    assert "a quick grid" in notes
    assert all(kind in notes for kind in QUICK)


def test_a_model_is_priced_with_it(fitted: Path, tmp_path: Path) -> None:
    graph = dnnp.coarsen(dnnp.load(build.write("gnmt-small", tmp_path)))
    priced = dnnp.profile(graph, device=[str(fitted)])
    path = tmp_path / "priced"
    priced.save(path)
    records = map(json.loads, path.read_text().splitlines())
    times = [record["time_s"]["mine"] for record in records if record["type"] == "group"]
    assert min(times) >= 0 < sum(times)


MEASURED = {"provider": "cpu", "threads": 1, "optimization": "all", "beside": 1, "rounds": 9}
MEASURED |= {"total_s": 0.001, "cold_s": 0.001, "taken": 0.0, "spread": 0.01}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stream of a model whose groups take a known time."""
    folder = tmp_path_factory.mktemp("measured")
    graph = dnnp.profile(dnnp.coarsen(dnnp.load(build.write("gnmt-small", folder))))
    path = folder / "measured"
    graph.save(path)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    records[0]["measured"] = MEASURED
    for record in records:
        if record["type"] == "group":
            record["time_s"]["cpu-core"] *= 0.25
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_groups_of_measured_streams_count_most(measured: Path, tmp_path: Path) -> None:
    slow, path = tmp_path / "slow", tmp_path / "mine.json"
    times = group_times(measured)
    for stream, factor in ((measured, 1.0), (slow, 3.0)):
        records = [json.loads(line) for line in measured.read_text().splitlines()]
        for record in records:
            if record["type"] == "group":
                record["time_s"]["cpu-core"] *= factor
        slow.write_text("".join(json.dumps(record) + "\n" for record in records))
        words = ["--quick", "--seconds", "0.005", "--name", "cpu-core", "-o", str(path), "-q"]
        assert fit_device.main([*words, "--stream", str(slow)]) == 0
        priced = dnnp.profile(dnnp.load(stream), device=[str(path)])
        priced.save(tmp_path / "priced")
        ratio = sum(group_times(tmp_path / "priced")) / (factor * sum(times))
        assert 0.7 < ratio < 1.4
    notes = " ".join(json.loads(path.read_text())["notes"])
    assert "and groups of 1 models as they run" in notes
    assert "by kind of block: groups of gnmt-small" in notes


def group_times(path: Path) -> list[float]:
    records = map(json.loads, path.read_text().splitlines())
    return [record["time_s"]["cpu-core"] for record in records if record["type"] == "group"]


@pytest.mark.parametrize(
    ("header", "reason"),
    [({}, "not priced by"), ({"measured": MEASURED | {"threads": 2}}, "with 1 thread")],
)
def test_streams_that_were_not_measured_so(
    header: dict[str, object],
    reason: str,
    measured: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, *rest = measured.read_text().splitlines()
    record = json.loads(first)
    del record["measured"]
    path = tmp_path / "other"
    path.write_text("\n".join([json.dumps(record | header), *rest, ""]))
    assert fit_device.main(["--quick", "--stream", str(path)]) == UsageError.exit_status
    assert reason in capsys.readouterr().err


def test_nothing_is_written_where_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> float:
        raise InputFileError("no")

    monkeypatch.setattr("dnnp.core.extras.operator_times.block_time", fails)
    path = tmp_path / "x.json"
    assert fit_device.main(["--quick", "-q", "-o", str(path)]) == InputFileError.exit_status
    assert "no operator could be measured: no" in capsys.readouterr().err
    assert not path.exists()


@pytest.mark.parametrize(
    "words", [["--name", "a b"], ["--threads", "0"], ["--seconds", "-1"], ["-o", "no/such/x.json"]]
)
def test_bad_options(words: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        fit_device.main(words)
    assert caught.value.code == 2


def test_several_threads_are_timed_by_the_clock() -> None:
    case = next(c for c in grid(2, quick=True) if c.kind == "product")
    assert case.title.endswith("2 threads")
    assert block_time(case, 0.001) < 1


def test_kinds_of_the_grid_have_weights() -> None:
    weights = {case.kind: case.weight for case in grid()}
    assert weights["encoder"] > weights["product"] == 1
    assert fitting.FitOptions().beside == 1
