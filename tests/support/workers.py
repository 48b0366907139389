"""Stand-ins for stages that compute in workers elsewhere: they take a known time, or fail."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnnp.core.model.errors import InputFileError
from dnnp.core.runtime.model.session import Values
from dnnp.core.runtime.workers.messages import Form, NotInPlaceError


@dataclass(frozen=True)
class Sleep:
    """Hands on one more than what it reads, after some seconds."""

    seconds: float
    outputs: tuple[str, ...]
    shape: tuple[int, ...] = (1,)

    def make(self, values: Values) -> Sleep:
        """The stage is this itself."""
        return self

    @property
    def forms(self) -> Mapping[str, Form]:
        """Of all outputs."""
        return {name: Form(np.dtype(np.float32), self.shape) for name in self.outputs}

    def __call__(self, values: Values) -> Values:
        """Compute into new arrays."""
        arrays = {name: np.empty(self.shape, np.float32) for name in self.outputs}
        self.write(values, arrays)
        return arrays

    def write(self, values: Values, outputs: Mapping[str, Any]) -> None:
        """Wait, then write one number into each output; the rest stays as it is."""
        until = time.perf_counter() + self.seconds
        first = sum(float(np.ravel(value)[0]) for value in values.values())
        for array in outputs.values():
            array.reshape(-1)[0] = first + 1
        time.sleep(max(until - time.perf_counter(), 0.0))


@dataclass(frozen=True)
class Mark(Sleep):
    """Leaves a file for each sample that it begins: 0, 1, 2, ..."""

    folder: str = ""

    def write(self, values: Values, outputs: Mapping[str, Any]) -> None:
        """Leave the next file."""
        with open(os.path.join(self.folder, str(len(os.listdir(self.folder)))), "w"):
            super().write(values, outputs)


@dataclass(frozen=True)
class Otherwise(Sleep):
    """Computes outputs of another shape than it says."""

    def write(self, values: Values, outputs: Mapping[str, Any]) -> None:
        """Leave the arrays alone."""
        raise NotInPlaceError(Sleep(self.seconds, self.outputs, (3,))(values))


@dataclass
class Fail:
    """Does what it should until it has computed a number of samples, then fails in some way."""

    how: str
    """`make`, `raise`, `bug`, `kill`, `exit`, `stop` (it computes no more) or `hang`."""
    at: int
    """The job at which it fails; of several processes together if there is a `mark`."""
    outputs: tuple[str, ...]
    mark: str = ""
    """A file that says that it has failed, so that it does not do so again; empty: it does."""
    seconds: float = 0.0
    shape: tuple[int, ...] = (1,)
    jobs: int = 0
    forms: None = None

    def make(self, values: Values) -> Fail:
        """The stage is this itself."""
        if self.how == "make":
            raise ValueError("not to be made")
        return self

    def __call__(self, values: Values) -> Values:
        """Compute, or fail."""
        self.jobs += 1
        if self.jobs == self.at and not (self.mark and os.path.exists(self.mark)):
            if self.mark:
                open(self.mark, "x").close()
            self.fail()
        return Sleep(self.seconds, self.outputs, self.shape)(values)

    def fail(self) -> None:
        """Fail in the way that was asked for."""
        if self.how == "raise":
            raise InputFileError("no luck")
        if self.how == "bug":
            raise ValueError("no luck\nand more")
        if self.how == "exit":
            os._exit(3)
        if self.how == "hang":
            time.sleep(3600)
        os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[self.how])

    def write(self, values: Values, outputs: Mapping[str, Any]) -> None:
        """Never called, as the forms of outputs are not known."""
        raise NotImplementedError


def children() -> list[int]:
    """Processes of workers that this one has started and that are there."""
    found = []
    for task in os.listdir("/proc/self/task"):
        with suppress(OSError), open(f"/proc/self/task/{task}/children") as file:
            found += map(int, file.read().split())
    return [number for number in found if is_worker(number)]


def workers_of(process: int) -> list[int]:
    """Processes of workers below a process, at any depth."""
    below, found = [process], []
    while below:
        process = below.pop()
        with suppress(OSError):
            for task in os.listdir(f"/proc/{process}/task"):
                with open(f"/proc/{process}/task/{task}/children") as file:
                    below += map(int, file.read().split())
        if is_worker(process):
            found.append(process)
    return sorted(found)


def is_worker(process: int) -> bool:
    """True if a process computes for others; also when it is a zombie."""
    with suppress(OSError), open(f"/proc/{process}/cmdline", "rb") as file:
        words = file.read()
        return not words or b"workers.child" in words
    return False
