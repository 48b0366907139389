"""Files of the 2020 paper's workloads, and what dnnp-partition finds for them.

A folder may be laid out as the authors' repository is, or as `throughput/op_NAME.json`,
`latency/layer_NAME.json` and `expert/NAME_expert.json`.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dnnp.samples.papers.moirai import Run, command

FOLDERS = {"op": "OperatorGraphs", "layer": "LayerGraphs"}

NOTHING = {4: "does not fit", 5: "none found", 7: "not installed"}
"""Exit statuses that leave a cell empty."""


class Job(NamedTuple):
    """A workload, and options of dnnp-partition."""

    path: Path
    options: tuple[str, ...]


class Found(NamedTuple):
    """Answer of dnnp-partition."""

    plan: dict[str, Any] | None
    stages: Sequence[dict[str, Any]]
    seconds: float
    """Seconds of the command, compiling and reading included."""
    reason: str = ""
    """The reason why there is no plan."""

    @property
    def value(self) -> float | None:
        """The objective."""
        return None if self.plan is None else float(self.plan["value"])

    @property
    def excess(self) -> float:
        """The most that a device needs, over what it has; up to 1: all fits."""
        if self.plan is None:
            return 0.0
        room = {d["class"]: d.get("memory_bytes", np.inf) for d in self.plan["devices"]}
        held: dict[tuple[str, str], float] = {}
        for stage in self.stages:
            key = stage["class"], stage["device"]
            held[key] = held.get(key, 0.0) + stage["memory_bytes"]
        cpus = {d["class"] for d in self.plan["devices"] if d["kind"] == "cpu"}
        return max((m / room[c] for (c, _), m in held.items() if c not in cpus), default=0.0)


class Workloads:
    """The files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.missing: dict[str, None] = {}
        """The result that was not found."""

    def graph(self, kind: str, workload: str) -> Path | None:
        """The file of a workload (`op_bert_l-3_inference`) for `throughput` or `latency`."""
        grain, _, name = workload.partition("_")
        return self._first(
            f"{kind}, {workload}",
            self.folder / kind / f"{workload}.json",
            self.folder / f"{kind}-inputs" / FOLDERS[grain] / f"{name}.json",
        )

    def expert(self, workload: str) -> Path | None:
        """The experts' split of a workload; for training that of inference, if it has none."""
        grain, _, name = workload.partition("_")
        if grain != "layer":
            return None
        names = name, name.replace("_training", "_inference")
        places = [
            self.folder / f / f"{n}_expert.json" for n in names for f in ("human-experts", "expert")
        ]
        return self._first(f"expert, {name}", *places)

    def _first(self, what: str, *places: Path) -> Path | None:
        # In any case: a file of the authors is spelt with a large L.
        for place in places:
            for found in place.parent.iterdir() if place.parent.is_dir() else ():
                if found.name.lower() == place.name.lower():
                    return found
        self.missing[what] = None
        return None


class Runs:
    """Runs dnnp-partition for several workloads at a time; asks nothing twice."""

    def __init__(self, run: Run = command) -> None:
        self.run = run
        self.known: dict[Job, Found] = {}
        self._imported: dict[Path, Path] = {}
        self._folder = tempfile.TemporaryDirectory()

    def close(self) -> None:
        """Delete what was written."""
        self._folder.cleanup()

    def all(self, jobs: Iterable[Job]) -> None:
        """Find the answers of some jobs."""
        new = [job for job in dict.fromkeys(jobs) if job not in self.known]
        for path in dict.fromkeys(job.path for job in new):
            self.stream(path)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            self.known.update(zip(new, pool.map(self._found, new), strict=True))

    def of(self, path: Path, *options: str) -> Found:
        """The answer of one job."""
        job = Job(path, options)
        self.all([job])
        return self.known[job]

    def stream(self, path: Path) -> Path:
        """The imported workload."""
        if path not in self._imported:
            target = Path(self._folder.name) / f"{len(self._imported)}.dnnp"
            words = ["dnnp-import", "-q", "--from", "msr-json", str(path), "-o", str(target)]
            done = self.run(words, b"")
            if done.status:
                raise SystemExit(f"{path}: {done.err.strip()}")
            self._imported[path] = target
        return self._imported[path]

    def write(self, name: str, content: object) -> Path:
        """Write JSON beside the imported workloads."""
        target = Path(self._folder.name) / name
        target.write_text(json.dumps(content))
        return target

    def _found(self, job: Job) -> Found:
        words = ["dnnp-partition", "-q", "--timings", *job.options, str(self._imported[job.path])]
        done = self.run(words, b"")
        if done.status in NOTHING:
            return Found(None, [], 0.0, NOTHING[done.status])
        if done.status:
            raise SystemExit(f"{' '.join(words)}: {done.err.strip()}")
        records = [json.loads(line) for line in done.out.splitlines()]
        by_type: dict[str, list[dict[str, Any]]] = {}
        for record in records:
            by_type.setdefault(record["type"], []).append(record)
        seconds = by_type["header"][0]["provenance"][-1]["elapsed_s"]
        return Found(by_type["plan"][0], by_type["stage"], seconds)


