"""Files that go through once each: names, what is there already, bad ones, room in memory."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import dnnp as package
from dnnp.callbacks import DnnpWarning
from dnnp.core.model.errors import FormatError, InputFileError, UsageError
from dnnp.core.runtime.model.inputs import Sample, random_inputs
from dnnp.core.runtime.pipeline import threads as logs
from dnnp.core.runtime.pipeline.sources import AHEAD, BEHIND, WRITERS, FileRun, Item
from dnnp.core.runtime.pipeline.steps import route
from dnnp.core.runtime.pipeline.threads import Log, capacity_of, send
from dnnp.deployment.load import names_in
from support.run import dnnp
from support.running import SPLIT, network, planned, step_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def plan(folder: Path) -> Path:
    path = folder / "plan.dnnp"
    path.write_bytes(planned(network(), folder, SPLIT))
    return path


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """Seven samples: five archives, a folder of tensors, and what is no sample."""
    inside = tmp_path / "in"
    inside.mkdir()
    for i in (3, 0, 4, 1, 2):
        np.savez(inside / f"{i}.npz", **random_inputs(network(), i))
    return inside


def expected(folder: Path, path: Path) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    with np.load(path) as archive:
        return session.run(["y", "m"], dict(archive))


def check_outputs(folder: Path, inputs: Path, outputs: Path, names: list[str]) -> None:
    assert sorted(os.listdir(outputs)) == names
    for name in names:
        with np.load(outputs / name) as got:
            assert sorted(got.files) == ["m", "y"]
            right = expected(folder, inputs / name)
            for value, true in zip((got["y"], got["m"]), right, strict=True):
                np.testing.assert_allclose(value, true, rtol=1e-4, atol=1e-5)


def test_each_file_goes_through_once_and_keeps_its_name(
    plan: Path, folder: Path, inputs: Path, tmp_path: Path
) -> None:
    (inputs / "notes.txt").write_text("not a sample")
    (inputs / ".hidden.npz").write_text("neither")
    out = tmp_path / "new" / "out"
    result = dnnp("run", plan, "--inputs", inputs, "--outputs", out, "--verify")
    assert result.status == 0, result.err
    names = [f"{i}.npz" for i in range(5)]
    check_outputs(folder, inputs, out, names)
    record = result.one("run")
    assert record["files"] == {"written": 5, "skipped": 0, "failed": 0}
    assert (record["samples"], record["verified"], record["discarded"]) == (5, True, 3)
    assert "holds no tensors, left out: notes.txt" in result.err
    assert "files       5 went through" in result.err
    assert "verified    yes: 5 samples" in result.err
    os.unlink(out / "2.npz")
    before = (out / "3.npz").stat().st_mtime_ns
    again = dnnp("run", plan, "--inputs", inputs, "--outputs", out)
    assert again.one("run")["files"] == {"written": 1, "skipped": 4, "failed": 0}
    assert "1 went through, 4 were done before" in again.err
    assert (out / "3.npz").stat().st_mtime_ns == before
    check_outputs(folder, inputs, out, names)
    none = dnnp("run", plan, "--inputs", inputs, "--outputs", out)
    assert (none.status, none.one("run")["samples"]) == (0, 0)
    assert none.one("run")["files"] == {"written": 0, "skipped": 5, "failed": 0}


def test_the_first_ones_by_name(plan: Path, inputs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for count, done in ((2, ["0", "1"]), (2, ["0", "1", "2", "3"]), (9, ["0", "1", "2", "3", "4"])):
        result = dnnp("run", plan, "--inputs", inputs, "--outputs", out, "-n", str(count))
        assert result.status == 0, result.err
        assert sorted(os.listdir(out)) == [f"{name}.npz" for name in done]


@pytest.mark.parametrize("null", [False, True])
def test_names_on_standard_input(plan: Path, inputs: Path, tmp_path: Path, null: bool) -> None:
    out, end = tmp_path / "out", "\0" if null else "\n"
    names = end.join(f"{inputs}/{i}.npz" for i in (4, 1)).encode()
    words = ["--null"] if null else []
    result = dnnp("run", plan, "--inputs", "-", "--outputs", out, *words, stdin=names)
    assert result.status == 0, result.err
    assert sorted(os.listdir(out)) == ["1.npz", "4.npz"]
    assert result.one("run")["files"]["written"] == 2


def test_names_come_in_any_pieces() -> None:
    class Slow:
        def __init__(self) -> None:
            self.parts = [b"a/b", b"c\n\nd", b"", b"e"]

        def read1(self, size: int) -> bytes:
            return self.parts.pop(0)

        read = read1

    assert list(names_in(Slow(), b"\n")) == ["a/bc", "d"]  # type: ignore[arg-type]


def test_given_files_and_folders_of_tensors_keep_names_too(
    plan: Path, inputs: Path, tmp_path: Path
) -> None:
    from onnx import numpy_helper

    sample = tmp_path / "set.d"
    sample.mkdir()
    for number, (name, value) in enumerate(random_inputs(network(), 9).items()):
        tensor = numpy_helper.from_array(value, name)
        (sample / f"input_{number}.pb").write_bytes(tensor.SerializeToString())
    words = ["--inputs", sample, "--inputs", inputs / "1.npz", "--outputs", tmp_path / "out"]
    assert dnnp("run", plan, *words).status == 0
    assert sorted(os.listdir(tmp_path / "out")) == ["1.npz", "set.d.npz"]


def spoil(inputs: Path) -> None:
    """File 1 has another shape, and file 3 is none."""
    good = random_inputs(network(), 0)
    np.savez(inputs / "1.npz", **{**good, "x": good["x"][:2]})
    (inputs / "3.npz").write_bytes(b"PK no archive")


def test_a_bad_file_ends_the_run_and_what_was_done_stays(
    plan: Path, folder: Path, inputs: Path, tmp_path: Path
) -> None:
    spoil(inputs)
    out = tmp_path / "out"
    result = dnnp("run", plan, "--inputs", inputs, "--outputs", out)
    assert (result.status, result.out) == (1, b"")
    assert result.err.splitlines()[-1] == (
        f"dnnp-run: {inputs}/1.npz: input 'x': shape [2, 8], expected [5, 8]"
    )
    check_outputs(folder, inputs, out, ["0.npz"])


def test_keep_going_names_all_bad_files(
    plan: Path, folder: Path, inputs: Path, tmp_path: Path
) -> None:
    spoil(inputs)
    good = random_inputs(network(), 0)
    np.savez(inputs / "2.npz", **{**good, "ids": np.array([0, 1, 2, 3, 99])})  # fails in stage 1
    out = tmp_path / "out"
    words = ("run", plan, "--inputs", inputs, "--outputs", out)
    result = dnnp(*words, "--keep-going", "-q")
    assert result.status == 1
    lines = sorted(result.err.splitlines())
    assert [line.split(": ")[1].rpartition("/")[2] for line in lines[:3]] == [
        "1.npz", "2.npz", "3.npz",
    ]  # fmt: skip
    assert "stage 1: sample 1: ONNX Runtime fails" in lines[1]
    assert lines[3] == "dnnp-run: 3 inputs failed, 2 went through"
    assert result.one("run")["files"] == {"written": 2, "skipped": 0, "failed": 3}
    check_outputs(folder, inputs, out, ["0.npz", "4.npz"])
    assert dnnp("check", stdin=result.out).err.count("files") == 0
    os.unlink(inputs / "1.npz")
    stopped = dnnp(*words, "-q")
    assert stopped.status == 1
    assert stopped.err.count("\n") == 1
    check_outputs(folder, inputs, out, ["0.npz", "4.npz"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--compare"], "--compare and --outputs: each input goes through once"),
        (["--duration", "1"], "--duration and --outputs"),
        (["--rate", "5"], "--rate and --outputs"),
        (["--save-outputs", "x.npz"], "--save-outputs and --outputs"),
        (["--null"], "--null is for --inputs -"),
    ],
)
def test_what_does_not_go_with_files(
    plan: Path, inputs: Path, tmp_path: Path, words: list[str], message: str
) -> None:
    words = [str(tmp_path / word) if word == "x.npz" else word for word in words]
    result = dnnp("run", plan, "--inputs", inputs, "--outputs", tmp_path / "out", *words)
    assert result.status == 2
    assert message in result.err
    assert not (tmp_path / "out").exists()


def test_from_python(plan: Path, folder: Path, inputs: Path, tmp_path: Path) -> None:
    spoil(inputs)
    graph, out = package.load(plan), tmp_path / "out"
    words = {"inputs": [str(inputs)], "outputs": str(out), "keep_going": True}
    with pytest.warns(DnnpWarning), pytest.raises(InputFileError, match="2 inputs failed, 3 went"):
        package.run(graph, **words)
    check_outputs(folder, inputs, out, ["0.npz", "2.npz", "4.npz"])
    ran = package.run(graph, inputs=[str(inputs / "0.npz")], outputs=str(out))
    assert ran.runs[0]["files"] == {"written": 0, "skipped": 1, "failed": 0}
    with pytest.raises(UsageError, match="only commands read standard input"):
        package.run(graph, inputs=["-"])
    rated = package.run(graph, rate=1000, samples=5, trace=str(tmp_path / "t.json"))
    assert rated.runs[0]["arrivals"]["samples"] == 5
    assert (tmp_path / "t.json").stat().st_size > 0
    for rate in ("fast", 0.0, float("inf")):
        with pytest.raises(UsageError, match="--rate"):
            package.run(graph, rate=rate)


def test_inputs_that_would_have_one_output(plan: Path, inputs: Path, tmp_path: Path) -> None:
    (inputs / "0.npy").write_bytes(b"")
    out = tmp_path / "out"
    result = dnnp("run", plan, "--inputs", inputs, "--outputs", out)
    assert (result.status, "have the same output" in result.err) == (2, True)
    other = tmp_path / "other"
    other.mkdir()
    np.savez(other / "4.npz", **random_inputs(network(), 7))
    names = f"{inputs}/4.npz\n{inputs}/2.npz\n{other}/4.npz\n".encode()
    result = dnnp("run", plan, "--inputs", "-", "--outputs", out, stdin=names)
    assert result.status == 1
    assert f"{other}/4.npz: another input has the same output, {out}/4.npz" in result.err
    assert sorted(os.listdir(out)) == ["2.npz", "4.npz"]
    result = dnnp("run", "--inputs", "-", "--outputs", out, stdin=names)
    assert (result.status, "both be standard input" in result.err) == (2, True)
    result = dnnp("run", plan, "--inputs", inputs, "--outputs", inputs)
    assert (result.status, "would overwrite" in result.err) == (2, True)
    os.unlink(inputs / "0.npy")
    for _ in range(2):
        inside = ["--inputs", inputs, "--outputs", inputs / "out", "-n", "2"]
        result = dnnp("run", plan, *inside)
        assert result.one("run")["files"]["written"] == 2, result.err
    assert sorted(os.listdir(inputs / "out")) == ["0.npz", "1.npz", "2.npz", "3.npz"]
    written = dnnp("run", plan, "--inputs", inputs, "--outputs", out, "-o", inputs / "1.npz")
    assert (written.status, "would overwrite" in written.err) == (2, True)
    assert dnnp("run", plan, "--inputs", inputs, "--verify").status == 2
    plain = dnnp("run", plan, "--inputs", other)
    assert plain.one("run")["files"] == {"written": 1, "skipped": 0, "failed": 0}


class Files:
    """Samples that need no files, through two stages that need no model."""

    def __init__(self, out: Path, count: int) -> None:
        self.out, self.count = out, count
        self.read: list[str] = []
        self.held = self.most = 0
        self.lock = threading.Lock()

    def items(self) -> Iterator[Item]:
        return (Item(f"{i:05}", str(self.out / f"{i:05}.npz")) for i in range(self.count))

    def sample(self, path: str) -> Sample:
        with self.lock:
            self.held += 1
            self.most = max(self.most, self.held)
        self.read.append(path)
        sample = Sample(x=np.array([int(path)]))
        sample.source = path
        return sample

    def run(self, stop: int | None = None, fails: int | None = None) -> FileRun:
        """Send all through; be interrupted once so many were read, or fail on one."""
        files = FileRun(self.items(), self.sample)

        def double(values: dict) -> dict:
            if fails is not None and values["x"][0] == fails:
                raise InputFileError("no luck")
            return {"a": values["x"] * 2}

        def add(values: dict) -> dict:
            with self.lock:
                self.held -= 1
            return {"y": values["a"] + values["x"]}

        steps = [step_of("stage 0", "x", "a", double), step_of("stage 1", "xa", "y", add)]
        try:
            send(
                steps, files.source, files.sink, ["y"],
                interrupted=lambda: stop is not None and len(self.read) >= stop,
            )  # fmt: skip
        finally:
            files.sink.close()
        return files

    def check(self) -> set[str]:
        """All files there are complete and correct."""
        there = sorted(os.listdir(self.out))
        for name in there:
            with np.load(self.out / name) as got:
                assert got["y"].tolist() == [3 * int(name.removesuffix(".npz"))]
        return set(there)


def test_a_run_that_is_broken_off_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At random points, by interruption or failure; in the end each file is there once."""
    monkeypatch.setattr("dnnp.core.runtime.pipeline.threads._POLL_S", 1e-3)
    rng, count = random.Random(4), 40
    names = {f"{i:05}.npz" for i in range(count)}
    before: set[str] = set()
    for turn in range(12):
        files = Files(tmp_path, count)
        left = count - len(before)
        how = {"stop": rng.randrange(1, 8)} if turn % 2 else {"fails": rng.randrange(count)}
        run = files.run(**how)
        there = files.check()
        assert before <= there
        assert not {f"{path}.npz" for path in files.read} & before
        assert run.tally.written == len(there) - len(before) <= left
        assert (run.error is not None) == bool(run.tally.failed)
        before = there
    last = Files(tmp_path, count)
    assert last.run().tally.written == count - len(before)
    assert {f"{path}.npz" for path in last.read} == names - before
    assert last.check() == names


