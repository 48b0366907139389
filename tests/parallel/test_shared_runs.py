"""Plans with stages that all devices share, run and exported: shapes M, NN and K."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import threading
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import dnnp as api
from dnnp.core.runtime.pipeline.prepare import Pipeline
from dnnp.deployment.shards import pieces_of, runnable_shards
from dnnp.formats.graph import graph_of
from dnnp.formats.plan import plan_of
from dnnp.formats.stream import read_bytes
from support import shared_models
from support.run import SAMPLES, changed_records, dnnp, interrupted_at_terminal, ok, records_of
from support.sharded import Quiet
from support.workers import children

COUNT = 6
NAMES = ("M", "NN", "K")
Record = dict[str, Any]

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed"
)


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A plan of each shape."""
    folder = tmp_path_factory.mktemp("shared")
    found = {}
    for name in NAMES:
        stream = shared_models.priced(shared_models.build(name, folder / f"{name}.onnx"))
        found[name] = ok("partition", "-k", "4", "--shared-stages", "2", stdin=stream)
    return found


@pytest.fixture(scope="module")
def scheduled(plans: dict[str, bytes]) -> dict[str, bytes]:
    """The plans with schedules."""
    found = {}
    for name, plan in plans.items():
        result = dnnp("schedule", "-n", str(COUNT), stdin=plan)
        assert f"shape {name} on 4 devices" in result.err
        found[name] = result.out
    return found


def blocks_of(stream: bytes) -> dict[str, list[tuple[int, int]]]:
    """Stage and micro-batch of the blocks of each device, by start."""
    (schedule,) = records_of(stream, "schedule")
    found: dict[str, list[tuple[int, int]]] = {}
    for block in sorted(records_of(stream, "block"), key=lambda b: b["start_s"]):
        row = schedule["passes"][block["pass"]]
        for unit in row["homes"][block["micro_batch"] % len(row["homes"])]:
            name = schedule["units"][unit]["name"]
            found.setdefault(name, []).append((row["stage"], block["micro_batch"]))
    return found


@pytest.mark.parametrize("workers", ["thread", "process"])
@pytest.mark.parametrize("name", NAMES)
def test_verified_by_its_schedule(name: str, workers: str, scheduled: dict[str, bytes]) -> None:
    words = ("--verify", "--warmup", "1", "--workers", workers)
    result = dnnp("run", *words, stdin=scheduled[name])
    assert result.status == 0, result.err
    assert "run whole on each device" not in result.err
    run = result.one("run")
    assert run["verified"]
    assert run["max_rel_error"] < 1e-5
    assert (run["samples"], "makespan_predicted_s" in run) == (COUNT, True)
    shared = {s["id"] for s in records_of(scheduled[name], "stage") if s.get("shared")}
    homes = {(e["stage"], e["device"], e["shard"]) for e in run["stages"] if e["stage"] in shared}
    assert homes == {(s, f"slow/{d}", d) for s in shared for d in range(4)}
    assert dnnp("check", stdin=result.out).status == 0


def test_devices_of_a_stage_work_at_the_same_time(plans: dict[str, bytes]) -> None:
    """Waiting for an exchange does not count as waiting for others."""
    stream = read_bytes(plans["K"])
    graph = graph_of(stream)
    plan = plan_of(stream, graph)
    assert plan is not None
    caller: Any = Quiet()
    found = runnable_shards(caller, stream, graph, plan, onnx.load(stream.header["source"]["path"]))
    longest: dict[int, float] = {}
    assert found.made is not None
    pieces, parts, _ = pieces_of(graph, plan, found.made)
    for piece, part in zip(pieces, parts, strict=True):
        if plan.stages[piece.stage].shared:
            longest[piece.depth] = max(longest.get(piece.depth, 0.0), part.compute_s)
    (shared,) = (stage for stage in plan.stages if stage.shared)
    assert len(longest) > 4
    assert sum(longest.values()) < 1.01 * shared.compute_s


@pytest.mark.parametrize("workers", ["thread", "process"])
@pytest.mark.parametrize("how", ["blocking", "non-blocking"])
@pytest.mark.parametrize("name", NAMES)
def test_transfers_bring_each_device_what_it_reads(
    name: str, how: str, workers: str, plans: dict[str, bytes]
) -> None:
    stream = ok("schedule", "-n", "4", "--transfers", how, stdin=plans[name])
    passes = records_of(stream, "schedule")[0]["passes"]
    moves = [number for number, row in enumerate(passes) if row["kind"] == "transfer"]
    words = ("--verify", "--warmup", "1", "--workers", workers)
    run = records_of(ok("run", *words, stdin=stream), "run")[0]
    assert run["verified"]
    assert [one["pass"] for one in run["transfers"]["moves"]] == moves
    size = 4 * shared_models.WIDTH * shared_models.LENGTH
    assert {one["bytes"] for one in run["transfers"]["moves"]} == {size}


def test_without_a_schedule_samples_follow_each_other(plans: dict[str, bytes]) -> None:
    result = dnnp("run", "--verify", "-n", "8", "--warmup", "1", stdin=plans["NN"])
    assert result.status == 0, result.err
    assert "on 4 devices, each in one go" in result.err
    assert result.one("run")["verified"]


