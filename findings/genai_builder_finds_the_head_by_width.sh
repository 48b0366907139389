#!/usr/bin/env bash
# Libraries: onnxruntime-genai 0.18.0 (its model builder), transformers 5.24.0, PyTorch 2.13.0, tokenizers 0.23.3, onnx-ir 1.1.0, onnxruntime 1.32.0,
#            onnx 1.23.2, numpy 2.4.6 (Python 3.11, CPU).
# Expected:  the builder exports what Transformers computes; the head of a LlamaForCausalLM is model.lm_head, after the last norm.
# Happens:   each Linear with as many outputs as there are words counts as the head. In a decoder of 3 layers whose feed-forward layers have
#            as many units as there are words (256), or whose hidden size is that number, the first such product is met in layer 0: the
#            product with the (right) weights of the head then reads the norm in the middle of layer 0. Layers 1 and 2 are in the model
#            and feed their caches, but no logit. Status 0; all that tells is "Reading LM head", 7 times. The first token is wrong.
#            With 128 units the logits are those of PyTorch to 1e-6. Fused projections count by their sum: gate and up of Phi-3.
# Matters:   small decoders with round numbers are what exports, runtimes and splits are tested with: each runtime agrees with each other on the
#            wrong model, a cut after layer 0 changes nothing, and a comparison of speed is one of dead layers. Compare with PyTorch once.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/env"
"$work/env/bin/pip" install -q --only-binary :all: onnxruntime-genai==0.18.0 transformers==5.24.0 torch==2.13.0 tokenizers==0.23.3 onnx-ir==1.1.0 \
    onnxscript==0.7.2 onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6 >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 2; }
cd "$work"
env/bin/python - 2>errors <<'PY' || { cat errors >&2; exit 1; }
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime as ort
import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS, HEADS = 256, 2


def exported(name, hidden, units):
    """What the head reads, how often one was read, and the largest difference of logits from PyTorch's."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=WORDS, hidden_size=hidden, intermediate_size=units, num_hidden_layers=3, num_attention_heads=HEADS,
        num_key_value_heads=HEADS, max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        tie_word_embeddings=False)).eval()
    model.save_pretrained(name)
    words = Tokenizer(models.WordLevel({"<pad>": 0, "<s>": 1, "</s>": 2}, unk_token="<pad>"))
    PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="</s>", pad_token="<pad>").save_pretrained(name)
    made = f"{name}-onnx"
    call = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", name, "-o", made, "-p", "fp32", "-e", "cpu", "-c", "cache"]
    said = subprocess.run(call, check=True, capture_output=True, text=True).stdout
    graph = onnx.load(f"{made}/model.onnx").graph
    (head,) = (node for node in graph.node if "logits" in node.output)
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    assert np.array_equal(weights[head.input[1]], model.lm_head.weight.detach().numpy().T), "other weights"
    ids = np.array([[5, 6, 7, 8]])
    empty = np.zeros((1, HEADS, 0, hidden // HEADS), np.float32)
    session = ort.InferenceSession(f"{made}/model.onnx", providers=["CPUExecutionProvider"])
    known = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(4)[None]}
    logits = session.run(["logits"], {i.name: known.get(i.name, empty) for i in session.get_inputs()})[0]
    right = model(torch.tensor(ids)).logits.detach().numpy()
    return head.input[0], said.count("Reading LM head"), float(np.abs(logits - right).max() / np.abs(right).max())


for name, hidden, units in (("apart", 64, 128), ("units", 64, WORDS), ("hidden", WORDS, 128)):
    reads, count, difference = exported(name, hidden, units)
    print(f"{WORDS} words, hidden size {hidden}, {units} units: the head reads {reads}; read {count} times; off by {difference:.1e}")
    if name == "apart":
        assert "layers.3/final_norm" in reads and count == 1 and difference < 1e-5, (reads, count, difference)
    else:
        assert "layers.0/post_attention" in reads and count > 1 and difference > 0.1, (reads, count, difference)
        assert name != "units" or count == 7, count
print("as stated")
PY
