"""Options of what builds on a plan: bounds and schedules."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING

from dnnp.core.methods.bounds import BOUNDS
from dnnp.core.methods.schedules import ALL_SHAPES, SCHEDULES
from dnnp.options.split import SOLVERS, DeviceOptions, check_highs
from dnnp.options.table import MAX_GAP, Options, option

if TYPE_CHECKING:
    from dnnp.core.model.schedule import Placement
    from dnnp.formats.stream import Stream


class BoundOptions(DeviceOptions, first=True):
    """Options of a proof; the devices are for a graph without a plan, which is split first."""

    # fmt: off
    method: str = option(
        "auto", choices=tuple(BOUNDS), metavar="NAME", group="method", page=True,
        help="how to prove it (default: auto)")
    validity: str | None = option(
        choices=("ordered", "convex", "free"), page=True,
        help="the splits that the bound is to hold for; ordered, convex or free (default: the "
        "plan's); not stronger than the plan's")
    solver: str | None = option(
        choices=SOLVERS, page=True,
        help="cbc (default) or highs; solves integer programs")
    time_limit: float | None = option(
        least=0, unit="duration", metavar="T", page=True,
        help="time, then the best bound; seconds, or such as 2m (default: none, but 60 seconds "
        "for all integer programs together)")
    max_gap: float = option(
        MAX_GAP, least=0, most=1, metavar="X", page=True,
        help="stop at this relative gap (default: 0.0001; 0: search to the end)")
    effort: float = option(
        1.0, above=0, metavar="X", page=True,
        help="scale the work of endless searches (default: 1)")
    seed: int = option(
        0, least=0, metavar="N",
        help="seed of the search for a plan, where there is none (default: 0)")
    timings: bool = option(False, flag="", help="keep the time that each argument took")
    # fmt: on

    def check(self) -> None:
        """Refuse what makes no sense, and a solver that is not there."""
        super().check()
        if self.solver == "highs":
            check_highs()


class ScheduleOptions(Options):
    """Options of a schedule: what is scheduled, and how."""

    # fmt: off
    micro_batches: int = option(
        32, short="-n", least=1, metavar="N", page=True,
        help="micro-batches, or samples (default: 32)")
    shape: str | None = option(
        choices=ALL_SHAPES, apart="shape", metavar="SHAPE",
        group="what to schedule, instead of the plan of a stream", page=True,
        help="V, X, M, NN, K, ...; a placement from the literature: V: one stage a device; X: V "
        "and its mirror image; M: V between shared blocks; NN: M with another one in the "
        "middle; K: two branches; NN-eager: NN with that one after the first stage; "
        "multi-modal: after the last stage; fine-tuning: M whose first block is not trained; "
        "AlphaFold: three passes, the last one trained; VV: two stages a device, there and back")
    devices: int | None = option(
        needs=("--shape",), least=0, most=4096, metavar="D", page=True,
        help="devices of the shape (default: 4)")
    inference: bool = option(
        False, needs=("--shape",), help="a shape without backward passes and memory")
    forward_time: float | None = option(
        needs=("--shape",), least=0, metavar="T",
        help="forward block of a shape (default: 1)")
    backward_time: float | None = option(
        needs=("--shape",), least=0, metavar="T",
        help="backward block of a shape (default: 3, fine-tuning: 2, AlphaFold: 1)")
    shared_time: float | None = option(
        needs=("--shape",), least=0, metavar="T",
        help="block of a shape that all devices share (default: 1)")
    placement: str | os.PathLike[str] | None = option(
        apart="shape", metavar="FILE", page=True,
        help="placement file; see dnnp-graph(5); - is standard input")
    memory: float | str | None = option(
        above=0, unit="size", metavar="BYTES", group="devices and transfers", page=True,
        help="most that a device may hold, such as 16G; default: as the plan or the placement "
        "says")
    transfers: str = option(
        "model", choices=("model", "none", "blocking", "non-blocking"), page=True,
        help="model (default), none, blocking or non-blocking; model: as the plan's cost model "
        "has them, non-blocking where a placement states them; blocking: both devices wait for "
        "a transfer; non-blocking: it takes a link only")
    transfer_time: float | None = option(
        needs=("--transfers blocking|non-blocking",), least=0, metavar="T",
        help="time of every transfer between two devices (default: what plan or placement say)")
    latency: float | None = option(
        needs=("--transfers blocking|non-blocking",), least=0, metavar="T",
        help="time after which a transfer arrives, on top")
    split_backward: float | None = option(
        least=0, most=1, const=0.5, metavar="SHARE",
        help="split backward blocks; the part that only weights need takes this share of the "
        "time (default: 0.5)")
    method: str = option(
        "auto", choices=tuple(SCHEDULES), metavar="NAME", group="how", page=True,
        help="how to find the schedule (default: auto)")
    unroll: int | None = option(
        needs=("--method auto",), least=1, metavar="U",
        help="micro-batches in a period (default: 1, up to 4 where that leaves a gap)")
    pareto: bool = option(
        False, page=True,
        help="also the least period for every limit of memory; that makes a difference")
    max_micro_batches: int | None = option(
        needs=("--method tessel",), least=1, metavar="N", tuning=True,
        help="tessel: micro-batches that a repetend may hold blocks of (default: as memory "
        "allows)")
    eager: bool = option(
        False, needs=("--method tessel",), tuning=True,
        help="tessel: complete every better repetend, not only the best")
    time_limit: float | None = option(
        least=0, unit="duration", metavar="T", page=True,
        help="time, then the best schedule found; seconds, or such as 2m")
    max_gap: float = option(
        MAX_GAP, least=0, most=1, metavar="X", page=True,
        help="stop at this relative gap (default: 0.0001; 0: search to the end)")
    effort: float = option(
        1.0, above=0, metavar="X",
        help="scale the work of searches that would not end (default: 1)")
    # fmt: on

    @cached_property
    def given(self) -> Placement | None:
        """The shape, or what the placement file holds; None: the plan of a graph is scheduled."""
        if self.shape is not None:
            from dnnp.core.schedule.shapes import shape

            return shape(
                self.shape,
                4 if self.devices is None else self.devices,
                inference=self.inference,
                forward_s=1.0 if self.forward_time is None else self.forward_time,
                backward_s=self.backward_time,
                shared_s=1.0 if self.shared_time is None else self.shared_time,
            )
        if self.placement is None:
            return None
        from dnnp.formats.inputs.placement import read_placement

        path = os.fspath(self.placement)
        data = self.caller.read_input(path)
        return read_placement(data, "<stdin>" if path == "-" else path)

    def stream(self) -> Stream | None:
        """The stream to which the schedule of a shape or of a placement file is added."""
        if self.given is None:
            return None
        from dnnp.formats.schedule import placement_stream

        return placement_stream(self.given.name)
