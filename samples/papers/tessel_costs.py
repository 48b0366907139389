"""What the models of Tessel (Lin et al. 2024, section VI) cost on V100s, by formula.

Arithmetic counts at half of the peak that `devices/v100.json` states for float16. Tensor
parallelism adds up what its devices have by rings, within a server of eight over NVLink and between
servers over 100 Gbps. Blocks are recomputed layer by layer, so that a backward pass takes three
times as much arithmetic and twice as many sums as a forward pass. Parameters count four times in
training (with gradients and two moments, all float16), as in the authors' program.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

V100 = json.loads((Path(__file__).parents[1] / "devices" / "v100.json").read_text())

FLOP_PER_S = 0.5 * V100["peak_flop_per_s"]["float16"]
"""An assumption: about what large products of matrices reach."""

READ_BYTES_PER_S = V100["memory_bandwidth_bytes_per_s"]
NVLINK_BYTES_PER_S = V100["link_bandwidth_bytes_per_s"]
NETWORK_BYTES_PER_S = 100e9 / 8
"""Of a server (VI.A)."""

PER_SERVER = 8
RESERVED_BYTES = 2 * 2**30
"""What libraries take of a device, as in the authors' program."""

ROOM_BYTES = V100["memory_bytes"] - RESERVED_BYTES
WORD = 2
"""Bytes of a float16."""

STATES = 4
"""Copies of a parameter in training."""


class Layer(NamedTuple):
    """A layer, for one sample."""

    flop: float
    """Of its forward pass."""
    parameters: float
    summed_bytes: float
    """What tensor parallelism adds up over its devices in a forward pass."""
    output_bytes: float
    """What goes to the next layer, and is kept for it until its backward pass."""
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

    @property
    def parameters(self) -> float:
        """Of all layers, the table once."""
        layers = sum(layer.parameters for part in self.parts for layer in part)
        return layers + (self.tables[0].parameters if self.tables else 0.0)

    @property
    def flop(self) -> float:
        """Of the forward pass of a sample."""
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
"""Where a script differs from table III; the number of parameters there is that of the script."""


def models(name: str) -> list[Model]:
    """The four sizes of GPT or mT5, as the authors ran them."""
    make, rows = ARCHITECTURES[name]
    return [make(*row[:4], SCRIPTED_WORDS.get((name, row[0]), row[4])) for row in rows]


def summing_s(size_bytes: float, devices: int) -> float:
    """Time to add up tensors of all devices of a group, by rings (Patarasuk and Yuan 2009)."""
    inside = min(devices, PER_SERVER)
    servers = -(-devices // PER_SERVER)
    near = 2 * (inside - 1) / inside * size_bytes / NVLINK_BYTES_PER_S
    return near + 2 * (servers - 1) / servers * size_bytes / NETWORK_BYTES_PER_S


def sending_s(size_bytes: float, one: Sequence[int], other: Sequence[int]) -> float:
    """Time to move a tensor from one group of devices to another."""
    servers = {d // PER_SERVER for d in (*one, *other)}
    return size_bytes / (NVLINK_BYTES_PER_S if len(servers) == 1 else NETWORK_BYTES_PER_S)


def times_s(layers: Sequence[Layer], devices: int, batch: int) -> tuple[float, float]:
    """Forward and backward time of layers on a group of devices."""
    forward = backward = 0.0
    for layer in layers:
        work = max(
            layer.flop * batch / devices / FLOP_PER_S,
            layer.parameters * WORD / devices / READ_BYTES_PER_S if layer.flop else 0.0,
        )
        sums = summing_s(layer.summed_bytes * batch, devices)
        forward += work + sums
        # A look-up is not recomputed.
        backward += 3 * work + (2 * sums if layer.flop else sums)
    return forward, backward


class Held(NamedTuple):
    """Memory of a stage on each of its devices."""

    always_bytes: float
    each_bytes: float
    """Of a micro-batch between its passes."""


def held(layers: Sequence[Layer], devices: int, batch: int, *, training: bool = True) -> Held:
    """Parameters in parts, inputs of layers as a whole."""
    states = STATES if training else 1
    parameters = sum(layer.parameters for layer in layers)
    scratch = max((layer.scratch_bytes for layer in layers), default=0.0) * batch
    kept = sum(layer.output_bytes for layer in layers if layer.flop) * batch if training else 0.0
    return Held((parameters * WORD * states + scratch) / devices, kept)
