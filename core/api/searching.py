"""The run that a search goes about its work with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakSet

from dnnp.core.model.errors import LimitError
from dnnp.core.model.run import Run

if TYPE_CHECKING:
    from dnnp.caller import Caller

_told: WeakSet[Caller] = WeakSet()
"""Who is told when kernels are compiled."""


def run_of(
    caller: Caller, *, seed: int = 0, effort: float = 1.0, seconds: float | None = None
) -> Run:
    """A run for whoever asks, who is told of it too when kernels are compiled.

    `seconds`: after which it is over; None: no limit.
    """
    note_compiling(caller)
    return Run(
        seed,
        effort,
        interrupted=lambda: caller.interrupted,
        tell=caller.detail,
        warn=caller.warn,
    ).within(seconds)


@contextmanager
def with_bar(caller: Caller, run: Run) -> Iterator[Run]:
    """The same run, with a progress bar meanwhile.

    Raises
    ------
    KeyboardInterrupt
        It was interrupted before there was anything to show.
    """
    bar = caller.progress("searching", 100)
    caller.release()
    try:
        yield replace(run, progress=lambda share: bar.update(int(100 * share)))
    except LimitError:
        if caller.interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        bar.close()


def note_compiling(caller: Caller) -> None:
    """Say once when kernels are compiled from now on."""
    from dnnp.core.cost.kernel import when_compiling

    if caller in _told:
        return
    _told.add(caller)
    when_compiling(
        lambda: caller.note("compiling kernels; this happens once and takes up to a minute")
    )
