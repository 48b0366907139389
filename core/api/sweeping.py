"""Split a graph for several numbers of devices, which share what is read and what is found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from math import inf
from time import monotonic
from typing import Any

from dnnp.callbacks import CALLER
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.errors import InfeasibleError, LimitError, UsageError
from dnnp.core.model.plan import CLOSED
from dnnp.core.split.curve import Curve
from dnnp.formats.header import stamped
from dnnp.formats.stream import Stream
from dnnp.graph import Graph
from dnnp.options.split import SplitOptions
from dnnp.plans.compare_methods import Found
from dnnp.plans.problem import problem_of
from dnnp.splitting import add_plan, advise, found_by, name_idle_options


def sweep(graph: Graph, counts: Iterable[int], **asked: Any) -> Iterator[Graph]:
    """Split a graph for several numbers of devices, in ascending order; a graph for each.

    Each is as `split` makes it with `k`, or better: the searches share what they find. `asked`: the
    other options of `split`. A limit of time is for all. A number of devices that nothing fits is
    left out, with a warning; for errors see `split`, which come where nothing fits any number.

    Raises
    ------
    UsageError
        Options that are for one plan.
    """
    options = SplitOptions(**asked)
    options.check()
    for k, stream in sweep_stream(graph.stream(), counts, options):
        words = options.replaced(k=k).words()
        stream.header = stamped(stream.header, "dnnp-partition", words)
        yield Graph(stream)


def sweep_stream(
    stream: Stream, counts: Iterable[int], options: SplitOptions
) -> Iterator[tuple[int, Stream]]:
    """Split a graph for each of these numbers of devices; the numbers and streams with plans.

    All problems are stated, and refused, before the first is searched. Once the caller is
    interrupted, the search at hand is the last. For errors see `sweep`.
    """
    caller, counts = options.caller, sorted(set(counts))
    for name in ("eval", "policy", "save_policy"):
        if getattr(options, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} is for one number of devices: give -k one")
    problems: dict[int, SplitProblem] = {}
    with caller.interruptible(), caller.held():
        like = None
        for k in counts:
            one = options.replaced(k=k, caller=CALLER if problems else caller)
            problems[k] = like = problem_of(stream, one, like)
        name_idle_options(options)
    return _plans(stream, problems, options)


def _plans(
    stream: Stream, problems: dict[int, SplitProblem], options: SplitOptions
) -> Iterator[tuple[int, Stream]]:
    """Search each problem; see `sweep_stream`."""
    caller, most = options.caller, max(problems)
    began = monotonic() if caller.began is None else caller.began
    curve = Curve() if _alike(problems[most], options) else None
    last: Found | None = None
    planned, error = None, None
    missing = list[int]()
    for done, (k, problem) in enumerate(problems.items()):
        if caller.interrupted and not (last and k == most):
            missing.append(k)
            continue
        one = _timed(options, began, len(problems) - done)
        made = replace(stream, header=dict(stream.header), records=dict(stream.records))
        before = curve.value if curve else inf
        try:
            with caller.interruptible():
                if k < most or last is None or last.plan.value > before * (1 + CLOSED):
                    found = _search(problem, curve)
                else:
                    found = _given(last)
                add_plan(made, problem, one, search=found)
                if curve and last is None and k < most and curve.value >= before * (1 - CLOSED):
                    # If another device was of no use, perhaps no number of them is.
                    ahead = replace(curve)
                    last = found_by(problems[most], _timed(options, began, 2), ahead)
                    curve.bound = ahead.proven
        except (InfeasibleError, LimitError) as failure:
            caller.warn(f"k = {k}: {failure}")
            error = failure
            continue
        except KeyboardInterrupt:
            missing.append(k)
            continue
        planned = made
        yield k, made
    if planned is not None:
        advise(planned, planned.get("plan")[0], caller)
        if missing:
            caller.warn(f"interrupted: no plan for k = {', '.join(map(str, missing))}")
    elif error is not None:
        raise error
    elif missing:
        raise KeyboardInterrupt


def _search(problem: SplitProblem, curve: Curve | None) -> Callable[[SplitOptions], Found]:
    """Search a problem by one method."""
    return lambda one: found_by(problem, one, curve)


def _given(found: Found) -> Callable[[SplitOptions], Found]:
    """Take what was found before."""
    return lambda _: found


def _timed(options: SplitOptions, began: float, left: int) -> SplitOptions:
    """Give one of the searches that are left an equal share of the time that is."""
    if options.time_limit is None:
        return options
    spent = monotonic() - began
    share = max(options.time_limit - spent, 0.0) / left
    # A limit counts from when the input was there, if that is known.
    return options.replaced(time_limit=share + (spent if options.caller.began else 0.0))


def _alike(problem: SplitProblem, options: SplitOptions) -> bool:
    """Test whether splits and bounds hold for other numbers of devices, and are looked for."""
    if options.methods != ("auto",) or options.objective == "latency" or options.parallel:
        return False
    return not (problem.links or problem.clustered or options.allow_replicas)
