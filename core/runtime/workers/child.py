"""A process that computes: `python -P -m dnnp.core.runtime.workers.child FD PARENT`.

Over the socket FD comes the recipe of its stage, then job after job. It ends with its
parent, or with the one that holds the other end of the socket, whatever it does at the moment.
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
from typing import TYPE_CHECKING, Any

from dnnp.core.model.processes import die_with_parent
from dnnp.core.runtime.values import Values
from dnnp.core.runtime.workers.messages import (
    Begin,
    BufferId,
    Done,
    Job,
    Offer,
    OtherwiseError,
    Plain,
    Ready,
    Ref,
    array_at,
    failure_of,
    layout,
    nbytes,
    plain,
    receive,
    reserve,
    send,
    value_at,
    view,
    write_at,
)
from dnnp.core.runtime.workers.recipes import Computing

if TYPE_CHECKING:
    from dnnp.core.runtime.workers.recipes import Form, Stage


def main() -> None:
    """Compute until nobody asks any more."""
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
        self._buffers: dict[BufferId, memoryview] = {}
        self._numbers = itertools.count()
        self._made: list[tuple[BufferId, int, int]] = []
        """Buffers that the parent does not know: number, bytes, descriptor."""

    def listen(self) -> None:
        """Receive messages while something is computed, and end when the socket is closed."""
        with suppress(EOFError, OSError):
            while True:
                self._messages.put(self._receive())
        os._exit(0)

    def serve(self) -> None:
        """Make the stage, and do one job after the other."""
        try:
            computing = self._begin(self._messages.get())
        except Exception as error:  # a stage may be anybody's code
            send(self._link, failure_of(error))
            return
        send(self._link, Ready(computing.threads))
        while True:
            job = self._messages.get()
            start_ns = time.perf_counter_ns()
            try:
                outputs = self._do(computing.stage, job)
            except Exception as error:  # as above
                send(self._link, failure_of(error))
                continue
            end_ns = time.perf_counter_ns()
            waited_ns = computing.waited_ns(end_ns)
            made = self._made
            self._made = []
            answer = Done(outputs, start_ns, end_ns, waited_ns, [entry[:2] for entry in made])
            send(self._link, answer, [fd for _, _, fd in made])
            for _, _, fd in made:
                os.close(fd)

    def _receive(self) -> Any:
        """The next message, with the buffers that come along in view."""
        message, fds = receive(self._link)
        offer: Offer = message.offer
        for number in offer.gone:
            self._buffers.pop(number, None)
        for (number, size, write), fd in zip(offer.buffers, fds, strict=True):
            self._buffers[number] = view(fd, size, write=write)
            os.close(fd)
        return message

    def _begin(self, begin: Begin) -> Computing:
        sys.path[:] = begin.path
        return Computing(begin.recipe, self._values(begin.values), begin.cores)

    def _values(self, refs: Mapping[str, Ref]) -> Values:
        return {name: value_at(self._buffers[ref.buffer], ref) for name, ref in refs.items()}

    def _do(self, stage: Stage, job: Job) -> dict[str, Ref]:
        values = self._values(job.values)
        forms = stage.forms
        if forms is not None:
            refs = self._room(forms, job.room)
            into = {n: array_at(self._buffers[r.buffer], r) for n, r in refs.items()}
            try:
                stage.write(values, into)
                return refs
            except OtherwiseError as error:
                found = error.values
        else:
            found = stage(values)
        outputs = {name: plain(value) for name, value in found.items()}
        refs = self._room(outputs, job.room)
        for name, ref in refs.items():
            write_at(self._buffers[ref.buffer], ref, outputs[name].data)
        return refs

    def _room(
        self, outputs: Mapping[str, Form | Plain], room: Sequence[tuple[BufferId, int]]
    ) -> dict[str, Ref]:
        """Places for outputs: in buffers that the parent offers, or in new ones."""
        sizes = [
            out.data.nbytes if isinstance(out, Plain) else nbytes(out.dtype, out.shape)
            for out in outputs.values()
        ]
        places, needs = layout(sizes)
        free = list(room)
        buffers = []
        for need in needs:
            fit = next((entry for entry in free if entry[1] >= need), None)
            if fit is None:
                buffers.append(self._make(need))
            else:
                free.remove(fit)
                buffers.append(fit[0])
        return {
            name: Ref(buffers[i], offset, out.dtype, out.shape)
            for (name, out), (i, offset) in zip(outputs.items(), places, strict=True)
        }

    def _make(self, size: int) -> BufferId:
        size = -(-size // 4096) * 4096
        fd = reserve(size)
        number = f"{os.getpid()}.{next(self._numbers)}"
        self._buffers[number] = view(fd, size, write=True)
        self._made.append((number, size, fd))
        return number


if __name__ == "__main__":
    main()
