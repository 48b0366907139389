"""Workers as processes of this machine; tensors stay in shared memory, one copy each.

This process owns the memory and knows which process maps which buffer. A lost process loses
nothing: its inputs are still there, so that another one can do its jobs again.
"""

from __future__ import annotations

import itertools
import math
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Protocol

import numpy as np

from dnnp.core.model.errors import DnnpError, LimitError
from dnnp.core.model.text import shown_bytes
from dnnp.core.runtime import limits
from dnnp.core.runtime.pipeline.steps import Answer
from dnnp.core.runtime.workers import messages
from dnnp.core.runtime.workers.messages import Recipe
from dnnp.core.runtime.workers.pool import (
    LostError,
    RemoteWorker,
    Rules,
    Sent,
    WorkerPool,
    WorkerSpec,
    finite,
)

WASTE = 4
"""Largest ratio of a buffer to the tensor it is lent to, unless it is small."""

SMALL = 1 << 16

SPARE = 16
"""Most unused buffers of other sizes that a pool keeps."""


class BufferUser(Protocol):
    """A process that maps buffers."""

    def forget(self, buffer: messages.BufferId) -> None:
        """The buffer is not used any more."""


class Budget:
    """Bytes that all pools of a run may hold together."""

    def __init__(self, most_bytes: float = math.inf) -> None:
        self.most_bytes, self.held_bytes = most_bytes, 0
        self._lock = Lock()

    def take(self, size: int) -> None:
        """Count bytes; raises `LimitError` if there are too many then."""
        with self._lock:
            if self.held_bytes + size > self.most_bytes:
                raise LimitError(
                    f"no shared memory for {shown_bytes(size)}: {shown_bytes(self.held_bytes)} are "
                    f"taken, --max-memory leaves {shown_bytes(self.most_bytes)}"
                )
            self.held_bytes += size

    def give(self, size: int) -> None:
        """Count bytes that are free again."""
        with self._lock:
            self.held_bytes -= size


class Buffer:
    """Shared memory of this process, or taken over from another one."""

    def __init__(self, number: messages.BufferId, fd: int, size: int) -> None:
        self.number, self.fd, self.size = number, fd, size
        self.readers: list[BufferUser] = []
        """Processes that were given its descriptor."""
        self._view: memoryview | None = None

    def view(self) -> memoryview:
        """Its bytes, to write and to read."""
        if self._view is None:
            self._view = messages.view(self.fd, self.size, write=True)
        return self._view

    def close(self) -> None:
        """Close it; the memory is freed when no process maps it."""
        os.close(self.fd)
        for reader in self.readers:
            reader.forget(self.number)
        self.readers.clear()
        self._view = None


class Lease:
    """The use of a buffer; the pool has it back when this is gone."""

    __slots__ = ("_pool", "buffer")

    def __init__(self, buffer: Buffer, pool: BufferPool) -> None:
        self.buffer, self._pool = buffer, pool

    def __del__(self) -> None:
        self._pool.take_back(self.buffer)


class Shared:
    """A value in shared memory, kept while referenced."""

    __slots__ = ("lease", "ref")

    def __init__(self, ref: messages.Ref, lease: Lease) -> None:
        self.ref, self.lease = ref, lease

    @property
    def nbytes(self) -> int:
        """Bytes of a tensor; of anything else, of its pickle."""
        return messages.nbytes(self.ref.dtype or np.dtype(np.uint8), self.ref.shape)

    def fetch(self) -> Any:
        """The value, in memory of its own."""
        value = messages.value_at(self.lease.buffer.view(), self.ref)
        return value.copy() if isinstance(value, np.ndarray) else value


_numbers = itertools.count()


