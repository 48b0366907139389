"""Workers in processes: the same outputs, figures and rules as with threads."""

from __future__ import annotations

import gc
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from dnnp.core.model.errors import DnnpError, InputFileError
from dnnp.core.runtime import limits
from dnnp.core.runtime.model.providers import SessionConfig
from dnnp.core.runtime.model.session import to_numpy
from dnnp.core.runtime.pipeline.prepare import open_pool, pooled_worker, prepare
from dnnp.core.runtime.pipeline.sources import Kept, Repeated
from dnnp.core.runtime.pipeline.steps import DeviceOrders, Job, Step
from dnnp.core.runtime.pipeline.threads import send
from dnnp.core.runtime.report.statistics import summarize
from dnnp.core.runtime.workers.pool import Rules, WorkerSpec
from dnnp.core.runtime.workers.process import ProcessPool
from support.run import dnnp
from support.running import SPLIT, check_figures, network, planned, run_pipeline, stage_of
from support.split_models import graph, make, node, value
from support.workers import Fail, Otherwise, Sleep, children


@pytest.fixture
def pool() -> Iterator[ProcessPool]:
    """Processes, all of which are gone after the test, as are their files."""
    before = len(os.listdir("/proc/self/fd"))
    pool = ProcessPool(Rules())
    yield pool
    pool.close()
    gc.collect()  # exceptions hold what the threads had
    assert not children()
    assert len(os.listdir("/proc/self/fd")) <= before


def chain(pool: ProcessPool, *stages: Sequence[Sleep | Fail]) -> list[Step]:
    """Stages one after the other, each with a worker for each recipe."""
    steps = []
    for i, recipes in enumerate(stages):
        name, shared = f"stage {i}", pool.share({})
        names = [f"replica {j} of {name}" for j in range(len(recipes))]
        names = names if len(recipes) > 1 else [name]
        pairs = zip(names, recipes, strict=True)
        workers = tuple(pooled_worker(pool, WorkerSpec(n), recipe, shared) for n, recipe in pairs)
        steps.append(Step(name, (f"t{i}",), (f"t{i + 1}",), workers))
    pool.ready()
    return steps


def one(i: int, seconds: float = 0.0, size: int = 1) -> Sleep:
    return Sleep(seconds, (f"t{i + 1}",), (size,))


def samples(size: int = 1) -> list[dict[str, np.ndarray]]:
    return [{"t0": np.full(size, 10 * i, np.float32)} for i in range(3)]


def test_each_sample_comes_out_once_in_order(pool: ProcessPool) -> None:
    steps = chain(pool, [one(0)], [one(1, 0.002), one(1), one(1)], [one(2, size=50_000)])
    for _ in range(2):
        trace = run_pipeline(
            steps, samples(), 60, ["t3"], queue=1, keep=lambda s: True, convert=to_numpy
        )
        assert sorted(trace.outputs) == list(range(60))
        for s, values in trace.outputs.items():
            assert values["t3"].shape == (50_000,)
            assert values["t3"][0] == 10 * (s % 3) + 3
        assert (trace.end_ns >= trace.start_ns).all()
        assert (trace.start_ns[1:] >= trace.end_ns[:-1]).all()
        assert (np.diff(trace.done_ns) >= 0).all()
        check_figures(summarize(trace, 10), trace, 10)


def test_a_window_of_one_sends_nothing_ahead(pool: ProcessPool) -> None:
    steps = chain(pool, [one(0)], [one(1)])
    trace = run_pipeline(steps, samples(), 20, ["t2"], window=1)
    assert (trace.start_ns[0, 1:] >= trace.done_ns[:-1]).all()


def test_a_device_runs_its_jobs_one_after_the_other(pool: ProcessPool) -> None:
    steps = chain(pool, [one(0, 0.001)], [one(1, 0.001)])
    order = [
        Job(i, 0, s) for pair in range(0, 12, 3) for i in (0, 1) for s in range(pair, pair + 3)
    ]
    orders = DeviceOrders([order])
    trace = run_pipeline(steps, samples(), 12, ["t2"], orders=orders, keep=lambda s: True)
    times = [(trace.start_ns[j.step, j.sample], trace.end_ns[j.step, j.sample]) for j in order]
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(times))
    assert sorted(trace.outputs) == list(range(12))