def test_what_is_ended_from_outside_is_no_bad_file(tmp_path: Path) -> None:
    """An interruption ends the call that is under way, which says that it fails."""
    files, ended = Files(tmp_path, 9), threading.Event()
    run = FileRun(files.items(), files.sample)

    def call(values: dict) -> dict:
        if values["x"][0] == 3:
            ended.wait(60)
            raise InputFileError("ended")
        return {"y": 3 * values["x"]}

    steps = [step_of("stage 0", "x", "y", call, stop=ended.set)]
    trace = send(steps, run.source, run.sink, ["y"], interrupted=lambda: len(files.read) > 3)
    run.sink.close()
    assert (trace.interrupted, trace.done) == (True, 3)
    assert (run.tally.failed, run.error) == (0, None)
    assert files.check() == {f"{i:05}.npz" for i in range(3)}


def test_memory_does_not_grow_with_the_number_of_files(tmp_path: Path) -> None:
    files = Files(tmp_path, 300)
    steps = [step_of("stage 0", "x", "a", dict), step_of("stage 1", "xa", "y", dict)]
    held = capacity_of(route(steps, ["y"]), steps)
    assert files.run().tally.written == 300
    assert files.most <= held + AHEAD + 2
    assert BEHIND + WRITERS < 10


def test_an_output_that_cannot_be_written(tmp_path: Path) -> None:
    files = Files(tmp_path / "none", 5)
    with pytest.raises(InputFileError, match=r"none/0000\d\.npz: No such file"):
        files.run()


