"""Blocks of shared memory: lent to one tensor or several, and used again after the last reader."""

from __future__ import annotations

import itertools
import math
import os
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from threading import Lock
from typing import Any, Protocol

import numpy as np

from dnnp.core.model.errors import LimitError
from dnnp.core.model.text import shown_bytes
from dnnp.core.runtime.workers.tensors import (
    BlockId,
    Plain,
    Ref,
    layout,
    nbytes,
    reserve,
    value_at,
    view,
    write_at,
)

WASTE = 4
"""A block is lent to what takes at least this part of it, or all of a small one."""

SMALL = 1 << 16

SPARE = 16
"""Blocks of other sizes that a pool keeps while nobody wants them."""


class Reader(Protocol):
    """Somebody else who has blocks in view."""

    def forget(self, block: BlockId) -> None:
        """The block is not used any more."""


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


class Block:
    """Shared memory of this process, or taken over from another one."""

    def __init__(self, number: BlockId, fd: int, size: int) -> None:
        self.number, self.fd, self.size = number, fd, size
        self.readers: list[Reader] = []
        """Who was given its descriptor."""
        self._view: memoryview | None = None

    def view(self) -> memoryview:
        """Its bytes, to write and to read."""
        if self._view is None:
            self._view = view(self.fd, self.size, write=True)
        return self._view

    def close(self) -> None:
        """Give it up; the memory is free when nobody has it in view."""
        os.close(self.fd)
        for reader in self.readers:
            reader.forget(self.number)
        self.readers.clear()
        self._view = None


class Lease:
    """The use of a block; the pool has it back when this is gone."""

    __slots__ = ("_pool", "block")

    def __init__(self, block: Block, pool: Pool) -> None:
        self.block, self._pool = block, pool

    def __del__(self) -> None:
        self._pool.take_back(self.block)


class Shared:
    """A value in shared memory, as long as somebody refers to it."""

    __slots__ = ("lease", "ref")

    def __init__(self, ref: Ref, lease: Lease) -> None:
        self.ref, self.lease = ref, lease

    @property
    def nbytes(self) -> int:
        """Bytes of a tensor; of anything else, of its pickle."""
        return nbytes(self.ref.dtype or np.dtype(np.uint8), self.ref.shape)

    def fetch(self) -> Any:
        """The value, in memory of its own."""
        value = value_at(self.lease.block.view(), self.ref)
        return value.copy() if isinstance(value, np.ndarray) else value


_numbers = itertools.count()


class Pool:
    """Blocks that one worker writes."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._returned: deque[Block] = deque()
        """Blocks that are free."""
        self._lock = Lock()
        self._closed = False

    def lease(self, size: int) -> Lease:
        """A block of at least so many bytes; raises `InputFileError` or `LimitError`."""
        with self._lock:
            free = sorted((self._returned.popleft() for _ in range(len(self._returned))),
                          key=lambda block: block.size)  # fmt: skip
            most = max(WASTE * size, SMALL)
            fit = next((b for b in free if size <= b.size <= most), None)
            if fit is not None:
                free.remove(fit)
            while fit is None and (len(free) >= SPARE or (free and self._lacks(size))):
                self._drop(free.pop(0))
            self._returned.extend(free)
            if fit is None:
                size = -(-size // 4096) * 4096
                self._budget.take(size)
                try:
                    fit = Block(next(_numbers), reserve(size), size)
                except BaseException:
                    self._budget.give(size)
                    raise
            return Lease(fit, self)

    def take_back(self, block: Block) -> None:
        """Nobody uses a block any more; called at any moment, so that it takes no lock."""
        self._returned.append(block)
        if self._closed:
            self.close()

    def adopt(self, number: BlockId, fd: int, size: int, writer: Reader) -> Lease:
        """A block that the worker has made; raises `LimitError`."""
        try:
            self._budget.take(size)
        except LimitError:
            os.close(fd)
            raise
        block = Block(number, fd, size)
        block.readers.append(writer)
        return Lease(block, self)

    def put(self, values: Sequence[Plain]) -> list[Shared]:
        """Copy values into blocks."""
        places, sizes = layout([value.data.nbytes for value in values])
        leases = [self.lease(size) for size in sizes]
        shared = []
        for value, (i, offset) in zip(values, places, strict=True):
            ref = Ref(leases[i].block.number, offset, value.dtype, value.shape)
            write_at(leases[i].block.view(), ref, value.data)
            shared.append(Shared(ref, leases[i]))
        return shared

    def close(self) -> None:
        """Give up all blocks, those that are in use as soon as they are free."""
        self._closed = True
        with suppress(IndexError):
            while True:
                self._drop(self._returned.popleft())

    def _lacks(self, size: int) -> bool:
        return self._budget.held_bytes + size > self._budget.most_bytes

    def _drop(self, block: Block) -> None:
        block.close()
        self._budget.give(block.size)
