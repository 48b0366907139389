"""Measurements of runs, from dnnp-run to dnnp-profile: files, prices, and errors."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dnnp.core.extras.calibrate import LEFT, factor_of
from dnnp.core.model.calibration import Calibration, CalibrationFile, RunSeen, Setting, StageSeen
from dnnp.core.model.errors import FormatError, UsageError
from dnnp.core.runtime.report import statistics
from dnnp.fits.runs import operators_of, refuse_several_classes
from dnnp.formats.inputs.calibration import calibration_bytes, parse_calibration
from dnnp.formats.stream import read_bytes
from dnnp.samples import build
from support.run import Result, dnnp

Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("calibrate")


@pytest.fixture(scope="module")
def groups(folder: Path) -> bytes:
    imported = dnnp("import", build.write("mobilenet-v2-small", folder))
    return dnnp("coarsen", stdin=imported.out).out


@pytest.fixture(scope="module")
def ran(groups: bytes, folder: Path) -> Result:
    """A run of two stages, which wrote `runs.json`."""
    planned = dnnp("partition", "-k", "2", stdin=dnnp("profile", stdin=groups).out)
    result = dnnp("run", "-n", "4", "--calibrate", folder / "runs.json", stdin=planned.out)
    assert result.status == 0, result.err
    return result


@pytest.fixture(scope="module")
def known(ran: Result, folder: Path) -> CalibrationFile:
    return parse_calibration((folder / "runs.json").read_bytes(), "runs.json")


def fails(status: int, message: str, *words: Any, stdin: bytes) -> None:
    result = dnnp("profile", "-q", *words, stdin=stdin)
    lines = result.err.splitlines()
    assert (result.status, len(lines), result.out) == (status, 1, b""), result.err
    assert message in lines[0]


def test_a_file_holds_what_the_run_measured(ran: Result, known: CalibrationFile) -> None:
    assert known.setting == Setting("cpu-core", "analytic", "cpu", 1, "all")
    (run,) = known.runs
    assert run.model == "mobilenet-v2-small"
    stages = ran.records("stage")
    for seen, stage, row in zip(run.stages, stages, ran.one("run")["stages"], strict=True):
        assert seen.measured_s == row["measured_s"]
        assert sum(seen.operators.values()) == pytest.approx(stage["compute_s"])
        assert seen.transfer_s == pytest.approx(stage["in_s"] + stage["out_s"])
    assert any("DepthwiseConv" in seen.operators for seen in run.stages)
    assert calibration_bytes(known) == calibration_bytes(
        parse_calibration(calibration_bytes(known), "again")
    )


def test_costs_are_corrected_and_say_so(
    groups: bytes, known: CalibrationFile, folder: Path
) -> None:
    plain = dnnp("profile", stdin=groups)
    result = dnnp("profile", "--from-run", folder / "runs.json", stdin=groups)
    assert result.status == 0, result.err
    assert "learned from 2 stages of 1 model" in result.err
    header = result.records("header")[0]["calibration"]
    assert (header["class"], header["costs"], header["stages"]) == ("cpu-core", "analytic", 2)
    factors, operators = known.factors, operators_of(read_bytes(plain.out))
    ops = {r["id"]: r["op"] for r in plain.records("node")}
    named = Counter((ops[v], name) for v, name in operators.items())
    # The first layer is a convolution of all channels, and Conv, BatchNorm, Clip are one.
    assert named["Conv", "DepthwiseConv"] == named["Clip", "DepthwiseConv"] == 17
    assert {name for op, name in named if op == "BatchNormalization"} == {"Conv", "DepthwiseConv"}
    for new, old in zip(result.records("node"), plain.records("node"), strict=True):
        assert new["base_s"] == old["time_s"]
        before = old["time_s"]["cpu-core"]
        time = factor_of(factors, operators[new["id"]]) * before
        after = max(time + (factors.launch_s if before else 0), LEFT * time)
        assert new["time_s"]["cpu-core"] == pytest.approx(after)
    for new, old in zip(result.records("group"), plain.records("group"), strict=True):
        assert (new["cost"], new["base_s"]) == ("calibrated", old["time_s"])
    device, before = result.one("device"), plain.one("device")
    rates = (device["bandwidth_bytes_per_s"], before["bandwidth_bytes_per_s"])
    assert rates[0] * factors.transfer == pytest.approx(rates[1])
    planned = dnnp("partition", "-k", "2", stdin=result.out)
    assert dnnp("check", stdin=planned.out).status == 0
    again = dnnp("profile", stdin=result.out)
    assert again.records("node") == plain.records("node")
    assert "calibration" not in again.records("header")[0]


def test_the_loads_of_a_run_are_met(ran: Result, groups: bytes, folder: Path) -> None:
    """The plan that ran, priced by what it measured, predicts those loads."""
    lines = ran.out.splitlines()
    at = next(i for i, line in enumerate(lines) if b'"type":"run"' in line)
    record = json.loads(lines[at])
    for row, factor in zip(record["stages"], (1.5, 1.8), strict=True):
        row |= {"measured_s": factor * row["predicted_s"], "taken": 0.0}
    path, split = folder / "made.dnnp", folder / "split.json"
    path.write_bytes(b"\n".join([*lines[:at], json.dumps(record).encode(), *lines[at + 1 :]]))
    split.write_text(json.dumps([stage["nodes"] for stage in ran.records("stage")]))
    priced = dnnp("profile", "--from-run", path, stdin=groups)
    planned = dnnp("partition", "-k", "2", "--eval", split, stdin=priced.out)
    for stage, row in zip(planned.records("stage"), record["stages"], strict=True):
        assert stage["load_s"] == pytest.approx(row["measured_s"], rel=0.03)


def test_base_costs_are_learned_from_again(ran: Result, groups: bytes, folder: Path) -> None:
    """A run of a plan with corrected costs is compared with the original costs."""
    priced = dnnp("profile", "--from-run", folder / "runs.json", stdin=groups)
    for stream in (priced.out, dnnp("coarsen", "--to", "5", stdin=priced.out).out):
        planned = dnnp("partition", "-k", "1", stdin=stream)
        second = folder / "second.json"
        result = dnnp("run", "-n", "2", "--calibrate", second, stdin=planned.out)
        assert result.status == 0, result.err
        seen = parse_calibration(second.read_bytes(), "second").runs[0].stages[0]
        base = json.loads((folder / "runs.json").read_text())["runs"][0]["stages"]
        both: dict[str, float] = {}
        for stage in base:
            for op, x in stage["operators"].items():
                both[op] = both.get(op, 0.0) + x
        if stream is priced.out:
            assert seen.operators == pytest.approx(both)
        assert seen.operators.keys() == both.keys()


def test_several_runs_are_learned_from_together(
    groups: bytes, known: CalibrationFile, folder: Path
) -> None:
    double = RunSeen(
        "other",
        tuple(s._replace(measured_s=2 * s.measured_s, taken=0.0) for s in known.runs[0].stages),
    )
    other = folder / "other.json"
    other.write_bytes(calibration_bytes(CalibrationFile(known.setting, Calibration(), (double,))))
    one, both = (
        dnnp("profile", *(f"--from-run={folder / name}" for name in names), stdin=groups)
        for names in (["runs.json"], ["runs.json", "other.json"])
    )
    assert "4 stages of 2 models" in both.err
    low, high = (sum(r["time_s"]["cpu-core"] for r in x.records("group")) for x in (one, both))
    assert low < high
    # The factors of a single file stand as they are, here 1.
    alone = dnnp("profile", "--from-run", other, stdin=groups)
    assert [r["time_s"] for r in alone.records("node")] == [
        r["time_s"] for r in dnnp("profile", stdin=groups).records("node")
    ]


def test_operators_that_never_ran_are_named(folder: Path, ran: Result) -> None:
    imported = dnnp("import", build.write("gnmt-small", folder))
    result = dnnp("profile", "--from-run", folder / "runs.json", stdin=imported.out)
    assert result.status == 0
    assert "no run has these operators" in result.err
    assert "LSTM (8)" in result.err


def test_what_does_not_fit(groups: bytes, known: CalibrationFile, folder: Path) -> None:
    path = folder / "runs.json"
    fails(2, "the stream prices a100", "--device", "a100", "--from-run", path, stdin=groups)
    fails(2, "needs --mode analytic", "--mode", "scaled", "--device", "t4", "--from-run", path,
          stdin=groups)  # fmt: skip
    fails(1, "No such file", "--from-run", folder / "absent", stdin=groups)
    measured = folder / "measured.json"
    measured.write_bytes(
        calibration_bytes(
            CalibrationFile(known.setting._replace(costs="measured"), known.factors, known.runs)
        )
    )
    fails(2, "use --mode measure", "--from-run", measured, stdin=groups)
    fails(2, "its costs is measured", "--from-run", path, "--from-run", measured, stdin=groups)
    plan = folder / "plan.dnnp"
    plan.write_bytes(dnnp("partition", "-k", "2", stdin=groups).out)
    fails(2, "no run of a plan to learn from", "--from-run", plan, stdin=groups)


def test_costs_of_files_are_corrected_as_such(groups: bytes, ran: Result, folder: Path) -> None:
    """Factors for costs from elsewhere are for no others, and the other way round."""
    table, path = folder / "costs.csv", folder / "given.json"
    rows = [f"{r['name']},{1e-5 + 1e-6 * i}" for i, r in enumerate(ran.records("node"))]
    table.write_text("\n".join(["name,seconds", *rows]))
    given = ("--costs", table, "--device", "cpu-core")
    planned = dnnp("partition", "-k", "2", stdin=dnnp("profile", *given, stdin=groups).out)
    run = dnnp("run", "-n", "4", "--calibrate", path, stdin=planned.out)
    assert run.status == 0, run.err
    result = dnnp("profile", *given, "--from-run", path, stdin=groups)
    assert result.status == 0, result.err
    header = result.one("header")
    assert (header["calibration"]["costs"], len(header["costs"])) == ("given", 1)
    fails(2, "for given costs, these are analytic: use --costs", "--from-run", path, stdin=groups)
    fails(2, "for analytic costs, these are given: use --mode analytic", *given, "--from-run",
          folder / "runs.json", stdin=groups)  # fmt: skip


def test_runs_that_say_nothing(ran: Result, groups: bytes, folder: Path) -> None:
    lines = ran.out.splitlines()
    at = next(i for i, line in enumerate(lines) if b'"type":"run"' in line)
    record = json.loads(lines[at])

    def given(change: Change) -> Path:
        changed = json.loads(json.dumps(record))
        change(changed)
        path = folder / "changed.dnnp"
        path.write_bytes(b"\n".join([*lines[:at], json.dumps(changed).encode(), *lines[at + 1 :]]))
        return path

    cases: list[tuple[int, str, Change]] = [
        (2, "was interrupted", lambda r: r.update(interrupted=True)),
        (3, "the run was of another plan", lambda r: r.update(digest="0" * 64)),
        (3, "there is no such stage", lambda r: r["stages"][1].update(stage=7)),
        (2, "no stage has both", lambda r: [s.pop("measured_s") for s in r["stages"]]),
    ]
    for status, message, change in cases:
        fails(status, message, "--from-run", given(change), stdin=groups)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r.update(format="other"), "format"),
        (lambda r: r.update(version=2), "version': 2 is not known"),
        (lambda r: r.update(klass="x"), "klass': is not known"),
        (lambda r: r.pop("class"), "class': is missing"),
        (lambda r: r.update(threads="two"), "threads': 'two' is not a number"),
        (lambda r: r["factors"].update(common=0), "factors.common': 0 is not a number from 1e-06"),
        (lambda r: r["factors"]["families"].update(matrix=-1), "factors.families.matrix"),
        (lambda r: r["factors"].update(operators=[]), "factors.operators"),
        (lambda r: r["factors"].update(launch_s=-2), "launch_s': -2 is not a number from -1 to 1"),
        (lambda r: r["factors"].update(launch_s="x"), "launch_s': 'x' is not a number"),
        (lambda r: r["runs"][0].update(stages=3), "runs[0].stages': 3 is not a list"),
        (lambda r: r["runs"][0]["stages"][0].update(measured_s=0), "stages[0].measured_s"),
        (lambda r: r["runs"][0]["stages"][0]["operators"].update(Conv="x"), "operators.Conv"),
    ],
)
def test_malformed_files_name_the_field(
    known: CalibrationFile, change: Change, message: str
) -> None:
    record = json.loads(calibration_bytes(known))
    change(record)
    with pytest.raises(FormatError) as caught:
        parse_calibration(json.dumps(record).encode(), "c.json")
    assert message in str(caught.value)
    assert str(caught.value).startswith("c.json")


def test_other_files_are_no_calibrations() -> None:
    for data, message in ((b"[]", "not an object"), (b"{", "not JSON"), (b"\x08\x07\x12", "ONNX")):
        with pytest.raises(FormatError, match=message):
            parse_calibration(data, "c.json")


def test_one_class_is_learned_for(ran: Result) -> None:
    stream = read_bytes(ran.out)
    refuse_several_classes(stream)
    stream.get("stage")[1]["class"] = "a100"
    with pytest.raises(UsageError, match=r"planned for several \(a100, cpu-core\)"):
        refuse_several_classes(stream)


def test_disturbed_runs_are_pointed_out(
    groups: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loud = CalibrationFile(
        Setting("cpu-core", "analytic", "cpu", 1, "all"),
        Calibration(),
        (RunSeen("m", (StageSeen({"Conv": 1.0}, 1, 0.0, 1.0, taken=0.5),)),),
    )
    monkeypatch.setattr("dnnp.fits.runs.calibration_of", lambda stream: loud)
    planned = dnnp("partition", "-k", "1", stdin=dnnp("profile", stdin=groups).out)
    path = tmp_path / "c.json"
    result = dnnp("run", "-n", "1", "--calibrate", path, stdin=planned.out)
    assert "other processes took up to 50% of a stage's time" in result.err
    assert path.exists()


def test_nothing_is_learned_from_runs_that_others_disturbed(
    ran: Result, groups: bytes, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by the run, nor from its stream, nor from a file; the stream is there."""
    lines, path = ran.out.splitlines(keepends=True), tmp_path / "c.json"
    at = next(line for line in lines if b'"type":"run"' in line)
    run = json.loads(at)
    run["stages"][1]["taken"] = 0.79
    loud = tmp_path / "loud.dnnp"
    loud.write_bytes(ran.out.replace(at, json.dumps(run).encode() + b"\n"))
    file = json.loads((folder / "runs.json").read_text())
    file["runs"][0]["stages"][0]["taken"] = 0.79
    (tmp_path / "loud.json").write_text(json.dumps(file))
    monkeypatch.setattr(statistics, "MOST_TAKEN", 0.1)
    reason = "nothing is learned: other processes or the host took 79% of the processors, above 10%"
    for source in (loud, tmp_path / "loud.json"):
        fails(5, reason, "--from-run", source, stdin=groups)
    monkeypatch.setattr(statistics, "MOST_TAKEN", -1.0)
    result = dnnp("run", "-q", "-n", "1", "--calibrate", path, stdin=ran.out)
    assert result.status == 5
    assert result.err.count("\n") == 1
    assert "dnnp-run: --calibrate: " in result.err
    assert "nothing is learned: other processes or the host took" in result.err
    assert result.one("run")["stages"][0]["taken"] >= 0
    assert not path.exists()
