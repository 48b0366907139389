"""Decoders as they are exported: generated with by stages, and by what others make of them.

    python tests/tools/decoders_check.py [--work DIR] [--only NAME] [--count 64]

Installs pinned packages (PyTorch among them, some 6 GB, or 2 without CUDA) into two environments
in the folder, as Optimum needs an older Transformers; makes small decoders with random weights of
several families, exports them by onnxruntime-genai's builder in fp32 and int4, by Optimum, by
`torch.onnx.export` and by Transformers' own exporter, and for two and three stages compares

    dnnp-run --generate --verify    with the whole model in one session, ties apart, in threads,
                                    in processes, and on Ray if it is there
    dnnp-export --to genai          opened by onnxruntime-genai, with the tokens of dnnp-run
    the PyTorch model               generating by Transformers, likewise; not for int4

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
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

BIN = Path(sys.executable).parent
SHARED = ("torch==2.13.0", "onnx==1.23.2", "onnxruntime==1.32.0", "numpy==2.4.6")
PACKAGES = {
    "env": (
        *SHARED, "transformers==5.24.0", "tokenizers==0.23.3", "onnx-ir==1.1.0",
        "onnxscript==0.7.2", "onnxruntime-genai==0.18.0",
    ),
    "optimum-env": (
        *SHARED, "optimum-onnx==0.1.0", "optimum==2.1.0", "transformers==4.57.6",
        "tokenizers==0.22.2",
    ),
}  # fmt: skip
WORDS, PROMPTS, END = 1024, 16, 2


@dataclass(frozen=True)
class Row:
    """A decoder, and the program that exports it."""

    exporter: str
    family: str
    kind: str = "fp32"
    genai: bool = True
    """True if onnxruntime-genai can name its caches."""

    @property
    def name(self) -> str:
        """Name of the row and of its folder."""
        return f"{self.exporter}-{self.family}-{self.kind}"

    @property
    def environment(self) -> str:
        """Name of the environment that it is exported in."""
        return "optimum-env" if self.exporter == "optimum" else "env"


ROWS = (
    Row("torch", "llama", genai=False), Row("torch-opset23", "llama", genai=False),
    Row("torch-names", "llama"), Row("transformers", "llama"),
    *(Row("optimum", family) for family in ("llama", "gpt2", "bloom", "gemma3")),
    *(Row("builder", x, kind) for x in ("llama", "qwen3", "phi3") for kind in ("fp32", "int4")),
)  # fmt: skip

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
    "gpt2": (t.GPT2Config, t.GPT2LMHeadModel, {}),
    "bloom": (t.BloomConfig, t.BloomForCausalLM, {}),
    "gemma3": (t.Gemma3TextConfig, t.Gemma3ForCausalLM, {
        "head_dim": 64, "sliding_window": 16,
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention",
                        "full_attention"]}),
}[name]
made = model(config(
    vocab_size=1024, hidden_size=256, intermediate_size=640, num_hidden_layers=4,
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

OPTIMUM = """
import sys
from optimum.exporters.onnx import main_export
main_export(sys.argv[1], sys.argv[2], task="text-generation-with-past", do_validation=False)
"""

TORCH = """
import sys, pathlib, shutil, torch, transformers as t
from transformers.cache_utils import DynamicCache
source, folder, how = sys.argv[1:]
model = t.AutoModelForCausalLM.from_pretrained(source).eval()
pathlib.Path(folder).mkdir(exist_ok=True)
shutil.copy(source + "/config.json", folder)
layers, free = model.config.num_hidden_layers, torch.export.Dim.DYNAMIC
ids = torch.randint(5, 1000, (2, 3))
mask, places = torch.ones(2, 9, dtype=torch.long), torch.arange(6, 9).expand(2, 3).contiguous()
held = [tuple(torch.randn(2, 2, 6, 64) for _ in range(2)) for _ in range(layers)]

class Decoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, position_ids, past):
        made = self.model(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
            past_key_values=DynamicCache(list(past)), use_cache=True)
        return made.logits, [(layer.keys, layer.values) for layer in made.past_key_values.layers]

