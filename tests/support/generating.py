"""Random small decoders with states and phases, and their best split by trying all."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations, product
from typing import Any, NamedTuple

from dnnp.formats.stream import Stream, read_bytes

BANDWIDTH = 10.0


class Link(NamedTuple):
    """A link between two devices."""

    rate: float
    latency: float = 0.0


def random_decoder(seed: int, *, phased: bool) -> Stream:
    """A priced graph of a few nodes with states; with a prompt and a range of tokens, if asked."""
    rng = random.Random(seed)
    n = rng.randint(3, 6)
    tensors: list[dict[str, Any]] = [
        {"id": v, "name": f"t{v}", "kind": "activation", "size_bytes": rng.randint(1, 9)}
        for v in range(n)
    ]
    reads = [sorted(rng.sample(range(v), min(v, rng.randint(0, 2)))) for v in range(n)]
    states = []
    for i, maker in enumerate(rng.sample(range(n), rng.randint(1, 2))):
        tensors.append({"id": n + i, "name": f"s{i}", "kind": "input", "size_bytes": 4})
        for reader in {maker, rng.randrange(n)}:
            reads[reader].append(n + i)
        tensors[maker] |= {"output": True, "size_bytes": 4}
        record = {"id": i, "name": f"s{i}", "input": n + i, "output": maker, "rows": 2}
        record |= {"sequence_bytes": rng.randint(0, 3), "token_bytes": rng.randint(0, 3)}
        states.append(record | {"tokens": 2, "shared": rng.random() < 0.5})
    nodes = [
        {"id": v, "name": f"n{v}", "op": "Op", "inputs": reads[v], "outputs": [v],
         "time_s": {"acc": rng.randint(1, 9)}}
        for v in range(n)
    ]  # fmt: skip
    phases = []
    if phased:
        prompt = {"name": "prompt", "rows": 1, "seq": 8, "past": 0}
        token = {"name": "token", "rows": 2, "seq": 1}
        phases = [{"id": 0, **prompt}]
        for past in (8, 20):
            sizes = [t["size_bytes"] if "kind" == "input" else rng.randint(1, 9) for t in tensors]
            phases.append({
                "id": len(phases), **token, "past": past, "sizes": sizes,
                "shapes": [[-1]] * len(tensors), "flop": [-1] * n, "bytes": [0] * n,
                "times": {"acc": [rng.randint(1, 9) for _ in range(n)]},
            })  # fmt: skip
        for phase, seconds in zip(phases, (2.0, 1.0, 3.0), strict=True):
            phase["pass_s"] = seed % 2 * seconds
    header = {"format": "dnnp", "version": 2, "model": "m", "units": {"time": "s"}}
    lines = [{"type": "header", **header, "provenance": []}]
    for kind, rows in (("tensor", tensors), ("state", states), ("phase", phases), ("node", nodes)):
        lines += [{"type": kind, **row} for row in rows]
    lines.append({"type": "end", "records": len(lines)})
    return read_bytes("\n".join(map(json.dumps, lines)).encode())


class Decoder:
    """The same in plain lists, as so many sequences take it; `workload`: prompt and tokens."""

    def __init__(
        self,
        stream: Stream,
        in_flight: int,
        length: int,
        workload: tuple[int, int] | None,
        *,
        alone: bool = False,
    ) -> None:
        nodes, tensors = stream.get("node"), stream.get("tensor")
        self.n = len(nodes)
        self.time = [float(node["time_s"]["acc"]) for node in nodes]
        self.passes = 1.0
        self.moved = [float(tensor["size_bytes"]) for tensor in tensors]
        self.largest = list(self.moved)
        self.in_flight, self.rows, self.besides = in_flight, 1, 0.0
        """`besides`: time in each stage besides its nodes, which its load is without."""
        self.weights = [1.0]
        if workload is not None:
            self._weigh(stream, *workload, alone=alone)
        self.feeds = [(u, v) for v, node in enumerate(nodes) for u in node["inputs"] if u < self.n]
        self.states = []
        most = 2 if workload is None else max(phase["rows"] for phase in stream.get("phase"))
        for state in stream.get("state"):
            ends = {state["input"], state["output"]}
            users = {v for v, node in enumerate(nodes) if ends & {*node["inputs"], v}}
            one = state["sequence_bytes"] + state["token_bytes"] * length
            self.states.append((users, one * (in_flight + (0 if state["shared"] else most))))
        self.kept = {state["output"] for state in stream.get("state")}
        self.outputs = {t["id"] for t in tensors if t.get("output")} - self.kept

    def _weigh(self, stream: Stream, prompt: int, tokens: int, *, alone: bool) -> None:
        """Times and sizes of a sequence: one pass over its prompt, half a pass for each token, or
        a whole one."""
        low, high = stream.get("phase")[1:]
        first, last = prompt, prompt + tokens - 2
        share = ((first + last) / 2 - low["past"]) / (high["past"] - low["past"])
        passes = (tokens - 1) / (1 if alone else low["rows"])
        self.rows, self.passes = low["rows"], 1.0 + passes
        each = ((1.0, self.time, self.moved), *(
            (passes * part, phase["times"]["acc"], phase["sizes"])
            for part, phase in ((1 - share, low), (share, high))
        ))  # fmt: skip
        self.alone = [(each[0][0], each[0]), *((x[0] * self.rows, x) for x in each[1:])]
        self.time = [sum(w * times[v] for w, times, _ in each) for v in range(self.n)]
        pass_s = [phase["pass_s"] for phase in stream.get("phase")]
        self.besides = pass_s[0] + passes * ((1 - share) * pass_s[1] + share * pass_s[2])
        self.largest = [max(x[2][t] for x in each) for t in range(len(self.moved))]
        self.moved = [sum(w * sizes[t] for w, _, sizes in each) for t in range(len(self.moved))]

    def splits(self) -> list[tuple[set[int], ...]]:
        """Ordered splits in one or two parts that hold all users of a state together."""
        found: list[tuple[set[int], ...]] = []
        for mask in range(1 << self.n):
            second = {v for v in range(self.n) if mask >> v & 1}
            first = set(range(self.n)) - second
            if any(users & first and users & second for users, _ in self.states):
                continue
            if not any(u in second and v in first for u, v in self.feeds):
                found.append(tuple(part for part in (first, second) if part))
        return found

    def load(self, part: set[int]) -> float:
        """Time of a part for a sample, or a sequence, with what moves."""
        moved = {u for u, v in self.feeds if (u in part) != (v in part)}
        return sum(self.time[v] for v in part) + sum(self.moved[u] for u in moved) / BANDWIDTH

    def pipelines(self, stages: int) -> Iterator[tuple[int, ...]]:
        """Stage of every node, in each ordered split over so many stages, of which some are empty.

        Those that use a state are together.
        """
        for stage in product(range(stages), repeat=self.n):
            whole = all(len({stage[v] for v in users}) == 1 for users, _ in self.states)
            if whole and all(stage[u] <= stage[v] for u, v in self.feeds):
                yield stage

    def loads(
        self,
        stage: Sequence[int],
        over: Mapping[tuple[int, int], Link],
        speed: Sequence[float] = (1.0, 1.0, 1.0),
    ) -> dict[int, float]:
        """Loads of the stages, which are named by their devices, over links between these."""
        found = dict.fromkeys(stage, 0.0)
        for v, home in enumerate(stage):
            found[home] += self.time[v] / speed[home]
            times = {
                there: self.moved[v] / over[home, there].rate
                + self.passes * over[home, there].latency
                for there in {stage[w] for u, w in self.feeds if u == v} - {home}
            }
            found[home] += max(times.values(), default=0.0)
            for there, time in times.items():
                found[there] += time
        return found

    def memory(self, part: set[int]) -> float:
        """Bytes of a part in its best order."""
        return sum(held for users, held in self.states if users & part) + self._peak(part)

    def best(self, room: float) -> float:
        """Least largest load over all splits that fit; inf: none does."""
        return min(
            (
                max(self.load(part) for part in split)
                for split in self.splits()
                if all(self.memory(part) <= room for part in split)
            ),
            default=float("inf"),
        )

    def _peak(self, part: set[int]) -> float:
        """Least peak of activations over all orders of a part; what holds states counts there."""
        least = float("inf")
        for steps in permutations(sorted(part)):
            place = {v: i for i, v in enumerate(steps)}
            if any({u, v} <= part and place[u] > place[v] for u, v in self.feeds):
                continue
            live = [0.0] * len(steps)
            for u in ({u for u, v in self.feeds if v in part} | part) - self.kept:
                uses = [place[v] for w, v in self.feeds if w == u and v in part]
                begin = place.get(u, 0)
                leaves = u in self.outputs or any(w == u and v not in part for w, v in self.feeds)
                end = len(steps) - 1 if u in part and leaves else max([begin, *uses])
                for i in range(begin, end + 1):
                    live[i] += self.largest[u]
            least = min(least, max(live))
        return least
