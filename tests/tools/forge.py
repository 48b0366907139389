"""Change every number of plans, stages, bounds, schedules and blocks; see what is accepted.

    python tests/tools/forge.py --count 20 --seed 0 [--most 3] [--only plan,stage] [--structure]

Streams of every kind are made by the commands themselves: throughput, training, replicas, shared
stages, ways to use the devices, latency of blocks and of operators, schedules of plans and of
shapes with transfers, repetends and trade-offs.
`--count` graphs are drawn for each kind. Every number of a result is changed in up to ten ways, or
`--most` numbers of each field in a stream; digests and gaps are made to fit. dnnp-check must refuse
all of it but what is no false statement, or what nothing in the stream contradicts; those are
listed with their reasons in `support.forgery.HARMLESS`.

With `--structure` fields are removed, added, swapped with a sibling's, or taken from another plan
of the same graph, instead. What is accepted must mean the same, or be true: the cost model of the
searches, and the best of all splits, say so (`support.forgery.why_true`).

Prints for each type and field how many forgeries were made and accepted, and why (after Ctrl-C
those so far); exits with 1 if any was accepted without a reason.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from support import forgery, seeds, shapes, training
from support.forgery import Forgery, records_in
from support.run import dnnp

CLUSTERS = ("cluster_size", "inner_bandwidth_bytes_per_s")
"""Of a device: the objective gpipe knows none."""


def piped(start: bytes, *commands: str) -> bytes:
    """The stream at the end of some commands; empty where one fails."""
    data = start
    for words in commands:
        name, *arguments = words.split()
        result = dnnp(name, *arguments, "-q", stdin=data)
        if result.status:
            print(f"# {words}: {result.err.strip()}", file=sys.stderr)
            return b""
        data = result.out
    return data


def streams(count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Names and bytes of streams of every kind."""
    letters = ["V", "X", "M", "NN", "K"]
    for i in range(seed, seed + count):
        graph = f"import --synthetic erdos-renyi --nodes {8 + i % 7} --seed {i}"
        cut = f"partition -k 3 --bandwidth 10 --comm {('sum', 'overlap', 'duplex')[i % 3]}"
        yield f"throughput {i}", piped(b"", graph, cut, "bound", "schedule -n 4 --pareto")
        yield f"given {i}", piped(b"", graph, f"{cut} --method uniform", "bound")
        copies = "partition -k 4 --bandwidth 10 --max-replicas 3"
        yield f"replicas {i}", piped(b"", graph, copies, "schedule -n 6")
        ways = f"partition -k 4 --allow-replicas --bandwidth {10 ** (1 + i % 3)}"
        tight = f"{ways} --memory {200 + 100 * (i % 3)}"
        yield f"ways {i}", piped(b"", graph, ways, "bound", "schedule -n 4")
        yield f"ways in memory {i}", piped(b"", graph, tight)
        links = "--link unit/0,unit/1=9,1s --link unit/1,unit/2=3 --link unit/2,unit/3=6,500ms"
        yield f"linked {i}", piped(b"", graph, f"partition -k 4 {links}", "bound --method links")
        yield f"linked ways {i}", piped(b"", graph, f"{ways} {links}", "bound")
        yield f"free {i}", piped(b"", graph, "partition -k 2 --method greedy", "schedule -n 3")
        short = "partition -k 3 --bandwidth 10 --memory-mode overflow --memory 100"
        yield f"overflow {i}", piped(b"", graph, short)
        layered = f"import --synthetic layered --nodes {6 + i % 5} --seed {i}"
        late = "partition --objective latency --execution"
        yield f"operators {i}", piped(b"", layered, f"{late} operators --effort 0.1", "bound")
        yield f"blocks {i}", piped(b"", graph, f"{late} blocks -k 2 --effort 0.1 --bandwidth 10")
        shape = f"schedule --shape {letters[i % 5]} --devices {2 + i % 3} -n {2 + i % 4}"
        yield f"shape {i}", piped(b"", f"{shape} --pareto")
        times = f"--transfers non-blocking --transfer-time {i % 4} --latency 1"
        yield f"transfers {i}", piped(b"", f"{shape} {times} --split-backward")
        recipe = ("gpipe", "1f1b+", "sequential")[i % 3]
        yield f"recipe {i}", piped(b"", f"{shape} --method {recipe}")
    records = training.graph_records()
    cut = "partition -k 4 --bandwidth 8"
    yield "training", piped(seeds.encode(records), cut, "bound", "schedule -n 5")
    for i, name in enumerate(shapes.SHAPES):
        shared = piped(
            shapes.shape_stream(name), "partition --shared-stages 2", f"schedule -n {4 + i}"
        )
        yield f"shared {name}", shared
    flat = [{k: v for k, v in r.items() if k not in CLUSTERS} for r in records]
    yield "gpipe", piped(seeds.encode(flat), f"{cut} --objective gpipe", "bound", "schedule -n 5")


