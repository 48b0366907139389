"""The run that a search goes about its work with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING
from weakref import WeakSet

from dnnp.callbacks import Shown
from dnnp.core.kernels.kernel import interpret_again, is_cold, when_compiling
from dnnp.core.model.errors import LimitError
from dnnp.core.model.search_context import Run

if TYPE_CHECKING:
    from dnnp.callbacks import Caller
    from dnnp.core.methods import Method

FEW = 300
"""Units up to which a search makes do with less where its kernels are not compiled."""

USUAL = 40
"""Units up to which it takes all the effort that is said for it."""

MANY = 400
"""Units from which on kernels are surely worth loading."""

PATIENCE = 9.4
"""Times as many rounds before it compiles that such a search would rather not compile."""

_told: WeakSet[Caller] = WeakSet()
"""Callbacks that are told when kernels are compiled."""


def run_of(
    caller: Caller,
    *,
    seed: int = 0,
    effort: float = 1.0,
    seconds: float | None = None,
    since: float | None = None,
    patient: bool = False,
    units: int = 0,
    heavy: bool = False,
    in_seconds: bool = False,
    max_gap: float = 0.0,
) -> Run:
    """A run for whoever asks, who is told of it too when kernels are compiled.

    `seconds`: after which it is over, counted from when the caller had the input, or else from
    `since` on the clock of `time.monotonic`, or else from now; None: no limit. `patient`: it is to
    make do without kernels that are not compiled. `units`: of the problem, if it is known. `heavy`:
    it is worth loading them whatever the size. `in_seconds`, `max_gap`: see `Run`.
    """
    interpret_again(PATIENCE if patient else 1.0, load_soon=heavy or units >= MANY)
    note_compiling(caller)
    began = since if caller.began is None else caller.began
    if seconds is not None and began is not None:
        seconds -= monotonic() - began
    return Run(
        seed,
        effort,
        interrupted=lambda: caller.interrupted,
        tell=caller.detail,
        warn=caller.warn,
        in_seconds=in_seconds,
        max_gap=max_gap,
    ).within(seconds)


@contextmanager
def with_bar(caller: Caller, run: Run, doing: str = "searching") -> Iterator[Run]:
    """The same run, and whoever asks sees meanwhile where it stands."""
    bar = caller.progress(caller.about + doing, run.left())
    caller.release()
    with bar:
        yield replace(run, watch=Shown(bar, doing, caller.about).take)


@contextmanager
def or_interrupted(caller: Caller) -> Iterator[None]:
    """Say that it was interrupted, not which limit was met, where there is nothing to show.

    Raises
    ------
    KeyboardInterrupt
        It was interrupted before there was anything to show.
    """
    try:
        yield
    except LimitError:
        if caller.interrupted:
            raise KeyboardInterrupt from None
        raise


def little_effort(method: Method, kind: str, units: int) -> float | None:
    """The effort of a search of a small problem whose kernels are not compiled; None: they are.

    `kind`: which of the kinds of the method it is; `units`: the size of the problem. Rounds cost
    the more the more units there are.
    """
    kernel = method.kernel(kind) if units <= FEW else None
    if kernel is None or not is_cold(kernel):
        return None
    # In so many digits as are shown, so that --effort repeats it.
    return float(f"{method.little * min(1.0, USUAL / max(units, 1)):.2g}")


def is_heavy(method: Method, kind: str) -> bool:
    """Tell whether a method is mostly a kernel that is compiled, and surely worth loading."""
    kernel = method.kernel(kind)
    return kernel is not None and not is_cold(kernel)


def note_compiling(caller: Caller) -> None:
    """Say once when kernels are compiled from now on."""
    if caller in _told:
        return
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
