#!/usr/bin/env bash
# Libraries: onnx 1.18.0, 1.19.1, 1.22.0 and 1.23.2 (reference evaluator), onnxruntime 1.26.0 and 1.32.0 (CPU provider), tinygrad
#            0.14.0 (its ONNX runner, on the device PYTHON), numpy 2.4.6 (Python 3.11).
# Expected:  an operator's version fixes what it computes: Attention of opset 23 is one function in each release that knows it, and
#            what changes is called Attention-24 or -25.
# Happens:   five files of opset 23, each read in two or three ways. Grouped heads: onnx 1.18 and tinygrad give head i of four the cached head i % 2,
#            the others i // 2. is_causal with a past: in these two a new token sees the oldest entry of the cache alone, in the others
#            all of it. softcap: in onnx 1.19 and onnxruntime 1.26 too it comes after the mask, so that masked entries are back with
#            -softcap, later before it. A row that the mask forbids wholly: NaN up to onnx 1.22, the mean of the values in onnxruntime 1.26,
#            zeros in the newest of both. The same with the least float for False: the mean, but zeros in onnxruntime 1.32, so that the
#            newest two differ. All call it version 23, and nothing is said.
# Matters:   stages on machines with two releases of one runtime are stages of two models, and so is the reference that they are verified
#            with. Note the release beside the opset, and compare with a past, several cached heads, softcap and padding.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/env"
install() { "$work/env/bin/pip" install -q --only-binary :all: "$@" >>"$work/log" 2>&1 || { cat "$work/log" >&2; exit 2; }; }
install onnx==1.23.2 onnxruntime==1.32.0 tinygrad==0.14.0 numpy==2.4.6
for package in onnx==1.18.0 onnx==1.19.1 onnx==1.22.0 onnxruntime==1.26.0; do
  install --no-deps --target "$work/$package" "$package"
done
cd "$work"
cat >one.py <<'PY'
import sys
import warnings

import numpy as np

tool, *names = sys.argv[1:]
warnings.simplefilter("ignore")


def run(path, feeds):
    if tool == "onnx":
        import onnx
        from onnx.reference import ReferenceEvaluator

        return ReferenceEvaluator(onnx.load(path)).run(["y"], feeds)[0]
    if tool == "onnxruntime":
        import onnxruntime as library

        options = library.SessionOptions()
        options.log_severity_level = 4
        return library.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(["y"], feeds)[0]
    from tinygrad import Tensor
    from tinygrad.nn.onnx import OnnxRunner

    return OnnxRunner(path)({key: Tensor(array) for key, array in feeds.items()})["y"].numpy()


np.savez("results.npz", **{name: run(f"{name}.onnx", dict(np.load(f"{name}.npz"))) for name in names})
PY
env/bin/python - <<'PY'
import os
import subprocess

import numpy as np
import onnx
from onnx import TensorProto, defs, helper

SIZE, CAP = 4, 2.0
draw = np.random.default_rng(0)


def floats(*shape):
    return draw.standard_normal(shape).astype(np.float32)


def attend(feeds, pairs=(0, 1), before=0.0, after=0.0, cap=None):
    """Attention by hand: query head i reads cached head pairs[i]; a mask before and a mask after the cap."""
    k, v = (np.concatenate([feeds[part] for part in (f"past_{name}", name) if part in feeds], 2)[:, pairs] for name in "kv")
    scores = feeds["q"] @ k.swapaxes(2, 3) / SIZE**0.5 + before
    if cap:
        scores = cap * np.tanh(scores / cap)
    scores = scores + after
    with np.errstate(invalid="ignore"):
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        return powers / powers.sum(-1, keepdims=True) @ v


def save(name, heads, cached, new, past=0, mask=None, **attributes):
    feeds = {"q": floats(1, heads, new, SIZE), "k": floats(1, cached, new, SIZE), "v": floats(1, cached, new, SIZE)}
    if past:
        feeds |= {"past_k": floats(1, cached, past, SIZE), "past_v": floats(1, cached, past, SIZE)}
    if mask is not None:
        feeds["mask"] = mask
    inputs = [part if part in feeds else "" for part in ("q", "k", "v", "mask", "past_k", "past_v")]
    while not inputs[-1]:
        inputs.pop()
    shapes = {"y": feeds["q"].shape} | ({part: (1, cached, past + new, SIZE) for part in ("now_k", "now_v")} if past else {})
    graph = helper.make_graph(
        [helper.make_node("Attention", inputs, list(shapes), **attributes)], name,
        [helper.make_tensor_value_info(part, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape) for part, array in feeds.items()],
        [helper.make_tensor_value_info(part, TensorProto.FLOAT, shape) for part, shape in shapes.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, f"{name}.onnx")
    np.savez(f"{name}.npz", **feeds)
    return feeds


assert defs.get_schema("Attention", 23).since_version == 23
seen = np.tril(np.ones((3, 3), bool))
future = np.where(seen, 0, -np.inf).astype(np.float32)
seen[1] = False
closed = np.where(seen, 0, -np.inf).astype(np.float32)
least = np.where(seen, 0, np.finfo(np.float32).min).astype(np.float32)

rules = {}
feeds = save("heads", 4, 2, 1, past=3)
rules["heads"] = {"i // 2": attend(feeds, (0, 0, 1, 1)), "i % 2": attend(feeds, (0, 1, 0, 1))}
feeds = save("causal", 2, 2, 1, past=3, is_causal=1)
rules["causal"] = {"all": attend(feeds), "oldest": feeds["past_v"][:, :, :1]}
feeds = save("softcap", 2, 2, 3, is_causal=1, softcap=CAP)
rules["softcap"] = {"first": attend(feeds, after=future, cap=CAP), "last": attend(feeds, before=future, cap=CAP)}
for name, mask in (("row_bool", seen), ("row_least", least)):
    feeds = save(name, 2, 2, 3, mask=mask)
    nan = attend(feeds, before=closed)
    assert np.isnan(nan[:, :, 1]).all() and np.isfinite(nan[:, :, [0, 2]]).all()
    mean, zero = nan.copy(), nan.copy()
    mean[:, :, 1], zero[:, :, 1] = feeds["v"].mean(2), 0
    rules[name] = {"nan": nan, "mean": mean, "zero": zero}


def followed(release):
    """The rule of each file that a release follows."""
    environment = os.environ | {"PYTHONPATH": release * os.path.isdir(release), "DEV": "PYTHON", "CACHEDB": os.path.abspath("cache.db")}
    subprocess.run(["env/bin/python", "one.py", release.split("==")[0], *rules], check=True, env=environment)
    for name, result in np.load("results.npz").items():
        found = [key for key, right in rules[name].items() if np.allclose(result, right, atol=1e-5, equal_nan=True)]
        yield found[0] if len(found) == 1 else f"{len(found)} rules"


stated = {
    "onnx==1.18.0": "i % 2, oldest, last, nan, mean",
    "onnx==1.19.1": "i // 2, all, last, nan, mean",
    "onnx==1.22.0": "i // 2, all, first, nan, mean",
    "onnx==1.23.2": "i // 2, all, first, zero, mean",
    "onnxruntime==1.26.0": "i // 2, all, last, mean, mean",
    "onnxruntime==1.32.0": "i // 2, all, first, zero, zero",
    "tinygrad==0.14.0": "i % 2, oldest, last, nan, mean"}
print("release:", ", ".join(rules))
got = {}
for release in stated:
    got[release] = ", ".join(followed(release))
    print(f"{release}: {got[release]}")
assert got == stated
print("as stated")
PY