def test_devices_keep_the_order_of_their_blocks(
    scheduled: dict[str, bytes], tmp_path: Path
) -> None:
    """And none starts one before all have ended what it waits for."""
    path = tmp_path / "trace.json"
    ran = ok("run", "--warmup", "1", "--trace", path, stdin=scheduled["K"])
    owner = [entry["stage"] for entry in records_of(ran, "run")[0]["stages"]]
    events = json.loads(path.read_text())["traceEvents"]
    track = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    works = [e for e in events if e["ph"] == "X" and e["tid"] in track]
    begun: dict[str, list[tuple[int, int]]] = {}
    spans: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in sorted(works, key=lambda e: float(e["ts"])):
        block = owner[int(event["name"].split()[1])], int(event["args"]["sample"])
        begun.setdefault(track[event["tid"]], []).append(block)
        spans.setdefault(block, []).append((event["ts"], event["ts"] + event["dur"]))
    wanted = blocks_of(scheduled["K"])
    assert {device: [key for key, _ in groupby(row)] for device, row in begun.items()} == wanted
    for (stage, sample), times in spans.items():
        for before in (0, 2) if stage == 4 else ():
            last = max(end for _, end in spans[before, sample])
            assert min(start for start, _ in times) >= last


def test_a_process_is_a_device(
    scheduled: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has all parts of stages there, nine in all."""
    run, found = Pipeline.run, list[int]()

    def counting(pipeline: Pipeline, *given: Any) -> Any:
        found.append(len(children()))
        remotes = [worker.remote for step in pipeline.steps for worker in step.workers]
        assert (len(remotes), len(set(map(id, remotes)))) == (9, 4)
        return run(pipeline, *given)

    monkeypatch.setattr(Pipeline, "run", counting)
    words = ("--workers", "process", "--verify", "--warmup", "1")
    result = dnnp("run", *words, stdin=scheduled["M"])
    assert result.status == 0, result.err
    assert found == [4]


@pytest.mark.parametrize("name", NAMES)
def test_exported_stages_follow_it_too(
    name: str, scheduled: dict[str, bytes], tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    ok("export", "--to", "stages", "-o", folder, stdin=scheduled[name])
    manifest = json.loads((folder / "manifest.json").read_text())
    stages = manifest["stages"]
    rows = {
        row["device"]: [
            key for key, _ in groupby((stages[j[0]]["stage"], j[2]) for j in row["jobs"])
        ]
        for row in manifest["schedule"]["devices"]
    }
    assert rows == blocks_of(scheduled[name])
    for row in manifest["schedule"]["devices"]:
        assert all(row["device"] in stages[step]["devices"] for step, _, _ in row["jobs"])
    joined = {one["stage"] for one in manifest["collectives"]}
    assert joined == {s["id"] for s in records_of(scheduled[name], "stage") if s.get("shared")}
    kinds = {one["kind"] for one in manifest["collectives"]}
    assert kinds == ({"all-gather", "all-reduce"} if name == "K" else {"all-gather"})
    made = {one["name"] for stage in stages for one in stage["outputs"]}
    others = [part for one in manifest["collectives"] for part in one["parts"][1:]]
    assert name == "K" or made.issuperset(others)
    path = records_of(scheduled[name], "header")[0]["source"]["path"]
    whole = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    feeds = {
        value.name: rng.integers(0, shared_models.WORDS, value.shape)
        if "int64" in value.type
        else rng.standard_normal(value.shape).astype(np.float32)
        for value in whole.get_inputs()
    }
    got = api.load_stages(folder).run(feeds)
    np.testing.assert_allclose(got["y"], whole.run(["y"], feeds)[0], rtol=1e-4, atol=1e-5)


def test_a_block_on_some_of_the_devices_is_refused(scheduled: dict[str, bytes]) -> None:
    def fewer(record: Record) -> None:
        for row in record.get("passes", ()):
            row["homes"] = [home[:2] for home in row["homes"]]
        if record["type"] == "block":
            record["units"] = record["units"][:2]

    result = dnnp("run", stdin=changed_records(scheduled["M"], fewer))
    assert result.status == 3
    assert "does not run on all devices of its stage" in result.err
    assert result.err.count("\n") == 1


def test_a_worker_that_is_killed_is_replaced(
    plans: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = ok("schedule", "-n", "400", stdin=plans["M"])
    run, timers = Pipeline.run, list[threading.Timer]()

    def kill() -> None:
        os.kill(children()[2], signal.SIGKILL)

    def killing(*given: Any) -> Any:
        timers.append(threading.Timer(0.1, kill))
        timers[-1].start()
        return run(*given)

    monkeypatch.setattr(Pipeline, "run", killing)
    words = ("--workers", "process", "--retries", "3", "--verify", "--warmup", "1")
    result = dnnp("run", *words, stdin=stream)
    timers[0].join()
    assert result.status == 0, result.err
    record = result.one("run")
    assert record["verified"]
    (loss,) = record["restarts"]
    assert loss["worker"] in {f"slow/{d}" for d in range(4)}
    assert not children()


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_ctrl_c_ends_it(workers: str, plans: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "plan.dnnp"
    path.write_bytes(ok("schedule", "-n", "20000", "--method", "tessel", stdin=plans["M"]))
    result = interrupted_at_terminal("run", "--workers", workers, path, after=SAMPLES)
    assert result.status == 130, result.err
    assert "Traceback" not in result.err
    assert not children()


@needs_ray
def test_on_ray(scheduled: dict[str, bytes]) -> None:
    words = ("--engine", "ray", "--verify", "--warmup", "1")
    result = dnnp("run", *words, stdin=scheduled["M"])
    assert result.status == 0, result.err
    assert result.one("run")["verified"]
