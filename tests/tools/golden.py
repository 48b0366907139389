"""Record what every command writes, and compare it with what it wrote before.

    python tests/tools/golden.py record DIR [--only WORD]
    python tests/tools/golden.py compare DIR [--only WORD]

For changes that are to leave behaviour as it is. Each case is a pipeline from a graph (samples,
seeded random graphs, the models and workloads that stand beside the project, if they do) to a
result; its last command's stream, messages and status are kept in a file of DIR. `compare` runs
all again and lists what differs; where both have a plan, a bound or a schedule, how the values do.
Measurements differ from run to run, so `dnnp-run` is only seen to verify. Exits with 1 if anything
is worse or of another kind.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from dnnp.core.methods.splits import LATENCY, SPLITS
from support import seeds, training
from support.run import dnnp

BESIDE = Path(__file__).resolve().parents[3] / "shared"


class Case(NamedTuple):
    """A pipeline, and the name of the file that its result is kept in."""

    name: str
    commands: tuple[str, ...]


SMALL = {
    "ba": "import --synthetic barabasi-albert --nodes 12 --seed 1",
    "er": "import --synthetic erdos-renyi --nodes 14 --seed 3",
    "ws": "import --synthetic watts-strogatz --nodes 40 --seed 5",
}
"""Graphs that every method can split."""

LAYERED = "import --synthetic layered --nodes 11 --seed 2"
"""One that names its devices."""

APART = ("ip", "cpsat", "scotch", "metis", "getf-milp", "placeto")
"""Methods that have cases of their own, or need what is not installed everywhere."""

EVOLVED = ("--generations 5 --population 20",)
QUICKER = {
    "random": ("--samples 10",),
    **dict.fromkeys(("brkga", "mla", "mla-weighted"), EVOLVED),
    "anneal": ("--effort 0.1", "--effort 0.1 --validity free"),
}
"""Method -> options with which it is run."""

METHODS = tuple(
    f"{name} {options}".strip()
    for name in SPLITS
    if name not in APART
    for options in QUICKER.get(name, ("",))
)

OPTIONS = (
    "", "--comm overlap", "--comm duplex", "--charge-io", "--max-replicas 3", "--memory 170",
    "--memory 400", "--memory 350 --memory-model peak", "--memory 120 --memory-mode overflow",
    "--cluster-size 2 --inner-bandwidth 40",
)  # fmt: skip

LATE = tuple(name for name in LATENCY if name not in APART)

SCHEDULES = (
    "-n 6", "-n 6 --pareto", "-n 4 --method optimal", "-n 6 --method gpipe", "-n 6 --method 1f1b",
    "-n 6 --method tessel", "-n 6 --method sequential",
)  # fmt: skip

SHAPES = (
    "V", "X", "M", "NN", "K", "NN-eager", "multi-modal", "fine-tuning", "AlphaFold", "VV",
)  # fmt: skip

CLUSTERED = (
    "--cluster-size 2 --inner-bandwidth 40", "--cluster-size 2,4 --inner-bandwidth 40,20 -k 8",
    "--cluster-size 2 --inner-bandwidth 40 --max-replicas 2",
    "--link unit/0,unit/1=40 --link unit/2,unit/3=40",
)  # fmt: skip

PARALLEL = (
    "--data-parallel 4", "--data-parallel 4 --recompute auto", "--tensor-parallel 4",
    "--tensor-parallel 2 --data-parallel 2 --recompute full",
    "--data-parallel 2 --weight-sync server --overlap-sync",
    "--shared-stages 1 --tensor-parallel 4", "--data-parallel 2 --recompute auto --memory 24M",
    "--data-parallel 2 --cluster-size 2 --inner-bandwidth 100G",
)  # fmt: skip


def cases() -> Iterator[Case]:
    """All of them; names tell what they are."""
    for graph, made in SMALL.items():
        for method in METHODS:
            words = f"partition -k 3 --bandwidth 10 --method {method}"
            yield Case(f"{graph} {method}", (made, words))
        for option in OPTIONS:
            cut = f"partition -k 4 --bandwidth 10 {option}"
            yield Case(f"{graph} auto {option}", (made, cut))
            yield Case(f"{graph} bound {option}", (made, f"{cut} --method slice", "bound"))
            yield Case(f"{graph} check {option}", (made, cut, "check --json"))
        cut = "partition -k 3 --bandwidth 10"
        for schedule in SCHEDULES:
            yield Case(f"{graph} schedule {schedule}", (made, cut, f"schedule {schedule}"))
        yield Case(f"{graph} export", (made, cut, "export --to msr-split"))
        late = "partition -k 3 --bandwidth 10 --objective latency --effort 0.2"
        for method in LATE if graph != "ws" else LATE[1:5]:
            yield Case(f"{graph} latency blocks {method}", (made, f"{late} --method {method}"))
    for method in (*LATE, "ip"):
        cut = "partition --objective latency --execution operators --effort 0.2"
        for way in ("", "--congestion channel", "--transfers edge"):
            words = f"{cut} --method {method} {way}"
            # Its integer program is solved in slices of time.
            yield Case(f"operators {method} {way}", (LAYERED, words, "bound --method simple"))
    for graph in ("ba", "er"):
        for validity in ("ordered", "convex", "free"):
            cut = f"partition -k 3 --bandwidth 10 --method ip --validity {validity}"
            yield Case(f"{graph} ip {validity}", (SMALL[graph], cut))
        cut = "partition -k 2 --bandwidth 10 --objective latency --method ip"
        yield Case(f"{graph} latency ip", (SMALL[graph], cut, "bound"))
    for objective in ("throughput", "gpipe"):
        for method in ("auto", "slice", "heuristic", "anneal", "pipedream", "greedy"):
            cut = f"partition -k 4 --objective {objective} --bandwidth 8 --method {method}"
            yield Case(f"training {objective} {method}", (objective, cut, "bound"))
        cut = f"partition -k 3 --objective {objective} --bandwidth 8"
        for schedule in SCHEDULES:
            yield Case(f"training {objective} {schedule}", (objective, cut, f"schedule {schedule}"))
    for shape in ("V", "X", "M", "NN", "K"):
        for schedule in ("-n 4 --pareto", "-n 5 --split-backward", "-n 3 --method optimal"):
            words = f"schedule --shape {shape} --devices 4 {schedule}"
            yield Case(f"shape {shape} {schedule}", (words,))
        moved = f"schedule --shape {shape} -n 5 --transfers non-blocking --transfer-time 1"
        yield Case(f"shape {shape} transfers", (moved,))
    for number in (8, 12, 16):
        for shape in SHAPES:
            words = f"schedule --shape {shape} --devices {number}"
            yield Case(f"grid {shape} {number}", (words,))
    yield from _clusters()
    yield from _models()
    yield from _joined()
    yield from _parallel()
    yield from _shown()
    yield from _workloads()


def _clusters() -> Iterator[Case]:
    """Clusters, clusters of clusters and single links."""
    for graph in ("ba", "er"):
        made = SMALL[graph]
        for place in CLUSTERED:
            cut = f"partition -k 4 --bandwidth 10 {place}"
            for method in ("auto", "slice", "single", "greedy"):
                words = f"{cut} --method {method}"
                yield Case(f"clusters {graph} {place} {method}", (made, words))
            if graph == "er" and "cluster" in place:
                continue  # minutes
            bounded = (made, f"{cut} --method slice", "bound --effort 0.1")
            yield Case(f"clusters {graph} {place} bound", bounded)
            yield Case(f"clusters {graph} {place} check", (*bounded, "check --certificate --json"))
        links = CLUSTERED[-1]
        for method in ("heuristic", "anneal --effort 0.1", "ip"):
            cut = f"partition -k 4 --bandwidth 10 {links} --method {method}"
            yield Case(f"links {graph} {method}", (made, cut))
        cut = f"partition -k 4 --bandwidth 10 {links} --objective latency --effort 0.2"
        yield Case(f"links {graph} latency", (made, cut))


def _models() -> Iterator[Case]:
    from dnnp.samples import build

    folder = Path("build/models")
    if not folder.is_dir():
        build.main(["-o", str(folder)])
    models = [*sorted(folder.glob("*.onnx")), *sorted((BESIDE / "models").glob("*.onnx"))]
    for path in models:
        made = (f"import {path}", "coarsen", "profile")
        yield Case(f"model {path.stem}", made)
        for k in (2, 6):
            yield Case(f"model {path.stem} {k}", (*made, f"partition -k {k}"))
        slicing = "partition -k 4 --method slice"
        yield Case(f"model {path.stem} bound", (*made, slicing, "bound --effort 0.1"))
        yield Case(f"model {path.stem} schedule", (*made, slicing, "schedule -n 8"))
        late = "partition -k 3 --objective latency --method m-etf"
        yield Case(f"model {path.stem} latency", (*made, late))


def _joined() -> Iterator[Case]:
    """Models on devices that links join, and on devices that hold little."""
    for name in ("bert-small", "gnmt-small", "inception-v3-small"):
        made = (f"import build/models/{name}.onnx", "coarsen")
        for file, classes in (("a100-t4", "a100 t4"), ("moirai-intra", "v100 p100")):
            priced = "profile " + " ".join(f"--device {name}" for name in classes.split())
            cut = f"partition --devices samples/clusters/{file}.json"
            for option in ("", "--objective latency", "--objective latency --method heft"):
                words = f"{cut} {option}{' --effort 0.2' if option else ''}"
                yield Case(f"links {name} {file} {option}", (*made, priced, words))
            bounded = (*made, priced, f"{cut} --method slice", "bound")
            yield Case(f"links {name} {file} bound", bounded)
        cut = "partition --devices a100:1,t4:3 --link a100,t4=10G,5us"
        priced = "profile --device a100 --device t4"
        yield Case(f"links {name} named", (*made, priced, cut, "check --json"))
        made = (*made, "profile")
        for memory in ("4M", "8M"):
            cut = f"partition -k 4 --memory {memory} --memory-model peak"
            yield Case(f"peak {name} {memory}", (*made, cut, "check --json"))
        priced = (*made[:2], "profile --device v100 --device cpu-core")
        for option in ("--cpus 1", "--execution operators", "--cpus 1 --invocations 2"):
            cut = f"partition -k 3 --objective latency --effort 0.1 {option}"
            yield Case(f"latency {name} auto {option}", (*priced, cut))


def _parallel() -> Iterator[Case]:
    """Training graphs, what shards take, and plans with replicas, shards and shared stages."""
    for name in ("bert-small", "gnmt-small", "dlrm-small"):
        made = f"import --training build/models/{name}.onnx"
        for options in ("", "--optimizer sgd", "--optimizer momentum --mixed-precision"):
            yield Case(f"training {name} {options}", (f"{made} {options}",))
        priced = (made, "coarsen", "profile --device t4")
        for objective in ("throughput", "gpipe"):
            cut = f"partition -k 3 --objective {objective}"
            yield Case(f"training {name} {objective}", (*priced, cut, "bound --effort 0.1"))
        priced = (made, "coarsen --to 24", "profile --device t4 --tensor-parallel 4")
        yield Case(f"shards {name}", priced)
        for option in PARALLEL:
            cut = (*priced, f"partition -k 4 --micro-batches 8 {option}")
            yield Case(f"parallel {name} {option}", cut)
            yield Case(f"parallel {name} {option} check", (*cut, "check --json"))
        yield Case(f"parallel {name} schedule", (*cut, "schedule -n 8"))
    made = ("import build/models/gpt-small.onnx", "coarsen", "profile --tensor-parallel 2")
    cut = "partition -k 8 --tensor-parallel 2"
    yield Case("parallel gpt-small inference", (*made, cut, "check --json"))


def _shown() -> Iterator[Case]:
    """Views and exports of one plan with its bound and schedule."""
    made = ("import build/models/bert-small.onnx", "coarsen", "profile")
    made = (*made, "partition -k 3", "bound", "schedule -n 6")
    for way in ("text", "dot", "graphml", "html", "svg", "trace"):
        yield Case(f"view {way}", (*made, f"view --as {way}"))
    for table in ("stages", "nodes", "cuts", "bounds", "schedule", "plans"):
        yield Case(f"view csv {table}", (*made, f"view --as csv --table {table}"))
    for option in ("", "--json", "--certificate"):
        yield Case(f"check {option}", (*made, f"check {option}"))
    for way in ("msr-split", "torch-csv", "torch-comms-csv", "torch-plan"):
        yield Case(f"export {way}", (*made, f"export --to {way}"))
    late = "partition -k 2 --bandwidth 10 --objective latency --method placeto --episodes 2"
    for graph in SMALL:
        yield Case(f"placeto {graph}", (SMALL[graph], f"{late} --execution operators"))


def _workloads() -> Iterator[Case]:
    for path in sorted((BESIDE / "workloads" / "throughput").rglob("*.json")):
        made = f"import {path}"
        yield Case(f"workload {path.stem}", (made, "partition --effort 0.3"))
        yield Case(f"workload {path.stem} bound", (made, "partition --method slice", "bound"))
        for method in ("slice", "dpl", "greedy"):
            cut = f"partition --method {method} --order published"
            yield Case(f"published {path.stem} {method}", (made, cut))
    for path in sorted((BESIDE / "workloads" / "latency").rglob("*.json")):
        cut = "partition --objective latency --method anneal --effort 0.1"
        made = f"import {path}"
        yield Case(f"workload {path.stem} latency", (made, cut))
        for method in ("greedy", "max-load"):
            cut = f"partition --objective latency --method {method} --order published"
            yield Case(f"published {path.stem} latency {method}", (made, cut))


@cache
def _through(commands: tuple[str, ...]) -> tuple[int, bytes, str]:
    """Status, output and messages of the last command that ran."""
    if len(commands) == 1 and commands[0] in ("throughput", "gpipe"):
        clusters = ("cluster_size", "inner_bandwidth_bytes_per_s")
        records = training.graph_records()
        if commands[0] == "gpipe":
            records = [{k: v for k, v in r.items() if k not in clusters} for r in records]
        return 0, seeds.encode(records), ""
    before = _through(commands[:-1]) if len(commands) > 1 else (0, b"", "")
    if before[0]:
        return before
    name, *arguments = commands[-1].split()
    result = dnnp(name, *arguments, stdin=before[1])
    return result.status, result.out, result.err


def result_of(case: Case) -> dict[str, Any]:
    """The parts of a case's output that are kept."""
    began = time.monotonic()
    status, out, err = _through(case.commands)
    return {
        "commands": case.commands,
        "status": status,
        "messages": re.sub(r"\d+\.\d+ s\b", "S", err).splitlines(),
        "output": out.decode(errors="replace").splitlines(),
        "seconds": round(time.monotonic() - began, 3),
    }


