"""The bookkeeping of workers elsewhere, with a stand-in that is lost whenever a test wants."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnnp.core.model.errors import DnnpError, InputFileError, LimitError
from dnnp.core.runtime.pipeline.steps import Answer
from dnnp.core.runtime.pipeline.threads import ClosedError
from dnnp.core.runtime.workers.pool import LostError, RemoteWorker, Rules, Sent, WorkerPool


class Box:
    """A value as this pool has it."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Flaky(RemoteWorker[Sent]):
    """Doubles `x`, unless what comes next says otherwise: `lost`, `late`, `error`, or `unmade`."""

    def __init__(self, pool: WorkerPool[Box], events: list[str]) -> None:
        super().__init__("stage 0", pool)
        self.events = deque(events)
        self.inbox: deque[Sent] = deque()
        self.cleared = 0
        pool.workers.append(self)

    def _start(self) -> None:
        self.inbox.clear()

    def _made(self, seconds: float) -> bool:
        if self.events and self.events[0] == "unmade":
            self.events.popleft()
            raise LostError("it was not made")
        return True

    def _job(self, sample: int, part: int, values: Mapping[str, Any]) -> Sent:
        return Sent(sample, part, values)

    def _send(self, job: Sent) -> None:
        self.inbox.append(job)

    def _answer(self, job: Sent, seconds: float) -> Answer | None:
        event = self.events.popleft() if self.events else "fine"
        if event == "late":
            return None
        if event in ("lost", "unmade"):
            raise LostError("it was lost")
        sent = self.inbox.popleft()
        assert sent is job  # it has all jobs, and in their order
        if event == "error":
            raise LimitError("too much")
        return Answer({"x": Box(2 * job.values["x"].value)}, 0, 1)

    def _kill(self) -> None:
        self.inbox.clear()

    def _clear(self) -> None:
        self.cleared += 1


def flaky(events: list[str], retries: int, said: list[str]) -> tuple[WorkerPool[Box], Flaky]:
    pool: WorkerPool[Box] = WorkerPool(Rules(retries, 5.0, note=said.append), Box, Box)
    return pool, Flaky(pool, events)


EVENTS = st.lists(st.sampled_from(["fine", "fine", "lost", "late", "error", "unmade"]), max_size=25)


@given(EVENTS, st.integers(0, 4), st.lists(st.integers(1, 3), min_size=1, max_size=8))
def test_each_job_is_answered_once_and_in_order(
    events: list[str], retries: int, ahead: list[int]
) -> None:
    said: list[str] = []
    pool, worker = flaky(events, retries, said)
    sample, over = 0, ""
    for count in ahead:
        first = sample
        for _ in range(count):
            if over:
                with pytest.raises(DnnpError, match=over):
                    worker.submit({"x": sample}, sample)
            else:
                worker.submit({"x": Box(sample) if sample % 2 else sample}, sample)
                sample += 1
        for number in range(first, sample):
            try:
                answer = worker.result()
            except DnnpError as error:
                over = over if "too much" in str(error) else str(error).partition(" (")[0]
                assert not over or len(pool.losses) == retries
            else:
                assert not over
                assert answer.values["x"].value == 2 * number
    assert len(pool.losses) == len(said) == worker.cleared - bool(over)
    assert len(pool.losses) <= retries
    for loss, message in zip(pool.losses, said, strict=True):
        assert message.startswith(f"stage 0: sample {loss.sample}: {loss.reason}; it was restarted")
    lost = [event for event in events if event not in ("fine", "error")]
    assert over or len(pool.losses) <= len(lost)


def test_what_is_lost_before_it_is_made_says_so() -> None:
    _, worker = flaky(["unmade"], 3, [])
    with pytest.raises(InputFileError, match="stage 0: making its session: it was not made"):
        worker.ready()


def test_who_was_stopped_is_not_restarted() -> None:
    said: list[str] = []
    pool, worker = flaky(["lost"], 3, said)
    worker.submit({"x": 1}, 0)
    worker.stop()
    with pytest.raises(ClosedError):
        worker.result()
    assert not said
    pool.close()
    assert worker.cleared == 1


def test_one_sample_at_a_time_while_nobody_else_asks() -> None:
    pool, worker = flaky(["lost", "fine", "error"], 1, [])
    assert worker.call({"x": 4})["x"].value == 8
    with pytest.raises(LimitError, match="too much"):
        worker.call({"x": 5})
    assert worker.call({"x": 6})["x"].value == 12
    assert [loss.reason for loss in pool.losses] == ["it was lost"]
