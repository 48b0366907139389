"""Workers that fail or are lost: one line, or every output all the same; and nothing is left."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from support.faults import HOWS, Case, check
from support.running import SPLIT, network, planned
from support.struck import begun, struck, until
from support.workers import workers_of


@pytest.mark.parametrize("how", HOWS["process"])
def test_every_output_arrives_or_one_line(how: str) -> None:
    assert not check(Case("process", how))


def test_without_retries_a_loss_is_one_line() -> None:
    assert not check(Case("process", "kill", retries=0))


@pytest.mark.parametrize("how", HOWS["thread"])
def test_threads_fail_likewise(how: str) -> None:
    assert not check(Case("thread", how))


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lost")
    (folder / "plan").write_bytes(planned(network(), folder, SPLIT))
    return folder / "plan"


def test_a_worker_that_is_killed_ends_the_command_with_one_line(plan: Path) -> None:
    result = struck(plan, lambda _, workers: os.kill(workers[1], signal.SIGKILL), "-q")
    assert (result.status, result.out) == (1, b"")
    pattern = r"dnnp-run: stage \d: sample \d+: its process was killed \(SIGKILL\)\n"
    assert re.fullmatch(pattern, result.err)


def test_a_worker_that_is_stuck_ends_the_command_with_one_line(plan: Path) -> None:
    def act(_: int, workers: list[int]) -> None:
        os.kill(workers[0], signal.SIGSTOP)

    result = struck(plan, act, "-q", "--stage-timeout", "1")
    assert result.status == 5
    pattern = r"dnnp-run: stage \d: sample \d+: not done after 1 s \(--stage-timeout\)\n"
    assert re.fullmatch(pattern, result.err)


def test_a_worker_is_restarted_and_an_interruption_ends_all(plan: Path) -> None:
    def act(command: int, workers: list[int]) -> None:
        os.kill(workers[2], signal.SIGKILL)
        until(lambda: [w for w in workers_of(command) if w not in workers])
        until(lambda: all(map(begun, set(workers_of(command)) - {*workers})))
        os.kill(command, signal.SIGINT)

    result = struck(plan, act, "--retries", "2")
    assert result.status == 130, result.err
    record = result.one("run")
    (loss,) = record["restarts"]
    assert record["interrupted"] is True
    assert loss["reason"] == "its process was killed (SIGKILL)"
    said = f"{loss['worker']}: sample {loss['sample']}: {loss['reason']}; it was restarted"
    assert said in result.err


def test_workers_end_with_a_command_that_is_killed(plan: Path) -> None:
    assert struck(plan, lambda command, _: os.kill(command, signal.SIGKILL), "-q").status == -9