def values_of(result: dict[str, Any]) -> dict[str, float]:
    """Numbers that say how good a result is, by name; each is better when `+` ends it and it is
    larger, or when it is smaller."""
    found: dict[str, float] = {}
    for line in result["output"]:
        if not line.startswith("{"):
            continue
        record = json.loads(line)
        kind = record.get("type")
        if kind == "plan":
            found |= {"plan.value": record["value"], "plan.bound+": record["bound"]}
        elif kind == "bound":
            found["bound.value+"] = record["value"]
        elif kind == "schedule":
            found["makespan"] = record.get("makespan_s", 0.0)
            found["rate"] = record.get("rate_s", 0.0)
    return found


def compared(old: dict[str, Any], new: dict[str, Any]) -> tuple[str, list[str]]:
    """`same`, `other` (of equal worth), `better` or `worse`; and how."""
    for result in (old, new):  # where a search stood after 30 s
        found = result["messages"]
        result["messages"] = [line for line in found if not re.search(r",? \d+ s(,|$)", line)]
    parts = [key for key in ("status", "messages", "output") if old[key] != new[key]]
    if not parts:
        return "same", []
    how = []
    for key in parts:
        if key != "status":
            pairs = zip(old[key], new[key], strict=False)
            first = next(((a, b) for a, b in pairs if a != b), ("", f"{len(new[key])} lines"))
            how += [f"  {key}: - {first[0][:300]}", f"  {key}: + {first[1][:300]}"]
    if old["status"] != new["status"]:
        return "worse", [f"  status {old['status']} -> {new['status']}", *how]
    before, after = values_of(old), values_of(new)
    if before.keys() != after.keys():
        return "worse", how
    verdict = "other"
    for name, value in before.items():
        change = (after[name] - value) * (-1 if name.endswith("+") else 1)
        if abs(change) > 1e-9 * abs(value):
            how.append(f"  {name}: {value!r} -> {after[name]!r}")
            verdict = "worse" if change > 0 or verdict == "worse" else "better"
    return verdict, how


def main() -> int:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["record", "compare"])
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--only", help="cases whose name holds this")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    counts: dict[str, int] = {}
    for case in cases():
        if args.only is not None and args.only not in case.name:
            continue
        file = args.folder / (re.sub(r"[^\w.-]+", "_", case.name) + ".json")
        if args.what == "record":
            if not file.exists():
                result = result_of(case)
                file.write_text(json.dumps(result))
                print(f"{result['seconds']:8.1f} s  {result['status']}  {case.name}", flush=True)
        elif file.exists():
            verdict, how = compared(
                json.loads(file.read_text()), json.loads(json.dumps(result_of(case)))
            )
            counts[verdict] = counts.get(verdict, 0) + 1
            if verdict != "same":
                print(f"{verdict}: {case.name}: {' | '.join(case.commands)}", *how, sep="\n")
    print(counts)
    return 1 if counts.get("worse") else 0


if __name__ == "__main__":
    sys.exit(main())
