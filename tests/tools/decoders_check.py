"""Decoders as they are exported: generated with by stages, and by onnxruntime-genai.

    python tests/tools/decoders_check.py [--work DIR] [--only NAME] [--count 64]

Installs pinned packages (PyTorch among them, some 6 GB) into an environment in the folder, makes
small decoders with random weights of several families, exports them by onnxruntime-genai's builder
in fp32 and int4, and for two and three stages compares

    dnnp-run --generate --verify    with the whole model in one session, ties apart
    dnnp-export --to genai          opened by onnxruntime-genai, with the tokens of dnnp-run

Sixteen prompts, none of which ends with the id for padding. Where tokens differ from those of
onnxruntime-genai, which takes a prompt by other kernels, a row says at which of them; in models of
4 bits that may be a tie. Exits with 1 if anything is not equal in fp32, or not verified.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

BIN = Path(sys.executable).parent
PACKAGES = (
    "torch==2.9.1", "transformers==5.24.0", "tokenizers==0.23.3", "onnx==1.23.2", "onnx-ir==1.1.0",
    "onnxscript==0.7.2", "onnxruntime==1.32.0", "onnxruntime-genai==0.18.0", "numpy==2.4.6",
)  # fmt: skip
FAMILIES = ("llama", "qwen3", "phi3")
WORDS, PROMPTS, END = 1024, 16, 2

CHECKPOINTS = """
import sys, torch
from tokenizers import Tokenizer, models, pre_tokenizers
import transformers as t
torch.manual_seed(0)
name, folder = sys.argv[1:]
config, model, more = {
    "llama": (t.LlamaConfig, t.LlamaForCausalLM, {}),
    "qwen3": (t.Qwen3Config, t.Qwen3ForCausalLM, {"head_dim": 64}),
    "phi3": (t.Phi3Config, t.Phi3ForCausalLM, {"original_max_position_embeddings": 512}),
}[name]
made = model(config(
    vocab_size=1024, hidden_size=256, intermediate_size=512, num_hidden_layers=4,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, bos_token_id=1,
    eos_token_id=2, pad_token_id=0, tie_word_embeddings=False, **more))
for p in made.parameters():
    if p.dim() > 1:
        torch.nn.init.normal_(p, std=0.08)
made.save_pretrained(folder)
words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(1024)}, unk_token="w3"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
t.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w2", pad_token="w0", bos_token="w1",
                          unk_token="w3").save_pretrained(folder)
"""

GENERATE = """
import json, sys
import onnxruntime_genai as og
folder, prompts, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
model, found = og.Model(folder), []
for line in open(prompts):
    ids = json.loads(line)["ids"]
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=len(ids) + count, do_sample=False)
    generator = og.Generator(model, params)
    generator.append_tokens(ids)
    while not generator.is_done():
        generator.generate_next_token()
    found.append([int(t) for t in generator.get_sequence(0)][len(ids):])
print(json.dumps(found))
"""


def call(*words: object, quiet: bool = True) -> str:
    """Run a command; its output, or an exit with what it said."""
    done = subprocess.run([*map(str, words)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words[:3]))} failed:\n{done.stderr[-2000:]}")
    if not quiet:
        print(done.stderr, end="")
    return done.stdout


def environment(folder: Path) -> Path:
    """Python of an environment with the pinned packages."""
    python = folder / "env" / "bin" / "python"
    if not python.exists():
        call(sys.executable, "-m", "venv", folder / "env")
        call(python, "-m", "pip", "install", "-q", "--only-binary", ":all:", *PACKAGES)
    return python


def compare(model: Path, folder: Path, python: Path, k: int, count: int, exact: bool) -> bool:
    """Generate by `k` stages, and from the exported folder."""
    phases = ("--phase", "prompt:seq=8..64", "--phase", f"token:batch=4,past=8..{64 + count}")
    call(BIN / "dnnp-import", "-q", model, *phases, "-o", folder / "model.dnnp")
    call(BIN / "dnnp-profile", "-q", folder / "model.dnnp", "-o", folder / "priced.dnnp")
    call(BIN / "dnnp-partition", "-q", "-k", k, "--workload", f"prompt=24,tokens={count}",
         "--in-flight", 8, folder / "priced.dnnp", "-o", folder / "plan.dnnp")  # fmt: skip
    call(BIN / "dnnp-run", "--generate", count, "--prompts", folder / "prompts.jsonl", "--tokens",
         folder / "tokens.jsonl", "--verify", folder / "plan.dnnp", "-o",
         folder / "ran.dnnp", quiet=False)  # fmt: skip
    rows: dict[int, list[int]] = {}
    for row in map(json.loads, (folder / "tokens.jsonl").read_text().splitlines()):
        rows.setdefault(row["sequence"], []).append(row["token"])
    # onnxruntime-genai leaves out the token that ends a sequence.
    ours = [rows[i][:-1] if rows[i][-1] == END else rows[i] for i in sorted(rows)]
    out = folder / f"genai-{k}"
    call(BIN / "dnnp-export", "-q", "--to", "genai", folder / "plan.dnnp", "-o", out)
    theirs = json.loads(call(python, "-c", GENERATE, out, folder / "prompts.jsonl", count))
    apart = [
        next((i for i, (a, b) in enumerate(zip(x, y, strict=False)) if a != b), min(len(x), len(y)))
        for x, y in zip(ours, theirs, strict=True) if x != y
    ]  # fmt: skip
    said = f", apart at {apart}" if apart else ""
    print(f"  k = {k}: {len(ours) - len(apart)} of {len(ours)} as onnxruntime-genai{said}")
    return len(ours) == PROMPTS and (not apart or not exact)


def main() -> int:
    """Check all families."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--work", type=Path)
    parser.add_argument("--only", choices=FAMILIES)
    parser.add_argument("--count", type=int, default=64)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = (args.work or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        python = environment(folder)
        rng = random.Random(1)
        lines = [
            json.dumps(
                {
                    "ids": [rng.randrange(5, WORDS - 4) for _ in range(rng.randint(8, 40))],
                    "stop": [END],
                }
            )
            for _ in range(PROMPTS)
        ]
        good = True
        for family in FAMILIES if args.only is None else (args.only,):
            source = folder / family
            if not source.exists():
                call(python, "-c", CHECKPOINTS, family, source)
            for kind in ("fp32", "int4"):
                made = folder / f"{family}-{kind}"
                if not made.exists():
                    call(python, "-m", "onnxruntime_genai.models.builder", "-i", source, "-o",
                         made, "-p", kind, "-e", "cpu", "-c", folder / "cache")  # fmt: skip
                (made / "prompts.jsonl").write_text("\n".join(lines) + "\n")
                print(f"{family} {kind}")
                for k in (2, 3):
                    good &= compare(
                        made / "model.onnx", made, python, k, args.count, kind == "fp32"
                    )
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
