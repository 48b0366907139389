"""What is asked of a search, and the run that it goes about it with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from dnnp.core.model.errors import LimitError
from dnnp.core.model.run import Run

if TYPE_CHECKING:
    from dnnp.caller import Caller
    from dnnp.core.model.asked import Asked
    from dnnp.core.portfolio.arguments import Ask
    from dnnp.core.portfolio.problem import Request

_told: WeakSet[Caller] = WeakSet()
"""Who is told when kernels are compiled."""


@contextmanager
def searching(
    caller: Caller,
    *,
    seed: int = 0,
    effort: float = 1.0,
    seconds: float | None = None,
    label: str = "",
) -> Iterator[Run]:
    """A run for whoever asks, over after so many seconds; with a progress bar if it has a label.

    Raises
    ------
    KeyboardInterrupt
        It was interrupted before there was anything to show.
    """
    tell_of_kernels(caller)
    bar = caller.progress(label, 100) if label else None
    run = Run(
        seed,
        effort,
        interrupted=lambda: caller.interrupted,
        tell=caller.detail,
        warn=caller.warn,
        progress=lambda share: None if bar is None else bar.update(int(100 * share)),
    ).within(seconds)
    caller.release()
    try:
        yield run
    except LimitError:
        if caller.interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        if bar is not None:
            bar.close()


def tell_of_kernels(caller: Caller) -> None:
    """Tell who asks, once, when kernels are compiled."""
    from dnnp.core.cost.kernel import when_compiling

    if caller in _told:
        return
    _told.add(caller)
    when_compiling(
        lambda: caller.note("compiling kernels; this happens once and takes up to a minute")
    )


def request_of(asked: Asked, run: Run) -> Request:
    """The same, as searches take it that know no `Run`."""
    from dnnp.core.portfolio.problem import Request

    return Request(
        order=asked.order,
        seed=run.seed,
        effort=run.effort,
        stop=run.stop,
        warn=run.warn,
        method=asked.method,
        sequence=asked.sequence,
        priorities=asked.priorities,
        samples=asked.samples,
        evolution=asked.evolution,
        validity=asked.validity,
        solver=asked.solver,
        least_peak=asked.least_peak,
        time_left=run.left,
        progress=run.progress,
        tell=run.tell,
    )


def ask_of(validity: str, blocks: Any, value: float, solver: str, run: Run) -> Ask:
    """What is asked of a bound, as arguments take it that know no `Run`."""
    from dnnp.core.portfolio.arguments import Ask

    return Ask(
        validity,
        blocks,
        value,
        solver=solver,
        effort=run.effort,
        stop=run.stop,
        time_left=run.left,
        tell=run.tell,
        warn=run.warn,
        progress=run.progress,
    )
