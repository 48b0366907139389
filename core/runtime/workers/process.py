"""Workers that are processes of this machine: tensors stay in shared memory, one copy of each.

This process owns the memory and knows who has what in view. A process that is lost takes nothing
along: its inputs are still there, so that another one can do its jobs again.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from dnnp.core.model.errors import DnnpError, InputFileError, LimitError
from dnnp.core.runtime import limits
from dnnp.core.runtime.channel import ClosedError
from dnnp.core.runtime.relay import Answer
from dnnp.core.runtime.session import Place
from dnnp.core.runtime.values import Values
from dnnp.core.runtime.workers.messages import Begin, Done, Failed, Job, Offer, Ready
from dnnp.core.runtime.workers.pool import Block, Budget, Lease, Pool, Shared
from dnnp.core.runtime.workers.recipes import Recipe
from dnnp.core.runtime.workers.staff import Loss, Losses, Post, Recent, Rules, error_of, pick
from dnnp.core.runtime.workers.tensors import BlockId, plain
from dnnp.core.runtime.workers.wire import receive, send

AHEAD = 3
"""Jobs that a process holds: the next ones are there when one is done."""

LAST_BREATH_S = 2.0
"""Most that a process whose socket is closed may take to end."""

_POLL_S = 0.1
"""How often to look whether the run was interrupted, while workers are made."""


class _LostError(Exception):
    """A process has gone, or has to go; says why."""

    def __init__(self, reason: str, kind: type[DnnpError] = InputFileError) -> None:
        super().__init__(reason)
        self.kind = kind


class _Process:
    """One process, and what it has in view."""

    def __init__(self, nursery: ThreadPoolExecutor) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-m", "dnnp.core.runtime.workers.child"]
        try:
            # The system ends a child with the thread that started it, so that one has to live on.
            self._process = nursery.submit(
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
        limits.join(self._process.pid)
        self._link = ours
        self._known: set[BlockId] = set()
        self._gone: deque[BlockId] = deque()

    @property
    def number(self) -> int:
        """The system's number of the process."""
        return self._process.pid

    def forget(self, block: BlockId) -> None:
        """Tell the process, with the next message, that a block is not used any more."""
        self._known.discard(block)
        self._gone.append(block)

    def offer(self, inputs: Iterable[Block], outputs: Iterable[Block]) -> tuple[Offer, list[int]]:
        """News for the process about these blocks, and descriptors."""
        blocks, fds = [], []
        for write, group in ((False, inputs), (True, outputs)):
            for block in group:
                if block.number not in self._known:
                    self._known.add(block.number)
                    block.readers.append(self)
                    blocks.append((block.number, block.size, write))
                    fds.append(block.fd)
        gone = [self._gone.popleft() for _ in range(len(self._gone))]
        return Offer(blocks, gone), fds

    def knows(self, number: BlockId) -> None:
        """The process has made a block."""
        self._known.add(number)

    def send(self, message: Any, fds: Sequence[int]) -> None:
        """Send; what cannot be sent is noticed when there is no answer."""
        with suppress(OSError):
            send(self._link, message, fds)

    def receive(self, seconds: float) -> tuple[Any, list[int]] | None:
        """An answer and descriptors; None: not in time.

        Raises
        ------
        _LostError
            The process has ended.
        """
        poll = select.poll()
        poll.register(self._link, select.POLLIN)
        try:
            if not poll.poll(None if seconds == float("inf") else max(seconds, 0.0) * 1e3):
                return None
            return receive(self._link)
        except (EOFError, OSError, pickle.UnpicklingError):
            raise _LostError(self._end()) from None

    def kill(self) -> None:
        """End it at once; whoever waits for an answer is told that it has ended."""
        self._process.kill()
        with suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it, and wait for that."""
        self.kill()
        self._process.wait()
        limits.part(self._process.pid)
        self._link.close()

    def _end(self) -> str:
        """How a process that has gone has ended."""
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
class _Sent:
    """A job that is under way, with what it needs to be sent again."""

    sample: int
    values: dict[str, Shared]
    room: list[Lease]
    sent_s: float = field(default_factory=time.monotonic)


class ProcessWorker:
    """A stage in a process of its own, and in another one when that is lost."""

    ahead = AHEAD

    def __init__(
        self, post: Post, recipe: Recipe, values: dict[str, Shared], staff: ProcessStaff
    ) -> None:
        self.name, self._cores = post.name, post.place.cores
        self.threads: tuple[int, ...] = ()
        self._recipe, self._values = pickle.dumps(recipe), values
        self._staff = staff
        self._pool = Pool(staff.budget)
        self._sizes: list[int] = []
        """Bytes of the blocks that the last outputs took."""
        self._jobs: deque[_Sent] = deque()
        self._lock = Lock()
        """Held while something is sent, or the process is replaced."""
        self._answered_s = 0.0
        self._lost = 0
        self._stopped = False
        self._given_up: tuple[type[DnnpError], str] | None = None
        """Why there is no worker any more."""
        self._process = self._start()

    @property
    def process(self) -> int:
        """The system's number of the process that it has now."""
        return self._process.number

    def ready(self) -> None:
        """Wait until the stage is made; raises `DnnpError`."""
        try:
            self._await_ready()
        except _LostError as loss:
            raise loss.kind(f"{self.name}: making its session: {loss}") from None

    def submit(self, values: Values, sample: int) -> None:
        """Send a job, whose inputs come from other workers or from outside."""
        if self._given_up is not None:
            raise self._given_up[0](self._given_up[1])
        shared = pick(values, Shared, self._staff.recent.of)
        with self._lock:
            room = [self._pool.lease(size) for size in self._sizes]
            job = _Sent(sample, shared, room)
            self._jobs.append(job)
            self._send(job)

    def result(self) -> Answer:
        """Wait for the oldest job; a process that is lost meanwhile is replaced."""
        while True:
            job = self._jobs[0]
            if self._given_up is not None:
                self._jobs.popleft()
                raise self._given_up[0](self._given_up[1])
            try:
                message, fds = self._answer(job)
            except _LostError as loss:
                self._replace(loss)
                continue
            self._answered_s = time.monotonic()
            if isinstance(message, Failed):
                self._jobs.popleft()
                raise error_of(message.kind, message.reason)
            values = self._taken(job, message, fds)
            self._jobs.popleft()
            return Answer(values, message.start_ns, message.end_ns, message.waited_ns)

    def call(self, values: Values) -> Values:
        """Compute one sample while nobody else asks for anything."""
        self.submit(values, 0)
        return self.result().values

    def stop(self) -> None:
        """End for good."""
        self._stopped = True
        self._process.kill()

    def close(self) -> None:
        """End for good, and let go of the memory."""
        self._stopped = True
        self._process.close()
        self._jobs.clear()
        self._values.clear()
        self._pool.close()

    def _start(self) -> _Process:
        process = _Process(self._staff.nursery)
        offer, fds = process.offer((v.lease.block for v in self._values.values()), ())
        refs = {name: value.ref for name, value in self._values.items()}
        process.send(Begin(offer, self._recipe, refs, self._cores, sys.path), fds)
        return process

    def _send(self, job: _Sent) -> None:
        room = [lease.block for lease in job.room]
        offer, fds = self._process.offer((v.lease.block for v in job.values.values()), room)
        refs = {name: value.ref for name, value in job.values.items()}
        self._process.send(Job(offer, refs, [(block.number, block.size) for block in room]), fds)

    def _answer(self, job: _Sent) -> tuple[Any, list[int]]:
        limit = self._staff.rules.seconds
        due = max(job.sent_s, self._answered_s) + limit
        got = self._process.receive(due - time.monotonic())
        if got is None:
            raise _LostError(f"not done after {limit:g} s (--stage-timeout)", LimitError)
        return got

    def _taken(self, job: _Sent, done: Done, fds: Sequence[int]) -> dict[str, Shared]:
        """The outputs, in blocks that were lent for them or that the process has made."""
        leases = {lease.block.number: lease for lease in job.room}
        for (number, size), fd in zip(done.made, fds, strict=True):
            self._process.knows(number)
            leases[number] = self._pool.adopt(number, fd, size, self._process)
        used = {ref.block: leases[ref.block] for ref in done.values.values()}
        self._sizes = [lease.block.size for lease in used.values()]
        return {name: Shared(ref, leases[ref.block]) for name, ref in done.values.items()}

    def _await_ready(self) -> None:
        limit = self._staff.rules.seconds
        due = time.monotonic() + limit
        while (got := self._process.receive(min(_POLL_S, due - time.monotonic()))) is None:
            if time.monotonic() > due:
                raise _LostError(f"not done after {limit:g} s (--stage-timeout)", LimitError)
            if self._staff.rules.interrupted():
                return
        message = got[0]
        if isinstance(message, Failed):
            raise error_of(message.kind, message.reason)
        if isinstance(message, Ready):
            self.threads = message.threads

    def _replace(self, loss: _LostError) -> None:
        """Start another process, and send it all jobs again; or give up."""
        rules = self._staff.rules
        with self._lock:
            while not self._stopped:
                sample = self._jobs[0].sample
                self._process.close()
                if self._lost >= rules.retries:
                    self._given_up = loss.kind, str(loss)
                    self._jobs.popleft()
                    raise loss.kind(str(loss))
                self._lost += 1
                self._staff.lost.add(Loss(self.name, sample, str(loss)), len(self._jobs))
                try:
                    self._process = self._start()
                    self._await_ready()
                except _LostError as another:
                    loss = another
                    continue
                for job in self._jobs:
                    self._send(job)
                self._answered_s = time.monotonic()
                break
        if self._stopped:
            self._process.kill()
            raise ClosedError


