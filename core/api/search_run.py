"""Search contexts of a caller, and what it is told of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING
from weakref import WeakSet

from dnnp.callbacks import Shown
from dnnp.core.kernels.kernel import when_compiling
from dnnp.core.model.errors import LimitError
from dnnp.core.model.search_context import SearchContext

if TYPE_CHECKING:
    from dnnp.callbacks import Callbacks

_told: WeakSet[Callbacks] = WeakSet()
"""Callbacks that are told when kernels are compiled."""


def run_of(
    caller: Callbacks,
    *,
    seed: int = 0,
    effort: float = 1.0,
    seconds: float | None = None,
    since: float | None = None,
    in_seconds: bool = False,
    max_gap: float = 0.0,
) -> SearchContext:
    """Create a search context for a caller, and report compilation of kernels to it.

    `seconds`: after which it is over, counted from when the caller had the input, or else from
    `since` on the clock of `time.monotonic`, or else from now; None: no limit. `in_seconds`,
    `max_gap`: see `SearchContext`.
    """
    note_compiling(caller)
    began = since if caller.began is None else caller.began
    if seconds is not None and began is not None:
        seconds -= monotonic() - began
    return SearchContext(
        seed,
        effort,
        interrupted=lambda: caller.interrupted,
        log=caller.detail,
        warn=caller.warn,
        in_seconds=in_seconds,
        max_gap=max_gap,
    ).within(seconds)


@contextmanager
def with_bar(
    caller: Callbacks, run: SearchContext, doing: str = "searching"
) -> Iterator[SearchContext]:
    """Show the caller meanwhile where the search stands.

    Raises
    ------
    KeyboardInterrupt
        It was interrupted before there was anything to show, whichever limit was met.
    """
    bar = caller.progress(caller.about + doing, run.time_left())
    caller.release()
    try:
        with bar:
            yield replace(run, watch=Shown(bar, doing, caller.about).take)
    except LimitError:
        if caller.interrupted:
            raise KeyboardInterrupt from None
        raise


def note_compiling(caller: Callbacks) -> None:
    """Say once when kernels are compiled from now on."""
    if caller not in _told:
        _told.add(caller)
        when_compiling(lambda: caller.note(_compiling()))


def _compiling() -> str:
    """Message for when kernels are compiled."""
    from dnnp.core.kernels.folders import folders, writable

    if writable() is not None:
        return "compiling kernels; this happens once and takes up to a minute"
    return (
        f"compiling kernels, every time anew: nothing can be kept in "
        f"{' or '.join(map(str, folders()))}; set NUMBA_CACHE_DIR to a folder that can be written "
        "to, or run python -m dnnp.warm once where these can"
    )
