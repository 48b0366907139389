"""What a transfer between two devices takes, recomputed pair by pair.

A direct link counts; without one the path does whose narrowest link is widest, among those the
one with the fewest hops, among those the one with the least latency. Where no links are stated,
the smaller bandwidth of the two classes counts, or that inside a cluster.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from dnnp.core.check.devices import split_name
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import LimitError
from dnnp.core.model.plan import Plan

MOST_STEPS = 3_000_000
"""Links that are looked at to find paths."""


class Path(NamedTuple):
    """What lies between two devices."""

    bandwidth: float
    latency: float


class Mesh:
    """The paths between the devices of a plan, found when they are asked for."""

    def __init__(self, plan: Plan) -> None:
        self._classes: Mapping[str, DeviceClass] = {d.name: d for d in plan.devices}
        self._links: dict[str, dict[str, Path]] = {}
        for link in plan.links:
            ends = self._links.setdefault(link.source, {})
            ends[link.target] = Path(link.bandwidth_bytes_per_s, link.latency_s)
        self._stated = bool(plan.links)
        self.path = cache(self._path)
        self.widest = cache(self._widest)
        self.shortest = cache(self._shortest)
        self._left = MOST_STEPS

    def time(self, source: str, target: str, size: float, stated: float) -> float | None:
        """Time of `size` bytes, or `stated` if that is a number; None: there is no path."""
        path = self.path(source, target)
        if path is None:
            return None
        if stated != stated:
            return path.latency + size / path.bandwidth
        ends = [self._classes.get(split_name(name)[0]) for name in (source, target)]
        free = all(end is not None and end.is_cpu for end in ends)
        return path.latency + (0.0 if free else stated)

    def _path(self, source: str, target: str) -> Path | None:
        if not self._stated:
            return self._by_class(source, target)
        direct = self._links.get(source, {}).get(target)
        if direct is not None:
            return direct
        widest = self.widest(source).get(target)
        if not widest:
            return None
        latency = self.shortest(source, widest).get(target)
        return None if latency is None else Path(widest, latency)

    def _by_class(self, source: str, target: str) -> Path | None:
        (a, i), (b, j) = split_name(source), split_name(target)
        one, other = self._classes.get(a), self._classes.get(b)
        if one is None or other is None or i is None or j is None:
            return None
        for level in one.levels if one is other else ():
            if i // level.size == j // level.size:
                return Path(level.bandwidth_bytes_per_s, 0.0)
        return Path(min(one.bandwidth_bytes_per_s, other.bandwidth_bytes_per_s), 0.0)

    def _widest(self, source: str) -> dict[str, float]:
        """Bandwidth of the widest path to every device (Dijkstra on the narrowest link)."""
        heap = [(-float("inf"), source)]
        done: dict[str, float] = {}
        while heap:
            width, name = heapq.heappop(heap)
            if name in done:
                continue
            done[name] = -width
            links = self._links.get(name, {})
            self._spend(len(links) + 1)
            for other, link in links.items():
                if other not in done:
                    heapq.heappush(heap, (max(width, -link.bandwidth), other))
        return done

    def _shortest(self, source: str, least: float) -> dict[str, float]:
        """Latencies over links of bandwidth `least` or more: fewest hops first, then latency."""
        heap = [(0, 0.0, source)]
        done: dict[str, float] = {}
        while heap:
            hops, latency, name = heapq.heappop(heap)
            if name in done:
                continue
            done[name] = latency
            links = self._links.get(name, {})
            self._spend(len(links) + 1)
            for other, link in links.items():
                if link.bandwidth >= least and other not in done:
                    heapq.heappush(heap, (hops + 1, latency + link.latency, other))
        return done

    def _spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise LimitError(
                f"not checkable: it takes more than {MOST_STEPS} steps to find the paths between "
                "the devices"
            )
