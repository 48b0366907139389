"""What the system tells of this machine's processor and memory."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_CPU = Path("/proc/cpuinfo")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
_COPIED = 1 << 26
_COPIES = 5


def cache_sizes() -> list[int]:
    """Bytes of the second-level cache and those beyond it, ascending; empty: not known."""
    sizes = set()
    for folder in _CACHES.glob("index*"):
        with suppress(OSError, ValueError, KeyError):
            level = int((folder / "level").read_text())
            text = (folder / "size").read_text().strip()
            if level > 1:
                sizes.add(int(text[:-1]) * _UNITS[text[-1]])
    return sorted(sizes)


def channel_block() -> int:
    """Channels in a block of ONNX Runtime's layout for convolutions on this processor.

    As `MlasNchwcGetBlockSize` has it: 16 with AVX-512, 8 with AVX2, else 4.
    """
    with suppress(OSError):
        found = re.search(r"^flags\s*:(.*)$", _CPU.read_text(errors="replace"), re.M)
        flags = set(found[1].split()) if found else set()
        if "avx512f" in flags:
            return 16
        if "avx2" in flags:
            return 8
    return 4


def memory_size() -> int:
    """Bytes of memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def copy_rate() -> float:
    """Bytes per second that one thread copies from memory to memory."""
    source = np.ones(_COPIED, dtype=np.uint8)
    target = np.empty_like(source)
    spent = []
    for _ in range(_COPIES):
        start = time.thread_time_ns()
        np.copyto(target, source)
        spent.append(time.thread_time_ns() - start)
    return _COPIED / (max(min(spent), 1) * 1e-9)
