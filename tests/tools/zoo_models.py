"""Write small models of many exporters into a folder, with an environment of their own.

    python tests/tools/zoo_models.py DIR [--environment DIR] [--t5 | --rewrite MODEL.onnx ...]

makes the environment (by default DIR/env) with the versions below where it is not there, and starts
itself in it: pipelines of scikit-learn by skl2onnx, LightGBM and XGBoost by onnxmltools, jax2onnx
and spox; with --t5 a small T5 of random weights by optimum, which takes 5 GB of packages; with
--rewrite given models as ONNX Runtime's optimisers and quantisers save them.
`tests/tools/models_check.py --models DIR` then takes them to a verified run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

PINNED = (
    "numpy==2.4.6",
    "scikit-learn==1.9.1",
    "skl2onnx==1.20.0",
    "onnxmltools==1.16.0",
    "lightgbm==4.7.0",
    "xgboost==3.2.0",
    "spox==0.18.2",
    "jax==0.10.2",
    "flax==0.12.8",
    "jax2onnx==0.17.1",
    "onnx==1.23.2",
    "onnxruntime==1.32.0",
)
PINNED_T5 = (
    "numpy==2.4.6",
    "torch==2.14.1",
    "transformers==4.57.6",
    "optimum==2.1.0",
    "optimum-onnx==0.1.0",
    "onnx==1.23.2",
    "onnxruntime==1.32.0",
)
ROWS, COLUMNS = 200, 6


def learned(folder: Path) -> None:
    """Pipelines of scikit-learn, LightGBM and XGBoost."""
    import lightgbm
    import numpy as np
    import xgboost
    from onnxmltools import convert_lightgbm, convert_xgboost
    from onnxmltools.convert.common.data_types import FloatTensorType as OtherFloats
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import StringTensorType
    from sklearn import (
        cluster,
        compose,
        decomposition,
        ensemble,
        feature_extraction,
        impute,
        linear_model,
        naive_bayes,
        neighbors,
        neural_network,
        preprocessing,
        svm,
    )
    from sklearn.pipeline import make_pipeline, make_union

    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    labels, target = (x[:, 0] + x[:, 1] > 0).astype(int), x @ rng.standard_normal(COLUMNS)
    classes = np.digitize(target, [-1, 1])
    scaled = preprocessing.StandardScaler
    kinds: dict[str, tuple[Any, Any]] = {
        "linear": (make_pipeline(scaled(), linear_model.LogisticRegression()), classes),
        "regression": (make_pipeline(preprocessing.MinMaxScaler(), linear_model.Ridge()), target),
        "forest": (
            make_pipeline(impute.SimpleImputer(), ensemble.RandomForestClassifier(20)),
            classes,
        ),
        "boosting": (
            make_pipeline(
                preprocessing.PolynomialFeatures(2), ensemble.GradientBoostingRegressor()
            ),
            target,
        ),
        "svm": (make_pipeline(preprocessing.Normalizer(), svm.SVC(probability=True)), labels),
        "neural": (
            make_pipeline(scaled(), neural_network.MLPClassifier((16, 16), max_iter=50)),
            classes,
        ),
        "neighbours": (
            make_pipeline(decomposition.PCA(3), neighbors.KNeighborsClassifier(5)),
            classes,
        ),
        "union": (
            make_pipeline(
                make_union(scaled(), decomposition.PCA(2)),
                ensemble.VotingClassifier(
                    [
                        ("a", linear_model.LogisticRegression()),
                        ("b", naive_bayes.GaussianNB()),
                    ],
                    voting="soft",
                    flatten_transform=False,
                ),
            ),
            classes,
        ),
        "clusters": (make_pipeline(preprocessing.RobustScaler(), cluster.KMeans(4)), None),
    }
    for name, (model, wanted) in kinds.items():
        save(folder, f"sklearn-{name}", to_onnx(model.fit(x, wanted), x[:4]))
    binned = preprocessing.KBinsDiscretizer(3, encode="onehot-dense")
    columns = compose.ColumnTransformer([("n", scaled(), [0, 1]), ("c", binned, [2, 3])])
    mixed = make_pipeline(columns, linear_model.LogisticRegression()).fit(x, labels)
    save(folder, "sklearn-columns", to_onnx(mixed, x[:4]))
    words = feature_extraction.text.TfidfVectorizer(analyzer="char")
    text = make_pipeline(words, linear_model.LogisticRegression())
    text.fit([str(i) for i in range(ROWS)], np.arange(ROWS) % 10 > 4)
    options = {id(words): {"locale": "C"}}
    ends = [("t", StringTensorType([4]))]
    save(folder, "sklearn-text", to_onnx(text, initial_types=ends, options=options))
    floats = [("x", OtherFloats([4, COLUMNS]))]
    light = lightgbm.LGBMClassifier(n_estimators=20, verbose=-1).fit(x, classes)
    save(folder, "lightgbm-classifier", convert_lightgbm(light, initial_types=floats))
    light = lightgbm.LGBMRegressor(n_estimators=20, verbose=-1).fit(x, target)
    save(folder, "lightgbm-regressor", convert_lightgbm(light, initial_types=floats))
    boosted = xgboost.XGBClassifier(n_estimators=20).fit(x, classes)
    save(folder, "xgboost-classifier", convert_xgboost(boosted, initial_types=floats))
    boosted = xgboost.XGBRegressor(n_estimators=20).fit(x, target)
    save(folder, "xgboost-regressor", convert_xgboost(boosted, initial_types=floats))


def from_jax(folder: Path) -> None:
    """A perceptron and a block of attention by jax2onnx."""
    import jax
    import jax.numpy as jnp
    from jax2onnx import to_onnx

    keys = jax.random.split(jax.random.key(0), 6)
    a, b, q, k, v, o = (jax.random.normal(key, (32, 32)) / 6 for key in keys)

    def perceptron(x: Any) -> Any:
        return jax.nn.softmax(jnp.tanh(jax.nn.gelu(x @ a) @ b) @ a)

    def block(x: Any) -> Any:
        weights = jax.nn.softmax((x @ q) @ (x @ k).T / 6)
        x = x + weights @ (x @ v) @ o
        mean = x.mean(-1, keepdims=True)
        return perceptron((x - mean) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5))

    save(folder, "jax2onnx-perceptron", to_onnx(perceptron, [(4, 32)]))
    save(folder, "jax2onnx-attention", to_onnx(block, [(8, 32)]))


def from_spox(folder: Path) -> None:
    """A chain with a branch and a loop by spox."""
    import numpy as np
    import spox
    import spox.opset.ai.onnx.v17 as op

    x = spox.argument(spox.Tensor(np.float32, (4, 32)))
    weight = op.const(np.eye(32, dtype=np.float32) / 2)
    hidden = op.tanh(op.matmul(x, weight))
    (chosen,) = op.if_(
        op.greater(op.reduce_sum(hidden, keepdims=0), op.const(np.float32(0))),
        then_branch=lambda: [op.relu(hidden)],
        else_branch=lambda: [op.neg(hidden)],
    )
    (looped,) = op.loop(
        op.const(np.int64(3)),
        v_initial=[chosen],
        body=lambda i, going, held: [going, op.matmul(held, weight)],
    )
    save(folder, "spox", spox.build({"x": x}, {"y": op.softmax(op.add(looped, hidden))}))


def from_optimum(folder: Path) -> None:
    """The encoder of a T5, and its decoder with and without cache as the branches of one If."""
    import torch
    from optimum.exporters.onnx import onnx_export_from_model
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 64}
    config = T5Config(num_layers=2, num_heads=4, decoder_start_token_id=0, **sizes)
    model = T5ForConditionalGeneration(config).eval()
    task = "text2text-generation-with-past"
    with tempfile.TemporaryDirectory() as scratch:
        onnx_export_from_model(model, Path(scratch), task=task, do_validation=False)
        for part in ("encoder_model", "decoder_model_merged"):
            shutil.copy(Path(scratch) / f"{part}.onnx", folder / f"t5-{part}.onnx")
            print(f"t5-{part}", flush=True)


def rewritten(folder: Path, source: Path) -> None:
    """A model as ONNX Runtime's optimisers and quantisers save it."""
    import numpy as np
    import onnx
    import onnxruntime as ort
    from onnxruntime import quantization as q
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    def target(way: str) -> str:
        print(f"{source.stem}-{way}", flush=True)
        return str(folder / f"{source.stem}-{way}.onnx")

    class Random(q.CalibrationDataReader):
        """Two samples."""

        def __init__(self) -> None:
            rng = np.random.default_rng(0)
            ends = ort.InferenceSession(source).get_inputs()
            self._samples = iter(
                {
                    e.name: rng.integers(0, 2, e.shape)
                    if "int64" in e.type
                    else rng.standard_normal(e.shape, dtype=np.float32)
                    for e in ends
                }
                for _ in range(2)
            )

        def get_next(self) -> Any:
            return next(self._samples, None)

    for level in ("EXTENDED", "ALL"):
        options = ort.SessionOptions()
        options.graph_optimization_level = getattr(
            ort.GraphOptimizationLevel, f"ORT_ENABLE_{level}"
        )
        options.optimized_model_filepath = target(f"optimised-{level.lower()}")
        ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    q.quantize_dynamic(source, target("dynamic"))
    for form in (q.QuantFormat.QDQ, q.QuantFormat.QOperator):
        q.quantize_static(source, target(f"static-{form.name}"), Random(), quant_format=form)
    if "MatMul" in {n.op_type for n in onnx.load(source).graph.node}:
        from onnxruntime.transformers import optimizer

        kind = "gpt2" if "gpt" in source.stem else "bert"
        fused = optimizer.optimize_model(str(source), kind, opt_level=0)
        fused.save_model_to_file(target("transformers"))
        for form in (q.QuantFormat.QDQ, q.QuantFormat.QOperator):
            model = onnx.load(source)
            blocks = MatMulNBitsQuantizer(model, block_size=32, quant_format=form)
            blocks.process()
            blocks.model.save_model_to_file(target(f"int4-{form.name}"))


