"""Packing: items over identical devices, by their times alone (P||Cmax); a bound and a search.

A load is at least the time of its items, whatever transfers, order and memory add. Without
replicas, over k devices:

count
    Let N = j k + r be a number of items with 0 < r <= k. Of the N longest ones either a device
    holds j + 2, or r devices hold j + 1 each. So a load is at least the sum of the j + 2 shortest
    of them, or the r-th part of that of the r (j + 1) shortest. For j = 0 and N <= k that is the
    longest item; for N = 1 mod k the classic bound (Dell'Amico and Martello, 1995).
sums
    A load is a sum of times. Where all times are multiples of one quantum, sums are few, and the
    bound rises to the next of them. For k = 2 that is the optimum.

Where nothing else binds, items are spread, longest first; pairs of devices are parted anew at a sum
nearest to half; a search over all assignments decides the loads that are left between.
"""

from __future__ import annotations

from math import floor, frexp, ldexp, log10
from typing import Any

import numpy as np

from dnnp.core.bounds.lower_bound import BITS, SMALLEST, BoundTask, LowerBound, items_for, refused
from dnnp.core.cost.items import Items, nets_of
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.graph import Floats, Ints, totals
from dnnp.core.model.plan import Block
from dnnp.core.model.search_context import PLAIN, SearchContext

DIGITS = 12
"""Decimal digits of times that are looked at for a common quantum."""

EXACT, LOWERED = 2.0**-44, 2.0**-43
"""Relative error of a time that counts as a multiple of the quantum; and by how much the quantum is
lowered, so that no multiple is rounded down."""

MOST_BITS, KEPT_BITS = 2**30, 2**27
"""Items times quanta of them all, up to which their sums are looked at, and are all kept."""

PAIRED = 64
"""Items of two devices that are parted anew: some of each length."""

MOST_PAIRS = 1_000
"""Pairs of devices that are parted anew."""

MOST_STEPS, STEP_BITS, SHOWN = 2_000_000, 2**14, 1_000
"""Steps of the search at effort 1: one for an assignment, and one for so many bits of its sums; and
between two reports."""


def packing_claim(
    problem: SplitProblem, known: BoundTask, run: SearchContext = PLAIN
) -> LowerBound:
    """The bound for one class of accelerators; where nothing else binds, also a split."""
    offered = [d for d in problem.devices if d.count > 0]
    if len(offered) != 1 or offered[0].is_cpu or problem.options.max_replicas != 1:
        return refused("only for one class of accelerators, without replicas")
    if problem.options.objective != "throughput":
        return refused(f"not for the objective {problem.options.objective}")
    times, items = problem.units.times_on(offered[0].name)[0], items_for(problem, known.validity)
    if not np.isfinite(times).all():
        return refused("a unit runs on no device that is offered")
    quantum, multiples = common_quantum(times)
    work = totals(items.label[problem.units.first], multiples, items.count).astype(np.int64)
    devices, exact = offered[0].count, bool(multiples.sum() * items.count <= MOST_BITS)
    units = counted(work, devices)
    if exact:
        units = next_sum(work.tolist(), units)
    claim: dict[str, Any] = {"argument": "packing", "quantum": quantum, "units": units}
    claim["kind"] = "sums" if exact else "count"
    met = run.gap_reached(known.value, units * quantum)
    if met or not _is_free(problem, items, known.validity):
        return LowerBound(float(np.nextafter(units * quantum, 0.0)), certificate=claim)
    packing = Packing(work, devices, units, run)
    packing.search()
    if packing.bound > units:  # the next sum is proven by a search
        claim |= {"units": packing.bound, "steps": packing.steps, "checkable": False}
    blocks = _blocks(problem, items, packing.device)
    value = float(np.nextafter(packing.bound * quantum, 0.0))  # the product may be rounded up
    return LowerBound(value, certificate=claim, blocks=blocks)


def common_quantum(times: Floats) -> tuple[float, Floats]:
    """A quantum, and times in whole quanta, rounded down: all are multiples if that is possible."""
    longest = float(times.max(initial=0.0))
    if longest > ldexp(1.0, SMALLEST + BITS):
        unit = 10.0 ** (floor(log10(longest)) - DIGITS + 1)
        whole = np.rint(times / unit).astype(np.int64)
        divisor = int(np.gcd.reduce(whole))
        multiples, quantum = whole // divisor, divisor * unit
        if (np.abs(multiples * quantum - times) <= EXACT * times).all():
            return quantum * (1 - LOWERED), multiples.astype(np.float64)
    exponent = frexp(float(times.sum()))[1] - BITS if longest > 0 else 0
    quantum = ldexp(1.0, max(exponent, SMALLEST))
    return quantum, np.floor(times / quantum)


