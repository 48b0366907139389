"""Workers of a run outside this process."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from dnnp.core.runtime.limits import allowed_bytes, allowed_seconds
from dnnp.core.runtime.pipeline.prepare import THREAD, open_pool
from dnnp.options.run import RunOptions

if TYPE_CHECKING:
    from dnnp.core.runtime.workers.pool import WorkerPool


def pool_of(
    options: RunOptions, *, by_device: bool
) -> AbstractContextManager[WorkerPool[Any] | None]:
    """The pool of the workers; None for threads."""
    if options.kind == THREAD:
        return nullcontext()
    from dnnp.core.runtime.workers.pool import Rules

    caller = options.caller
    rules = Rules(
        options.retries, allowed_seconds(), allowed_bytes(), caller.note,
        lambda: caller.interrupted, by_device,
    )  # fmt: skip
    return open_pool(options.kind, rules, options.ray_address)
