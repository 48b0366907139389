"""Costs on V100s and placements of the models of Tessel (Lin et al. 2024, section VI).

Arithmetic counts at half of the peak that `devices/v100.json` states for float16. Tensor
parallelism adds up what its devices have by rings, within a server of eight over NVLink and between
servers over 100 Gbps. Blocks are recomputed layer by layer, so that a backward pass takes three
times as much arithmetic and twice as many sums as a forward pass. Parameters count four times in
training (with gradients and two moments, all float16), as in the authors' program.

Placements are files of dnnp-schedule. Stages of V are cut as Piper does (Tarnawski et al. 2021,
without data parallelism): any cut into stages on groups of 1, 2, 4, ... devices within their
memory, of the shortest largest time. Those of the other shapes run on four equal groups of devices;
shared blocks on all devices.
"""

from __future__ import annotations

import itertools
import json
import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

V100 = json.loads((Path(__file__).parents[1] / "devices" / "v100.json").read_text())

FLOP_PER_S = 0.5 * V100["peak_flop_per_s"]["float16"]
"""An assumption: about what large products of matrices reach."""

READ_BYTES_PER_S = V100["memory_bandwidth_bytes_per_s"]
NVLINK_BYTES_PER_S = V100["link_bandwidth_bytes_per_s"]
NETWORK_BYTES_PER_S = 100e9 / 8
"""Of a server (VI.A)."""

PER_SERVER = 8
RESERVED_BYTES = 2 * 2**30
"""Memory that libraries take of a device, as in the authors' program."""

ROOM_BYTES = V100["memory_bytes"] - RESERVED_BYTES
WORD = 2
"""Bytes of a float16."""

STATES = 4
"""Copies of a parameter in training."""

GROUPS = 4
"""Groups of devices of the shapes X, M, NN and K."""


Ends = list[tuple[int, int]]
"""Ends and widths of stages."""


class How(NamedTuple):
    """Conditions of a training run."""

    network_bytes_per_s: float = NETWORK_BYTES_PER_S
    """Of a server, for sums between servers."""
    recomputed: bool = True
    """Blocks keep inputs of layers alone."""
    stages: int = 0
    """Most stages of 1F1B; 1: all layers on all devices; 0: any number from two on."""


AS_USUAL = How()


class Layer(NamedTuple):
    """A layer, for one sample."""

    flop: float
    """Of its forward pass."""
    parameters: float
    summed_bytes: float
    """Bytes that tensor parallelism adds up over its devices in a forward pass."""
    output_bytes: float
    """Bytes that go to the next layer, and are kept for it until its backward pass."""
    scratch_bytes: float
    """Of its activations, all of which are there while it is recomputed."""


class Model(NamedTuple):
    """A model as the paper trains or serves it."""

    name: str
    devices: int
    tables: tuple[Layer, ...]
    """Look-ups in a large table that all of them share."""
    parts: tuple[tuple[Layer, ...], ...]
    """Of GPT its layers; of mT5 encoder and decoder; of Flava text, image and cross encoder."""
    batch: int = 1
    """Samples of a micro-batch in the authors' scripts."""
    first_bytes: float = math.inf
    """Most that parameters of the first stage of 1F1B may take there."""
    how: How = AS_USUAL

    @property
    def parameters(self) -> float:
        """Parameters of all layers, with the table counted once."""
        layers = sum(layer.parameters for part in self.parts for layer in part)
        return layers + (self.tables[0].parameters if self.tables else 0.0)

    @property
    def flop(self) -> float:
        """Operations of the forward pass of a sample."""
        return sum(layer.flop for part in self.parts for layer in part)


def transformer(tokens: int, hidden: int, heads: int, reads: int = 0) -> Layer:
    """Attention and feed-forward of four times the width; `reads` tokens of an encoder.

    Activations as in Korthikanti et al. 2023, equation 1.
    """
    own = 24.0 * tokens * hidden**2 + 4.0 * tokens**2 * hidden
    cross = 4.0 * (tokens + reads) * hidden**2 + 4.0 * tokens * reads * hidden if reads else 0.0
    sums = 3 if reads else 2
    return Layer(
        flop=own + cross,
        parameters=(16.0 if reads else 12.0) * hidden**2,
        summed_bytes=sums * tokens * hidden * WORD,
        output_bytes=(tokens + reads) * hidden * WORD,
        scratch_bytes=tokens * hidden * (34 + 5 * heads * tokens / hidden),
    )