def plans_of_a_graph(seed: int) -> Iterator[tuple[str, bytes]]:
    """Names and bytes of plans of all kinds, of a small graph, and of one that trains."""
    graph = piped(b"", f"import --synthetic erdos-renyi --nodes {6 + seed % 3} --seed {seed}")
    comm = ("sum", "overlap", "duplex")[seed % 3]
    small = f"partition -k 3 --bandwidth 10 --comm {comm}"
    links = "--link unit/0,unit/1=9,1s --link unit/1,unit/2=3 --link unit/2,unit/0=6,500ms"
    late = "partition --objective latency -k 2 --effort 0.1 --execution"
    for name, *commands in (
        ("split", small, "bound", "schedule -n 3 --pareto"),
        ("uniform", f"{small} --method uniform", "bound --method simple", "schedule -n 2"),
        ("two", "partition -k 2 --method slice,greedy --charge-io", "bound --method pairs"),
        ("replicas", "partition -k 3 --bandwidth 10 --max-replicas 2", "schedule -n 4"),
        ("ways", "partition -k 3 --bandwidth 100 --allow-replicas", "bound"),
        ("links", f"partition -k 3 {links}", "bound --method links"),
        ("ignore", f"{small} --memory-model sum --memory 60 --memory-mode ignore", "bound"),
        ("overflow", f"{small} --memory-model sum --memory 60 --memory-mode overflow", "bound"),
        ("parallel", "partition -k 3 --bandwidth 10 --data-parallel 2", "schedule -n 4"),
        ("operators", f"{late} operators", "bound"),
        ("blocks", f"{late} blocks --bandwidth 10"),
    ):
        yield name, piped(graph, *commands)
    flat = [{k: v for k, v in r.items() if k not in CLUSTERS} for r in training.graph_records()]
    cut, data = "partition -k 4 --bandwidth 8", seeds.encode(flat)
    for name, *commands in (
        ("training", cut, "bound", "schedule -n 3"),
        ("gpipe", f"{cut} --objective gpipe", "bound", "schedule -n 2"),
        ("hybrid", f"{cut} --data-parallel 2 --micro-batches 4 --recompute auto", "schedule -n 4"),
        ("full", f"{cut} --data-parallel 1 --micro-batches 2 --recompute full --overlap-sync"),
        ("copies", f"{cut} --max-replicas 2"),
    ):
        yield f"training: {name}", piped(data, *commands)
    wide, shape = "partition --tensor-parallel 4 --data-parallel 2 --micro-batches 8", "M"
    for name, *commands in (
        ("shards", wide, "schedule -n 8"),
        ("shared", "partition --shared-stages 2", "schedule -n 4"),
        ("again", f"{wide} --recompute auto --weight-sync server"),
    ):
        yield f"{shape}: {name}", piped(shapes.shape_stream(shape, room=40.0), *commands)


