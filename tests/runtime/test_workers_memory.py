"""Tensors in shared memory: places, users, and lack of memory."""

from __future__ import annotations

import gc
import itertools
import os
import random
import socket
from collections import deque

import ml_dtypes
import numpy as np
import pytest

from dnnp.core.model.errors import InputFileError, LimitError
from dnnp.core.runtime.workers import messages
from dnnp.core.runtime.workers.messages import OWN, array_at, layout, plain, receive, send
from dnnp.core.runtime.workers.pool import Recent
from dnnp.core.runtime.workers.process import Budget, Buffer, BufferPool, Shared


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


VALUES = [
    np.arange(12, dtype=np.int64).reshape(3, 4),
    np.float32(2.5) * np.ones((), np.float32),
    np.zeros((0, 7), np.float16),
    np.asfortranarray(np.arange(6, dtype=np.float64).reshape(2, 3)),
    np.arange(5)[::-2],
    np.array([True, False]),
    np.ones((2, 2), ml_dtypes.bfloat16),
    np.arange(OWN, dtype=np.uint8),
]


def test_values_come_back_as_they_were() -> None:
    pool = BufferPool(Budget())
    shared = pool.put([plain(value) for value in VALUES])
    for value, held in zip(VALUES, shared, strict=True):
        got = held.fetch()
        assert (got.dtype, got.shape) == (value.dtype, value.shape)
        np.testing.assert_array_equal(got, value)
        there = array_at(held.lease.buffer.view(), held.ref)
        assert there.ctypes.data % 64 == 0 or not there.size


@pytest.mark.parametrize(
    "value", [np.array(["a", "bc"], dtype=object), [np.ones(2), np.zeros((1, 3))], None, [], "text"]
)
def test_what_is_no_tensor_of_numbers_comes_back_too(value: object) -> None:
    (held,) = BufferPool(Budget()).put([plain(value)])
    assert held.ref.dtype is None
    np.testing.assert_equal(held.fetch(), value)


def test_small_tensors_share_a_block_and_never_overlap() -> None:
    rng = random.Random(5)
    for _ in range(100):
        sizes = [rng.choice((0, 1, 63, 64, 65, 4000, OWN - 1, OWN, OWN + 1)) for _ in range(9)]
        places, buffers = layout(sizes)
        taken: dict[int, list[tuple[int, int]]] = {}
        for (buffer, offset), size in zip(places, sizes, strict=True):
            assert offset % 64 == 0
            assert offset + size <= buffers[buffer]
            taken.setdefault(buffer, []).append((offset, offset + size))
        for spans in taken.values():
            spans.sort()
            assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
        assert len(buffers) == sum(s >= OWN for s in sizes) + any(s < OWN for s in sizes)


def test_a_block_is_used_again_after_its_last_reader_and_not_before() -> None:
    pool = BufferPool(Budget())
    a, b = pool.put([plain(np.ones(3)), plain(np.zeros(2))])
    number = a.lease.buffer.number
    assert b.lease is a.lease
    del a
    (c,) = pool.put([plain(np.full(3, 7.0))])
    assert c.lease.buffer.number != number
    np.testing.assert_array_equal(b.fetch(), np.zeros(2))
    del b
    (d,) = pool.put([plain(np.full(3, 8.0))])
    assert d.lease.buffer.number == number
    np.testing.assert_array_equal(c.fetch(), np.full(3, 7.0))


def test_a_pool_gives_up_what_nobody_wants() -> None:
    before, budget = open_files(), Budget()
    pool = BufferPool(budget)
    for size in range(1, 80):
        pool.lease(size << 18)
    assert len(pool._returned) <= 17
    assert budget.held_bytes == sum(buffer.size for buffer in pool._returned)
    pool.close()
    assert (budget.held_bytes, open_files()) == (0, before)


def test_readers_are_told_of_blocks_that_are_given_up() -> None:
    told: list[object] = []

    class BufferUser:
        def forget(self, buffer: object) -> None:
            told.append(buffer)

    buffer = Buffer(5, messages.reserve(4096), 4096)
    buffer.readers.append(BufferUser())
    buffer.close()
    assert told == [5]


def test_a_full_memory_is_one_line() -> None:
    pool = BufferPool(Budget(1 << 20))
    held = pool.lease(900_000)
    with pytest.raises(LimitError, match=r"no shared memory for 200\.7 kB: 901\.1 kB are"):
        pool.lease(200_000)
    del held
    gc.collect()
    pool.lease(1_000_000)  # the other buffer makes room
    with pytest.raises(LimitError):
        pool.adopt("x", messages.reserve(1 << 21), 1 << 21, None)  # type: ignore[arg-type]


def test_memory_that_the_system_lacks_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    before = open_files()
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(InputFileError, match=r"no shared memory for 4\.096 kB: it is full"):
        messages.reserve(4096)
    assert open_files() == before


def test_without_memory_files_there_are_files_without_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.delattr(os, "posix_fallocate")
    monkeypatch.setattr(messages, "_FOLDERS", (str(tmp_path),))
    fd = messages.reserve(5000)
    assert (os.fstat(fd).st_size, os.listdir(str(tmp_path))) == (5000, [])
    messages.view(fd, 5000, write=True)[4999] = 3
    assert messages.view(fd, 5000, write=False)[4999] == 3
    os.close(fd)


def test_messages_bring_descriptors() -> None:
    before = open_files()
    one, other = socket.socketpair()
    with one, other:
        fds = [messages.reserve(4096) for _ in range(450)]
        for i, fd in enumerate(fds):
            messages.view(fd, 4096, write=True)[0] = i % 256
        send(one, ("many", 450), fds)
        send(one, "none")
        send(one, list(range(1000)), fds[:1])
        message, got = receive(other)
        assert (message, len(got)) == (("many", 450), 450)
        assert [messages.view(fd, 4096, write=False)[0] for fd in got] == [
            i % 256 for i in range(450)
        ]
        assert not any(os.get_inheritable(fd) for fd in got)
        assert receive(other) == ("none", [])
        message, (fd,) = receive(other)
        assert message == list(range(1000))
        one.close()
        with pytest.raises(EOFError):
            receive(other)
        for each in (*fds, *got, fd):
            os.close(each)
    assert open_files() == before


def test_copies_of_arrays_are_kept_by_identity_as_long_as_the_arrays_live() -> None:
    made: deque[object] = deque()
    recent = Recent(lambda value: made.append(1) or Shared(value, None))  # type: ignore[arg-type, func-returns-value]
    x, y = np.ones(2), np.ones(2)
    assert recent.of(x) is recent.of(x) is not recent.of(y)
    assert len(made) == 2
    for _ in range(200):
        recent.of(np.ones(2))
    assert len(made) == 202
    assert len(recent._held) <= 64
    recent.of([1])
    recent.of([1])
    assert len(made) == 204