def look_up(tokens: int, hidden: int, words: int) -> Layer:
    """An embedding; every device has a part of its table."""
    moved = float(tokens * hidden * WORD)
    return Layer(0.0, float(words) * hidden, moved, moved, 0.0)


def gpt(devices: int, layers: int, hidden: int, heads: int, words: int) -> Model:
    """2048 tokens; no output layer, as the authors fine-tune."""
    layer = transformer(2048, hidden, heads)
    table = look_up(2048, hidden, words)
    return Model("GPT", devices, (table,), ((layer,) * layers,), first_bytes=21 * 2**30)


def mt5(devices: int, layers: int, hidden: int, heads: int, words: int) -> Model:
    """1024 tokens each for encoder and decoder, which have half of the layers each."""
    table = look_up(1024, hidden, words)
    encoder = transformer(1024, hidden, heads)
    decoder = transformer(1024, hidden, heads, 1024)
    parts = (encoder,) * (layers // 2), (decoder,) * (layers // 2)
    return Model("mT5", devices, (table, table), parts, 4 if devices == 4 else 1, 28 * 2**30)


def flava(layers: int = 24, hidden: int = 4096, heads: int = 32) -> Model:
    """1024 tokens of text, 901 of an image of 480 pixels, half as many layers for both."""
    text, image = transformer(1024, hidden, heads), transformer(901, hidden, heads)
    both = transformer(1024 + 901, hidden, heads)
    return Model("Flava", 4, (), ((text,) * layers, (image,) * layers, (both,) * (layers // 2)))


THOUSAND, MILLION = 1000, 1000 * 1024
"""K and M of vocabularies: M as in the authors' scripts."""

GPTS = (
    (4, 32, 4096, 32, MILLION),
    (8, 40, 6144, 48, MILLION),
    (16, 48, 8192, 64, MILLION),
    (32, 80, 8192, 64, 1536 * THOUSAND),
)
MT5S = (
    (4, 48, 1024, 16, 512 * THOUSAND),
    (8, 48, 3072, 24, MILLION),
    (16, 64, 6144, 48, 1536 * THOUSAND),
    (32, 80, 8192, 64, 1536 * THOUSAND),
)
"""Devices, layers, hidden size, heads, words (table III)."""

ARCHITECTURES = {"GPT": (gpt, GPTS), "mT5": (mt5, MT5S)}

PRINTED = {"GPT": (11, 24, 47, 77), "mT5": (1.8, 9.5, 43, 88)}
"""Billions of parameters (table III)."""

SCRIPTED_WORDS = {("mT5", 4): MILLION}
"""Differences of scripts from table III; the number of parameters there is that of the script."""

SCRIPTED_STAGES = {("GPT", 16): 1, ("mT5", 16): 1, ("GPT", 32): 4, ("mT5", 32): 2}
"""Most stages of 1F1B in the authors' scripts. For 16 GPUs the scripts say that 1F1B is out of
memory, and run tensor parallelism over both servers instead."""


def models(name: str) -> list[Model]:
    """The four sizes of GPT or mT5, as the authors ran them."""
    make, rows = ARCHITECTURES[name]
    found = [make(*row[:4], SCRIPTED_WORDS.get((name, row[0]), row[4])) for row in rows]
    return [m._replace(how=How(stages=SCRIPTED_STAGES.get((name, m.devices), 0))) for m in found]


def summing_s(size_bytes: float, devices: int, how: How = AS_USUAL) -> float:
    """Time to add up tensors of all devices of a group, by rings (Patarasuk and Yuan 2009)."""
    inside = min(devices, PER_SERVER)
    servers = -(-devices // PER_SERVER)
    near = 2 * (inside - 1) / inside * size_bytes / NVLINK_BYTES_PER_S
    return near + 2 * (servers - 1) / servers * size_bytes / how.network_bytes_per_s


def sending_s(size_bytes: float, one: Sequence[int], other: Sequence[int]) -> float:
    """Time to move a tensor from one group of devices to another."""
    servers = {d // PER_SERVER for d in (*one, *other)}
    return size_bytes / (NVLINK_BYTES_PER_S if len(servers) == 1 else NETWORK_BYTES_PER_S)


def times_s(
    layers: Sequence[Layer], devices: int, batch: int, how: How = AS_USUAL
) -> tuple[float, float]:
    """Forward and backward time of layers on a group of devices."""
    forward = backward = 0.0
    for layer in layers:
        work = max(
            layer.flop * batch / devices / FLOP_PER_S,
            layer.parameters * WORD / devices / READ_BYTES_PER_S if layer.flop else 0.0,
        )
        sums = summing_s(layer.summed_bytes * batch, devices, how)
        forward += work + sums
        again = how.recomputed and layer.flop > 0  # a look-up is not recomputed
        backward += (2 + again) * work + (1 + again) * sums
    return forward, backward


class Held(NamedTuple):
    """Memory of a stage on each of its devices."""

    always_bytes: float
    each_bytes: float
    """Of a micro-batch between its passes."""


def held(
    layers: Sequence[Layer], devices: int, batch: int, how: How = AS_USUAL, *, training: bool = True
) -> Held:
    """Parameters in parts, inputs of layers as a whole.

    Where nothing is recomputed, activations are kept: ten bytes an element as a whole, the rest in
    parts (Korthikanti et al. 2023, equation 2).
    """
    states = STATES if training else 1
    parameters = sum(layer.parameters for layer in layers) * WORD * states
    scratch = max((layer.scratch_bytes for layer in layers), default=0.0) * batch
    kept = sum(layer.output_bytes for layer in layers if layer.flop) * batch if training else 0.0
    if training and not how.recomputed:
        whole, scratch = 10 / WORD * kept, 0.0
        kept = whole + (sum(layer.scratch_bytes for layer in layers) * batch - whole) / devices
    return Held((parameters + scratch) / devices, kept)


class Stage(NamedTuple):
    """Layers on a group of devices."""

    layers: tuple[Layer, ...]
    homes: tuple[int, ...]


def cut(model: Model, layers: Sequence[Layer], batch: int, training: bool) -> list[Stage] | None:
    """Stages on as many devices as there are or fewer, in their order; None: nothing fits.

    A stage has memory for as many micro-batches as there are stages from it on.
    """
    cuts = _Cuts(model, layers, batch, training)
    times = cuts.times()
    least = bisect_left(times, True, key=lambda time: cuts.within(time) is not None)
    answer = cuts.within(times[least]) if least < len(times) else None
    if answer is None:
        return None
    stages, i, first = [], 0, 0
    for j, width in answer:
        stages.append(Stage(tuple(layers[i:j]), tuple(range(first, first + width))))
        i, first = j, first + width
    return stages


class _Cuts:
    """Layers that fit on each group of devices."""

    def __init__(self, model: Model, layers: Sequence[Layer], batch: int, training: bool) -> None:
        self.model, self.layers, self.batch, self.training = model, layers, batch, training
        # At least two stages, as in the authors' program; for inference one on each device.
        self.widths = [2**p for p in range((model.devices // 2).bit_length() if training else 1)]
        if model.how.stages == 1:
            self.widths = [model.devices]
        self.sums = {width: _prefix(layers, width, batch, model.how) for width in self.widths}
        self.reached: dict[tuple[int, int, int], int] = {}

    def times(self) -> list[float]:
        """Times of all possible stages."""
        count = len(self.layers)
        found = (
            self.sums[width][j] - self.sums[width][i]
            for width in self.widths
            for i in range(count)
            for j in range(i + 1, count + 1)
        )
        return sorted(set(found))

    def within(self, most: float) -> Ends | None:
        """Ends and widths of stages that take at most this time, the fewest stages there can be."""
        count, devices = len(self.layers), self.model.devices
        # Devices that stages from a layer on need, and what they are.
        last: dict[int, tuple[int, Ends]] = {count: (0, [])}
        for left in range(1, min(self.model.how.stages or devices, devices, count) + 1):
            now: dict[int, tuple[int, Ends]] = {}
            for i, width in itertools.product(range(count), self.widths):
                j = self._reach(i, width, left)
                # As far as the time allows: fewer layers never need more devices.
                j = min(j, bisect_right(self.sums[width], self.sums[width][i] + most) - 1)
                if j <= i or j not in last or last[j][0] + width > devices:
                    continue
                if i not in now or last[j][0] + width < now[i][0]:
                    now[i] = last[j][0] + width, [(j, width), *last[j][1]]
            if 0 in now:
                return now[0][1]
            last = now
        return None

    def _reach(self, i: int, width: int, left: int) -> int:
        """The furthest end of a stage from layer i on that fits; `left` stages from it on."""
        key = i, width, left
        if key not in self.reached:
            j = i
            while j < len(self.layers) and self._fits(self.layers[i : j + 1], width, left, i == 0):
                j += 1
            self.reached[key] = j
        return self.reached[key]

    def _fits(self, layers: Sequence[Layer], width: int, left: int, first: bool) -> bool:
        how = self.model.how
        need = held(layers, width, self.batch, how, training=self.training)
        if need.always_bytes + left * need.each_bytes > ROOM_BYTES:
            return False
        parameters = sum(layer.parameters for layer in layers) * WORD * STATES / width
        limited = first and self.training and how.stages != 1
        return not (limited and parameters >= self.model.first_bytes)


def _prefix(layers: Sequence[Layer], width: int, batch: int, how: How) -> list[float]:
    """Sums of the times of a forward and a backward pass."""
    each = (sum(times_s([layer], width, batch, how)) for layer in layers)
    return list(itertools.accumulate(each, initial=0.0))


class Plan:
    """A placement that is being made."""

    def __init__(self, model: Model, batch: int, *, training: bool = True) -> None:
        self.model, self.batch, self.training = model, batch, training
        self.blocks: list[dict[str, Any]] = []
        self.always = [0.0] * model.devices
        self.stages: dict[str, Stage] = {}

    def chain(self, stages: Sequence[tuple[str, Stage]], after: Sequence[str] = ()) -> list[str]:
        """Forward blocks after one another, and what their stages hold; the name of the last."""
        for name, stage in stages:
            for d in stage.homes:
                self.always[d] += self._held(stage).always_bytes
            after = [self._block("forward", name, stage, after)]
        return list(after)

    def back(self, stages: Sequence[tuple[str, Stage]], after: Sequence[str]) -> None:
        """Backward blocks the other way round."""
        for name, stage in reversed(stages):
            after = [self._block("backward", name, stage, after)]

    def file(self, name: str) -> dict[str, Any] | None:
        """The placement file; None: its parameters do not fit."""
        if max(self.always) > ROOM_BYTES:
            return None
        devices = [
            {"name": f"v100/{d}", "memory_bytes": ROOM_BYTES, "fixed_bytes": always}
            for d, always in enumerate(self.always)
        ]
        return {"name": name, "devices": devices, "blocks": self.blocks}

    def _wait(self, name: str, stage: Stage, *, forward: bool) -> dict[str, Any]:
        """Transfer that a block waits for, of the output of a stage or its gradient to its group.

        Nothing moves to devices that have it.
        """
        before = self.stages[name]
        source = before if forward else stage
        moved = source.layers[-1].output_bytes * self.batch
        if set(stage.homes) <= set(before.homes):
            return {"block": name}
        return {"block": name, "transfer_s": sending_s(moved, before.homes, stage.homes)}

    def _held(self, stage: Stage) -> Held:
        stated = self.batch, self.model.how
        return held(stage.layers, len(stage.homes), *stated, training=self.training)

    def _block(self, kind: str, name: str, stage: Stage, after: Sequence[str]) -> str:
        forward, backward = times_s(stage.layers, len(stage.homes), self.batch, self.model.how)
        is_forward = kind == "forward"
        each = self._held(stage).each_bytes
        block = {
            "name": f"{kind[0].upper()}{name}",
            "kind": kind,
            "devices": list(stage.homes),
            "time_s": forward if is_forward else backward,
            "memory_bytes": each if is_forward else -each,
            "after": [self._wait(name, stage, forward=is_forward) for name in after],
        }
        self.blocks.append(block)
        self.stages[str(block["name"])] = stage
        return str(block["name"])


@cache
def placement(
    model: Model, shape: str, batch: int, *, training: bool = True
) -> dict[str, Any] | None:
    """A placement file of shape V, X, M, NN-eager or K; None: it does not fit."""
    plan = Plan(model, batch, training=training)
    whole = [layer for part in model.parts for layer in part]
    everywhere = tuple(range(model.devices))
    # Of V and X the table, for all look-ups, is on the first stage.
    table = (_all_look_ups(model.tables),) if model.tables else ()
    if shape == "K":
        _two_branches(plan, everywhere)
    elif shape == "V":
        stages = cut(model, [*table, *whole], batch, training)
        if stages is None:
            return None
        _there_and_back(plan, [(str(i), stage) for i, stage in enumerate(stages)])
    elif shape == "X":
        # Memory is looked at in the end: two stages share a device.
        stages = _equal([*table, *whole], model, batch)
        for label, order in (("a", 1), ("b", -1)):
            homes = [stage.homes for stage in stages][::order]
            named = [
                (f"{label}{i}", Stage(stage.layers, home))
                for i, (stage, home) in enumerate(zip(stages, homes, strict=True))
            ]
            _there_and_back(plan, named)
    else:
        stages = _equal(whole, model, batch)
        named = [(str(i), stage) for i, stage in enumerate(stages)]
        if shape == "NN-eager":
            # The second look-up is in the table of the first.
            named.insert(1, ("t", Stage((model.tables[1]._replace(parameters=0.0),), everywhere)))
        _there_and_back(plan, [("s", Stage((model.tables[0],), everywhere)), *named])
    return plan.file(f"{model.name}-{shape}-{model.devices}")


def _all_look_ups(tables: Sequence[Layer]) -> Layer:
    """One layer that does all look-ups in one table."""
    moved = sum(table.summed_bytes for table in tables)
    return Layer(0.0, tables[0].parameters, moved, moved, 0.0)


def _there_and_back(plan: Plan, stages: Sequence[tuple[str, Stage]]) -> None:
    """Forward and backward blocks of a chain."""
    last = plan.chain(stages)
    if plan.training:
        plan.back(stages, last)


def _equal(layers: Sequence[Layer], model: Model, batch: int) -> list[Stage]:
    """Four stages of nearly equal times on equal groups, whatever they hold."""
    width = model.devices // GROUPS
    sums = _prefix(layers, width, batch, model.how)
    count = len(layers)

    @cache
    def best(i: int, left: int) -> tuple[float, tuple[int, ...]]:
        if left == 1:
            return sums[count] - sums[i], (count,)
        options = (
            (max(sums[j] - sums[i], best(j, left - 1)[0]), (j, *best(j, left - 1)[1]))
            for j in range(i + 1, count - left + 2)
        )
        return min(options)

    ends = best(0, GROUPS)[1]
    return [
        Stage(tuple(layers[i:j]), tuple(range(g * width, (g + 1) * width)))
        for g, (i, j) in enumerate(zip((0, *ends), ends, strict=False))
    ]


def _two_branches(plan: Plan, everywhere: tuple[int, ...]) -> None:
    """Shape K for inference: two branches of two stages each, then a block on all devices."""
    width = len(everywhere) // GROUPS
    *branches, joint = plan.model.parts
    ends: list[str] = []
    for b, part in enumerate(branches):
        half = len(part) // 2
        stages = [
            (f"{'ab'[b]}{i}", Stage(tuple(layers), everywhere[g * width : (g + 1) * width]))
            for i, (layers, g) in enumerate(((part[:half], 2 * b), (part[half:], 2 * b + 1)))
        ]
        ends += plan.chain(stages)
    plan.chain([("s", Stage(tuple(joint), everywhere))], ends)
