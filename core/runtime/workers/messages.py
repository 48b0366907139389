"""Messages between processes, and the recipes of stages that they carry."""

from __future__ import annotations

import array
import errno
import mmap
import os
import pickle
import socket
import struct
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dnnp.core.model import errors
from dnnp.core.model.errors import DnnpError, InputFileError
from dnnp.core.model.processes import available_cores, keep_on
from dnnp.core.model.text import shown_bytes
from dnnp.core.runtime.model.providers import SessionConfig, ort_errors
from dnnp.core.runtime.model.session import (
    CpuStage,
    Values,
    empty_session_bytes,
    make_stage,
    open_session,
    own_seed,
    to_numpy,
)
from dnnp.core.runtime.usage import WaitClock, with_threads

ALIGN = 64
"""Tensors begin at multiples of this, bytes."""

OWN = 1 << 16
"""Smallest tensor with a buffer of its own, which is freed after its last reader."""

BufferId = int | str


class Ref(NamedTuple):
    """Place of a value."""

    buffer: BufferId
    offset: int
    dtype: np.dtype[Any] | None
    """None: not a tensor of numbers, but what `pickle` made of it."""
    shape: tuple[int, ...]


class NotInPlaceError(Exception):
    """A stage has computed its outputs, but not in the given memory."""

    def __init__(self, values: Values) -> None:
        super().__init__()
        self.values = values


class Plain(NamedTuple):
    """A value as bytes."""

    data: NDArray[Any]
    dtype: np.dtype[Any] | None
    shape: tuple[int, ...]


def plain(value: Any) -> Plain:
    """The bytes of an array of numbers as they are; of strings, sequences and so on, a pickle."""
    value = to_numpy(value)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        array = np.ascontiguousarray(value).reshape(value.shape)
        return Plain(array.view(np.uint8) if array.ndim else array, array.dtype, array.shape)
    data = np.frombuffer(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), dtype=np.uint8)
    return Plain(data, None, data.shape)


def nbytes(dtype: np.dtype[Any], shape: Sequence[int]) -> int:
    """Bytes of a tensor."""
    return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize


def array_at(memory: memoryview, ref: Ref) -> NDArray[Any]:
    """The array that lies there, sharing the memory."""
    dtype = np.dtype(np.uint8) if ref.dtype is None else ref.dtype
    size = nbytes(dtype, ref.shape)
    raw = np.frombuffer(memory, dtype=np.uint8, count=size, offset=ref.offset)
    return raw.view(dtype).reshape(ref.shape)


def value_at(memory: memoryview, ref: Ref) -> Any:
    """The value that lies there; an array shares the memory."""
    array = array_at(memory, ref)
    return pickle.loads(array.data) if ref.dtype is None else array


def write_at(memory: memoryview, ref: Ref, data: NDArray[Any]) -> None:
    """Copy bytes there."""
    size = data.nbytes
    target = np.frombuffer(memory, dtype=np.uint8, count=size, offset=ref.offset)
    np.copyto(target, np.frombuffer(data.reshape(-1).view(np.uint8), dtype=np.uint8))


def layout(sizes: Sequence[int]) -> tuple[list[tuple[int, int]], list[int]]:
    """(buffer, offset) of tensors of so many bytes, and the bytes of each buffer.

    Small tensors share one, and so do those without any bytes.

    >>> layout([10, 65536, 100])
    ([(0, 0), (1, 0), (0, 64)], [164, 65536])
    >>> layout([70000])
    ([(0, 0)], [70000])
    """
    places: list[tuple[int, int]] = []
    buffers: list[int] = []
    common = -1
    for size in sizes:
        if size >= OWN:
            places.append((len(buffers), 0))
            buffers.append(size)
            continue
        if common < 0:
            common = len(buffers)
            buffers.append(0)
        offset = -(-buffers[common] // ALIGN) * ALIGN
        places.append((common, offset))
        buffers[common] = offset + size
    return places, [max(size, 1) for size in buffers]


_FOLDERS = ("/dev/shm",)
"""Folders of files in memory, for systems without anonymous shared memory."""


def reserve(size: int) -> int:
    """File descriptor of `size` bytes of reserved shared memory.

    Raises `InputFileError` if there is not so much shared memory, or there are too many open files.
    """
    try:
        fd = os.memfd_create("dnnp") if hasattr(os, "memfd_create") else _unlinked()
    except OSError as error:
        raise InputFileError(f"no shared memory: {error.strerror}") from None
    try:
        _set_aside(fd, size)
    except OSError as error:
        os.close(fd)
        full = error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT)
        reason = "it is full" if full else str(error.strerror)
        raise InputFileError(f"no shared memory for {shown_bytes(size)}: {reason}") from None
    return fd


def _unlinked() -> int:
    """Unlinked file, in memory if there is a folder for that."""
    folder = next((f for f in _FOLDERS if os.access(f, os.W_OK)), None)
    fd, path = tempfile.mkstemp(dir=folder)
    os.unlink(path)
    return fd


