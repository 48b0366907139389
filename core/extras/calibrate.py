"""Fit factors of operator types to measured runs: few parameters, regularised.

A run measures the time of each stage, not of each of its operators. With base costs x_op(s), the
sum over the operators of a type in a stage s, their number n(s), and the time t(s) of its
transfers, the model is

    load(s) = sum of f_op x_op(s) over types + launch n(s) + c t(s)
    log f_op = common + family(op) + own(op)

and the launch and the parameters p (common, one for each family, one for each type, log c) minimise

    sum over stages of ((log load(s) - log measured(s)) / noise(s))^2
        + strength * (sum over parameters of w p^2 + w (launch / LAUNCH_S)^2)

All factors stay near 1 unless the runs contradict, and those of rare types stay near their
family's. Only bodies of loops and branches have a weak prior: how often they run is a guess. The
strength is chosen by leaving out one model after the other (cross-validation); where there are
fewer than three it is `STRENGTH`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dnnp.core.model.calibration import Calibration, RunSeen, StageSeen
from dnnp.core.model.graph import Floats

DEPTHWISE = "DepthwiseConv"
"""A `Conv` with one channel in each group of channels counts as an operator of its own."""

FOLDED = frozenset(("BatchNormalization", "Relu", "Clip", "LeakyRelu", "HardSwish"))
"""Directly after a convolution these are part of it: they are computed with it, in one go."""

FAMILIES: dict[str, str] = {
    name: family
    for family, names in {
        "matrix": "MatMul Gemm Einsum MatMulInteger QLinearMatMul DynamicQuantizeMatMul Attention "
        "FusedMatMul MatMulNBits MultiHeadAttention GroupQueryAttention",
        "convolution": "Conv ConvTranspose ConvInteger QLinearConv DeformConv FusedConv",
        "depthwise": DEPTHWISE,
        "recurrent": "LSTM GRU RNN",
        "reduction": "ArgMax ArgMin AveragePool BatchNormalization GlobalAveragePool GlobalMaxPool "
        "GroupNormalization InstanceNormalization LRN LayerNormalization LogSoftmax MaxPool "
        "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd "
        "ReduceSum ReduceSumSquare RMSNormalization SkipLayerNormalization Softmax TopK",
        "movement": "Cast Concat ConstantOfShape DepthToSpace Expand Flatten Gather GatherElements "
        "GatherND GridSample Identity NonZero OneHot Pad Range Reshape Resize ReverseSequence "
        "Scatter ScatterElements ScatterND Shape Slice SpaceToDepth Split Squeeze Tile Transpose "
        "Trilu Unsqueeze Where",
        "control": "If Loop Scan",
    }.items()
    for name in names.split()
}
"""Family of an operator type; all others are `elementwise`."""

NOISE = 0.02
"""Relative error of an undisturbed load."""
STRENGTH = 3.0
"""Strength of the regularisation where there are too few models to choose it."""
STRENGTHS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1e3, 1e4, 1e5, 1e6)
"""Candidates; the last ones leave all factors at 1, for good costs."""
COMMON, FAMILY, OWN, TRANSFER = 0.03, 1.0, 3.0, 1.0
"""Weights w of the parameters: the speed of all operators may differ most."""
GUESSED = {"control": 0.02}
"""Weights of families with guessed base costs."""
LAUNCH, LAUNCH_S = 0.3, 1e-6
"""Weight of the launch, and its scale in seconds: resolution and overhead of profilers."""
LEAST_S = 1e-12
"""No stage takes less."""
LEFT = 0.05
"""A launch below 0 leaves at least this share of a time."""
CAPPED = 0.5
"""An error of a model that was left out counts for no more: operators that no other model has."""
_STEPS = 50
_SMALL = 1e-9


def family_of(op: str) -> str:
    """Family of an operator type."""
    return FAMILIES.get(op, "elementwise")


def factor_of(factors: Calibration, op: str) -> float:
    """Factor of an operator type, seen or not."""
    family = factors.families.get(family_of(op), 1.0)
    return factors.common * family * factors.operators.get(op, 1.0)


def load_of(factors: Calibration, stage: StageSeen) -> float:
    """Load of a stage by these factors, seconds."""
    compute = sum(factor_of(factors, op) * x for op, x in stage.operators.items())
    return corrected(factors, compute, stage.nodes) + factors.transfer * stage.transfer_s


def corrected(factors: Calibration, time_s: float, nodes: int) -> float:
    """Time of so many operators, of the sum of their times by factors; seconds."""
    return max(time_s + nodes * factors.launch_s, LEFT * time_s)


def calibrate(runs: Sequence[RunSeen]) -> Calibration:
    """Fit factors to runs; the same runs in another order give the same but for rounding.

    Stages without measured time or costs, of less than `LEAST_S`, are left out.

    Raises ValueError: there is no stage at all.
    """
    runs = [RunSeen(r.model, tuple(s for s in r.stages if _says(s))) for r in runs]
    runs = [run for run in runs if run.stages]
    if not runs:
        raise ValueError("no stage has both a measured load and costs")
    models = sorted({run.model for run in runs})
    if len(models) < 3:
        return fitted(runs, STRENGTH)
    tried = [(_left_out(runs, models, strength), strength) for strength in STRENGTHS]
    # Of strengths that are about as good the largest: it changes the least.
    judged = [float(np.minimum(errors, CAPPED).mean()) for errors, _ in tried]
    errors, strength = max(
        (pair for pair, mean in zip(tried, judged, strict=True) if mean <= 1.02 * min(judged)),
        key=lambda pair: pair[1],
    )
    return replace(fitted(runs, strength), spread=float(np.median(errors)))


def _says(stage: StageSeen) -> bool:
    return min(stage.measured_s, sum(stage.operators.values())) >= LEAST_S


def _left_out(runs: Sequence[RunSeen], models: Sequence[str], strength: float) -> list[float]:
    """|log error| of every stage, by factors from the runs of all other models."""
    errors = []
    for model in models:
        found = fitted([run for run in runs if run.model != model], strength)
        for run in runs:
            if run.model == model:
                errors += [abs(float(np.log(load_of(found, s) / s.measured_s))) for s in run.stages]
    return errors


def fitted(runs: Sequence[RunSeen], strength: float) -> Calibration:
    """Factors by a given strength of the regularisation."""
    stages = [stage for run in runs for stage in run.stages]
    operators = sorted({op for stage in stages for op, x in stage.operators.items() if x > 0})
    families = sorted({family_of(op) for op in operators})
    base = np.array([[s.operators.get(op, 0.0) for op in operators] for s in stages])
    base = np.column_stack([base, [s.transfer_s for s in stages]])
    # Columns of `design`: common, families, operators, transfer; one row for each column of `base`.
    n, m = len(operators), len(families)
    design = np.zeros((n + 1, 2 + m + n))
    design[:n, 0] = 1.0
    design[np.arange(n), [1 + families.index(family_of(op)) for op in operators]] = 1.0
    design[np.arange(n), 1 + m + np.arange(n)] = 1.0
    design[n, -1] = 1.0
    own = [GUESSED.get(name, FAMILY) for name in families]
    weights = strength * np.array([COMMON, *own, *[OWN] * n, TRANSFER, LAUNCH])
    nodes = LAUNCH_S * np.array([float(s.nodes) for s in stages])
    measured = np.log([s.measured_s for s in stages])
    noise = np.array([np.hypot(NOISE, s.taken) for s in stages])
    found = _minimised(_Terms(base, nodes, design, measured, noise), weights)
    factors = np.exp(found[:-1])
    return Calibration(
        float(factors[0]),
        {name: float(x) for name, x in zip(families, factors[1:], strict=False)},
        {name: float(x) for name, x in zip(operators, factors[1 + m :], strict=False)},
        float(factors[-1]),
        LAUNCH_S * float(found[-1]),
        strength,
    )


class _Terms(NamedTuple):
    """Arrays of the regression."""

    base: Floats
    """f64[stages, parts], seconds."""
    nodes: Floats
    """f64[stages], seconds for a launch of 1."""
    design: Floats
    """f64[parts, parameters]: which parameters add up to the logarithm of a part's factor."""
    measured: Floats
    """f64[stages], logarithms."""
    noise: Floats
    """f64[stages]."""

    def at(self, parameters: Floats) -> tuple[Floats, Floats, Floats]:
        """Parts of the loads f64[stages, parts], loads and residuals f64[stages].

        The last parameter is the launch.
        """
        parts = self.base * np.exp(self.design @ parameters[:-1])
        compute = parts[:, :-1].sum(axis=1)
        loads = np.maximum(compute + parameters[-1] * self.nodes, LEFT * compute) + parts[:, -1]
        return parts, loads, (np.log(loads) - self.measured) / self.noise


def _minimised(terms: _Terms, weights: Floats) -> Floats:
    """Parameters, the launch last, that minimise the objective, after Gauss and Newton."""
    parameters = np.zeros(len(weights))

    def value(at: Floats) -> float:
        # A step that is far too long is infinitely bad, and made shorter.
        with np.errstate(over="ignore", invalid="ignore"):
            return float((terms.at(at)[2] ** 2).sum() + (weights * at**2).sum())

    now = value(parameters)
    for _ in range(_STEPS):
        parts, loads, residuals = terms.at(parameters)
        slope = np.column_stack([parts @ terms.design, terms.nodes])
        slope /= (loads * terms.noise)[:, None]
        normal = slope.T @ slope + np.diag(weights)
        step = np.linalg.solve(normal, slope.T @ residuals + weights * parameters)
        share = 1.0
        while share > _SMALL and not value(parameters - share * step) < now:
            share /= 2
        if share <= _SMALL:
            break
        parameters = parameters - share * step
        before, now = now, value(parameters)
        if before - now <= _SMALL * before:
            break
    return parameters
