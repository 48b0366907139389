"""What gradients take on this machine: each operator that they are made of, alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from math import fsum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dnnp.core.extras.gradient_pieces import Step, Term
from dnnp.core.model.errors import InputFileError
from dnnp.core.runtime.measure import Measurement, measure_nodes

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

OPSET, IR_VERSION = 17, 8
CONTRIB = "com.microsoft"
"""Domain of ONNX Runtime's own operators."""


def step_model(step: Step) -> ModelProto:
    """A model of one operator on tensors of its own."""
    from onnx import TensorProto, helper

    rng = np.random.default_rng(0)
    inputs, stored, names = [], [], []
    for i, shape in enumerate(step.reads):
        name = f"x{i}"
        if i in step.weights:
            stored.append(_stored(name, rng.standard_normal(shape, np.float32)))
        else:
            inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        names.append(name)
    given = [np.array(values, np.int64) for values in step.given]
    if step.op == "ScatterND":
        table, rows = step.reads
        given = [rng.integers(0, table[0], (rows[0], 1))]
        names.insert(1, "g0")
    else:
        names += [f"g{i}" for i in range(len(given))]
    stored += [_stored(f"g{i}", values) for i, values in enumerate(given)]
    outputs = [f"y{i}" for i in range(step.writes)]
    node = helper.make_node(
        step.op, names, outputs, name="step", domain=step.domain, **dict(step.attributes)
    )
    shown = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph([node], "gradient", inputs, shown, stored)
    domains = [helper.make_opsetid("", OPSET), helper.make_opsetid(CONTRIB, 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=IR_VERSION)


def _stored(name: str, values: np.ndarray[Any, Any]) -> TensorProto:
    from onnx import numpy_helper

    return numpy_helper.from_array(values, name)


def step_times(
    steps: Iterable[Step], how: Measurement, progress: Callable[[float], None] = lambda share: None
) -> dict[Step, float]:
    """Seconds of each distinct step; steps that do not run here are left out.

    Parameters
    ----------
    progress
        Told the share of steps that are done.
    """
    found: dict[Step, float] = {}
    distinct = list(dict.fromkeys(steps))
    for done, step in enumerate(distinct, 1):
        # Where one does not run, another way may; if none does, the ratio by formula is left.
        with suppress(InputFileError):
            found[step] = fsum(measure_nodes(step_model(step), Path(os.curdir), how))
        progress(done / len(distinct))
    return found


def gradient_time(terms: Sequence[Term], times: Mapping[Step, float]) -> float | None:
    """Seconds of a gradient, each term in its fastest way; None: a term runs in none."""
    total = []
    for ways in terms:
        known = [fsum(times[s] for s in way) for way in ways if all(s in times for s in way)]
        if not known:
            return None
        total.append(min(known))
    return fsum(total)
