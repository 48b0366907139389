"""The fit of a device: known rates come back from times made with them, outliers or not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dnnp.core.extras.fit import Block, fit
from dnnp.core.extras.operator_grid import elementwise, products
from dnnp.core.model.device_rates import DeviceRates, OperatorSpec
from dnnp.core.profile.kernels import kernel_times
from dnnp.fits.device import chain_kernels

START = DeviceRates({"float32": 1e11}, 2e10, 3e-7, [(2.0**20, 6e10), (2.0**25, 6e10)], 16)
TRUE = DeviceRates(
    {"float32": 9e10},
    1.5e10,
    5e-7,
    [(2.0**20, 8e10), (2.0**25, 4e10)],
    16,
    {"matrix": 0.75, "vector": 0.25},
    {
        "product": {"float32": OperatorSpec(0.8, 0.9, 1.5, 2.0)},
        "broadcast": {"float32": OperatorSpec(0.2, 1.1, 20.0, 1.0)},
        "arithmetic": {"float32": OperatorSpec(0.1, 1.0, 40.0, 1.0)},
        "tanh": {"float32": OperatorSpec(0.4, 1.0, 5.0, 1.0)},
        "erf": {"float32": OperatorSpec(0.05, 1.0, 5.0, 3.0)},
    },
)


@pytest.fixture(scope="module")
def blocks() -> list[Block]:
    cases = [c for c in products() if c.kind == "product" and c.dtype == "float32"][::2]
    cases += [c for c in elementwise() if c.kind in ("vector", "tanh", "erf")]
    found = []
    for case in cases:
        long, short = chain_kernels(case, 3), chain_kernels(case, 2)
        seconds = kernel_times(long, TRUE).sum() - kernel_times(short, TRUE).sum()
        found.append(Block(long, short, 1, float(seconds)))
    return found


def errors(blocks: list[Block], predicted: np.ndarray) -> np.ndarray:
    return np.abs(predicted / [b.seconds for b in blocks] - 1)


def test_known_times_come_back(blocks: list[Block]) -> None:
    found = fit(blocks, START)
    off = errors(blocks, found.predicted_s)
    assert np.median(off) < 0.02
    assert off.max() < 0.15
    speed = found.machine.peak_flop_per_s["float32"]
    rate = found.machine.operators["product"]["float32"].compute * speed
    assert rate == pytest.approx(0.8 * 9e10, rel=0.05)
    tanh, erf = (found.machine.operators[name]["float32"].compute for name in ("tanh", "erf"))
    assert tanh / erf == pytest.approx(8, rel=0.25)


def test_outliers_hardly_count(blocks: list[Block]) -> None:
    spoilt = [
        replace(b, seconds=b.seconds * (4 if i % 9 == 4 else 1)) for i, b in enumerate(blocks)
    ]
    off = errors(blocks, fit(spoilt, START).predicted_s)
    assert np.median(off) < 0.05


def test_noise_is_averaged(blocks: list[Block]) -> None:
    noise = np.exp(np.random.default_rng(0).normal(0, 0.05, len(blocks)))
    noisy = [replace(b, seconds=b.seconds * f) for b, f in zip(blocks, noise, strict=True)]
    off = errors(blocks, fit(noisy, START).predicted_s)
    assert np.median(off) < 0.05


def test_the_same_times_give_the_same_fit(blocks: list[Block]) -> None:
    assert fit(blocks, START).machine == fit(blocks, START).machine