class BufferPool:
    """Buffers that one worker writes."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._returned: deque[Buffer] = deque()
        """Buffers that are free."""
        self._lock = Lock()
        self._closed = False

    def lease(self, size: int) -> Lease:
        """A buffer of at least so many bytes; raises `InputFileError` or `LimitError`."""
        with self._lock:
            free = sorted((self._returned.popleft() for _ in range(len(self._returned))),
                          key=lambda buffer: buffer.size)  # fmt: skip
            most = max(WASTE * size, SMALL)
            fit = next((b for b in free if size <= b.size <= most), None)
            if fit is not None:
                free.remove(fit)
            left = self._budget.most_bytes - size
            while fit is None and free and (len(free) >= SPARE or self._budget.held_bytes > left):
                self._drop(free.pop(0))
            self._returned.extend(free)
            if fit is None:
                size = -(-size // 4096) * 4096
                self._budget.take(size)
                try:
                    fit = Buffer(next(_numbers), messages.reserve(size), size)
                except BaseException:
                    self._budget.give(size)
                    raise
            return Lease(fit, self)

    def take_back(self, buffer: Buffer) -> None:
        """Take back an unused buffer; it takes no lock, as it may be called at any moment."""
        self._returned.append(buffer)
        if self._closed:
            self.close()

    def adopt(self, number: messages.BufferId, fd: int, size: int, writer: BufferUser) -> Lease:
        """A buffer that the worker has made; raises `LimitError`."""
        try:
            self._budget.take(size)
        except LimitError:
            os.close(fd)
            raise
        buffer = Buffer(number, fd, size)
        buffer.readers.append(writer)
        return Lease(buffer, self)

    def put(self, values: Sequence[messages.Plain]) -> list[Shared]:
        """Copy values into buffers."""
        places, sizes = messages.layout([value.data.nbytes for value in values])
        leases = [self.lease(size) for size in sizes]
        shared = []
        for value, (i, offset) in zip(values, places, strict=True):
            ref = messages.Ref(leases[i].buffer.number, offset, value.dtype, value.shape)
            messages.write_at(leases[i].buffer.view(), ref, value.data)
            shared.append(Shared(ref, leases[i]))
        return shared

    def close(self) -> None:
        """Give up all buffers, those that are in use as soon as they are free."""
        self._closed = True
        with suppress(IndexError):
            while True:
                self._drop(self._returned.popleft())

    def _drop(self, buffer: Buffer) -> None:
        buffer.close()
        self._budget.give(buffer.size)


MEMORY_REPORT_S = 5.0
"""Longest wait for a process to report its memory."""

LAST_BREATH_S = 2.0
"""Longest wait for a process to end after its socket was closed."""


class _Process:
    """One process, and the shared memory that it has mapped."""

    def __init__(self, starter: ThreadPoolExecutor) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-m", "dnnp.core.runtime.workers.child"]
        try:
            # The system ends a child with the thread that started it, so that thread must live on.
            self._process = starter.submit(
                subprocess.Popen,
                [*command, str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # A Ctrl-C at the terminal is for the parent alone.
                start_new_session=True,
                env={"OPENBLAS_NUM_THREADS": "1", **os.environ},
            ).result()
        except OSError as error:
            ours.close()
            raise LimitError(f"cannot start a process: {error.strerror}") from None
        finally:
            theirs.close()
        self.pid = self._process.pid
        limits.join(self.pid)
        self._link = ours
        self.known: set[messages.BufferId] = set()
        """Buffers that it has mapped."""
        self._gone: deque[messages.BufferId] = deque()

    def forget(self, buffer: messages.BufferId) -> None:
        """Tell the process, with the next message, that a buffer is not used any more."""
        self.known.discard(buffer)
        self._gone.append(buffer)

    def news(
        self, inputs: Iterable[Buffer], outputs: Iterable[Buffer]
    ) -> tuple[messages.BufferNews, list[int]]:
        """News for the process about these buffers, and descriptors."""
        buffers, fds = [], []
        for write, group in ((False, inputs), (True, outputs)):
            for buffer in group:
                if buffer.number not in self.known:
                    self.known.add(buffer.number)
                    buffer.readers.append(self)
                    buffers.append((buffer.number, buffer.size, write))
                    fds.append(buffer.fd)
        gone = [self._gone.popleft() for _ in range(len(self._gone))]
        return messages.BufferNews(buffers, gone), fds

    def send(self, message: Any, fds: Sequence[int]) -> None:
        """Send; what cannot be sent is noticed when there is no answer."""
        with suppress(OSError):
            messages.send(self._link, message, fds)

    def receive(self, seconds: float) -> tuple[Any, list[int]] | None:
        """An answer and descriptors; None: not in time.

        Raises `LostError` if the process has ended.
        """
        wait_s = finite(seconds)
        poll = select.poll()
        poll.register(self._link, select.POLLIN)
        try:
            if not poll.poll(None if wait_s is None else wait_s * 1e3):
                return None
            return messages.receive(self._link)
        except (EOFError, OSError, pickle.UnpicklingError):
            raise LostError(self._end()) from None

    def kill(self) -> None:
        """End the process at once, and waits for its answers."""
        self._process.kill()
        with suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it, and wait for that."""
        self.kill()
        self._process.wait()
        limits.part(self.pid)
        self._link.close()

    def _end(self) -> str:
        """Say how a process that has gone has ended."""
        try:
            status = self._process.wait(LAST_BREATH_S)
        except subprocess.TimeoutExpired:
            return "its process does not answer"
        if status >= 0:
            return f"its process ended with status {status}"
        known = -status in {*signal.Signals}
        name = signal.Signals(-status).name if known else str(-status)
        how = "was killed" if name == "SIGKILL" else "crashed"
        return f"its process {how} ({name})"


