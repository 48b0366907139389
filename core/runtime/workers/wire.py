"""Messages between two processes: small objects, and descriptors of open files beside them."""

from __future__ import annotations

import array
import pickle
import socket
import struct
from collections.abc import Sequence
from typing import Any

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
    # At once: whoever waits for it wakes up once.
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
