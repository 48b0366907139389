#!/usr/bin/env bash
# Libraries: onnxruntime-genai 0.18.0, onnxruntime 1.32.0, onnx 1.23.2, numpy 2.4.6 (Python 3.11, CPU).
# Expected:  a prompt is one sequence of ids; pad_token_id fills rows of a batch and says nothing about one prompt alone. How a prompt is
#            appended does not change the tokens. get_sequence ends with the end-of-sequence token, or never does.
# Happens:   for a decoder whose next token is the sum of all that its mask lets it see, plus one (ids below 50), and pad_token_id 7:
#            [3, 5, 7] in one call: its last token has 0 in the mask of the prompt's pass (next is 9), and 1 in every later pass (next is 25).
#            [3, 5] and [7] in two calls: 16 and 32, which is right. As a row of a batch it stays masked: 9 and 18. In the middle or in front
#            it is a token like any other. With pad_token_id equal to eos_token_id, as many configurations have it, the same befalls prompts
#            that end with the end of a turn. A generated end token is missing in get_sequence of one sequence, and is there in a batch.
# Matters:   a chat prompt that ends with such a token is answered as a prompt without it, then goes on as one with it, without a word; a
#            comparison with another runtime differs from the first token on. Append the last token in a call of its own.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/env"
"$work/env/bin/pip" install -q --only-binary :all: onnxruntime-genai==0.18.0 onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6 >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 2; }
cd "$work"
env/bin/python - <<'PY'
import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime_genai as og
from onnx import TensorProto, helper, numpy_helper

WORDS, END = 50, 49
value, node = helper.make_tensor_value_info, helper.make_node
constants = {
    "shape_ends": np.array([1, 3]), "one": np.array(1), "last": np.array([2**31]), "axis": np.array([1]), "plus": np.array(1, np.float32),
    "words": np.array(WORDS, np.float32), "depth": np.array(WORDS), "off_on": np.array([0, 1], np.float32)}
nodes = [
    node("Cast", ["input_ids"], ["ids"], to=TensorProto.FLOAT),
    node("Unsqueeze", ["ids", "shape_ends"], ["entry"]),
    node("Concat", ["past_key_values.0.key", "entry"], ["present.0.key"], axis=2),
    node("Concat", ["past_key_values.0.value", "entry"], ["present.0.value"], axis=2),
    node("Squeeze", ["present.0.key", "shape_ends"], ["all"]),
    node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
    node("Mul", ["all", "mask"], ["seen"]),
    node("CumSum", ["seen", "one"], ["sums"]),
    node("Shape", ["input_ids"], ["length"], start=1, end=2),
    node("Neg", ["length"], ["first"]),
    node("Slice", ["sums", "first", "last", "axis"], ["rows"]),
    node("Add", ["rows", "plus"], ["more"]),
    node("Mod", ["more", "words"], ["next"], fmod=1),
    node("Cast", ["next"], ["next_id"], to=TensorProto.INT64),
    node("OneHot", ["next_id", "depth", "off_on"], ["logits"], axis=-1)]
FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64
pasts = [value(f"past_key_values.0.{part}", FLOAT, ["b", 1, "p", 1]) for part in ("key", "value")]
presents = [value(f"present.0.{part}", FLOAT, ["b", 1, "t", 1]) for part in ("key", "value")]
graph = helper.make_graph(
    nodes, "sum", [value("input_ids", INT, ["b", "s"]), value("attention_mask", INT, ["b", "t"]), *pasts],
    [value("logits", FLOAT, ["b", "s", WORDS]), *presents],
    [numpy_helper.from_array(array, name) for name, array in constants.items()])
sums = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
onnx.checker.check_model(sums)


def load(pad):
    folder = Path(f"pad-{pad}")
    folder.mkdir()
    onnx.save(sums, folder / "model.onnx")
    caches = {f"{time}_{part}_names": f"{time}{tail}.%d.{part}" for time, tail in (("past", "_key_values"), ("present", ""))
              for part in ("key", "value")}
    decoder = {
        "filename": "model.onnx", "head_size": 1, "hidden_size": 1, "num_attention_heads": 1, "num_hidden_layers": 1,
        "num_key_value_heads": 1, "session_options": {},
        "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask", **{k: v for k, v in caches.items() if "past" in k}},
        "outputs": {"logits": "logits", **{k: v for k, v in caches.items() if "present" in k}}}
    model = {"type": "llama", "vocab_size": WORDS, "context_length": 64, "bos_token_id": 1, "eos_token_id": END, "pad_token_id": pad,
             "decoder": decoder}
    search = {"max_length": 64, "do_sample": False, "past_present_share_buffer": False}
    (folder / "genai_config.json").write_text(json.dumps({"model": model, "search": search}))
    return og.Model(str(folder))


def generate(model, *calls, rows=1, steps=2):
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=40, batch_size=rows)
    generator = og.Generator(model, params)
    for ids in calls:
        generator.append_tokens(np.array(ids, np.int32))
    made = []
    while not generator.is_done() and len(made) < steps:
        generator.generate_next_token()
        made.append([int(token) for token in generator.get_next_tokens()])
    row = [int(token) for token in generator.get_sequence(0)]
    print(*calls, "->", made, row)
    return [tokens[0] for tokens in made], row


model = load(7)
assert generate(model, [3, 5, 2])[0] == [11, 22]
assert generate(model, [3, 5, 7])[0] == [9, 25]
assert generate(model, [3, 5], [7])[0] == [16, 32]
assert generate(model, [[3, 5, 7], [1, 2, 4]], rows=2)[0] == [9, 18]
assert generate(model, [3, 7, 5])[0] == [16, 32] == generate(model, [7, 3, 5])[0]
assert generate(load(END), [3, 5, END])[0] == [9, 17]
assert generate(load(0), [3, 5, END])[0] == [8, 16]

assert generate(model, [40, 8]) == ([END], [40, 8])
assert generate(model, [[40, 8], [1, 2]], rows=2)[1] == [40, 8, END, 7]
print("as stated")
PY
