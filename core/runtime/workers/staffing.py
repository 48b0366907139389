"""The staffs by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dnnp.core.runtime.workers.staff import Rules, Staff

THREAD, PROCESS, RAY = "thread", "process", "ray"


@contextmanager
def staff_of(kind: str, rules: Rules, address: str | None = None) -> Iterator[Staff | None]:
    """A staff, closed after the block; None for threads, which need none.

    `address` is that of a Ray cluster; None: one that is started.
    """
    if kind == THREAD:
        yield None
        return
    staff: Staff
    if kind == RAY:
        from dnnp.core.runtime.workers.ray_staff import RayStaff

        staff = RayStaff(rules, address)
    else:
        from dnnp.core.runtime.workers.process import ProcessStaff

        staff = ProcessStaff(rules)
    try:
        yield staff
    finally:
        staff.close()
