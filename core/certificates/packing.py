"""Verify the bound `packing`: what items take by themselves, on devices that are alike.

Of the N = j k + r longest items, 0 < r <= k, either one of the k devices holds j + 2, or r of them
hold j + 1 each: with fewer there is no place for all. A load is a sum of times of items; where the
count does not prove enough, no such sum may lie between it and the bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dnnp.core.certificates.cuts import one_class
from dnnp.core.certificates.exact import WORD, Exact, UnprovenError, field


def packing_units(exact: Exact, certificate: Mapping[str, Any], bound: int) -> int:
    """Quanta that counts of items prove, or `bound` if no sum of items is between."""
    name = one_class(exact, overlapping=True)
    work = [0] * exact.n
    for item, time in zip(exact.item_of, exact.unit_work[name], strict=True):
        if time is None:
            raise UnprovenError("a unit runs on no device that is offered")
        work[item] += time
    work.sort(reverse=True)
    devices, total = exact.devices[name].count, sum(work)
    proven = -(-total // devices)
    before = [0]  # sums of the longest
    for time in work:
        before.append(before[-1] + time)
        most = len(before) - 1
        j, r = (most - 1) // devices, (most - 1) % devices + 1
        shared = before[most] - before[most - r * (j + 1)]
        least = -(-shared // r)
        if j + 2 <= most:
            least = min(least, before[most] - before[most - j - 2])
        proven = max(proven, least)
    kind = field(certificate, "kind", str)
    if kind not in ("count", "sums"):
        raise UnprovenError("it is neither by count nor by sums")
    if kind == "count" or proven >= bound or bound > total:
        return proven
    exact.budget.spend(len(work) * (1 + bound // WORD))
    sums, mask = 1, (1 << bound) - 1
    for time in work:
        sums |= (sums << min(time, bound)) & mask
    return proven if sums >> proven else bound