def structures(count: int, seed: int, most: int, kinds: list[str]) -> int:
    """Forge by structure, count, report; 1 if anything false was accepted."""
    made, taken, false = Counter[str](), Counter[str](), Counter[str]()
    for number in range(seed, seed + count):
        rng = random.Random(number)
        plans = [(n, forgery.records_in(s)) for n, s in plans_of_a_graph(number) if s]
        for name, records in plans:
            if not forgery.accepts(records):
                print(f"# {name} {number}: refused as it is", file=sys.stderr)
                continue
            graph = name.rpartition(":")[0]
            same = [r for n, r in plans if n != name and n.rpartition(":")[0] == graph]
            rows = [row for row in forgery.restructured(records, same, rng) if row[0] in kinds]
            for kind, field, change, content in rng.sample(rows, min(most, len(rows))):
                made[f"{kind} {change}"] += 1
                options = ["--certificate"] if kind == "bound" else []
                sealed = forgery.resealed(content)
                if not forgery.accepts(sealed, *options):
                    continue
                reason = forgery.why_true(records, sealed)
                if not reason and change == "removed" and field in forgery.LESS:
                    reason = "it says less"
                if not reason and (kind, field) in forgery.HARMLESS:
                    reason = forgery.HARMLESS[kind, field][1]
                taken[reason or "FALSE"] += 1
                if not reason:
                    false[f"{name} {number}: {kind} {field} {change}"] += 1
    for counter in (made, taken, false):
        for text, times in sorted(counter.items()):
            print(f"{times:6} {text}")
    print(f"{made.total()} forgeries, {taken.total()} accepted, {false.total()} false")
    return 1 if false else 0


def main() -> int:
    """Forge, count, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=5, help="graphs for each kind (default: 5)")
    parser.add_argument("--seed", type=int, default=0, help="the first of them (default: 0)")
    parser.add_argument("--most", type=int, default=10**9, help="numbers of a field (default: all)")
    parser.add_argument("--only", help="types of records, with commas (default: all)")
    parser.add_argument("--show", type=int, default=10, help="forgeries shown (default: 10)")
    parser.add_argument("--structure", action="store_true", help="change fields, not numbers")
    args = parser.parse_args()
    kinds = forgery.KINDS if args.only is None else args.only.split(",")
    if args.structure:
        return structures(args.count, args.seed, args.most, list(kinds))
    began, made, taken = time.monotonic(), Counter[str](), Counter[tuple[str, str]]()
    records, numbers = Counter[str](), 0
    bad: list[Forgery] = []
    try:
        for name, stream in streams(args.count, args.seed):
            if not stream:
                continue
            content = records_in(stream)
            if not forgery.accepts(content):
                print(f"# {name}: refused as it is", file=sys.stderr)
                continue
            records.update(r["type"] for r in content if r["type"] in kinds)
            for one in forgery.forge(name, content, args.most, kinds):
                numbers += 1
                made[f"{one.kind}.{one.field}"] += 1
                if one.accepted:
                    taken[f"{one.kind}.{one.field}", one.reason] += 1
                    if not one.reason:
                        bad.append(one)
    except KeyboardInterrupt:
        print("# interrupted: what follows is of the forgeries until then", file=sys.stderr)
    for field, total in sorted(made.items()):
        print(f"{field:45} {total:6} made")
        for (other, reason), count in sorted(taken.items()):
            if other == field:
                print(f"{'':45} {count:6} accepted: {reason or 'FALSE'}")
    shown: Counter[str] = Counter()
    for one in bad:
        shown[f"{one.kind}.{one.field}"] += 1
        if shown[f"{one.kind}.{one.field}"] <= args.show:
            change = f"{one.mutation}: {one.before!r} -> {one.after!r}"
            print(f"{one.stream}: {one.kind} {one.field} {change}")
    print(f"{sum(records.values())} records ({dict(records)}), {numbers} forgeries, ", end="")
    print(f"{sum(taken.values())} accepted, {len(bad)} without a reason, ", end="")
    print(f"{time.monotonic() - began:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
