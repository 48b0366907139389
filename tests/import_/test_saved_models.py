"""Models as ONNX Runtime's own tools save them: its optimiser, its quantisation; split and run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path

import onnx
import onnxruntime
import pytest
from onnx import version_converter

from dnnp.core.runtime.model.inputs import random_inputs
from dnnp.samples.models import bert, gpt, resnet50
from dnnp.samples.weights import with_weights
from support.run import dnnp

SAMPLES: dict[str, Callable[[], onnx.ModelProto]] = {
    "bert": lambda: with_weights(bert.build(bert.Transformer(1, 32, 2, vocabulary=64, length=8))),
    "gpt": lambda: with_weights(gpt.build(gpt.Size(1, 32, 2, vocabulary=64, context=16, length=8))),
    "resnet": lambda: with_weights(resnet50.build(resnet50.Size(width=16, image=32, classes=10))),
}


@cache
def sample(name: str) -> bytes:
    """A sample of the project, small."""
    return SAMPLES[name]().SerializeToString()


def optimised(level: str, source: Path, path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(path)
    options.graph_optimization_level = getattr(
        onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}"
    )
    onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def dynamic(_: str, source: Path, path: Path) -> None:
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(source, path)


def static(form: str, source: Path, path: Path) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.feeds = iter([dict(random_inputs(onnx.load(source), i)) for i in range(2)])

        def get_next(self) -> dict | None:
            return next(self.feeds, None)

    quantize_static(source, path, Reader(), quant_format=QuantFormat[form])


def four_bits(form: str, source: Path, path: Path) -> None:
    pytest.importorskip("onnx_ir")
    from onnxruntime.quantization import QuantFormat
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    model = version_converter.convert_version(onnx.load(source), 21)
    made = MatMulNBitsQuantizer(
        model, block_size=16, is_symmetric=True, quant_format=QuantFormat[form]
    )
    made.process()
    made.model.save_model_to_file(str(path))


def transformers(kind: str, source: Path, path: Path) -> None:
    from onnxruntime.transformers import optimizer

    model = optimizer.optimize_model(str(source), kind, num_heads=2, hidden_size=32, opt_level=0)
    model.save_model_to_file(str(path))


CASES = [
    *(("optimised", name, level) for name in SAMPLES for level in ("EXTENDED", "ALL")),
    *(("dynamic", name, "") for name in SAMPLES),
    *(("static", name, "QOperator") for name in SAMPLES),
    *(("static", name, "QDQ") for name in ("bert", "gpt")),  # that of resnet takes 3 s
    *(("four_bits", name, form) for name in ("bert", "gpt") for form in ("QDQ", "QOperator")),
    ("transformers", "bert", "bert"),
    ("transformers", "gpt", "gpt2"),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("tool", "name", "how"), CASES, ids=lambda text: text or "-")
def test_saved_models_are_split_and_run(tool: str, name: str, how: str, tmp_path: Path) -> None:
    """Every size is known without a run, and two and four stages make what the model makes."""
    source, path = tmp_path / "source.onnx", tmp_path / "m.onnx"
    source.write_bytes(sample(name))
    logging.disable(logging.CRITICAL)
    try:
        globals()[tool](how, source, path)
    finally:
        logging.disable(logging.NOTSET)
    imported = dnnp("import", path)
    assert imported.err == ""
    assert imported.status == 0
    assert "ran" not in imported.one("header")["source"]
    unknown = [t["name"] for t in imported.records("tensor") if "shape" not in t]
    assert unknown == []
    for k in (2, 4):
        plan = dnnp("partition", "-q", "-k", str(k), "--method", "uniform", stdin=imported.out)
        assert len(plan.records("stage")) == k
        done = dnnp("run", "-q", "-n", "1", "--warmup", "0", "--verify", stdin=plan.out)
        assert done.status == 0, done.err
