"""Ways from one device to another: threads as those of a run, processes, and GPUs.

Each is a context that gives a `Transfer`. Where an answer comes back, it is empty.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from multiprocessing.connection import Connection
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np

from dnnp.core.model.errors import UnavailableError
from dnnp.core.model.processes import available_cores, keep_on
from dnnp.core.runtime.model.providers import count_gpus, require_provider
from dnnp.core.runtime.pipeline.threads import Channel, ClosedError

if TYPE_CHECKING:
    from multiprocessing.shared_memory import SharedMemory

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_LINE = 64
"""Bytes of a line of a cache."""


@contextmanager
def _pinned(core: int) -> Iterator[None]:
    """Inside, the calling thread stays on a core."""
    before = available_cores()
    keep_on([core])
    try:
        yield
    finally:
        keep_on(before)


@contextmanager
def between_threads(here: int, there: int) -> Iterator[Transfer]:
    """From a thread on one core to one on another, through the channel of a run and back.

    Nothing is copied: the receiver reads every line of what the sender wrote.
    """
    forth, back = Channel(1), Channel(1)
    held = cache(partial(np.ones, dtype=np.uint8))
    numbers = itertools.count()

    def answer() -> None:
        keep_on([there])
        with suppress(ClosedError):
            for sample in itertools.count():
                back.put(sample, int(forth.get(sample)[::_LINE].max()))

    def transfer(size: int) -> None:
        number = next(numbers)
        forth.put(number, held(size))
        back.get(number)

    thread = Thread(target=answer, name="link", daemon=True)
    thread.start()
    try:
        with _pinned(here):
            yield transfer
    finally:
        forth.close()
        back.close()
        thread.join()


@contextmanager
def between_processes(here: int, there: int, largest: int, *, shared: bool) -> Iterator[Transfer]:
    """From a process on one core to one on another; with an answer.

    `shared`: both copy through memory that they share, and a pipe carries the size alone; else all
    goes through the pipe. `largest` is the most that is moved.
    """
    from multiprocessing import get_context
    from multiprocessing.shared_memory import SharedMemory

    context = get_context("spawn")
    ours, theirs = context.Pipe()
    memory = SharedMemory(create=True, size=largest) if shared else None
    name = "" if memory is None else memory.name
    process = context.Process(target=_answer, args=(theirs, name, largest, there), daemon=True)
    source = np.ones(largest, dtype=np.uint8)

    def transfer(size: int) -> None:
        if memory is None:
            ours.send_bytes(source.data, 0, size)
        else:
            _view(memory, size)[:] = source[:size]
            ours.send_bytes(size.to_bytes(8, "little"))
        ours.recv_bytes()

    process.start()
    theirs.close()
    try:
        ours.recv_bytes()
        with _pinned(here):
            yield transfer
    except (EOFError, BrokenPipeError):
        raise UnavailableError("the process at the other end of the link has ended") from None
    finally:
        ours.close()
        process.join()
        if memory is not None:
            with suppress(BufferError):  # views of it may be alive a little longer
                memory.close()
            memory.unlink()


def _answer(pipe: Connection, name: str, largest: int, core: int) -> None:
    """The other process: takes what comes, and answers, until the pipe is closed."""
    from multiprocessing.shared_memory import SharedMemory

    keep_on([core])
    own = np.zeros(largest, dtype=np.uint8)
    memory = SharedMemory(name) if name else None
    pipe.send_bytes(b"")
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            if memory is None:
                pipe.recv_bytes_into(own.data)
            else:
                size = int.from_bytes(pipe.recv_bytes(), "little")
                own[:size] = _view(memory, size)
            pipe.send_bytes(b"")


def _view(memory: SharedMemory, size: int) -> Bytes:
    """The first bytes of shared memory."""
    return np.ndarray((size,), dtype=np.uint8, buffer=memory.buf)


def require_gpus(count: int) -> None:
    """Check that ONNX Runtime can use so many GPUs.

    Raises `UnavailableError` if there are fewer, or it has no provider for them.
    """
    require_provider("cuda")
    found = count_gpus()
    if found < count:
        raise UnavailableError(f"{count} GPUs are asked for, and there are {found}")


def _on_gpu(gpu: int, device: str) -> Callable[[int], Any]:
    """Tensors of so many bytes in the memory of a GPU, each made once."""
    from onnxruntime import OrtValue

    @cache
    def made(size: int) -> Any:
        return OrtValue.ortvalue_from_numpy(np.ones(size, dtype=np.uint8), device, gpu)

    return made


@contextmanager
def to_gpu(core: int, gpu: int, device: str = "cuda") -> Iterator[Transfer]:
    """From the memory of the host to that of a GPU."""
    source, target = cache(partial(np.ones, dtype=np.uint8)), _on_gpu(gpu, device)
    with _pinned(core):
        yield lambda size: target(size).update_inplace(source(size))


@contextmanager
def from_gpu(core: int, gpu: int, device: str = "cuda") -> Iterator[Transfer]:
    """From the memory of a GPU to that of the host."""
    source = _on_gpu(gpu, device)
    with _pinned(core):
        yield lambda size: source(size).numpy()


@contextmanager
def between_gpus(here: int, there: int, device: str = "cuda") -> Iterator[Transfer]:
    """From one GPU to another; it is over when a byte of it has come to the host.

    Raises `UnavailableError` if this version of ONNX Runtime cannot copy tensors.
    """
    import onnxruntime

    copy = getattr(onnxruntime, "copy_tensors", None)
    if copy is None:
        raise UnavailableError("copies between GPUs need onnxruntime 1.24 or newer")
    source, target = _on_gpu(here, device), _on_gpu(there, device)
    flag = target(1)

    def transfer(size: int) -> None:
        copy([source(size)], [target(size)])
        flag.numpy()

    yield transfer


Transfer = Callable[[int], object]
"""Moves so many bytes, and returns when they have arrived."""

SIZES = tuple(4**i for i in range(3, 13))
"""64 bytes to 16 MiB."""
ROUNDS = 9
"""Times that every size is moved at least."""
_QUANTILE = 0.25
"""Quantile of the times of a size that counts; later ones were disturbed."""


class Sweep:
    """Times of transfers, over rounds through all sizes: what disturbs one meets all of them.

    Parameters
    ----------
    transfer
        What is timed.
    trips
        Messages, one after the other, that one call takes: 2 where an answer comes back.
    """

    def __init__(self, transfer: Transfer, sizes: Sequence[int] = SIZES, trips: int = 1) -> None:
        self.sizes = tuple(sizes)
        self.trips = trips
        self._transfer = transfer
        self._seconds: list[list[float]] = [[] for _ in sizes]
        for size in self.sizes:
            transfer(size)

    def add(self, rounds: int = ROUNDS, limit_s: float = 1.0) -> None:
        """Make more rounds: so many, and no more than fit into a time, but three at least."""
        begin = time.perf_counter()
        for i in range(rounds):
            if i >= 3 and time.perf_counter() - begin > limit_s:
                return
            for size, seconds in zip(self.sizes, self._seconds, strict=True):
                start = time.perf_counter_ns()
                self._transfer(size)
                seconds.append((time.perf_counter_ns() - start) * 1e-9)

    def points(self) -> tuple[list[float], list[float]]:
        """Sizes, and what one way took for each: the lower quartile, answers taken off.

        An answer holds nothing, so that it takes as long as the smallest message.
        """
        times = np.array([np.quantile(seconds, _QUANTILE) for seconds in self._seconds])
        answers = (self.trips - 1) / self.trips * float(times.min())
        return [float(size) for size in self.sizes], np.maximum(times - answers, 1e-9).tolist()
