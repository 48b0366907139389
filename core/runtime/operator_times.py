"""How long blocks of operators take on this machine, for fitting a device file."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dnnp.core.model.errors import InputFileError
from dnnp.core.runtime.operator_chains import TYPES, Case
from dnnp.core.runtime.providers import first_line, ort_errors
from dnnp.core.runtime.session import Place, SessionConfig, make_session

SHORT, LONG = 2, 8
"""Blocks of the two chains."""
LEAST_RUNS = 5


def block_time(case: Case, spent_s: float, beside: int = 0) -> float:
    """Seconds of one block of a case, in runs of both chains of about `spent_s` altogether.

    With one thread, its time on the processor counts, which stands still while others have it; with
    several, time. At 0 or below, the blocks take less than can be told.

    Parameters
    ----------
    beside
        Other threads that run the long chain meanwhile, as stages run beside each other.

    Raises
    ------
    InputFileError
        ONNX Runtime cannot load or run the chains.
    """
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal(case.shape).astype(TYPES[case.dtype])}
    clock = time.thread_time_ns if case.threads == 1 else time.perf_counter_ns
    sessions = [_session(case, n) for n in (SHORT, LONG)]
    times: list[list[int]] = [[], []]
    try:
        for session in sessions:
            session.run(None, feeds)
        with _busy([_session(case, LONG) for _ in range(beside)], feeds):
            until = time.perf_counter() + spent_s
            while time.perf_counter() < until or len(times[0]) < LEAST_RUNS:
                for session, spent in zip(sessions, times, strict=True):
                    start = clock()
                    session.run(None, feeds)
                    spent.append(clock() - start)
    except ort_errors() as error:
        raise InputFileError(f"ONNX Runtime fails: {first_line(error)}") from None
    short, long = (float(np.median(spent)) for spent in times)
    return (long - short) * 1e-9 / (LONG - SHORT)


def _session(case: Case, length: int) -> Any:
    config = SessionConfig(threads=case.threads, pin=False)
    return make_session(case.chain(length), Path(os.curdir), config, Place(), alone=True)


@contextmanager
def _busy(sessions: list[Any], feeds: dict[str, Any]) -> Iterator[None]:
    """Inside, each session runs over and over in a thread of its own."""
    over = threading.Event()

    def work(session: Any) -> None:
        while not over.is_set():
            session.run(None, feeds)

    threads = [threading.Thread(target=work, args=(s,), daemon=True) for s in sessions]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
