"""Files that go through a pipeline once each: read as there is room, written as they are done.

One thread reads ahead of the pipeline, and a few write after it. Files whose outputs are there are
passed over, so that a run that was broken off goes on where it was.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from threading import BoundedSemaphore, Condition, Lock
from typing import Any, NamedTuple

from dnnp.core.model.errors import DnnpError, InputFileError
from dnnp.core.runtime.inputs import Sample
from dnnp.core.runtime.sources import Sink, Source
from dnnp.core.runtime.values import Values, to_numpy
from dnnp.formats.files import replacement
from dnnp.formats.tensors import write_outputs

AHEAD = 2
"""Samples that are read before anybody asks for them."""
WRITERS = 2
"""Threads that write; what they wait for is mostly the disk."""
BEHIND = 4
"""Samples whose outputs may wait to be written."""


class Item(NamedTuple):
    """One file, or folder, to send through."""

    path: str
    target: str | None
    """Where its outputs go; None: nowhere."""


@dataclass
class Tally:
    """What became of the files."""

    written: int = 0
    """Went through; their outputs were written, if that was asked for."""
    skipped: int = 0
    """Their outputs were there."""
    failed: int = 0
    """Cannot be read, are not what the model takes, or made a stage fail."""


class FileRun:
    """The files of a run: their source, their sink, and what became of them.

    Parameters
    ----------
    items
        The files, in their order; the thread that reads asks for them one by one.
    read
        Reads and checks one; raises `DnnpError`.
    most
        Files to send through at most; None: all.
    keep_going
        Told of a file that fails, when the others shall go on; None: the run ends there.
    unique
        No two items have the same target; else that is found out on the way.
    """

    def __init__(
        self,
        items: Iterator[Item],
        read: Callable[[str], Sample],
        *,
        most: int | None = None,
        keep_going: Callable[[str], None] | None = None,
        unique: bool = True,
    ) -> None:
        self._items, self.read, self._most = items, read, most
        self._keep_going, self._unique = keep_going, unique
        self._began_ns = time.time_ns()
        self._ready: list[tuple[Item, Sample]] = []
        """Read before the run begins."""
        self._lock = Lock()
        self.found = 0
        """Files that there are; 0: nobody knows."""
        self.tally = Tally()
        self.fault: DnnpError | None = None
        """Why the run ended before its time."""
        self.items: dict[int, Item] = {}
        """Of the samples that are on their way."""
        self.went: list[Item] | None = None
        """What went through, where somebody wants to know."""
        self.source = FileSource(self)
        self.sink = FileSink(self)

    @property
    def expected(self) -> int:
        """Files that go through, as far as that is known by now; 0: it is not."""
        left = max(self.found - self.tally.skipped - self.tally.failed, 0)
        return left if self._most is None else min(left, self._most)

    def first(self) -> Sample | None:
        """The first sample, which stays the first; None: there is none to send through."""
        if not self._ready:
            self._ready += [found for found in [self._next()] if found is not None]
        return self._ready[0][1] if self._ready else None

    def take(self, number: int) -> Sample | None:
        """Read the next file: it is sample `number`; None: there are no more."""
        found = self._ready.pop() if self._ready else None
        if found is None and number != self._most:
            found = self._next()
        if found is None:
            return None
        self.items[number] = found[0]
        return found[1]

    def _next(self) -> tuple[Item, Sample] | None:
        try:
            for item in self._items:
                if item.target is not None and self._is_there(item):
                    self.tally.skipped += 1
                    continue
                try:
                    return item, self.read(item.path)
                except DnnpError as error:
                    if not self.fails(error):
                        break
        except DnnpError as error:  # names that cannot be had
            self.fault = self.fault or error
        return None

    def _is_there(self, item: Item) -> bool:
        """Whether there are outputs of a file, from before this run."""
        target = item.target or ""
        if self._unique:
            return os.path.lexists(target)
        made = any(other.target == target for other in list(self.items.values()))
        with suppress(OSError):
            if not made and os.lstat(target).st_mtime_ns <= self._began_ns:
                return True
            made = True
        if made:
            raise InputFileError(f"{item.path}: another input has the same output, {target}")
        return False

    def through(self, number: int) -> None:
        """Note that a sample is all done."""
        with self._lock:
            self.tally.written += 1
            item = self.items.pop(number)
            if self.went is not None:
                self.went.append(item)

    def record(self) -> dict[str, int]:
        """What a run record says of it."""
        return {
            "written": self.tally.written,
            "skipped": self.tally.skipped,
            "failed": self.tally.failed,
        }

    def line(self) -> str:
        """The same for people."""
        tally = self.tally
        said = f"files       {tally.written} went through"
        if tally.skipped:
            said += f", {tally.skipped} were done before"
        return said + (f", {tally.failed} failed" if tally.failed else "")

    def fails(self, error: DnnpError) -> bool:
        """Note that a file fails; whether the others go on."""
        with self._lock:
            self.tally.failed += 1
        if self._keep_going is not None:
            self._keep_going(str(error))
            return True
        self.fault = self.fault or InputFileError(str(error))
        return False


class FileSource(Source):
    """Reads files on a thread of its own, a few ahead of who asks."""

    def __init__(self, files: FileRun) -> None:
        self.count = None
        self._files = files
        self._changed = Condition()
        self._samples: dict[int, Sample] = {}
        self._number = 0
        """Samples that were read."""
        self._asked = -1
        """The last sample that somebody asked for."""
        self._broken: BaseException | None = None
        self._closed = False

    def begin(self, now_ns: int) -> None:
        """Start to read."""
        pool = ThreadPoolExecutor(1, thread_name_prefix="reader")
        pool.submit(self._work).add_done_callback(self._ended)
        # Who waits for a slow disk, or for names, cannot be woken: nobody waits for it in the end.
        pool.shutdown(wait=False)

    def _work(self) -> None:
        while True:
            with self._changed:
                while self._number > self._asked + AHEAD and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
            sample = self._files.take(self._number)
            with self._changed:
                if self.count is None and sample is None:
                    self.count = self._number
                self._changed.notify_all()
                if self.count is not None or sample is None:
                    return
                self._samples[self._number] = sample
                self._number += 1

    def _ended(self, future: Future[None]) -> None:
        with self._changed:
            self._broken = future.exception()
            self._changed.notify_all()

    def sample(self, number: int) -> Mapping[str, Any] | None:
        """The inputs of a sample, waiting for them; None: there are no more."""
        with self._changed:
            if self.count is None and number > self._asked:
                self._asked = number
                self._changed.notify_all()
            while number not in self._samples:
                if self._broken is not None:
                    raise self._broken
                if self._closed or (self.count is not None and number >= self.count):
                    return None
                self._changed.wait()
            return self._samples[number]

    def stop(self) -> None:
        """No sample sets out but those that somebody has asked for and that were read."""
        with self._changed:
            if self.count is None:
                self.count = min(self._asked + 1, self._number)
            self._changed.notify_all()

    def done(self, number: int) -> None:
        """Forget a sample."""
        with self._changed:
            self._samples.pop(number, None)

    def close(self) -> None:
        """Wake whoever waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class FileSink(Sink):
    """Writes the outputs of samples, each into a file of its own, on a few threads."""

    def __init__(self, files: FileRun) -> None:
        self._files = files
        self._pool = ThreadPoolExecutor(WRITERS, thread_name_prefix="writer")
        self._room = BoundedSemaphore(BEHIND)
        self._failed: list[BaseException] = []

    def wants(self, sample: int) -> bool:
        """All outputs are of use, if only to be counted."""
        return True

    def put(self, sample: int, values: Values) -> None:
        """Have the outputs of a sample written; raises what made an earlier one fail."""
        self._room.acquire()
        if self._failed:
            self._room.release()
            raise self._failed[0]
        self._pool.submit(self._write, sample, values).add_done_callback(self._written)

    def _write(self, sample: int, values: Values) -> None:
        item = self._files.items[sample]
        if item.target is not None:
            write_whole(item.target, values)
        self._files.through(sample)

    def _written(self, future: Future[None]) -> None:
        error = future.exception()
        if error is not None:
            self._failed.append(error)
        self._room.release()

    def failed(self, sample: int, error: DnnpError) -> bool:
        """Note the file; if the others are not to go on, no more of them set out."""
        self._files.items.pop(sample, None)
        if not self._files.fails(error):
            self._files.source.stop()
        return True

    def close(self) -> None:
        """Wait until everything is written; raises what made a file fail."""
        self._pool.shutdown()
        if self._failed:
            raise self._failed[0]


def write_whole(target: str, values: Values) -> None:
    """Write the outputs of a sample, as a whole or not at all.

    Raises
    ------
    InputFileError
        The file cannot be written.
    """
    try:
        with replacement(target) as file:
            write_outputs(file, {0: {name: to_numpy(value) for name, value in values.items()}})
    except OSError as error:
        raise InputFileError(f"{target}: {error.strerror or error}") from None