class ProcessStaff:
    """Processes of this machine."""

    kind = "process"

    def __init__(self, rules: Rules) -> None:
        self.rules, self.lost = rules, Losses(rules)
        self.budget = Budget(rules.memory_bytes)
        self.nursery = ThreadPoolExecutor(1, thread_name_prefix="nursery")
        """The thread that starts processes."""
        self._inputs = Pool(self.budget)
        self.recent = Recent(self._shared)
        """Inputs from outside, in shared memory."""
        self.workers: list[ProcessWorker] = []

    @property
    def losses(self) -> list[Loss]:
        """Workers that were lost and restarted."""
        return self.lost.losses

    def place(self, place: Place) -> Place:
        """The same: processes are on this machine."""
        return place

    def share(self, values: Values) -> dict[str, Shared]:
        """Put values into shared memory."""
        return {name: self._shared(value) for name, value in values.items()}

    def hire(self, post: Post, recipe: Recipe, values: dict[str, Shared]) -> ProcessWorker:
        """Start a process; `ready` waits for it."""
        worker = ProcessWorker(post, recipe, dict(values), self)
        self.workers.append(worker)
        return worker

    def ready(self) -> None:
        """Wait until all stages are made."""
        for worker in self.workers:
            worker.ready()

    def close(self) -> None:
        """End all processes."""
        for worker in self.workers:
            worker.stop()
        for worker in self.workers:
            worker.close()
        self.recent.clear()
        self._inputs.close()
        self.nursery.shutdown()

    def _shared(self, value: Any) -> Shared:
        return self._inputs.put([plain(value)])[0]
