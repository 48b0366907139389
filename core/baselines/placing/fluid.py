"""Shares of tasks on devices that balance devices and the longest path, without a solver.

    minimise over x   max( load of every device, longest path in mean times under x )

which is the relaxation of GETF. A game: one side puts weight on devices and on the path, the
other one moves its shares away from what is weighted (multiplicative weights; Freund and
Schapire 1999). The mean over the rounds approaches the optimum.
"""

from __future__ import annotations

import math

import numpy as np

from dnnp.core.cost.kernel import kernel
from dnnp.core.latency.lists.net import Net
from dnnp.core.model.graph import Bools, Floats

STEP = 4.0
"""Step of the first round; that of round k is smaller by the root of k."""

SOFTNESS = 0.02
"""How far below the largest load or path others have weight, relatively."""


@kernel
def fluid_shares(
    net: Net, able: Bools, memory: Floats, limit: Floats, rounds: int
) -> tuple[float, Floats]:
    """Value, and the share of each colour on each device, f64[D, c].

    Memory beyond what a device holds weighs like load. O(rounds * (edges + n D)).
    """
    devices, count = able.shape
    n = len(net.order)
    score, mean = np.zeros((devices, count)), np.zeros((devices, count))
    share = np.zeros((devices, count))
    # Time of a colour where it is fastest: prices are compared with that.
    least = np.full(count, 0.0)
    total = np.zeros((devices, count))
    for v in range(n):
        for d in range(devices):
            total[d, net.color[v]] += net.time[d, v]
    for c in range(count):
        best = np.inf
        for d in range(devices):
            if able[d, c]:
                best = min(best, total[d, c])
        least[c] = best
    work, end = np.zeros(n), np.zeros(n)
    before = np.full(n, -1, dtype=np.int64)
    load, held, weight = np.zeros(devices), np.zeros(devices), np.zeros(devices)
    on_path = np.zeros(count)
    value = np.inf
    for k in range(1, rounds + 2):
        last = k == rounds + 1
        for c in range(count):
            high = -np.inf
            for d in range(devices):
                if able[d, c]:
                    high = max(high, score[d, c])
            whole = 0.0
            for d in range(devices):
                share[d, c] = math.exp(score[d, c] - high) if able[d, c] else 0.0
                whole += share[d, c]
            for d in range(devices):
                share[d, c] /= whole
                if not last:
                    mean[d, c] += share[d, c]
                else:
                    share[d, c] = mean[d, c] / rounds
        load[:] = 0.0
        held[:] = 0.0
        for c in range(count):
            for d in range(devices):
                if share[d, c] > 0.0:
                    load[d] += share[d, c] * total[d, c]
                    held[d] += share[d, c] * memory[c]
        longest, tip = 0.0, -1
        for v in net.order:
            c = net.color[v]
            work[v] = 0.0
            for d in range(devices):
                if share[d, c] > 0.0:
                    work[v] += share[d, c] * net.time[d, v]
            begin = 0.0
            before[v] = -1
            for a in range(net.in_ptr[v], net.in_ptr[v + 1]):
                u = net.maker[net.in_idx[a]]
                if u >= 0 and end[u] > begin:
                    begin = end[u]
                    before[v] = u
            end[v] = begin + work[v]
            if end[v] > longest:
                longest, tip = end[v], v
        top = longest
        for d in range(devices):
            top = max(top, load[d])
        if last:
            value = top
            break
        if top <= 0.0:
            continue
        path = math.exp((longest - top) / (SOFTNESS * top))
        whole = path
        for d in range(devices):
            full = load[d]
            if held[d] > limit[d]:
                full = max(full, top * held[d] / limit[d])
            weight[d] = math.exp(min(full - top, top) / (SOFTNESS * top))
            whole += weight[d]
        on_path[:] = 0.0
        while tip >= 0:
            on_path[net.color[tip]] = 1.0
            tip = before[tip]
        step = STEP / np.sqrt(k)
        for c in range(count):
            if least[c] <= 0.0:
                continue
            for d in range(devices):
                if able[d, c]:
                    price = (weight[d] + path * on_path[c]) / whole
                    score[d, c] -= step * price * total[d, c] / least[c]
    return value, share
