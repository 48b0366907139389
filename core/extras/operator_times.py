"""Times of blocks of operators on this machine, and facts about the machine."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dnnp.core.extras.operator_grid import TYPES, Case
from dnnp.core.model.errors import InputFileError
from dnnp.core.runtime.model.providers import SessionConfig, first_line, ort_errors
from dnnp.core.runtime.model.session import make_session

if TYPE_CHECKING:
    from onnx import ModelProto

SHORT, LONG = 2, 8
"""Blocks of the two chains."""
LEAST_RUNS = 5


def block_time(case: Case, spent_s: float, beside: int = 0) -> float:
    """Seconds of one block of a case, in runs of both chains of about `spent_s` altogether.

    With one thread, processor time counts; with several, wall-clock time. At 0 or below, the blocks
    take less than the resolution.

    Parameters
    ----------
    beside
        Other threads that run the long chain meanwhile, as stages run beside each other.

    Raises InputFileError: ONNX Runtime cannot load or run the chains.
    """
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal(case.shape).astype(TYPES[case.dtype])}
    clock = time.thread_time_ns if case.threads == 1 else time.perf_counter_ns
    models = [case.chain(length) for length in (SHORT, LONG)]
    sessions = [_session(case, model) for model in models]
    times: list[list[int]] = [[], []]
    try:
        for session in sessions:
            session.run(None, feeds)
        with _busy([_session(case, models[1]) for _ in range(beside)], feeds):
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


def _session(case: Case, model: ModelProto) -> Any:
    config = SessionConfig(threads=case.threads, pin=False, alone=True)
    return make_session(model, Path(os.curdir), config)


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


_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_CPU = Path("/proc/cpuinfo")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
_COPIED = 1 << 26
_COPIES = 5


def cache_sizes() -> list[int]:
    """Bytes of the second-level cache and those beyond it, ascending; empty: not known."""
    sizes = set()
    for folder in _CACHES.glob("index*"):
        with suppress(OSError, ValueError, KeyError):
            level = int((folder / "level").read_text())
            text = (folder / "size").read_text().strip()
            if level > 1:
                sizes.add(int(text[:-1]) * _UNITS[text[-1]])
    return sorted(sizes)


def channel_block() -> int:
    """Channels in a block of ONNX Runtime's layout for convolutions on this processor.

    As `MlasNchwcGetBlockSize` has it: 16 with AVX-512, 8 with AVX2, else 4.
    """
    with suppress(OSError):
        found = re.search(r"^flags\s*:(.*)$", _CPU.read_text(errors="replace"), re.M)
        flags = set(found[1].split()) if found else set()
        if "avx512f" in flags:
            return 16
        if "avx2" in flags:
            return 8
    return 4


def memory_size() -> int:
    """Bytes of memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def copy_rate() -> float:
    """Bytes per second that one thread copies from memory to memory."""
    source = np.ones(_COPIED, dtype=np.uint8)
    target = np.empty_like(source)
    spent = []
    for _ in range(_COPIES):
        start = time.thread_time_ns()
        np.copyto(target, source)
        spent.append(time.thread_time_ns() - start)
    return _COPIED / (max(min(spent), 1) * 1e-9)