if how == "transformers":
    from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter
    cache = DynamicCache(config=model.config)
    for i, (key, value) in enumerate(held):
        cache.update(key, value, i)
    OnnxExporter().export(
        model, dict(input_ids=ids, attention_mask=mask, position_ids=places, past_key_values=cache),
        config=OnnxConfig(dynamic=True)).save_pretrained(folder)
else:
    more = {}
    if how == "torch-names":
        ends = [f"{i}.{what}" for i in range(layers) for what in ("key", "value")]
        more = dict(
            input_names=["input_ids", "attention_mask", "position_ids",
                         *[f"past_key_values.{end}" for end in ends]],
            output_names=["logits", *[f"present.{end}" for end in ends]])
    axes = {0: free, 1: free}
    torch.onnx.export(
        Decoder(), (ids, mask, places, held), dynamo=True,
        dynamic_shapes=(axes, axes, axes, [({0: free, 2: free},) * 2] * layers),
        opset_version=23 if how == "torch-opset23" else 20, **more,
    ).save(folder + "/model.onnx")
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

PYTORCH = """
import json, sys, torch, transformers
folder, prompts, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.set_num_threads(1)
model, found = transformers.AutoModelForCausalLM.from_pretrained(folder).eval(), []
for line in open(prompts):
    ids = torch.tensor([json.loads(line)["ids"]])
    tokens = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count,
                            do_sample=False)[0, ids.shape[1]:].tolist()
    found.append(tokens[:-1] if tokens[-1] == 2 else tokens)
print(json.dumps(found))
"""


def call(*words: object, quiet: bool = True) -> str:
    """Run a command; its output, or an exit with what it said."""
    done = subprocess.run([*map(str, words)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words[:3]))} failed:\n{done.stderr[-2000:]}")
    if not quiet:
        print(done.stderr, end="", flush=True)
    return done.stdout


def environment(folder: Path, name: str) -> Path:
    """Python of an environment with its pinned packages."""
    python = folder / name / "bin" / "python"
    if not python.exists():
        call(sys.executable, "-m", "venv", folder / name)
        call(python, "-m", "pip", "install", "-q", "--only-binary", ":all:", *PACKAGES[name])
    return python


def exported(row: Row, source: Path, made: Path, python: Path) -> Path:
    """The model of a row, exported once."""
    if not (made / "model.onnx").exists():
        if row.exporter == "builder":
            call(python, "-m", "onnxruntime_genai.models.builder", "-i", source, "-o", made, "-p",
                 row.kind, "-e", "cpu", "-c", made.parent / "cache")  # fmt: skip
        elif row.exporter == "optimum":
            call(python, "-c", OPTIMUM, source, made)
        else:
            call(python, "-c", TORCH, source, made, row.exporter)
    return made / "model.onnx"


def generated(folder: Path, count: int, *how: object) -> list[list[int]]:
    """Verified tokens of the plan in a folder, without those that end a sequence."""
    call(BIN / "dnnp-run", "--generate", count, "--prompts", folder / "prompts.jsonl", "--tokens",
         folder / "tokens.jsonl", "--verify", *how, folder / "plan.dnnp", "-o",
         folder / "ran.dnnp", quiet=False)  # fmt: skip
    rows: dict[int, list[int]] = {}
    for row in map(json.loads, (folder / "tokens.jsonl").read_text().splitlines()):
        rows.setdefault(row["sequence"], []).append(row["token"])
    # onnxruntime-genai leaves out the token that ends a sequence.
    return [rows[i][:-1] if rows[i][-1] == END else rows[i] for i in sorted(rows)]


def equal(k: int, ours: list[list[int]], theirs: list[list[int]], whose: str) -> bool:
    """Say how many sequences are as another program has them; true: all."""
    apart = [
        next((i for i, (a, b) in enumerate(zip(x, y, strict=False)) if a != b), min(len(x), len(y)))
        for x, y in zip(ours, theirs, strict=True) if x != y
    ]  # fmt: skip
    said = f", apart at {apart}" if apart else ""
    print(f"  k = {k}: {len(ours) - len(apart)} of {len(ours)} as {whose}{said}", flush=True)
    return len(ours) == PROMPTS and not apart


