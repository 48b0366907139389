"""Splits of quantised models, and behind tensors whose shape only the stream knows.

These need copies of DequantizeLinear in stages, and sizes from the stream at their borders.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.fusion import heavy, lost_at_borders, stage_operators
from support.fusion_cases import CASES, write_case
from support.run import dnnp

QUANTISED = sorted(name for name in CASES if name.startswith("q_"))


@pytest.mark.parametrize("rules", ["ort", "ort-cpu"])
@pytest.mark.parametrize("name", QUANTISED)
def test_no_border_loses_a_quantised_operator(name, rules, tmp_path):
    path = tmp_path / "m.onnx"
    write_case(name, path)
    grouped = dnnp("coarsen", "-q", "--rules", rules, stdin=dnnp("import", "-q", path).out)
    borders, lost = lost_at_borders(grouped.out)
    assert borders > 1
    assert not lost


@pytest.mark.parametrize("k", ["2", "4"])
@pytest.mark.parametrize("rules", ["ort", "ort-cpu"])
def test_a_model_with_computed_shapes(rules, k, shared_models: Path):
    data = dnnp("import", "-q", shared_models / "bert6.onnx").out
    data = dnnp("coarsen", "-q", "--rules", rules, stdin=data).out
    data = dnnp("partition", "-q", "-k", k, "--effort", "0.1", stdin=data).out
    whole, apart, stages = stage_operators(data)
    assert stages > 1
    assert not heavy(whole - apart)
    assert not heavy(apart - whole)