def counted(work: Ints, devices: int) -> int:
    """The best bound by counts, for every number of longest items; `work` in quanta."""
    if not len(work):
        return 0
    summed = np.append(0, np.cumsum(np.sort(work)[::-1]))
    most = np.arange(1, len(work) + 1)
    each = (most - 1) // devices
    full = most - each * devices
    shared = -((summed[most - full * (each + 1)] - summed[most]) // full)
    crowded = summed[most] - summed[np.maximum(most - each - 2, 0)]
    least = np.where(each + 2 <= most, np.minimum(shared, crowded), shared)
    return max(int(least.max()), -(-int(summed[-1]) // devices))


def next_sum(work: list[int], least: int) -> int:
    """The least sum of some of these numbers from `least` on, which all of them reach."""
    sums = 1
    for one in work:
        sums |= sums << one
    sums >>= least
    return least + (sums & -sums).bit_length() - 1


def _is_free(problem: SplitProblem, items: Items, validity: str) -> bool:
    """True if items may stand anywhere: no order holds between them, and nothing is transferred."""
    if validity != "free" and len(items.tail):
        return False
    nets, tensors = nets_of(problem.graph, items.label, items.count, problem.options)
    sent, size = problem.graph.transfer_s[tensors], problem.graph.tensor_bytes[tensors]
    return not (np.where(np.isnan(sent), size, sent) * (nets.sizes + nets.always > 1)).any()


def _blocks(problem: SplitProblem, items: Items, device: Ints) -> list[Block] | None:
    """Stages of the items of each device; None: they do not fit."""
    offered = next(d for d in problem.devices if d.count > 0)
    order = problem.graph.order
    of_node = device[items.label[order]]
    blocks = [Block(order[of_node == d], offered) for d in np.unique(device).tolist()]
    try:
        problem.value(blocks)
    except InfeasibleError:
        return None
    return blocks


class Packing:
    """The search for a packing of whole times whose largest load is least."""

    def __init__(self, work: Ints, devices: int, bound: int, run: SearchContext = PLAIN) -> None:
        self.work, self.devices, self.bound, self.run = work.tolist(), devices, bound, run
        self.order = np.argsort(-work, kind="stable").tolist()
        self.device = np.zeros(len(work), dtype=np.int64)
        """Device of each item, in the best packing so far."""
        self.steps = 0
        self.each = 1 + devices * sum(self.work) // STEP_BITS
        """Steps of an assignment."""

    @property
    def loads(self) -> list[int]:
        """Load of each device."""
        return totals(self.device, np.array(self.work), self.devices).astype(np.int64).tolist()

    def search(self) -> None:
        """Find a packing, and raise the bound while that takes few steps."""
        loads = [0] * self.devices
        for item in self.order:
            least = loads.index(min(loads))
            self.device[item], loads[least] = least, loads[least] + self.work[item]
        for _ in range(MOST_PAIRS):
            if self._ends() or not self._pair():
                break
        while len(self.work) * sum(self.work) <= KEPT_BITS and not self._ends():
            found = self._within(self.bound)
            if found is None:
                break
            if not found:
                self.bound = next_sum(self.work, self.bound + 1)

    def _ends(self) -> bool:
        """True if the packing is good enough, or the run is to stop."""
        return self.run.gap_reached(max(self.loads), self.bound) or self.run.stop()

    def _pair(self) -> bool:
        """Part the fullest device and another one anew; False: no pair gets better."""
        loads = self.loads
        first = loads.index(max(loads))
        for other in sorted(range(self.devices), key=loads.__getitem__):
            both = np.flatnonzero((self.device == first) | (self.device == other)).tolist()
            both.sort(key=self.work.__getitem__)
            items = both[:: -(-len(both) // PAIRED)]
            if len(items) * sum(self.work[i] for i in items) > KEPT_BITS:
                return False
            fixed = loads[first] - sum(self.work[i] for i in items if self.device[i] == first)
            half = (loads[first] + loads[other]) // 2 - fixed
            chosen = _nearest([self.work[i] for i in items], max(half, 0))
            moved = fixed + sum(self.work[items[i]] for i in chosen)
            if max(moved, loads[first] + loads[other] - moved) < loads[first]:
                self.device[items] = other
                self.device[[items[i] for i in chosen]] = first
                return True
        return False

    def _within(self, most: int) -> bool | None:
        """Search a packing with no load above `most`; None: it takes too long."""
        work, order, n = self.work, self.order, len(self.work)
        rest = [1]  # sums of the last items
        for item in reversed(order):
            rest.append(rest[-1] | rest[-1] << work[item])
        left = [0, *np.cumsum([work[i] for i in reversed(order)]).tolist()]
        chosen: list[int] = []
        loads, waiting = [0] * self.devices, [iter(self._choices([0] * self.devices, 0, most))]
        while waiting:
            depth = len(waiting) - 1
            d = next(waiting[-1], -1)
            if d < 0:
                waiting.pop()
                if chosen:
                    loads[chosen.pop()] -= work[order[depth - 1]]
                continue
            self.steps += self.each
            if self.steps // SHOWN > (self.steps - self.each) // SHOWN:
                self.run.report_progress(
                    share=min(self.steps / (MOST_STEPS * self.run.effort), 1.0)
                )
            if self.steps > MOST_STEPS * self.run.effort or self.run.stop():
                return None
            loads[d] += work[order[depth]]
            chosen.append(d)
            if depth + 1 == n:
                self.device[order] = chosen
                return True
            behind = n - depth - 1
            room = sum(_filled(rest[behind], most - load) for load in loads)
            more = self._choices(loads, depth + 1, most) if room >= left[behind] else []
            waiting.append(iter(more))
        return False

    def _choices(self, loads: list[int], depth: int, most: int) -> list[int]:
        """Devices that may take the next item, one of each load, the fullest first."""
        one = self.work[self.order[depth]]
        fits = {load: d for d, load in enumerate(loads) if load + one <= most}
        return [fits[load] for load in sorted(fits, reverse=True)]


def _filled(sums: int, room: int) -> int:
    """The largest of the sums, bits of a number, that is at most `room`."""
    return (sums & ((2 << room) - 1)).bit_length() - 1


def _nearest(work: list[int], goal: int) -> list[int]:
    """Indices of numbers whose sum is nearest to a goal, from below if two are."""
    sums = [1]
    for one in work:
        sums.append(sums[-1] | sums[-1] << one)
    below = _filled(sums[-1], goal)
    above = next_sum(work, goal) if goal <= sum(work) else below
    left = below if goal - below <= above - goal else above
    chosen = []
    for i in range(len(work) - 1, -1, -1):
        if not sums[i] >> left & 1:
            chosen.append(i)
            left -= work[i]
    return chosen
