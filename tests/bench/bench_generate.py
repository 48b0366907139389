"""Generating over stages, beside one session, caches carried by hand, and onnxruntime-genai.

    make bench BENCH=generate       GENAI=PYTHON: one with onnxruntime-genai 0.18, which runs too

The samples llama-full (32 million parameters, in float32) and llama-int4 (weights of 4 bits, whose
products take activations in 8 bits: accuracy level 4); prompts of 24 ids and 64 tokens; rows in
turn, three rounds, medians. Seconds of the processor a token are those of all threads, beyond what
one token takes with all that comes before it; of replicas and of onnxruntime-genai, with the
prompts.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dnnp import export, load, load_stages, profile, split
from dnnp.core.runtime.generate.decoder import decoder_of, named_states
from dnnp.core.runtime.generate.loop import by_hand
from dnnp.core.runtime.generate.sampling import Sampling
from dnnp.core.runtime.model.providers import SessionConfig
from dnnp.core.runtime.model.session import make_session
from dnnp.formats.onnx.load_model import load_with_hash
from dnnp.generating import generate_stream, random_prompts
from dnnp.graph import Graph
from dnnp.options.run import RunOptions
from dnnp.samples.build import write
from support.bench import table

PROMPT, TOKENS, ROUNDS = 24, 64, 3
PHASES = ["prompt:seq=8..64", "token:batch=4,past=8..128"]
CONFIG = ["model.eos_token_id=1", "model.pad_token_id=0", "model.context_length=256"]

GENAI = """
import json, sys, time
import numpy as np, onnxruntime_genai as og
folder, batch, prompt, count = sys.argv[1], *map(int, sys.argv[2:])
model = og.Model(folder)
ids = np.random.default_rng(0).integers(3, 8192, size=(batch, prompt)).astype(np.int32)
def run():
    params = og.GeneratorParams(model)
    total = prompt + count
    params.set_search_options(max_length=total, min_length=total, batch_size=batch,
                              do_sample=False)
    generator = og.Generator(model, params)
    generator.append_tokens(ids)
    while not generator.is_done():
        generator.generate_next_token()
run()
wall, used = time.perf_counter(), time.process_time()
for _ in range(max(1, 4 // batch)):
    run()
done = batch * count * max(1, 4 // batch)
print(json.dumps([done / (time.perf_counter() - wall), (time.process_time() - used) / done]))
"""

Row = Callable[[], tuple[float, float]]
"""Tokens per second, and seconds of the processor a token."""


def own(graph: Graph, sequences: int, rows: int, threads: int = 1) -> Row:
    """The decode loop over the stages of a plan."""

    def used(count: int) -> tuple[float, float]:
        stream, used = graph.stream(), time.process_time()
        options = RunOptions(generate=count, samples=sequences, under_way=sequences,
                             pass_rows=rows, threads=threads)  # fmt: skip
        generate_stream(stream, options)
        return stream.get("generation")[0]["tokens_per_s"], time.process_time() - used

    def run() -> tuple[float, float]:
        (_, start), (rate, whole) = used(1), used(TOKENS)
        return rate, (whole - start) / (TOKENS - 1) / sequences

    return run


def hand(path: Path, graph: Graph) -> Row:
    """One session whose caches are handed from call to call."""
    model, _ = load_with_hash(str(path), light=True)
    decoder = decoder_of(model, named_states(graph.stream().records))
    session = make_session(model, path.parent, SessionConfig("cpu", pin=False))
    prompt = random_prompts(1, PROMPT, 8192, TOKENS, 0)[0]

    def run() -> tuple[float, float]:
        wall, used = time.perf_counter(), time.process_time()
        by_hand(session, decoder, prompt, PROMPT, Sampling())
        seconds = time.perf_counter() - wall
        return TOKENS / seconds, (time.process_time() - used) / TOKENS

    return run


def replicas(graph: Graph, folder: Path, rows: int) -> Row:
    """Two sessions of the whole model at once, with so many sequences and one thread each."""
    export(graph, folder, to="stages")
    sessions = [load_stages(folder) for _ in range(2)]
    prompts = [list(p.ids) for p in random_prompts(2 * rows, PROMPT, 8192, TOKENS, 0)]

    def one(i: int) -> int:
        own = prompts[i * rows : (i + 1) * rows]
        return len(list(sessions[i].generate(own, TOKENS, rows=rows, in_flight=rows)))

    def run() -> tuple[float, float]:
        wall, used = time.perf_counter(), time.process_time()
        with ThreadPoolExecutor(2) as pool:
            count = sum(pool.map(one, range(2)))
        return count / (time.perf_counter() - wall), (time.process_time() - used) / count

    return run


def genai(python: str, folder: Path, batch: int) -> Row:
    """onnxruntime-genai in a process of its own."""

    def run() -> tuple[float, float]:
        words = [python, "-c", GENAI, str(folder), str(batch), str(PROMPT), str(TOKENS)]
        rate, used = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
        return rate, used

    return run


def with_threads(folder: Path, threads: int) -> Path:
    """The folder, where each session has so many threads."""
    file = folder / "genai_config.json"
    found = json.loads(file.read_bytes())
    options = {"intra_op_num_threads": threads, "inter_op_num_threads": 1}
    for entry in found["model"]["decoder"]["pipeline"]:
        for stage in entry.values():
            stage["session_options"] = {**options, "provider_options": []}
    file.write_text(json.dumps(found))
    return folder


def cases(path: Path, folder: Path) -> dict[str, Row]:
    """Ways to generate with a model."""
    priced = profile(load(path, phase=PHASES))
    plans = {k: split(priced, k=k, workload=[(PROMPT, TOKENS)], in_flight=8) for k in (1, 2)}
    rows: dict[str, Row] = {
        "one session, caches carried by hand": hand(path, plans[1]),
        "one session, 1 sequence": own(plans[1], 1, 1),
        "2 stages, 1 sequence": own(plans[2], 1, 1),
        "2 stages, 4 sequences, one a pass": own(plans[2], 4, 1),
        "2 stages, 8 sequences, 4 a pass": own(plans[2], 8, 4),
        "2 replicas, 8 sequences, 4 a pass": replicas(plans[1], folder / "whole", 4),
        "one session, 2 threads, 8 a pass": own(plans[1], 8, 8, threads=2),
    }
    if python := os.environ.get("GENAI"):
        for k, plan in plans.items():
            for threads in (1, 2):
                out = folder / f"genai-{k}-{threads}"
                export(plan, out, to="genai", config=CONFIG)
                with_threads(out, threads)
                for batch in (1,) if k == 2 else (1, 4, 8):
                    name = f"onnxruntime-genai, {k} stages, {threads} threads, batch {batch}"
                    rows[name] = genai(python, out, batch)
    return rows


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        rows = {
            (kind, name): row
            for kind, sample in (("float32", "llama-full"), ("4 bits", "llama-int4"))
            for name, row in cases(write(sample, folder, 0), folder / kind).items()
        }
        found: dict[tuple[str, str], list[tuple[float, float]]] = {name: [] for name in rows}
        for _ in range(ROUNDS):
            for name, row in rows.items():
                found[name].append(row())
    lines = [
        [*name, f"{statistics.median(r for r, _ in each):.1f}",
         f"{1e3 * statistics.median(u for _, u in each):.2f}"]
        for name, each in found.items()
    ]  # fmt: skip
    print(table(["weights", "", "tokens/s", "processor ms a token"], lines))


if __name__ == "__main__":
    main()
