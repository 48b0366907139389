"""Split a graph for several numbers of devices, which share what is read and what is found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from math import inf
from time import monotonic
from typing import Any

from dnnp.callbacks import CALLBACKS
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.errors import InfeasibleError, LimitError, UsageError
from dnnp.core.model.plan import CLOSED
from dnnp.core.split.ways import Curve
from dnnp.formats.header import stamped
from dnnp.formats.stream import Stream
from dnnp.graph import Graph
from dnnp.options.split import SplitOptions
from dnnp.problem import problem_of
from dnnp.reporting import advise, name_idle_options
from dnnp.splitting import Search, add_plan, found_by
from dnnp.workload import priced


def sweep(graph: Graph, counts: Iterable[int], **asked: Any) -> Iterator[Graph]:
    """Split a graph for several numbers of devices; yield a graph for each, in ascending order.

    Each is as `split` makes it with `k`, or better, but for windows as wide as those that took too
    long for fewer devices: the searches share what they find. `asked`: the other options of
    `split`. A limit of time is for all. A number that nothing fits is left out, with a warning;
    where nothing fits any, the error is that of the last. See `split` for errors.
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
    """Split a graph for several numbers of devices; yield each number and a stream with its plan.

    All are refused before the first is searched, or none. Once the caller is interrupted, the
    search at hand is the last. For errors see `split_stream`.
    """
    caller, problems = options.caller, dict[int, SplitProblem]()
    for flag in ("eval", "policy", "save_policy"):
        if getattr(options, flag) is not None:
            raise UsageError(f"--{flag.replace('_', '-')} is for one number of devices")
    with caller.interruptible(), caller.held():
        work = priced(stream, caller, reprice=options.reprice)
        for k in sorted(set(counts)):
            one = options.replaced(k=k, caller=CALLBACKS if problems else caller)
            problems[k] = problem_of(work, one)
        name_idle_options(options)
    began = monotonic() if caller.began is None else caller.began
    curve, last, most = Curve(), None, max(problems, default=0)
    planned: Stream | None = None
    error: InfeasibleError | LimitError | None = None
    missing = list[int]()
    for done, (k, problem) in enumerate(problems.items()):
        if caller.interrupted and not (last and k == most):
            missing.append(k)
            continue
        one = _timed(options, began, len(problems) - done)
        caller.about = f"k = {k}: "
        curve = curve if _alike(problem, options) else Curve()
        before = curve.value
        search: Search = partial(found_by, curve=None if problem.options.workload else curve)
        if last and k == most and last.value <= before * (1 + CLOSED):
            search = partial(lambda found, *_: found, last)
        made = replace(stream, header=dict(stream.header), records=dict(stream.records))
        try:
            with caller.interruptible():
                add_plan(work.at(made), problem, one, search=search)
                if not last and k < most and before * (1 - CLOSED) <= curve.value < inf:
                    # One more device was of no use: perhaps no number of them is.
                    caller.about, ahead = f"k = {most}: ", replace(curve)
                    last = found_by(problems[most], _timed(options, began, 2), ahead)
                    curve.bound = ahead.found.bound
        except (InfeasibleError, LimitError) as failure:
            caller.warn(f"k = {k}: {failure}")
            error = failure
            continue
        except KeyboardInterrupt:
            missing.append(k)
            continue
        planned = made
        yield k, made
    caller.about = ""
    if planned is not None:
        advise(planned, planned.get("plan")[0], caller)
    elif problems:
        raise error or KeyboardInterrupt
    if missing:
        caller.warn(f"interrupted: no plan for k = {', '.join(map(str, missing))}")


def _timed(options: SplitOptions, began: float, left: int) -> SplitOptions:
    """Give one of the searches that are left an equal share of the time that is."""
    if options.time_limit is None:
        return options
    spent = monotonic() - began
    share = max(options.time_limit - spent, 0.0) / left
    # A limit counts from when the input was there, if that is known.
    return options.replaced(time_limit=share + (spent if options.caller.began else 0.0))


def _alike(problem: SplitProblem, options: SplitOptions) -> bool:
    """True if splits and bounds hold for other numbers of devices, and are looked for."""
    apart = problem.links or problem.clustered or options.allow_replicas
    apart = apart or bool(problem.rules) or any(device.members for device in problem.devices)
    return options.methods == ("auto",) and options.objective != "latency" and not apart
