"""A seeded convolutional network of parallel branches, with many order ideals.

Like Inception: modules of parallel branches that a concatenation joins; every branch is a chain
of convolutions (1x1, 1x7, 7x1, 3x3). A module whose branches have a, b, c and d operators adds
about (a + 1)(b + 1)(c + 1)(d + 1) ideals, so modules are added until there are enough. An operator
takes its floating-point operations over 4 TFLOP/s and 5 us; a tensor is float32 and crosses a
link of 12 GB/s; a CPU is 20 times slower. What one convolution computes far outweighs what it
adds to or takes from the size of a tensor, so that hardly any can be contracted safely. Transfers
are up to a tenth of a stage's load at six devices; how well these can be balanced depends on them.
"""

from __future__ import annotations

import math
import random

from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.graph import singletons
from dnnp.core.model.plan import CostOptions
from dnnp.formats.graph import graph_of
from dnnp.formats.plan import device_of
from dnnp.formats.stream import Stream
from support import graphs
from support.graphs import header, to_bytes

FLOP_PER_S = 4e12
OVERHEAD_S = 5e-6
BYTES_PER_S = 12e9
CPU_FACTOR = 20
KERNELS = {"1x1": 1, "1x7": 7, "7x1": 7, "3x3": 9}
"""Kind of convolution -> multiplications per input channel."""


Shape = tuple[int, int, int]
"""Branches of a module; fewest and most operators of a branch."""


def wide_problem(
    seed: int = 0, ideals: int = 37_000, k: int = 6, cpus: int = 1, shape: Shape = (4, 3, 8)
) -> SplitProblem:
    """The network on `k` accelerators and `cpus` CPUs; memory is no constraint."""
    stream = wide_stream(seed, ideals, k, cpus, shape)
    graph = graph_of(stream)
    devices = tuple(device_of(record) for record in stream.get("device"))
    return SplitProblem(graph, singletons(graph), devices, CostOptions(memory_model="sum"))


def wide_stream(
    seed: int = 0, ideals: int = 37_000, k: int = 6, cpus: int = 1, shape: Shape = (4, 3, 8)
) -> Stream:
    """A network with at least `ideals` order ideals before contraction."""
    rng = random.Random(f"wide {seed}")
    net = _Network()
    shapes = []
    count = 0
    while count < ideals:
        shapes.append([rng.randint(*shape[1:]) for _ in range(shape[0])])
        count += math.prod(n + 1 for n in shapes[-1])
    last = net.conv(net.image, "3x3", 32, 149)
    last = net.conv(last, "3x3", 192, 71)
    for number, module in enumerate(shapes):
        # Feature maps shrink and channels grow with depth, as 35, 17, 8 in the original.
        side = (35, 17, 8)[3 * number // len(shapes)]
        width = (64, 128, 192)[3 * number // len(shapes)]
        ends = []
        for length in module:
            end = last
            for _ in range(length):
                kernel = rng.choice(tuple(KERNELS))
                end = net.conv(end, kernel, width + 16 * rng.randint(-2, 2), side)
            ends.append(end)
        last = net.join(ends)
    net.conv(last, "1x1", 1000, 1)
    devices = [
        {
            "type": "device",
            "class": "acc",
            "kind": "accelerator",
            "count": k,
            "bandwidth_bytes_per_s": BYTES_PER_S,
        },
        {"type": "device", "class": "cpu", "kind": "cpu", "count": cpus},
    ]
    records = {
        "device": [d for d in devices if d["count"]],
        "tensor": net.tensors,
        "node": net.nodes,
    }
    return Stream(header=header(), records=records)


def branches(count: int, length: int) -> bytes:
    """Parallel chains between a fork and a join: (length + 1)^count ideals, none to contract."""
    rng = random.Random("branches")
    tensors: list[dict] = []
    nodes: list[dict] = []

    def node(reads: list[int]) -> int:
        out = len(tensors)
        tensors.append(graphs.tensor(out, "activation", rng.randint(1, 30)))
        times = {"dev": rng.randint(100, 900)}
        nodes.append(graphs.node(len(nodes), "Op", reads, [out], time_s=times))
        return out

    fork = node([])
    ends = []
    for _ in range(count):
        ends.append(fork)
        for _ in range(length):
            ends[-1] = node([ends[-1]])
    node(ends)
    return to_bytes(Stream(header=header(), records={"tensor": tensors, "node": nodes}))


class _Network:
    """Records of a growing network; a tensor is known by its id."""

    def __init__(self) -> None:
        self.tensors: list[dict] = []
        self.nodes: list[dict] = []
        self.channels: list[int] = []
        self.side: list[int] = []
        self.image = self._tensor("input", 3, 299)

    def conv(self, source: int, kernel: str, channels: int, side: int) -> int:
        """A convolution with its activation."""
        multiplications = KERNELS[kernel] * self.channels[source] * channels * side**2
        return self._node(f"Conv{kernel}", [source], channels, side, 2 * multiplications)

    def join(self, sources: list[int]) -> int:
        """A concatenation along the channels."""
        channels = sum(self.channels[t] for t in sources)
        return self._node("Concat", sources, channels, self.side[sources[0]], 0)

    def _tensor(self, kind: str, channels: int, side: int) -> int:
        self.channels.append(channels)
        self.side.append(side)
        self.tensors.append(graphs.tensor(len(self.tensors), kind, 4 * channels * side**2))
        return len(self.tensors) - 1

    def _node(self, op: str, inputs: list[int], channels: int, side: int, flop: int) -> int:
        output = self._tensor("activation", channels, side)
        time = OVERHEAD_S + flop / FLOP_PER_S
        times = {"acc": time, "cpu": CPU_FACTOR * time}
        self.nodes.append(graphs.node(len(self.nodes), op, inputs, [output], time_s=times))
        return output
