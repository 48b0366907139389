"""A process that computes: `python -P -m dnnp.core.runtime.workers.child FD PARENT`.

Over the socket FD come the recipes of its stages, then job after job. It ends with its
parent, or with the process at the other end of the socket, at any moment.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from dnnp.core.model.processes import die_with_parent
from dnnp.core.runtime.model.session import Values
from dnnp.core.runtime.usage import resident_bytes
from dnnp.core.runtime.workers import messages
from dnnp.core.runtime.workers.messages import Form, Stage, StageRunner


def main() -> None:
    """Compute until the socket is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent sees to it
    parent = int(sys.argv[2])
    die_with_parent()
    if os.getppid() != parent:
        return
    with socket.socket(fileno=int(sys.argv[1])) as link:
        worker = _Worker(link)
        threading.Thread(target=worker.listen, daemon=True).start()
        with suppress(OSError):
            worker.serve()


class _Worker:
    """State of the process."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._messages: SimpleQueue[Any] = SimpleQueue()
        self._buffers: dict[messages.BufferId, memoryview] = {}
        self._numbers = itertools.count()
        self._made: list[tuple[messages.BufferId, int, int]] = []
        """Buffers that the parent does not know: number, bytes, descriptor."""

    def listen(self) -> None:
        """Receive messages while something is computed, and end when the socket is closed."""
        with suppress(EOFError, OSError):
            while True:
                self._messages.put(self._receive())
        os._exit(0)

    def serve(self) -> None:
        """Make the stages, and do one job after the other."""
        runner = StageRunner()
        while True:
            job = self._messages.get()
            if isinstance(job, messages.Begin):
                try:
                    sys.path[:] = job.path
                    runner.make(job.recipe, self._values(job.values), job.cores)
                except Exception as error:  # a stage may be foreign code
                    messages.send(self._link, messages.failure_of(error))
                    return
                messages.send(self._link, messages.Ready())
                continue
            if isinstance(job, messages.MemoryRequest):
                grown = max(resident_bytes() - runner.base_bytes, 0)
                messages.send(self._link, messages.MemoryReport(grown))
                continue
            start_ns = time.perf_counter_ns()
            try:
                outputs = self._do(runner.stages[job.part], job)
            except Exception as error:  # as above
                messages.send(self._link, messages.failure_of(error))
                continue
            end_ns = time.perf_counter_ns()
            waited_ns = runner.waited_ns(end_ns)
            made = self._made
            self._made = []
            answer = messages.Done(
                outputs, start_ns, end_ns, waited_ns, [entry[:2] for entry in made]
            )
            messages.send(self._link, answer, [fd for _, _, fd in made])
            for _, _, fd in made:
                os.close(fd)

    def _receive(self) -> Any:
        """The next message, with the buffers that come along in view."""
        message, fds = messages.receive(self._link)
        news: messages.BufferNews = message.news
        for number in news.gone:
            self._buffers.pop(number, None)
        for (number, size, write), fd in zip(news.buffers, fds, strict=True):
            self._buffers[number] = messages.view(fd, size, write=write)
            os.close(fd)
        return message

    def _values(self, refs: Mapping[str, messages.Ref]) -> Values:
        return {
            name: messages.value_at(self._buffers[ref.buffer], ref) for name, ref in refs.items()
        }

    def _do(self, stage: Stage, job: messages.Job) -> dict[str, messages.Ref]:
        values = self._values(job.values)
        forms = stage.forms
        if forms is not None:
            refs = self._output_refs(forms, job.lent)
            into = {n: messages.array_at(self._buffers[r.buffer], r) for n, r in refs.items()}
            try:
                stage.write(values, into)
                return refs
            except messages.NotInPlaceError as error:
                found = error.values
        else:
            found = stage(values)
        outputs = {name: messages.plain(value) for name, value in found.items()}
        refs = self._output_refs(outputs, job.lent)
        for name, ref in refs.items():
            messages.write_at(self._buffers[ref.buffer], ref, outputs[name].data)
        return refs

    def _output_refs(
        self,
        outputs: Mapping[str, Form | messages.Plain],
        lent: Sequence[tuple[messages.BufferId, int]],
    ) -> dict[str, messages.Ref]:
        """Places for outputs: in buffers that the parent offers, or in new ones."""
        sizes = [
            out.data.nbytes
            if isinstance(out, messages.Plain)
            else messages.nbytes(out.dtype, out.shape)
            for out in outputs.values()
        ]
        places, needs = messages.layout(sizes)
        free = list(lent)
        buffers = []
        for need in needs:
            fit = next((entry for entry in free if entry[1] >= need), None)
            if fit is None:
                buffers.append(self._make(need))
            else:
                free.remove(fit)
                buffers.append(fit[0])
        return {
            name: messages.Ref(buffers[i], offset, out.dtype, out.shape)
            for (name, out), (i, offset) in zip(outputs.items(), places, strict=True)
        }

    def _make(self, size: int) -> messages.BufferId:
        size = -(-size // 4096) * 4096
        fd = messages.reserve(size)
        number = f"{os.getpid()}.{next(self._numbers)}"
        self._buffers[number] = messages.view(fd, size, write=True)
        self._made.append((number, size, fd))
        return number


if __name__ == "__main__":
    main()