def _set_aside(fd: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        with suppress(InterruptedError):
            os.posix_fallocate(fd, 0, size)
            return
        _set_aside(fd, size)
        return
    step = bytes(1 << 20)
    for at in range(0, size, len(step)):
        os.pwrite(fd, step[: size - at], at)


def view(fd: int, size: int, *, write: bool) -> memoryview:
    """The bytes of a descriptor, which may be closed then."""
    return memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_WRITE if write else mmap.ACCESS_READ))


class BufferNews(NamedTuple):
    """News about buffers; their descriptors go with the message."""

    buffers: Sequence[tuple[BufferId, int, bool]]
    """Number, bytes, and whether to write there, of buffers that are new to the process."""
    gone: Sequence[BufferId]
    """Buffers that are not used any more."""


class Begin(NamedTuple):
    """A stage to make; those of a process come before all jobs."""

    news: BufferNews
    recipe: bytes
    """Pickled recipe."""
    values: Mapping[str, Ref]
    """Values of the recipe."""
    cores: tuple[int, ...]
    """The process computes on the first of these; empty: anywhere."""
    path: Sequence[str]
    """Search path of modules."""


class Job(NamedTuple):
    """One sample to compute."""

    news: BufferNews
    part: int
    """By which of the stages, from 0, as they were made."""
    values: Mapping[str, Ref]
    lent: Sequence[tuple[BufferId, int]]
    """Buffers for outputs, and their bytes."""


class MemoryRequest(NamedTuple):
    """Ask for the memory that the process holds."""

    news: BufferNews


class MemoryReport(NamedTuple):
    """The answer."""

    resident_bytes: int
    """Beyond an empty session; 0: the system does not tell."""


class Ready(NamedTuple):
    """A stage is made."""


class Failed(NamedTuple):
    """It could not be made, or a sample not be computed."""

    kind: str
    """Name of a class of `core.model.errors`."""
    reason: str


class Done(NamedTuple):
    """A sample was computed."""

    values: Mapping[str, Ref]
    start_ns: int
    """By `time.perf_counter_ns`, which all processes of a machine share."""
    end_ns: int
    waited_ns: int
    made: Sequence[tuple[BufferId, int]]
    """Numbers and bytes of buffers that the process has made for it."""


def failure_of(error: Exception) -> Failed:
    """Message about an error; of one that is not ours its kind and first line."""
    if isinstance(error, DnnpError):
        return Failed(type(error).__name__, str(error))
    kind = type(error).__name__
    text = (str(error).strip().splitlines() or [""])[0]
    return Failed(InputFileError.__name__, f"{kind}: {text}" if text else kind)


def error_of(failed: Failed) -> DnnpError:
    """The error of ours that a worker reports."""
    found = getattr(errors, failed.kind, None)
    if isinstance(found, type) and issubclass(found, DnnpError):
        return found(failed.reason)
    return InputFileError(failed.reason)


_HEAD = struct.Struct("=QI")
"""Bytes of a message, and descriptors that come with its head."""

_MOST = 200
"""Descriptors that go with one message; the system takes some 250."""

_FLAGS = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


def send(link: socket.socket, message: Any, fds: Sequence[int] = ()) -> None:
    """Send a message; raises `OSError` if the other end is closed."""
    while len(fds) > _MOST:
        _send(link, b"", fds[:_MOST])
        fds = fds[_MOST:]
    _send(link, pickle.dumps(message, pickle.HIGHEST_PROTOCOL), fds)


def _send(link: socket.socket, data: bytes, fds: Sequence[int]) -> None:
    head = _HEAD.pack(len(data), len(fds))
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    # At once, so that the receiver wakes up once.
    sent = link.sendmsg([head, data], rights)
    if sent < len(head) + len(data):
        link.sendall((head + data)[sent:])


def receive(link: socket.socket) -> tuple[Any, list[int]]:
    """The next message and its descriptors; raises `EOFError` at the end, or `OSError`."""
    fds: list[int] = []
    while True:
        space = socket.CMSG_SPACE(_MOST * array.array("i").itemsize)
        head, rights, flags, _ = link.recvmsg(_HEAD.size, space, _FLAGS)
        for _, kind, data in rights:
            if kind == socket.SCM_RIGHTS:
                got = array.array("i")
                got.frombytes(data[: len(data) - len(data) % got.itemsize])
                fds.extend(got)
        if flags & socket.MSG_CTRUNC:
            raise OSError("descriptors were lost: too many open files")
        size, _ = _HEAD.unpack(head + _read(link, _HEAD.size - len(head)))
        if size:
            return pickle.loads(_read(link, size)), fds


