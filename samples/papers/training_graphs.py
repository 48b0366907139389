"""Training graphs made from ONNX models beside those of the 2020 device-placement paper.

    python -m dnnp.samples.papers.training_graphs DIR [--csv FOLDER] [--part PART ...]

DIR holds the workloads: a clone of https://github.com/msr-fiddle/dnn-partitioning, or files as
`dnnp.samples.papers.placement_runs` says. What is not there is left out, and named.

`ratios`: time of the backward pass over that of the forward pass. `classes`: the same of ResNet50
by kind of operator. `borders`: where stages of an optimal contiguous split end, in layers, as the
two graphs are split in the same way.

Layer graphs of the paper were profiled on GPUs. Times of its operator graphs are estimates for an
accelerator that is no GPU (section 6, footnote 6), whose rule the files show: an operator takes its
operations at 10 TFLOP/s plus the bytes that go by at 64 GB/s. `FILE_RATES` is such a device.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import product, zip_longest
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dnnp
from dnnp import Graph
from dnnp.samples.papers.placement_runs import Workloads
from dnnp.samples.papers.tables import Table, show

if TYPE_CHECKING:
    from dnnp.samples.weights import Sample

COUNTS = (2, 3, 4, 5, 6)
"""Devices to split for."""
NEAR = 2
"""Layers by which borders may differ and still count as the same."""

FLOP_PER_S = 1.01e13
BYTE_S = 1 / 64.2e9
FILE_RATES: dict[str, Any] = {
    "name": "estimated",
    "description": "accelerator of the operator graphs of the 2020 paper, by their times",
    "kind": "accelerator",
    "peak_flop_per_s": {"float32": FLOP_PER_S},
    "memory_bytes": 17185374208,
    "memory_bandwidth_bytes_per_s": 1 / BYTE_S,
    "link_bandwidth_bytes_per_s": 2.147e9,
    "launch_overhead_s": 0,
}
"""A device file. The rates follow from single nodes: an addition with 102,760,448 bytes of result
takes 3.2007 ms, a convolution with 3.29 GFLOP and the same result 1.9239 ms, a transfer of it
47.852 ms."""

IMAGES = 32
"""Samples in a batch of the ResNet50 of the paper, by the sizes of its tensors."""
PASSES = {
    "BatchNormalization": (8.0, 8.0),
    "Relu": (3.0, 3.0),
    "Add": (2.0, 4.0),
    "MaxPool": (11.0, 1.5),
    "GlobalAveragePool": (99.0, 1.0),
}
"""Operator -> how often its result goes by in the forward pass, and, with the larger of result and
image, in the backward pass, in the file of ResNet50."""

Anchor = Callable[[Mapping[str, Any]], int | None]
"""Number of the layer that a forward node belongs to; None: to none."""


@dataclass(frozen=True)
class Pair:
    """A workload of the paper and a model like it."""

    workload: str
    model: str
    build: Callable[[], Sample]
    theirs: Anchor
    ours: Callable[[Graph], Anchor]
    layers: bool = False
    """Whether ours is split by layers rather than by groups of operators."""
    images: int = 0
    """Samples in a batch, where the model is made for one; 0: as it is."""


def _built(family: str, **sizes: Any) -> Callable[[], Sample]:
    """A builder of the full model but for some sizes; onnx is imported when it is called."""

    def build() -> Sample:
        models = import_module(f"dnnp.samples.models.{family}")
        sample: Sample = models.build(replace(models.FULL, **sizes))
        return sample

    return build


BERT_24 = {"layers": 24, "hidden": 1024, "heads": 16, "batch": 8, "masked": True}
BERT_3 = {
    "layers": 3, "hidden": 128, "heads": 8, "vocabulary": 30528, "inner": 4096, "batch": 24,
    "masked": True,
}  # fmt: skip
"""By the sizes of the tensors in the file: 24 samples, layers of 128 with 4,096 inside."""


def _named(pattern: str, among: Sequence[int] = ()) -> Anchor:
    """Anchors by a number in the name of a node, or by its place in a list of numbers."""
    wanted = re.compile(pattern)

    def anchor(node: Mapping[str, Any]) -> int | None:
        found = wanted.search(node["name"])
        if found is None:
            return None
        number = int(found[1])
        if not among:
            return number
        return among.index(number) if number in among else None

    return anchor


def _nth(op: str) -> Callable[[Graph], Anchor]:
    """Anchors by place among the operators of a type."""

    def of(graph: Graph) -> Anchor:
        place = {n["id"]: i for i, n in enumerate(n for n in graph.nodes if n["op"] == op)}
        return lambda node: place.get(node["id"])

    return of


_LSTM = (5, 7, 11, 16, 21, 26, 31, 36, 43, 51, 57, 64, 71, 78, 85, 92)
"""Nodes of the GNMT of the paper that are layers of encoder and decoder, by their times."""

PAIRS = (
    Pair(
        "layer_bert24_training", "bert, 24 layers", _built("bert", **BERT_24),
        _named(r"^node(\d+)$", range(5, 29)), lambda graph: _named(r"layer\.(\d+)/"), layers=True,
    ),
    Pair(
        "layer_gnmt_training", "gnmt-full", _built("gnmt", batch=64),
        _named(r"^node(\d+)$", _LSTM), _nth("LSTM"),
    ),
    Pair(
        "op_bert_l-3_training", "bert, 3 layers, 24 samples", _built("bert", **BERT_3),
        _named(r"^MatMul(\d+)$"), _nth("MatMul"),
    ),
    Pair(
        "op_resnet50_training", "resnet50-full, 32 images", _built("resnet50"),
        _named(r"^Conv(\d+)$"), _nth("Conv"), images=IMAGES,
    ),
)  # fmt: skip


class Study:
    """What the tables need; graphs are made once."""

    def __init__(self, files: Workloads, folder: Path) -> None:
        self.files, self.folder = files, folder
        self.rates = folder / "estimated.json"
        self.rates.write_text(json.dumps(FILE_RATES))
        self._made: dict[str, Graph] = {}

    def theirs(self, pair: Pair) -> Graph | None:
        """The graph of the paper, if its file is there."""
        path = self.files.graph("throughput", pair.workload)
        return None if path is None else dnnp.load(path)

    def ours(self, pair: Pair) -> Graph:
        """The graph made from a model, without costs."""
        if pair.model not in self._made:
            path = self.folder / f"{len(self._made)}.onnx"
            _write(pair, path)
            self._made[pair.model] = dnnp.load(path, training=True, optimizer="sgd")
        return self._made[pair.model]


def _write(pair: Pair, path: Path) -> None:
    """Write a model without its weights, for as many samples as the paper has."""
    import onnx

    from dnnp.samples.weights import save

    save(replace(pair.build(), planning=True), path)
    if pair.images:
        model = onnx.load(str(path), load_external_data=False)
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.shape.dim[0].dim_value = pair.images
        del model.graph.value_info[:]
        onnx.save(model, str(path))


def _passes(graph: Graph) -> tuple[float, float]:
    """Time of the forward and of the backward pass, by groups where there are any."""
    total = [0.0, 0.0]
    late = {node["id"]: bool(node.get("backward")) for node in graph.nodes}
    for each in graph.groups or graph.nodes:
        first = each["nodes"][0] if graph.groups else each["id"]
        total[late[first]] += _time(each)
    return total[0], total[1]


def _time(node: Mapping[str, Any]) -> float:
    """Time on the accelerator."""
    times: Mapping[str, float] = node.get("time_s") or {}
    return min((float(v) for v in times.values()), default=0.0)


def ratios(study: Study) -> Iterator[Table]:
    """Backward over forward."""
    rows = []
    for pair in PAIRS:
        theirs = study.theirs(pair)
        if theirs is None:
            continue
        forward, backward = _passes(theirs)
        known = backward / forward
        plain = study.ours(pair)
        rates = str(study.rates)
        found = []
        for graph, device in ((dnnp.coarsen(plain), "v100"), (plain, "v100"), (plain, rates)):
            ahead, back = _passes(dnnp.profile(graph, device=[device]))
            found.append(back / ahead)
        cells = [f"{ratio:.2f} ({100 * (ratio / known - 1):+.0f} %)" for ratio in found]
        rows.append((pair.workload, f"{known:.2f}", pair.model, *cells))
    header = ("file", "ratio", "model", "v100, groups", "v100, operators", "estimated, operators")
    yield Table("training-ratios", "Backward over forward pass", header, rows)


def classes(study: Study) -> Iterator[Table]:
    """ResNet50 by kind of operator: the file, our graph at its rates, and by its rules."""
    pair = PAIRS[-1]
    theirs = study.theirs(pair)
    if theirs is None:
        return
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0.0, 0.0]))
    for node in theirs.nodes:
        name = re.match(r"[A-Za-z]+", node["name"])
        kind = _FILE_KINDS.get(name[0] if name else "", "others")
        found[kind]["file"][bool(node.get("backward"))] += _time(node)  # in ms
    priced = dnnp.profile(study.ours(pair), device=[str(study.rates)])
    for node in priced.nodes:
        op = node["op"].removesuffix("Grad")
        kind = op if op in PASSES or op == "Conv" else "others"
        late = bool(node.get("backward"))
        found[kind]["rates"][late] += 1000 * _time(node)
    for column, quirks in (("rules", True), ("no quirks", False)):
        for _, kind, late, seconds in by_rules(priced, quirks):
            found[kind][column][late] += 1000 * seconds
    columns = ("file", "rates", "rules", "no quirks")
    total = {c: [sum(f[c][late] for f in found.values()) for late in (0, 1)] for c in columns}
    rows = []
    for kind in sorted(found, key=lambda kind: -sum(found[kind]["file"])):
        cells = [f"{v:.1f}" for c in columns for v in found[kind][c]]
        rows.append((kind, *cells))
    rows.append(("all", *(f"{v:.1f}" for c in columns for v in total[c])))
    rows.append(("ratio", *(s for c in columns for s in ("", f"{total[c][1] / total[c][0]:.2f}"))))
    header = ("ms", *(f"{c}, {way}" for c in columns for way in ("forward", "backward")))
    yield Table("training-classes", "ResNet50 by kind of operator", header, rows)


_FILE_KINDS = {
    "BatchNormalization": "BatchNormalization", "Conv": "Conv", "Relu": "Relu", "Sum": "Add",
    "AccumulateGrad": "Add", "MaxPool": "MaxPool", "AveragePool": "GlobalAveragePool",
}  # fmt: skip
"""Beginning of a name in the file of ResNet50 -> operator of ours."""


def by_rules(graph: Graph, quirks: bool) -> Iterator[tuple[int, str, bool, float]]:
    """Id, kind, pass and seconds of nodes by the rules that the file of ResNet50 shows.

    A product takes its operations and the bytes of its result; others the passes of `PASSES`. Sums
    of gradients count two more passes each.

    Parameters
    ----------
    quirks
        The forward pass counts a convolution as if it had no strides, and the backward pass as if
        kernels had one element, as in the file.
    """
    size = {t["id"]: t["size_bytes"] for t in graph.tensors}
    shape = {t["id"]: tuple(t.get("shape", ())) for t in graph.tensors}
    name = {t["id"]: t["name"] for t in graph.tensors}
    node = {n["id"]: n for n in graph.nodes}
    for n in graph.nodes:
        late = bool(n.get("backward"))
        of = node[n["of"]] if "of" in n else n
        op, result = of["op"], of["outputs"][0]
        written = sum(size[t] for t in n["outputs"])
        seconds = n.get("flop", 0.0) / FLOP_PER_S
        if op == "Conv":
            factor = 1.0
            if quirks and late:
                factor = 1 / prod(shape[of["inputs"][1]][2:])
            elif quirks:
                before, after = shape[of["inputs"][0]][2:], shape[result][2:]
                factor = prod(round(x / y) for x, y in zip(before, after, strict=True))
            seconds = factor * seconds + written * BYTE_S
        elif op in PASSES:
            moved = max(size[result], size[of["inputs"][0]] if late else 0)
            seconds = PASSES[op][late] * moved * BYTE_S
        else:
            seconds += written * BYTE_S
        if late:
            arriving = sum(name[t] == f"{name[result]}.grad" for t in n["inputs"])
            added = 2 * max(arriving - 1, 0) * size[result] * BYTE_S
            yield n["id"], "Add", late, added
        yield n["id"], op if op in (*PASSES, "Conv") else "others", late, seconds


def borders(study: Study) -> Iterator[Table]:
    """Layers before each border between stages."""
    rows = []
    for pair in PAIRS:
        theirs = study.theirs(pair)
        if theirs is None:
            continue
        plain = study.ours(pair)
        estimated = pair.workload.startswith("op_")
        device = str(study.rates) if estimated else "v100"
        graph = plain if estimated else dnnp.coarsen(plain, layers=pair.layers)
        priced = dnnp.profile(graph, device=[device])
        tried = [(pair.workload, priced)]
        if pair.images:
            tried.append((f"{pair.workload}, by its rules", _by_rules(priced)))
        for (name, ours), k in product(tried, COUNTS):
            a = _borders(dnnp.split(theirs, k=k), pair.theirs, k)
            b = _borders(dnnp.split(ours, k=k), pair.ours(ours), k)
            apart = max(abs(x - y) for x, y in zip_longest(a, b, fillvalue=max(*a, *b)))
            listed = [" ".join(map(str, found)) for found in (a, b)]
            rows.append((name, str(k), *listed, str(apart), "yes" if apart <= NEAR else "no"))
    header = ("file", "k", "its borders", "ours", "apart", f"within {NEAR}")
    yield Table("training-borders", "Layers before each border between stages", header, rows)


def _by_rules(priced: Graph) -> Graph:
    """The graph with times by the rules of the file of ResNet50, quirks included."""
    seconds: dict[int, float] = defaultdict(float)
    for v, _, _, taken in by_rules(priced, quirks=True):
        seconds[v] += taken
    lines = [json.loads(line) for line in priced.to_bytes().splitlines()]
    for record in lines:
        if record["type"] == "node":
            record["time_s"] = {FILE_RATES["name"]: seconds[record["id"]]}
    return Graph.from_bytes(b"\n".join(json.dumps(r).encode() for r in lines) + b"\n")


def _borders(graph: Graph, anchor: Anchor, k: int) -> tuple[int, ...]:
    """Layers before each of the k - 1 borders of a split.

    A layer is in the stage where most of its time is. Stages that hold no layer come where they
    are in the order of stages.
    """
    stage = {v: i for i, each in enumerate(graph.stages) for v in each.nodes}
    shares: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for node in graph.nodes:
        layer = None if node.get("backward") else anchor(node)
        if layer is not None:
            shares[layer][stage[node["id"]]] += _time(node) + 1e-12
    main = {layer: max(each, key=each.__getitem__) for layer, each in shares.items()}
    held = Counter(main.values())
    first: dict[int, int] = {}
    for place, layer in enumerate(sorted(main)):
        first.setdefault(main[layer], place)
    order = sorted(held, key=first.__getitem__)
    found, before = [], 0
    for s in order[:-1]:
        before += held[s]
        found.append(before)
    return tuple(found + [before + held[order[-1]]] * (k - 1 - len(found)))


PARTS = {"ratios": ratios, "classes": classes, "borders": borders}


def main(words: Sequence[str] | None = None) -> None:
    """Print the tables that are asked for."""
    given = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    given.add_argument("folder", metavar="DIR", type=Path, help="the workloads")
    given.add_argument("--csv", metavar="FOLDER", type=Path, help="write tables there as CSV")
    given.add_argument(
        "--part", nargs="+", choices=tuple(PARTS), default=tuple(PARTS), help="which tables"
    )
    args = given.parse_args(words)
    if not args.folder.is_dir():
        given.error(f"{args.folder}: no such folder")
    files = Workloads(args.folder)
    with tempfile.TemporaryDirectory() as scratch:
        study = Study(files, Path(scratch))
        for name in args.part:
            for table in PARTS[name](study):
                if table.rows:
                    show(table, args.csv, "")
    for what in files.missing:
        print(f"left out, no file in {args.folder}: {what}")


if __name__ == "__main__":
    main()