def test_names_that_cannot_be_had_end_the_run_after_the_others(tmp_path: Path) -> None:
    files = Files(tmp_path, 3)

    def items() -> Iterator[Item]:
        yield from Files.items(files)
        raise FormatError("no more")

    files.items = items  # type: ignore[method-assign]
    run = files.run()
    assert (run.tally.written, str(run.error)) == (3, "no more")


def test_a_reader_that_breaks_is_no_silent_end(tmp_path: Path) -> None:
    files = Files(tmp_path, 3)
    files.sample = lambda path: {}[path]  # type: ignore[method-assign,misc,return-value]
    with pytest.raises(KeyError):
        files.run()


def test_nobody_waits_for_a_name_that_does_not_come(tmp_path: Path) -> None:
    never = threading.Event()
    files = Files(tmp_path, 1)

    def items() -> Iterator[Item]:
        yield from Files.items(files)
        never.wait(60)

    files.items = items  # type: ignore[method-assign]
    began = time.monotonic()
    run = files.run(stop=1)
    assert run.source.count is None
    assert time.monotonic() - began < 50
    never.set()


def test_times_of_the_last_samples_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MOST", 1000)
    log, count = Log(2, None, 7), 2500
    for sample in range(count):
        log[1, sample] = sample
    for sample in range(count, count + 7):  # they are on their way
        log[1, sample] = -1
    first = log.first(count)
    assert first == count - 1000
    np.testing.assert_array_equal(log.array(first, count)[1], np.arange(first, count))
    assert log.array(count - 5, count).shape == (2, 5)
    assert log.array(count, count).shape == (2, 0)
    whole = Log(2, 10)
    whole[1, 3] = 7
    assert (whole.first(10), whole[1, 3], whole.array(2, 5)[1].tolist()) == (0, 7, [0, 7, 0])