def _read(link: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    rest = memoryview(data)
    while rest:
        got = link.recv_into(rest)
        if not got:
            raise EOFError
        rest = rest[got:]
    return data


Array = NDArray[Any]

_NUMBERS = {
    "float": "f4", "double": "f8", "float16": "f2", "bool": "?", "int8": "i1", "int16": "i2",
    "int32": "i4", "int64": "i8", "uint8": "u1", "uint16": "u2", "uint32": "u4", "uint64": "u8",
}  # fmt: skip
"""Element type of ONNX Runtime -> of numpy, where these are the same numbers."""


class Form(NamedTuple):
    """Type and shape of an output, independent of the inputs."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class Stage(Protocol):
    """Computes in a worker."""

    @property
    def forms(self) -> Mapping[str, Form] | None:
        """Forms of all outputs; None: unknown before computation."""

    def __call__(self, values: Values) -> Values:
        """Compute; raises `DnnpError`."""

    def write(self, values: Values, outputs: Mapping[str, Array]) -> None:
        """Compute right into arrays of these forms; raises `DnnpError`, or `NotInPlaceError`."""


class Recipe(Protocol):
    """Makes a stage in the process of its worker; it is pickled on the way there."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of what the stage computes."""

    def make(self, values: Values) -> Stage:
        """The stage, of values that it keeps as long as it lives; raises `DnnpError`."""


MODEL = ""
"""Name of the bytes of a model among the values of `SessionRecipe`; the others are weights."""


@dataclass(frozen=True)
class SessionRecipe:
    """A session of ONNX Runtime."""

    outputs: tuple[str, ...]
    folder: str
    """Folder of the model's external data."""
    config: SessionConfig

    def make(self, values: Values) -> SessionStage:
        """Make the session."""
        weights = {name: value for name, value in values.items() if name != MODEL}
        config = self.config
        if config.seed is not None:  # a process that is restarted draws other numbers
            config = replace(config, seed=config.seed + own_seed())
        session = open_session(values[MODEL].tobytes(), Path(self.folder), config, weights)
        stage = make_stage(session, self.outputs, self.outputs, self.config)
        return SessionStage(stage, weights)


@dataclass
class SessionStage:
    """A session that computes in a worker."""

    stage: Any
    weights: Values
    """The session uses their memory."""
    forms: Mapping[str, Form] | None = field(init=False)

    def __post_init__(self) -> None:
        self.forms = _forms(self.stage)

    def __call__(self, values: Values) -> Values:
        return {name: to_numpy(value) for name, value in self.stage(values).items()}

    def write(self, values: Values, outputs: Mapping[str, Array]) -> None:
        session = self.stage.session
        binding = session.io_binding()
        try:
            for name, value in values.items():
                binding.bind_cpu_input(name, np.ascontiguousarray(value))
            for name, into in outputs.items():
                binding.bind_output(name, "cpu", 0, into.dtype, into.shape, into.ctypes.data)
            session.run_with_iobinding(binding)
        except ort_errors():
            # A loop, for one, wants to make its outputs itself; what really fails fails again.
            self.forms = None
            raise NotInPlaceError(self(values)) from None


def _forms(stage: Any) -> dict[str, Form] | None:
    """Forms of all outputs, if the session states them and can write to given memory."""
    if not isinstance(stage, CpuStage) or stage.memory is not None:
        return None
    known: dict[str, Form] = {}
    types = {value.name: value for value in stage.session.get_outputs()}
    for name in stage.outputs:
        form = _form(types[name].type, types[name].shape)
        if form is None:
            return None
        known[name] = form
    plain = all(_form(value.type, ()) is not None for value in stage.session.get_inputs())
    return known if plain else None


def _form(kind: str, shape: Sequence[Any]) -> Form | None:
    element = _NUMBERS.get(kind.removeprefix("tensor(").removesuffix(")"))
    if not kind.startswith("tensor(") or element is None:
        return None
    if not all(isinstance(size, int) and size > 0 for size in shape):
        return None
    return Form(np.dtype(element), tuple(shape))


class StageRunner:
    """Stages and the thread that makes them, pinned to its first core."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []
        self.base_bytes = empty_session_bytes()
        """Memory of the process before it makes any."""
        self._free = available_cores()
        self._threads: tuple[int, ...] = ()
        """Numbers of the threads that compute with the first one."""

    def make(self, recipe: bytes, values: Values, cores: Sequence[int]) -> None:
        """Make a stage of a pickled recipe; raises `DnnpError`, and any error of a foreign
        stage."""
        made = pickle.loads(recipe)
        keep_on(self._free)  # threads that a session starts would be bound, too
        stage, threads = with_threads(lambda: made.make(values))
        self.stages.append(stage)
        self._threads += threads
        keep_on(cores[:1])
        self._waits = WaitClock()

    def waited_ns(self, now_ns: int) -> int:
        """Nanoseconds that the thread waited for its core since this was last more than 0."""
        return self._waits.at_times_ns(now_ns, self._threads)
