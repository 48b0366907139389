"""Placeto: a policy trained on some graphs of a family, on others of it, beside other methods.

GRAPHS in the environment replaces the number of graphs to train on, and of those to place.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

import dnnp
from support.bench import table

GRAPHS = int(os.environ.get("GRAPHS", "4"))
FAMILIES = ((20, 0.1, 1500), (20, 1.0, 1500))
"""Nodes, ratio of transfers to work, and episodes of training, on the family or on each graph."""

OTHERS = ("m-sct", "heft", "auto")


def value(graph: dnnp.Graph, method: str, **options: object) -> float:
    """Latency of a graph by one method."""
    plan = dnnp.split(graph, objective="latency", method=method, **options).plan
    assert plan is not None
    return float(plan.value)


def rows(nodes: int, ratio: float, episodes: int, folder: Path) -> list[list[object]]:
    """A line for the latency of one family, and one for the seconds it took."""
    seen = [dnnp.generate("layered", nodes=nodes, ratio=ratio, seed=s) for s in range(GRAPHS)]
    new = [dnnp.generate("layered", nodes=nodes, ratio=ratio, seed=100 + s) for s in range(GRAPHS)]
    paths = [folder / f"{nodes}-{ratio}-{number}.jsonl" for number in range(GRAPHS)]
    for graph, path in zip(seen, paths, strict=True):
        graph.save(path)
    policy = folder / f"{nodes}-{ratio}.json"
    start = time.perf_counter()
    value(new[0], "placeto", train_on=paths, episodes=episodes, save_policy=policy)
    seconds = [time.perf_counter() - start]
    ways: list[tuple[str, dict[str, object]]] = [
        ("placeto", {"episodes": 0}),
        ("placeto", {"policy": policy}),
        ("placeto", {"episodes": episodes}),
        *((name, {}) for name in OTHERS),
    ]
    found = {}
    for number, (method, options) in enumerate(ways):
        start = time.perf_counter()
        found[number] = [value(graph, method, **options) for graph in new]
        seconds.append((time.perf_counter() - start) / len(new))
    best = found[len(ways) - 1]
    ratios = [[a / b for a, b in zip(each, best, strict=True)] for each in found.values()]
    means = [f"{statistics.geometric_mean(each):.2f}" for each in ratios]
    place = [nodes, ratio, episodes]
    return [[*place, *means], [*place, *(f"{s:.2g}" for s in seconds)]]


def main() -> None:
    """Print the tables."""
    with tempfile.TemporaryDirectory() as folder:
        found = [rows(*family, Path(folder)) for family in FAMILIES]
    families = ("nodes", "ratio", "episodes")
    ways = ("untrained", "family", "own graph", *OTHERS)
    print(f"Latency over that of `auto`, geometric mean of {GRAPHS} layered graphs on four devices")
    print("that no policy of the family has seen: `untrained` applies a policy of random weights,")
    print(f"`family` one that {GRAPHS} other graphs have trained, `own graph` trains on each,")
    print("with as many episodes.\n")
    print(table((*families, *ways), [one for one, _ in found]))
    print("\nSeconds: of training on the family, then of each graph.\n")
    print(table((*families, "training", *ways), [two for _, two in found]))


if __name__ == "__main__":
    main()