def save(folder: Path, name: str, model: Any) -> None:
    """Write a model."""
    (folder / f"{name}.onnx").write_bytes(model.SerializeToString())
    print(name, flush=True)


def main() -> int:
    """Make the environment if it is not there, and the models in it; 1 if an exporter fails."""
    parser = argparse.ArgumentParser(description="Write small models of many exporters.")
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--environment", type=Path, metavar="DIR", help="(DIR/env)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--t5", action="store_true", help="only a T5 by optimum")
    which.add_argument(
        "--rewrite",
        type=Path,
        nargs="+",
        default=[],
        metavar="MODEL",
        help="only these, as saved by ONNX Runtime",
    )
    args = parser.parse_args()
    folder = args.folder
    folder.mkdir(parents=True, exist_ok=True)
    if os.environ.get("DNNP_ZOO") != "1":
        home = args.environment or folder / ("env-t5" if args.t5 else "env")
        python = home / "bin" / "python"
        pinned = PINNED_T5 if args.t5 else PINNED
        if not python.exists():
            venv.create(home, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *pinned], check=True)
        done = subprocess.run([python, *sys.argv], env={**os.environ, "DNNP_ZOO": "1"})
        return done.returncode
    failed = 0
    makers: list[tuple[Any, ...]] = [(rewritten, path) for path in args.rewrite]
    makers += [(from_optimum,)] * args.t5
    for make, *source in makers or [(learned,), (from_jax,), (from_spox,)]:
        try:
            make(folder, *source)
        except Exception as error:
            failed = 1
            print(f"{make.__name__}: {type(error).__name__}: {error}", file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(main())