@pytest.mark.parametrize("ordered", [True, False])
def test_stages_of_a_device_share_a_process(ordered: bool) -> None:
    """The steps stand in an order in which they cannot run; the next job is there in time."""
    place, places = "cpu/0", {1: "cpu/0", 0: "cpu/1", 2: "cpu/0"}
    with open_pool("process", Rules(by_device=True)) as pool:
        assert pool is not None
        steps = []
        for i, device in places.items():
            name, shared = f"stage {i}", pool.share({})
            worker = pooled_worker(pool, WorkerSpec(name, device=device), one(i, 0.002), shared)
            steps.append(Step(name, (f"t{i}",), (f"t{i + 1}",), (worker,)))
        pool.ready()
        assert len(children()) == 2
        row = [Job(p, 0, s) for s in range(12) for p, i in enumerate(places) if places[i] == place]
        orders = DeviceOrders([row, [Job(1, 0, s) for s in range(12)]]) if ordered else None
        trace = run_pipeline(
            steps, samples(), 12, ["t3"], orders=orders, keep=lambda s: True, convert=to_numpy
        )
        assert [float(trace.outputs[s]["t3"][0]) for s in range(12)] == [
            10 * (s % 3) + 3 for s in range(12)
        ]
        times = [(trace.start_ns[j.step, j.sample], trace.end_ns[j.step, j.sample]) for j in row]
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(times))
    assert not children()


def test_a_stage_that_raises_names_itself_and_the_sample(pool: ProcessPool) -> None:
    steps = chain(pool, [one(0)], [one(1), Fail("bug", 5, ("t2",))])
    with pytest.raises(InputFileError) as caught:
        run_pipeline(steps, samples(), 100, ["t2"])
    assert str(caught.value) == "replica 1 of stage 1: sample 9: ValueError: no luck"


class Lenient(Kept):
    """Goes on without the samples that fail."""

    def __init__(self) -> None:
        super().__init__(lambda s: True, to_numpy)
        self.failures: dict[int, str] = {}

    def failed(self, sample: int, error: DnnpError) -> bool:
        self.failures[sample] = str(error)
        return True


@pytest.mark.parametrize(("how", "failing"), [("raise", {9}), ("exit", {*range(9, 20, 2)})])
def test_others_may_go_on_without_a_sample(pool: ProcessPool, how: str, failing: set[int]) -> None:
    steps = chain(pool, [one(0)], [one(1), Fail(how, 5, ("t2",))], [one(2)])
    sink = Lenient()
    trace = send(steps, Repeated(samples(), 20), sink, ["t3"])
    assert (trace.done, sink.failures.keys()) == (20, failing)
    assert sink.outputs(20).keys() == {*range(20)} - failing
    assert sink.failures[9].startswith("replica 1 of stage 1: sample 9: ")


def test_outputs_that_are_not_what_the_model_says(pool: ProcessPool) -> None:
    steps = chain(pool, [Otherwise(0.0, ("t1",))], [one(1)])
    trace = run_pipeline(steps, samples(), 5, ["t1", "t2"], keep=lambda s: True, convert=to_numpy)
    assert [v["t1"].shape for v in trace.outputs.values()] == [(3,)] * 5
    assert [v["t2"][0] for v in trace.outputs.values()] == [2, 12, 22, 2, 12]


def test_a_recipe_that_fails_is_one_line(pool: ProcessPool) -> None:
    with pytest.raises(InputFileError, match=r"^ValueError: not to be made$"):
        chain(pool, [Fail("make", 0, ("t1",))])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workers")


def run(stream: bytes, folder: Path, *options: str) -> tuple[dict, dict[str, np.ndarray]]:
    """The run record and the outputs of a verified run in processes."""
    path = folder / "out.npz"
    words = ("--workers", "process", "--verify", "--save-outputs", path, "--warmup", "1")
    result = dnnp("run", *words, *options, stdin=stream)
    assert result.status == 0, result.err
    assert not children()
    record = result.one("run")
    assert (record["verified"], record["workers"], record["restarts"]) == (True, "process", [])
    return record, dict(np.load(path))