def more_devices(workload: Path, split: Path) -> int:
    """Accelerators that a split uses, where the workload offers fewer; else 0."""
    offered = json.loads(workload.read_bytes())["maxFPGAs"]
    try:
        used = sum(bool(part["nodes"]) for part in json.loads(split.read_bytes())["fpgas"])
    except (ValueError, KeyError, TypeError):
        raise SystemExit(f"{split}: no split of the 2020 paper") from None
    return used if used > offered else 0


def published_order(path: Path, *, by_color: bool = False) -> list[int]:
    """Nodes of a workload in the order of the authors' programs.

    Colours and then cycles of the forward pass are contracted; of the items that are ready, the
    one goes next that became so last. Several become ready in the order of the edges in the file
    (greedy, section 7), which a stream does not keep, so that `dnnp-partition --order published`
    may break ties otherwise; or in that of their colours (DPL, section 5.1.2), those without one
    first. Backward nodes, which follow their colours, come at the end.
    """
    document = json.loads(path.read_bytes())
    late = {n["id"] for n in document["nodes"] if n.get("isBackwardNode")}
    nodes = [node for node in document["nodes"] if node["id"] not in late]
    at = {node["id"]: i for i, node in enumerate(nodes)}
    every = [(e["sourceId"], e["destId"]) for e in document["edges"]]
    pairs = [(at[u], at[v]) for u, v in every if u in at and v in at]
    colors = [node.get("colorClass") for node in nodes]
    item = _contracted(colors, pairs)
    edges = [(item[u], item[v]) for u, v in pairs]
    if by_color:
        first: dict[int, tuple[int, int]] = {}
        for v, color in enumerate(colors):
            key = (0, v) if color is None else (1, color)
            first[item[v]] = min(key, first.get(item[v], key))
        edges = sorted(set(edges), key=lambda edge: (first[edge[0]], first[edge[1]]))
    place: dict[int, int] = {}
    waiting = waits(item, edges)
    waiting.prepare()
    ready = [*waiting.get_ready()]
    while ready:
        place[ready[-1]] = len(place)
        waiting.done(ready.pop())
        ready += waiting.get_ready()
    ahead = sorted(at, key=lambda v: place[item[at[v]]])
    back = waits(sorted(late), ((u, v) for u, v in every if u in late and v in late))
    return ahead + list(back.static_order())


def waits(items: Iterable[int], pairs: Iterable[tuple[int, int]]) -> TopologicalSorter[int]:
    """Items of which the second of each pair waits for the first; ties by their order here."""
    found: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(items, ()))
    for u, v in pairs:
        if u != v:
            found.add(v, u)
    return found


def _contracted(colors: Sequence[int | None], pairs: Sequence[tuple[int, int]]) -> list[int]:
    """Item of each node: colours, and what lies on cycles of them."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    names = [(c, -1) if c is not None else (-1, v) for v, c in enumerate(colors)]
    number = {name: i for i, name in enumerate(dict.fromkeys(names))}
    group = np.array([number[name] for name in names])
    tail, head = group[[a for a, _ in pairs]], group[[b for _, b in pairs]]
    edges = coo_array((np.ones(len(pairs)), (tail, head)), (len(number), len(number)))
    part: list[int] = connected_components(edges, connection="strong")[1][group].tolist()
    return part
