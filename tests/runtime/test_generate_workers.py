"""Decode loops over stages in processes and on Ray: the tokens of threads, and nothing is left."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from dnnp.core.model.errors import InputFileError
from dnnp.core.model.processes import available_cores
from dnnp.core.runtime import limits
from support.decode_runs import MAKERS, generated, planned, prompts_file
from support.decoder_models import WORDS, eager_decoder, grouped_decoder
from support.run import PATIENCE_S, dnnp, dnnp_process, executable
from support.struck import struck, until
from support.workers import children

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed"
)


def of_several_lengths(tmp_path: Path) -> str:
    rng = np.random.default_rng(5)
    counts = (5, 11, 4, 7, 9, 4, 6, 8)
    return prompts_file(tmp_path, [{"ids": rng.integers(0, WORDS, n).tolist()} for n in counts])


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(("k", "chunk"), [(1, None), (2, 3), (3, None), (3, 3)])
def test_tokens_are_those_of_threads(
    tmp_path: Path, make: Callable[[Path], Path], k: int, chunk: int | None
) -> None:
    graph = planned(make(tmp_path / "m.onnx"), k)
    options = {"prompts": of_several_lengths(tmp_path), "chunk": chunk}
    expected, in_threads = generated(graph, tmp_path, **options)
    assert "workers" not in in_threads
    before = len(os.listdir("/proc/self/fd"))
    tokens, record = generated(
        graph, tmp_path, **options, workers="process", verify=True, compare=True
    )
    gc.collect()
    assert not children()
    assert len(os.listdir("/proc/self/fd")) <= before
    assert tokens == expected
    assert (len(tokens), record["tokens"], record["ties"]) == (8, 96, 0)
    assert record["rows"] == (1 if make is eager_decoder else 3)
    assert record["whole_tokens_per_s"] > 0
    assert ("replicas_tokens_per_s" in record) == (k > 1)
    assert record["workers"] == "process"


@pytest.mark.parametrize("make", MAKERS)
def test_sequences_that_take_a_place_begin_anew(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    graph = planned(make(tmp_path / "m.onnx"))
    rows = [{"ids": [i + 3, 7, 9, 11], "max_tokens": 1 + i % 4} for i in range(20)]
    options = {"prompts": prompts_file(tmp_path, rows), "under_way": 3, "temperature": 1.5}
    expected, _ = generated(graph, tmp_path, **options)
    tokens, _ = generated(graph, tmp_path, **options, workers="process", threads=2, no_pin=True)
    assert tokens == expected
    assert [len(t) for t in tokens] == [row["max_tokens"] for row in rows]


def with_weights_apart(path: Path) -> Path:
    """A decoder whose weights are in a file beside it."""
    model, apart = onnx.load(eager_decoder(path)), {"location": "weights", "size_threshold": 1000}
    onnx.save(model, path, save_as_external_data=True, **apart)
    assert (path.parent / "weights").stat().st_size > 10_000
    return path


def test_weights_in_a_file(tmp_path: Path) -> None:
    graph = planned(with_weights_apart(tmp_path / "m.onnx"))
    expected, _ = generated(graph, tmp_path)
    tokens, _ = generated(graph, tmp_path, workers="process")
    assert tokens == expected
    os.truncate(tmp_path / "weights", 1000)
    with pytest.raises(InputFileError, match=r"^ONNX Runtime cannot load the model: .*") as caught:
        generated(graph, tmp_path, workers="process")
    assert "\n" not in str(caught.value)
    assert not children()


def test_processes_keep_to_the_cores_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dnnp.core.runtime.generate.loop import Generation

    graph = planned(grouped_decoder(tmp_path / "m.onnx"))
    cores, found = available_cores(), list[set[int]]()
    run = Generation.run

    def watched(self: Generation, prompts: Any) -> Iterator[Any]:
        for event in run(self, prompts):
            if not found:
                found.extend(os.sched_getaffinity(child) for child in sorted(children()))
            yield event

    monkeypatch.setattr(Generation, "run", watched)
    generated(graph, tmp_path, workers="process")
    pinned = len(cores) > 1
    assert sorted(map(sorted, found)) == ([[c] for c in cores[:2]] if pinned else [[*cores]] * 2)
    found.clear()
    generated(graph, tmp_path, workers="process", no_pin=True)
    assert [sorted(each) for each in found] == [[*cores]] * 2


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generate")
    planned(grouped_decoder(folder / "m.onnx"), 3).save(folder / "plan")
    return folder / "plan"


LONG = ("--generate", "200", "-n", "20000", "-q")


def test_a_process_that_is_killed_ends_the_command_with_one_line(plan: Path) -> None:
    result = struck(plan, lambda _, workers: os.kill(workers[1], signal.SIGKILL), *LONG)
    assert (result.status, result.out) == (1, b"")
    pattern = r"dnnp-run: stage \d: its process was killed \(SIGKILL\)\n"
    assert re.fullmatch(pattern, result.err)


def test_a_process_that_is_stuck_ends_the_command_with_one_line(plan: Path) -> None:
    def act(_: int, workers: list[int]) -> None:
        os.kill(workers[0], signal.SIGSTOP)

    result = struck(plan, act, *LONG, "--stage-timeout", "15")
    assert result.status == 5
    pattern = r"dnnp-run: stage \d: not done after 15 s \(--stage-timeout\)\n"
    assert re.fullmatch(pattern, result.err)


def test_threads_end_by_the_same_limit(plan: Path) -> None:
    result = dnnp_process("run", *LONG, "--stage-timeout", "1e-6", plan)
    assert (result.status, result.out) == (5, b"")
    pattern = r"stage \d: (making its session: )?not done after 1e-06 s \(--stage-timeout\)\n"
    assert re.fullmatch(f"dnnp-run: {pattern}", result.err)


def test_every_pass_and_session_has_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board, begun = limits.TaskBoard(), Counter[str]()
    enter = board.enter
    monkeypatch.setattr(limits, "_board", board)
    monkeypatch.setattr(limits, "_killed_with_watcher", nullcontext)
    monkeypatch.setattr(board, "enter", lambda what: begun.update([what]) or enter(what))
    graph = planned(grouped_decoder(tmp_path / "m.onnx"))
    _, record = generated(graph, tmp_path, samples=3, pass_rows=1, verify=True, compare=True)
    names = [name for name in begun if ":" not in name]
    made = {name: begun.pop(f"{name}: making its session") for name in names}
    assert made == {"stage 0": 1, "stage 1": 1, "the whole model": 4}
    assert begun["stage 0"] == begun["stage 1"] == record["tokens"] == 36
    assert begun["the whole model"] == 3 * record["tokens"]
    assert not [*board.under_way()]


def test_an_interruption_keeps_what_there_is(plan: Path, tmp_path: Path) -> None:
    result = struck(
        plan, lambda command, _: os.kill(command, signal.SIGINT), *LONG,
        "--tokens", str(tmp_path / "tokens"), "--verify", "--compare",
    )  # fmt: skip
    assert result.status == 130, result.err
    record = result.one("generation")
    rows = [json.loads(line) for line in (tmp_path / "tokens").read_text().splitlines()]
    assert len(rows) == record["tokens"] > 10
    assert record["sequences"] == len({row["sequence"] for row in rows}) < 20_000
    assert not {"ties", "whole_tokens_per_s", "replicas_tokens_per_s"} & record.keys()
    assert record["interrupted"] is True


def test_an_interruption_while_stages_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dnnp.callbacks import Callbacks

    graph = planned(grouped_decoder(tmp_path / "m.onnx"))
    monkeypatch.setattr(Callbacks, "interrupted", True)
    for workers in ("thread", "process"):
        tokens, record = generated(graph, tmp_path, workers=workers)
        assert (tokens, record["tokens"], record["sequences"]) == ([], 0, 0)
        assert record["interrupted"] is True
    assert not children()


def test_processes_end_with_a_command_that_is_killed(plan: Path) -> None:
    assert struck(plan, lambda command, _: os.kill(command, signal.SIGKILL), *LONG).status == -9


@pytest.mark.parametrize(("threads", "each"), [("1", "1 thread"), ("2", "3 threads")])
def test_the_whole_model_and_replicas_of_it_generate_as_much(
    plan: Path, threads: str, each: str
) -> None:
    words = ("--generate", "5", "-n", "7", "--compare", "--threads", threads)
    result = dnnp("run", *words, plan)
    assert result.status == 0, result.err
    assert f"whole model on {3 * int(threads)} threads: 35 tokens of 7 sequences" in result.err
    assert f"2 replicas of it, each on {each}: 35 tokens of 7 sequences" in result.err
    assert result.one("generation")["replicas_tokens_per_s"] > 0


def test_without_ray_it_is_named(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    result = dnnp("run", "-q", "--engine", "ray", "--generate", "3", plan)
    assert result.status == 7
    assert result.err == "dnnp-run: --engine ray needs Ray: pip install 'dnnp[ray]'\n"


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    import ray
    from ray.cluster_utils import Cluster

    found = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 3, "include_dashboard": False}
    )
    ray.init(address=found.address, log_to_driver=False, configure_logging=False)
    yield found.address
    ray.shutdown()
    found.shutdown()


@needs_ray
@pytest.mark.parametrize("make", [*MAKERS, with_weights_apart])
def test_actors_generate_what_threads_do(
    tmp_path: Path, make: Callable[[Path], Path], cluster: str
) -> None:
    graph = planned(make(tmp_path / "m.onnx"), 3)
    options = {"prompts": of_several_lengths(tmp_path), "chunk": 3}
    expected, _ = generated(graph, tmp_path, **options)
    tokens, record = generated(
        graph, tmp_path, **options, engine="ray", ray_address=cluster, verify=True
    )
    assert tokens == expected
    assert (len(tokens), record["tokens"], record["ties"]) == (8, 96, 0)
    assert record["workers"] == "ray"


def actors() -> set[int]:
    """Processes of stages on the cluster that this process has started."""
    found, below = set(), [os.getpid()]
    while below:
        process = below.pop()
        with suppress(OSError):
            for task in os.listdir(f"/proc/{process}/task"):
                below += map(int, Path(f"/proc/{process}/task/{task}/children").read_text().split())
            if Path(f"/proc/{process}/cmdline").read_bytes().startswith(b"ray::StageActor"):
                found.add(process)
    return found


@needs_ray
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_an_actor_is_lost_or_all_is_interrupted(
    plan: Path, tmp_path: Path, cluster: str, number: signal.Signals
) -> None:
    tokens = tmp_path / "tokens"
    tokens.touch()
    until(lambda: not actors())  # those of another test end soon
    words = (*LONG, "--engine", "ray", "--ray-address", cluster, "--tokens", str(tokens))
    with subprocess.Popen(
        [sys.executable, executable("run"), *words, plan],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        until(lambda: process.poll() is not None or len(tokens.read_bytes()) > 1000)
        until(lambda: process.poll() is not None or len(actors()) == 3)
        mine = sorted(actors())
        os.kill(mine[1] if number == signal.SIGKILL else process.pid, number)
        out, err = process.communicate(timeout=PATIENCE_S)
    until(lambda: not actors())
    if number == signal.SIGKILL:
        assert (process.returncode, out) == (1, b"")
        assert re.fullmatch(rb"dnnp-run: stage \d: its actor has ended\n", err)
    else:
        assert process.returncode == 130, err
        assert json.loads(out.splitlines()[-2])["tokens"] == len(tokens.read_text().splitlines())
