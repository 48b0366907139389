"""Tensors over a TCP connection, for `serve_stage` and `send_samples`.

A frame is 8 bytes with the length of a header (unsigned, the highest byte first), the header as
JSON, and the bytes of the tensors, one after the other. The header has `sample` (a number),
`tensors` (each with `name`, `dtype` in numpy's words and `shape`) and, where a stage failed,
`error`. Nothing in a frame is run or unpickled; but no sender is authenticated, and nothing is
encrypted: this is for networks that are trusted.
"""

from __future__ import annotations

import json
import math
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnnp import FormatError, InputFileError, UsageError

LARGEST_HEADER = 1 << 24
LARGEST_TENSOR = 1 << 36
"""Bytes beyond which something else than a frame has come."""


@dataclass(frozen=True)
class Frame:
    """A sample on its way."""

    sample: int
    values: Mapping[str, Any]
    """Tensor name -> array."""
    error: str = ""
    """The reason why there are none."""


def address(text: str) -> tuple[str, int]:
    """`HOST:PORT` as a pair.

    >>> address("127.0.0.1:5000")
    ('127.0.0.1', 5000)
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"{text!r}: give HOST:PORT")
    return host.strip("[]"), int(port)


def listen(where: tuple[str, int]) -> socket.socket:
    """A socket that others connect to."""
    try:
        family = socket.getaddrinfo(*where, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server(where, family=family)
    except OSError as error:
        raise InputFileError(f"{where[0]}:{where[1]}: {error.strerror or error}") from None


def connect(where: tuple[str, int], patience_s: float) -> socket.socket:
    """A connection to a process that may not listen yet."""
    end = time.monotonic() + patience_s
    while True:
        try:
            made = socket.create_connection(where, timeout=max(end - time.monotonic(), 1.0))
            made.settimeout(None)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return made
        except OSError as error:
            if time.monotonic() >= end:
                reason = error.strerror or str(error)
                raise InputFileError(f"{where[0]}:{where[1]}: {reason}") from None
            time.sleep(0.05)


def send(connection: socket.socket, frame: Frame) -> None:
    """Send a sample.

    Raises
    ------
    InputFileError
        A tensor is of a type that cannot be sent, or no process takes it.
    """
    tensors, parts = [], []
    for name, value in frame.values.items():
        array = np.ascontiguousarray(value) if np.ndim(value) else np.asarray(value)
        if not isinstance(value, np.ndarray | np.generic) or array.dtype.hasobject:
            raise InputFileError(f"tensor '{name}': only numbers are sent, no texts or sequences")
        kind = array.dtype.name if array.dtype.kind == "V" else array.dtype.str
        tensors.append({"name": name, "dtype": kind, "shape": list(array.shape)})
        parts.append(array.tobytes())
    header = {"sample": frame.sample, "tensors": tensors}
    text = json.dumps(header | ({"error": frame.error} if frame.error else {})).encode()
    try:
        connection.sendall(b"".join([len(text).to_bytes(8, "big"), text, *parts]))
    except OSError as error:
        raise InputFileError(f"the next one does not listen any more: {error.strerror}") from None


def receive(connection: socket.socket) -> Frame | None:
    """The next sample; None: there is none, the connection has ended.

    Raises
    ------
    FormatError
        What comes is no frame.
    InputFileError
        The connection broke in the midst of one.
    """
    start = _read(connection, 8, whole=False)
    if not start:
        return None
    length = int.from_bytes(start, "big")
    if length > LARGEST_HEADER:
        raise FormatError(f"not a frame: its header would have {length} bytes")
    try:
        header = json.loads(_read(connection, length))
        entries = [(e["name"], _dtype(e["dtype"]), _shape(e["shape"])) for e in header["tensors"]]
        sample, reason = int(header["sample"]), str(header.get("error", ""))
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"not a frame: {error}") from None
    values = {}
    for name, dtype, shape in entries:
        size = dtype.itemsize * math.prod(shape)
        if size > LARGEST_TENSOR:
            raise FormatError(f"not a frame: tensor '{name}' would have {size} bytes")
        values[str(name)] = np.frombuffer(_read(connection, size), dtype).reshape(shape)
    return Frame(sample, values, reason)


def _dtype(name: str) -> np.dtype[Any]:
    import ml_dtypes  # noqa: F401  (teaches numpy bfloat16 and its like)

    dtype = np.dtype(name)
    if dtype.hasobject or not dtype.itemsize:
        raise TypeError(f"no such element type: {name!r}")
    return dtype


def _shape(sizes: list[int]) -> tuple[int, ...]:
    if not all(type(size) is int and size >= 0 for size in sizes):
        raise TypeError(f"no such shape: {sizes!r}")
    return tuple(sizes)


def _read(connection: socket.socket, size: int, *, whole: bool = True) -> bytearray:
    """So many bytes; none at all if the connection ends before, unless it must be `whole`."""
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        try:
            count = connection.recv_into(view[done:], min(size - done, 1 << 20))
        except OSError as error:
            raise InputFileError(f"the connection broke: {error.strerror}") from None
        if not count:
            if done or whole:
                raise InputFileError("the connection ended in the midst of a sample")
            return bytearray()
        done += count
    return data