def by_pytorch(row: Row, source: Path, made: Path, count: int, python: Path) -> list[list[int]]:
    """Tokens of the checkpoint; none for weights of 4 bits."""
    if row.kind != "fp32":
        return []
    return list(json.loads(call(python, "-c", PYTORCH, source, made / "prompts.jsonl", count)))


def compare(
    row: Row, model: Path, k: int, count: int, python: Path, right: list[list[int]]
) -> bool:
    """Generate by `k` stages and from the exported folder; `right`: tokens by PyTorch."""
    folder, prompts = model.parent, model.parent / "prompts.jsonl"
    phases = ("--phase", "prompt:seq=8..64", "--phase", f"token:batch=4,past=8..{64 + count}")
    call(BIN / "dnnp-import", "-q", model, *phases, "-o", folder / "model.dnnp")
    call(BIN / "dnnp-profile", "-q", folder / "model.dnnp", "-o", folder / "priced.dnnp")
    stages = ("-k", k, "--exactly", k, "--in-flight", 8, "--workload", f"prompt=24,tokens={count}")
    call(BIN / "dnnp-partition", "-q", *stages, folder / "priced.dnnp", "-o", folder / "plan.dnnp")
    ours = generated(folder, count)
    good = len(ours) == PROMPTS
    for way in (("--workers", "process"), *[("--engine", "ray")] * bool(find_spec("ray"))):
        tokens = generated(folder, count, *way)  # of other rows in a pass, in 4 bits
        good &= equal(k, tokens, ours, f"in threads, {' '.join(way)}") or row.kind != "fp32"
    if row.genai:
        out = folder / f"genai-{k}"
        more = ("context_length=512", "eos_token_id=2", "pad_token_id=0")
        given = [x for each in more for x in ("--config", f"model.{each}")]
        call(BIN / "dnnp-export", "-q", "--to", "genai", *given, folder / "plan.dnnp", "-o", out)
        theirs = json.loads(call(python, "-c", GENERATE, out, prompts, count))
        good &= equal(k, ours, theirs, "onnxruntime-genai") or row.kind != "fp32"
    if right:
        # Whether the builder's model is the checkpoint's (Phi3's is not) is only said.
        good &= equal(k, ours, right, "PyTorch") or row.exporter == "builder"
    return good


def prompts() -> str:
    """The prompts, a JSON object a line."""
    rng = random.Random(1)
    rows = (
        {"ids": [rng.randrange(5, WORDS - 4) for _ in range(rng.randint(8, 40))], "stop": [END]}
        for _ in range(PROMPTS)
    )
    return "".join(json.dumps(row) + "\n" for row in rows)


def check(row: Row, folder: Path, count: int, pythons: dict[str, Path]) -> list[str]:
    """Export the decoder of a row and compare; what is not equal."""
    python = pythons[row.environment]
    source, made = folder / f"{row.environment}-{row.family}", folder / row.name
    if not source.exists():
        call(python, "-c", CHECKPOINTS, row.family, source)
    model = exported(row, source, made, python)
    (made / "prompts.jsonl").write_text(prompts())
    print(row.name, flush=True)
    right = by_pytorch(row, source, made, count, python)
    return [
        f"{row.name}, k = {k}"
        for k in (2, 3)
        if not compare(row, model, k, count, pythons["env"], right)
    ]


def main() -> int:
    """Check all rows."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--work", type=Path)
    parser.add_argument("--only", default="", help="rows whose name holds this")
    parser.add_argument("--count", type=int, default=64)
    args = parser.parse_args()
    rows = [row for row in ROWS if args.only in row.name]
    bad = [] if rows else [f"no row of {', '.join(row.name for row in ROWS)}"]
    with tempfile.TemporaryDirectory() as scratch:
        folder = (args.work or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        pythons = {name: environment(folder, name) for name in PACKAGES}
        for row in rows:
            try:
                bad += check(row, folder, args.count, pythons)
            except SystemExit as error:  # the other rows are worth knowing
                print(error, flush=True)
                bad.append(row.name)
    print(f"{len(rows)} decoders, not equal: {'; '.join(bad) or 'none'}")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