@dataclass
class _Sent(Sent):
    """A job, and the memory that is lent for its outputs."""

    lent: list[Lease] = field(default_factory=list)


class ProcessWorker(RemoteWorker[_Sent]):
    """Stages in a process."""

    def __init__(self, spec: WorkerSpec, pool: ProcessPool) -> None:
        super().__init__(spec.name, pool)
        self._cores, self._starter = spec.place.cores, pool.starter
        self._buffers = BufferPool(pool.budget)
        self._sizes: dict[int, list[int]] = {}
        """Bytes of the buffers that the last outputs of each stage took."""
        self._start()

    def add(self, recipe: Recipe, values: Mapping[str, Any]) -> int:
        number = super().add(recipe, values)
        self._begin(number)
        return number

    def close(self) -> None:
        super().close()
        self._buffers.close()

    def _start(self) -> None:
        self._process = _Process(self._starter)
        self._awaited = 0
        """Stages that are not made yet."""
        for number in range(len(self._parts)):
            self._begin(number)

    def _begin(self, number: int) -> None:
        recipe, values = self._parts[number]
        news, fds = self._process.news((v.lease.buffer for v in values.values()), ())
        refs = {name: value.ref for name, value in values.items()}
        self._process.send(messages.Begin(news, recipe, refs, self._cores, sys.path), fds)
        self._awaited += 1

    def _made(self, seconds: float) -> bool:
        self._awaited -= self._received(seconds) is not None
        return not self._awaited

    def _received(self, seconds: float) -> tuple[Any, list[int]] | None:
        """Wait so long for a message and its descriptors; raises the error that it reports."""
        got = self._process.receive(seconds)
        if got is not None and isinstance(got[0], messages.Failed):
            raise messages.error_of(got[0])
        return got

    def _job(self, sample: int, part: int, values: Mapping[str, Shared]) -> _Sent:
        lent = [self._buffers.lease(size) for size in self._sizes.get(part, ())]
        return _Sent(sample, part, values, lent)

    def _send(self, job: _Sent) -> None:
        buffers = [lease.buffer for lease in job.lent]
        news, fds = self._process.news((v.lease.buffer for v in job.values.values()), buffers)
        refs = {name: value.ref for name, value in job.values.items()}
        lent = [(buffer.number, buffer.size) for buffer in buffers]
        self._process.send(messages.Job(news, job.part, refs, lent), fds)

    def _answer(self, job: _Sent, seconds: float) -> Answer | None:
        got = self._received(seconds)
        if got is None:
            return None
        message, fds = got
        values = self._taken(job, message, fds)
        return Answer(values, message.start_ns, message.end_ns, message.waited_ns)

    def _taken(self, job: _Sent, done: messages.Done, fds: Sequence[int]) -> dict[str, Shared]:
        """The outputs, in buffers that were lent for them or that the process has made."""
        leases = {lease.buffer.number: lease for lease in job.lent}
        for (number, size), fd in zip(done.made, fds, strict=True):
            self._process.known.add(number)
            leases[number] = self._buffers.adopt(number, fd, size, self._process)
        used = {ref.buffer: leases[ref.buffer] for ref in done.values.values()}
        self._sizes[job.part] = [lease.buffer.size for lease in used.values()]
        return {name: Shared(ref, leases[ref.buffer]) for name, ref in done.values.items()}

    def resident_bytes(self) -> int:
        if self._jobs or self._stopped:  # interrupted: what was sent is answered first
            return 0
        with suppress(DnnpError, LostError):
            self._process.send(messages.MemoryRequest(messages.BufferNews((), ())), ())
            got = self._received(MEMORY_REPORT_S)
            return 0 if got is None else int(got[0].resident_bytes)
        return 0

    def _kill(self) -> None:
        self._process.kill()

    def _clear(self) -> None:
        self._process.close()


class ProcessPool(WorkerPool[Shared]):
    """Processes of this machine."""

    kind = "process"

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules, Shared, lambda value: self._inputs.put([messages.plain(value)])[0])
        self.budget = Budget(rules.memory_bytes)
        self.starter = ThreadPoolExecutor(1, thread_name_prefix="starter")
        """The thread that starts processes."""
        self._inputs = BufferPool(self.budget)

    def _worker(self, spec: WorkerSpec) -> ProcessWorker:
        return ProcessWorker(spec, self)

    def close(self) -> None:
        super().close()
        self._inputs.close()
        self.starter.shutdown()
