"""Random runs of every command: their results pass dnnp-check.

    python tests/tools/written.py --count 3000 --seed 0 [--only latency,schedule] [-v]

Every run draws a small graph (times of 0, unsupported nodes, colours, a backward pass, groups,
shards, clusters, links, limits of memory), or a placement, a shape, a model, and sends it through
some commands with options at random. Each stream that one writes goes into dnnp-check, and with
`--certificate` where there is a bound. Refusing is fine by one line and a status that says why;
what a command accepts, its result must pass.

Prints a line for each run that fails, with the words to run it again, and one in the end; exits
with 1 if any did. `--keep DIR` writes the streams that fail.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from dnnp.core.methods.bounds import BOUNDS, LATENCY_BOUNDS
from dnnp.core.methods.schedules import SCHEDULES
from dnnp.core.methods.splits import LATENCY, SPLITS
from support.graphs import random_stream, to_bytes
from support.hybrid_plans import DEGREES, shard_of
from support.placements import random_placement
from support.run import Result, dnnp

Record = dict[str, Any]

REFUSALS = (2, 4, 5, 7)
"""Usage, infeasible, a limit, something missing: the command says why it writes nothing. The first
one may also refuse what was drawn (3)."""

SLOW = ("ip", "cpsat", "exact", "brkga", "mla", "mla-weighted", "getf-milp", "placeto", "scotch")
"""Methods that are tried on the smallest graphs only, or seldom."""

LITTLE = ("--effort", "0.05")


def some(rng: random.Random, share: float, *words: str) -> list[str]:
    """The words, or none of them."""
    return list(words) if rng.random() < share else []


def method_of(rng: random.Random, names: Sequence[str], small: bool) -> list[str]:
    """A method, mostly the default; one that takes long for small graphs alone."""
    if rng.random() < 0.4:
        return []
    usual = [name for name in names if name not in SLOW]
    name = rng.choice(list(names) if small and rng.random() < 0.3 else usual)
    return ["--method", name]


def graph(rng: random.Random, **fields: Any) -> tuple[list[Record], bool]:
    """Records of a random graph with counted devices, and whether it is trained."""
    n, training = rng.randint(1, 8), fields.get("training", rng.random() < 0.25)
    classes = rng.choice([(), ("cpu",), ("other",), ("cpu", "other")]) if fields["mixed"] else ()
    stream = random_stream(
        rng.randrange(10**9), n, params=rng.random() < 0.4, colors=rng.random() < 0.2,
        training=training and n > 1, classes=classes, memory=rng.random() < 0.4,
    )  # fmt: skip
    nodes, tensors = stream.get("node"), stream.get("tensor")
    nothing = rng.choice((0.0, 0.0, 0.1, 0.5, 1.0))
    for node in nodes:
        for name in node["time_s"]:
            if rng.random() < nothing:
                node["time_s"][name] = 0
            elif rng.random() < 0.3:
                node["time_s"][name] *= rng.uniform(0.1, 2)
    for tensor in tensors:
        if rng.random() < 0.3:
            tensor["size_bytes"] = rng.choice((0, 1, 3))
    count = rng.randint(1, 4)
    device: Record = {
        "type": "device", "class": "dev", "kind": "accelerator", "count": count,
        "bandwidth_bytes_per_s": rng.choice((0.3, 1.0, 3.0, 20.0)),
    }  # fmt: skip
    if rng.random() < 0.4:
        device["memory_bytes"] = rng.choice((8, 20, 60, 100, 150))
    if fields["clusters"] and rng.random() < 0.2:
        speed = device["bandwidth_bytes_per_s"]
        device |= {"cluster_size": 2, "inner_bandwidth_bytes_per_s": rng.choice((1, 8)) * speed}
    devices = [device]
    if "cpu" in classes:
        devices.append({"type": "device", "class": "cpu", "kind": "cpu", "count": 1})
    if "other" in classes:
        devices.append({**device, "class": "other", "count": rng.randint(1, 2)})
    links = []
    if fields["clusters"] and rng.random() < 0.15 and "cluster_size" not in device:
        names = [f"{d['class']}/{i}" for d in devices for i in range(d["count"])]
        links = [
            {
                "type": "link", "from": a, "to": b, "latency_s": rng.choice((0.0, 0.5)),
                "bandwidth_bytes_per_s": rng.choice((1.0, 5.0)),
            }
            for a, b in pairwise(names)
        ]  # fmt: skip
    stream.records = {"device": devices, "link": links, **stream.records}
    return [stream, training]  # type: ignore[return-value]


def throughput(rng: random.Random) -> tuple[bytes, list[list[str]]]:
    """Splits for throughput and gpipe, their bounds and schedules."""
    stream, training = graph(rng, mixed=True, clusters=True)
    small = len(stream.get("node")) < 6
    cut = ["partition", *some(rng, 0.6, *LITTLE), *some(rng, 0.2, "--charge-io")]
    cut += some(rng, 0.4, "--comm", rng.choice(("overlap", "duplex")))
    cut += some(rng, 0.3, "--memory-mode", rng.choice(("overflow", "ignore")))
    cut += some(rng, 0.2, "--memory-model", rng.choice(("sum", "peak")))
    cut += some(rng, 0.3 * training, "--objective", "gpipe")
    cut += some(rng, 0.2, "--validity", rng.choice(("convex", "free")))
    cut += some(rng, 0.2, "--memory", str(rng.choice((10, 40, 90))))
    cut += some(rng, 0.1, "--max-gap", "0.3")
    cut += rng.choice(([], [], [], ["--max-replicas", "2"], ["--allow-replicas"]))
    names = [name for name in SPLITS if name != "scotch"]
    cut += method_of(rng, names, small)
    if "--method" in cut and rng.random() < 0.3:
        cut[cut.index("--method") + 1] += f",{rng.choice(('slice', 'greedy', 'auto'))}"
    return to_bytes(stream), [*coarsened(rng), cut, bound(rng, BOUNDS, small), *scheduled(rng)]


def coarsened(rng: random.Random) -> list[list[str]]:
    """Now and then a step that makes groups."""
    how = rng.choice((["--chains"], ["--to", "3"], ["--layers"]))
    return [["coarsen", *how]] if rng.random() < 0.25 else []


def bound(rng: random.Random, table: Sequence[str], small: bool) -> list[str]:
    """A bound by some argument."""
    words = ["bound", *some(rng, 0.1, "--max-gap", "0.2"), *some(rng, 0.3, *LITTLE)]
    if rng.random() < 0.7:
        names = [n for n in table if small or n not in (*SLOW, "guess", "bottleneck", "no-io")]
        words += ["--method", rng.choice(names)]
    return words


def scheduled(rng: random.Random) -> list[list[str]]:
    """A schedule of the plan, in most runs."""
    words = ["schedule", "-n", str(rng.randint(1, 6)), *LITTLE, *some(rng, 0.2, "--pareto")]
    words += some(rng, 0.3, "--transfers", rng.choice(("none", "blocking", "non-blocking")))
    words += some(rng, 0.1, "--split-backward") + some(rng, 0.1, "--unroll", "2")
    if rng.random() < 0.5:
        words += ["--method", rng.choice(list(SCHEDULES))]
    return [words] if rng.random() < 0.7 else []


def latency(rng: random.Random) -> tuple[bytes, list[list[str]]]:
    """Plans for the latency of one sample, their bounds and schedules."""
    stream, _ = graph(rng, mixed=True, clusters=True)
    small = len(stream.get("node")) < 6
    blocks = rng.random() < 0.5
    cut = ["partition", "--objective", "latency", *LITTLE]
    cut += ["--execution", "blocks" if blocks else "operators"]
    cut += some(rng, 0.4, "--memory-model", rng.choice(("sum", "peak", "weights")))
    cut += some(rng, 0.2, "--memory-mode", "ignore") + some(rng, 0.3, "--transfers", "edge")
    cut += some(rng, 0.2, "--memory", str(rng.choice((10, 40, 90))))
    if blocks:
        cut += some(rng, 0.3, "--invocations", "2") + some(rng, 0.2, "--charge-io")
        stream.records["link"] = []
    else:
        cut += some(rng, 0.4, "--congestion", rng.choice(("channel", "none")))
    cut += method_of(rng, [n for n in LATENCY if n not in ("placeto", "scotch")], small)
    return to_bytes(stream), [
        *coarsened(rng),
        cut,
        bound(rng, LATENCY_BOUNDS, small),
        *scheduled(rng),
    ]


def parallel(rng: random.Random) -> tuple[bytes, list[list[str]]]:
    """Parallel plans, and their schedules."""
    stream, _ = graph(rng, mixed=False, clusters=False, training=rng.random() < 0.6)
    degrees = rng.choice((DEGREES, (2, 4), (2, 3), ()))
    for node in stream.get("node"):
        if rng.random() < 0.9:
            node["memory_bytes"], node["held_bytes"] = rng.randint(4, 20), rng.choice((0, 1, 4))
        if degrees and rng.random() < 0.9:
            node["shards"] = [shard_of(rng, node, t, given=rng.random() < 0.4) for t in degrees]
    cut = ["partition", "--micro-batches", str(rng.choice((2, 4, 6)))]
    cut += ["--data-parallel", str(rng.randint(1, 3)), *some(rng, 0.3, "--overlap-sync")]
    cut += some(rng, 0.5, "--tensor-parallel", rng.choice("24"))
    cut += some(rng, 0.4, "--recompute", rng.choice(("full", "auto")))
    cut += some(rng, 0.3, "--weight-sync", "server") + some(rng, 0.2, "--memory-mode", "ignore")
    cut += some(rng, 0.4, "--comm", rng.choice(("overlap", "duplex")))
    cut += some(rng, 0.2, "--shared-stages", "1") + some(rng, 0.1, "--charge-io")
    return to_bytes(stream), [cut, *scheduled(rng)]


def placement(rng: random.Random) -> tuple[bytes, list[list[str]]]:
    """Schedules of placements: turns, memory on other devices, blocks that take no time."""
    found = random_placement(
        rng.randrange(10**9), pairs=rng.randint(1, 4), whole=rng.random() < 0.6
    )
    blocks: list[Record] = []
    for block in found.blocks:
        row: Record = {"name": block.name, "kind": block.kind, "time_s": block.time_s}
        row["memory_bytes"] = block.memory_bytes
        row["after"] = [
            {"block": found.blocks[w.block].name, **rng.choice(({}, {}, {"delay_s": 2}))}
            for w in block.after
        ]
        homes = [list(home) for home in block.homes]
        if rng.random() < 0.1:
            homes.append([rng.randrange(len(found.units))])
        row |= {"devices": homes[0]} if len(homes) == 1 else {"turns": homes}
        if rng.random() < 0.2:
            row["time_s"] = 0
        if rng.random() < 0.1:
            row["memory_bytes"] = rng.randint(-3, 3)
        blocks.append(row)
    devices = [{"name": f"d{i}"} for i in range(len(found.units))]
    for device in devices:
        if rng.random() < 0.3:
            device["fixed_bytes"] = rng.randint(0, 4)
        if rng.random() < 0.4:
            device["memory_bytes"] = rng.randint(1, 9)
    content = json.dumps({"devices": devices, "blocks": blocks}).encode()
    words = ["schedule", "--placement", "-", "-n", str(rng.randint(1, 6)), *LITTLE]
    words += some(rng, 0.3, "--pareto") + some(rng, 0.2, "--memory", str(rng.randint(1, 9)))
    words += some(rng, 0.2, "--unroll", "2")
    if rng.random() < 0.6:
        words += ["--method", rng.choice(list(SCHEDULES))]
    return content, [words]


def shape(rng: random.Random) -> tuple[bytes, list[list[str]]]:
    """Schedules of shapes of the literature."""
    name = rng.choice(("V", "X", "M", "NN", "K", "NN-eager", "VV"))
    words = ["schedule", "--shape", name, "--devices", str(rng.randint(2, 4)), *LITTLE]
    words += ["-n", str(rng.randint(1, 6)), *some(rng, 0.3, "--pareto")]
    for option in ("--forward-time", "--backward-time", "--shared-time"):
        words += some(rng, 0.3, option, rng.choice(("0", "1", "2.5")))
    words += some(rng, 0.3, "--transfers", rng.choice(("blocking", "non-blocking")))
    words += some(rng, 0.3, "--memory", str(rng.randint(1, 6)))
    words += some(rng, 0.2, "--split-backward") + some(rng, 0.2, "--inference")
    words += some(rng, 0.5, "--method", rng.choice(list(SCHEDULES)))
    return b"", [words]


def own(rng: random.Random) -> tuple[bytes, list[list[str]]]:
    """Graphs that people write down, with or without costs, and random ones, priced or not."""
    if rng.random() < 0.4:
        family = rng.choice(("erdos-renyi", "watts-strogatz", "layered"))
        words = ["import", "--synthetic", family, "--nodes", str(rng.randint(6, 12))]
        first, data = [*words, "--seed", str(rng.randrange(99))], b""
    else:
        n = rng.randint(1, 8)
        cost = rng.choice(("", " [time=0]", " [time=2]", " [flop=1e6, bytes=1e3]"))
        lines = [f"n{i}{cost if rng.random() < 0.8 else ''};" for i in range(n)]
        lines += [f"n{rng.randrange(i)} -> n{i};" for i in range(1, n)]
        first, data = ["import", "--from", "dot", "-"], f"digraph g {{{' '.join(lines)}}}".encode()
    late = some(rng, 0.3, "--objective", "latency")
    cut = ["partition", "-k", str(rng.randint(1, 3)), *LITTLE, *late]
    price = [["profile"]] if rng.random() < 0.4 else []
    table = LATENCY_BOUNDS if late else BOUNDS
    steps = [first, *coarsened(rng), *price, cut, bound(rng, table, True)]
    return data, [*steps, *scheduled(rng)]


def model(rng: random.Random) -> tuple[bytes, list[list[str]]]:
    """A model, from its file to a run."""
    cut = ["partition", "-k", str(rng.randint(1, 3)), *LITTLE]
    cut += method_of(rng, ("slice", "uniform"), False)
    return b"", [
        ["import", model_file()], *coarsened(rng), *some_lists(rng, 0.5, ["profile"]), cut,
        bound(rng, ("auto", "simple", "chain"), True),
        ["schedule", "-n", "3", *LITTLE],
        ["run", "-n", "3", "--warmup", "0", *some(rng, 0.5, "--verify")],
    ]  # fmt: skip


def some_lists(rng: random.Random, share: float, words: list[str]) -> list[list[str]]:
    """A step, or none."""
    return [words] if rng.random() < share else []


FOLDER = tempfile.TemporaryDirectory(prefix="dnnp-written-")


def model_file() -> str:
    """A chain of layers as an ONNX model."""
    path = Path(FOLDER.name) / "chain.onnx"
    if not path.exists():
        import numpy as np
        import onnx
        from onnx import TensorProto, helper, numpy_helper

        weights = [
            numpy_helper.from_array(np.full((8, 8), 0.1 * i, np.float32), f"w{i}") for i in range(5)
        ]
        nodes = [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"]) for i in range(5)]
        ends = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 8]) for name in ("x0", "x5")
        ]
        made = helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
        onnx.save(
            helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path
        )
    return str(path)


KINDS: dict[str, tuple[Callable[[random.Random], tuple[bytes, list[list[str]]]], int]] = {
    "throughput": (throughput, 8),
    "latency": (latency, 8),
    "parallel": (parallel, 4),
    "placement": (placement, 6),
    "shape": (shape, 3),
    "own": (own, 4),
    "model": (model, 1),
}
"""Kind of run -> what draws it, and how many of them there are among all."""


def faults(data: bytes, steps: Sequence[Sequence[str]], counts: Counter[str]) -> Iterator[str]:
    """Faults of a run, after the words that lead to it."""
    done: list[str] = []
    for name, *words in steps:
        done.append(" ".join(["dnnp-" + name, *words]))
        result = dnnp(name, *words, "-q", stdin=data)
        counts[f"{name} {result.status}"] += 1
        fine = (0, *REFUSALS, *([3] if len(done) == 1 else []))
        if "Traceback" in result.err or result.status not in fine:
            yield f"{' | '.join(done)}: {result.status}, {said(result)}"
        if result.status:
            return
        data = result.out
        checks: list[list[str]] = [[]]
        if name == "bound":
            checks.append(["--certificate"])
        for options in checks:
            result = dnnp("check", "-q", *options, stdin=data)
            counts[f"check{' '.join(['', *options])} {result.status}"] += 1
            # A weaker bound than the plan's is verified, and the plan's is not.
            fine = (0, 9, *([6] if "is not verified" in result.err else [])) if options else (0,)
            if "Traceback" in result.err or result.status not in fine:
                FAILED[:] = [data]
                yield f"{' | '.join(done)} | dnnp-check {' '.join(options)}: {said(result)}"
                return


FAILED: list[bytes] = []
"""The stream that failed last."""


def said(result: Result) -> str:
    """Say what a command said: its first line, or the last one of a traceback."""
    lines = result.err.strip().splitlines() or [f"status {result.status}"]
    return lines[-1] if "Traceback" in result.err else lines[0]


def main() -> int:
    """Draw runs, check what they write, report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=300, help="number of runs (default: 300)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first run (default: 0)")
    parser.add_argument("--only", default=",".join(KINDS), help="kinds of runs, with commas")
    parser.add_argument("--keep", type=Path, help="folder for inputs of runs that fail")
    parser.add_argument("-v", "--verbose", action="store_true", help="show every run")
    args = parser.parse_args()
    kinds = args.only.split(",")
    counts: Counter[str] = Counter()
    began, wrong, slowest = time.monotonic(), 0, (0.0, -1, [[""]])
    for seed in range(args.seed, args.seed + args.count):
        rng = random.Random(f"written {seed}")
        (kind,) = rng.choices(kinds, [KINDS[name][1] for name in kinds])
        data, steps = KINDS[kind][0](rng)
        if args.verbose:
            print(f"seed {seed}: {kind}: {steps}", flush=True)
        counts[f"runs: {kind}"] += 1
        started = time.monotonic()
        try:
            found = list(faults(data, steps, counts))
        except Exception as error:  # a command that raises is the finding
            found = [f"{steps}: {type(error).__name__}: {error}"]
        wrong += bool(found)
        slowest = max(slowest, (time.monotonic() - started, seed, steps))
        for reason in found:
            print(f"seed {seed} {kind}: {reason}", flush=True)
        if found and args.keep is not None:
            args.keep.mkdir(exist_ok=True, parents=True)
            (args.keep / f"{seed}.in").write_bytes(data)
            if FAILED:
                (args.keep / f"{seed}.failed").write_bytes(FAILED.pop())
    for name, number in sorted(counts.items()):
        print(f"{name:28} {number}")
    print(f"slowest: seed {slowest[1]}, {slowest[0]:.1f} s, {slowest[2]}")
    print(f"{args.count} runs, {wrong} fail, {time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
