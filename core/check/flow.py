"""Largest flows in whole numbers, for whoever verifies minimum cuts."""

from __future__ import annotations

from collections.abc import Sequence

from dnnp.core.check.fields import Budget, UnprovenError

SOURCE, SINK = -1, -2


class Network:
    """Arcs with what they may still carry."""

    def __init__(self) -> None:
        self.arcs: dict[int, list[int]] = {SOURCE: [], SINK: []}
        """Numbers of the arcs from each node; the reverse of arc i is i ^ 1."""
        self.head: list[int] = []
        self.left: list[int | None] = []
        """None: unlimited."""

    def add(self, tail: int, head: int, capacity: int | None) -> None:
        """An arc; one that carries nothing is left out."""
        if capacity == 0:
            return
        for a, b, room in ((tail, head, capacity), (head, tail, 0)):
            self.arcs.setdefault(a, []).append(len(self.head))
            self.head.append(b)
            self.left.append(room)

    def carries(self, wanted: int, budget: Budget) -> bool:
        """Whether so much flows from the source to the sink."""
        return self.flow(wanted, budget) >= wanted

    def flow(self, wanted: int | None, budget: Budget) -> int:
        """What flows from the source to the sink (Dinic); where it is as `wanted`, perhaps more."""
        flow = 0
        while wanted is None or flow < wanted:
            level = self._levels(budget)
            if SINK not in level:
                return flow
            at = dict.fromkeys(level, 0)
            path: list[int] = []
            node = SOURCE
            while True:
                budget.spend(1)
                if node == SINK:
                    flow += self._push(path)
                    path, node = [], SOURCE
                    continue
                arc = self._next(node, level, at)
                if arc is not None:
                    path.append(arc)
                    node = self.head[arc]
                elif not path:
                    break
                else:
                    level[node] = -1
                    node = self.head[path.pop() ^ 1]
                    at[node] += 1
        return flow

    def _levels(self, budget: Budget) -> dict[int, int]:
        """Distance of what the source still reaches."""
        level = {SOURCE: 0}
        waiting = [SOURCE]
        for node in waiting:
            budget.spend(1)
            for arc in self.arcs[node]:
                if self.left[arc] != 0 and self.head[arc] not in level:
                    level[self.head[arc]] = level[node] + 1
                    waiting.append(self.head[arc])
        return level

    def _next(self, node: int, level: dict[int, int], at: dict[int, int]) -> int | None:
        """An arc to the next level that carries more, if there is one."""
        arcs = self.arcs[node]
        for place in range(at[node], len(arcs)):
            arc = arcs[place]
            if self.left[arc] != 0 and level.get(self.head[arc], -1) == level[node] + 1:
                at[node] = place
                return arc
        at[node] = len(arcs)
        return None

    def _push(self, path: Sequence[int]) -> int:
        """Send what a path may carry; source and sink have limited arcs between them."""
        rooms = [room for room in (self.left[arc] for arc in path) if room is not None]
        if not rooms:
            raise UnprovenError("nothing limits a flow")
        amount = min(rooms)
        for arc in path:
            for changed, more in ((arc, -amount), (arc ^ 1, amount)):
                room = self.left[changed]
                if room is not None:
                    self.left[changed] = room + more
        return amount