@pytest.mark.parametrize("replicas", [(1, 1, 1), (1, 3, 2)])
def test_a_model_computes_what_it_computes_in_threads(
    folder: Path, replicas: tuple[int, ...]
) -> None:
    stream = planned(network(), folder, SPLIT, replicas=replicas)
    record, got = run(stream, folder, "-n", "12")
    assert record["samples"] == 12
    assert all(stage["measured_s"] > 0 for stage in record["stages"])
    result = dnnp("run", "--save-outputs", folder / "threads.npz", "-n", "12", stdin=stream)
    assert "workers" not in result.one("run")
    expected = dict(np.load(folder / "threads.npz"))
    assert sorted(got) == sorted(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array)


def test_schedules_and_weights_that_are_drawn(folder: Path) -> None:
    stream = planned(network(), folder, SPLIT)
    for transfers in ("none", "blocking"):
        scheduled = dnnp("schedule", "-n", "6", "--transfers", transfers, stdin=stream)
        assert scheduled.status == 0, scheduled.err
        record, _ = run(scheduled.out, folder, "--random-weights", "3")
        assert record["makespan_measured_s"] > 0


def test_outputs_whose_shapes_depend_on_the_inputs(folder: Path) -> None:
    nodes = [node("NonZero", ["x"], ["i"]), node("Add", ["i", "i"], ["y"])]
    model = make(graph(nodes, "m", [value("x", [4])], [value("y", [1, "n"], TensorProto.INT64)]))
    stream = planned(model, folder, [[0], [1]])
    paths = []
    for i, x in enumerate(([0, 1, 0, 2], [1, 1, 1, 1], [0, 0, 0, 0])):
        paths += ["--inputs", str(folder / f"{i}.npy")]
        np.save(paths[-1], np.array(x, np.float32))
    _, got = run(stream, folder, "-n", "9", *paths)
    assert sorted(a.shape for a in got.values()) == [(1, 0), (1, 2), (1, 4)]


def test_strings_between_stages(folder: Path) -> None:
    nodes = [
        node("Where", ["c", "a", "b"], ["t"]),
        node("Equal", ["t", "a"], ["y"]),
    ]
    stored = [helper.make_tensor(n, TensorProto.STRING, [2], t) for n, t in
              (("a", [b"ab", b"c"]), ("b", [b"ab", b"d"]))]  # fmt: skip
    ends = [value(n, [2], TensorProto.BOOL) for n in "cy"]
    model = make(graph(nodes, "m", ends[:1], ends[1:], stored), opset=19)
    np.save(folder / "c.npy", np.array([False, False]))
    stream = planned(model, folder, [[0], [1]])
    _, got = run(stream, folder, "-n", "3", "--inputs", str(folder / "c.npy"))
    assert [list(a) for a in got.values()] == [[True, False]]


def test_the_memory_of_processes_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    board = limits.TaskBoard()
    monkeypatch.setattr(limits, "_board", board)
    pool = ProcessPool(Rules())
    chain(pool, [one(0), one(0)], [one(1)])
    assert sorted(board.others()) == children()
    pool.close()
    assert not [*board.others()]


def test_retries_need_workers_that_can_be_lost(folder: Path) -> None:
    stream = planned(network(), folder, SPLIT)
    result = dnnp("run", "--retries", "2", stdin=stream)
    assert result.status == 2
    assert "--retries: a thread cannot be lost; say --workers process" in result.err


def test_a_model_that_cannot_be_loaded_is_one_line(folder: Path) -> None:
    nodes = [node("Identity", ["x"], ["t"]), node("NoSuchOp", ["t"], ["y"])]
    model = make(graph(nodes, "m", [value("x")], [value("y")]))
    stages = [stage_of([0]), stage_of([1], 1)]
    with (
        open_pool("process", Rules()) as pool,
        pytest.raises(InputFileError, match=r"cannot load the model: .*NoSuchOp") as caught,
    ):
        prepare(model, folder, stages, SessionConfig(), pool=pool)
    assert "\n" not in str(caught.value)
    assert not children()
