"""Tables of bounds from streams with plans and bounds: what `make -C samples bounds` prints.

    python -m dnnp.samples.papers.bounds FILE...

A file is named GRAPH.METHOD.K: the plan of a graph over K devices, bounded by `dnnp-bound --method
METHOD`, or, without a bound, the plan that they started from. `@LIST` is a file with such names.
The tables are those of MTPP (Archer et al. 2024): lower bounds over the simple one as in tables 2
and 5, plans over bounds as in tables 3 and 6. Rows stand in the order in which the files do.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

SIMPLE = "simple"
LOOSE = ("no-dag", "no-io")
"""Arguments that the second table of the paper leaves out: `bottleneck` contains them."""
OURS = "auto"
"""Not in the paper."""

CLOSED = 1 + 1e-9
"""Values that differ by no more are equal."""

Key = tuple[str, int]
"""Graph and number of devices."""


class Bounded(NamedTuple):
    """Values of a file with a bound."""

    value: float
    """Largest load of the plan, or of a better one that was found on the way."""
    simple: float
    bound: float
    """At least the simple one."""
    reached: bool
    """True if the argument came to the simple bound by itself."""


Found = dict[tuple[str, Key], Bounded]
"""By method, graph and number of devices."""


def read(path: Path) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The records of the plan and of the bound, if there is one."""
    records = {}
    with path.open() as file:
        for line in file:
            if line.startswith(('{"type":"plan"', '{"type":"bound"')):
                record = json.loads(line)
                records[record["type"]] = record
    return records["plan"], records.get("bound")


def bounded(plan: dict[str, Any], bound: dict[str, Any], method: str) -> Bounded:
    """Values of a method in the records of plan and bound."""
    tried = {entry["method"]: entry for entry in bound["tried"]}
    simple, mine = tried[SIMPLE]["value"], tried.get(method)
    reached = (
        mine is None  # the simple bound was enough
        or mine["status"] == "solved"
        or mine.get("value", 0.0) > simple * CLOSED
    )
    return Bounded(plan["value"], simple, bound["value"], reached)


def improvement(found: Found, method: str, k: int) -> str:
    """Bound over the simple one, and where it came to that by itself."""
    of = [b for (name, key), b in found.items() if (name, key[1]) == (method, k)]
    percent = 100 * sum(b.reached for b in of) / len(of)
    return f"{geometric_mean(b.bound / b.simple for b in of):.3f} ({percent:.3g})"


def so_far(found: Found, plans: dict[Key, float], above: Sequence[str], k: int) -> str:
    """The best plan over the best bound of some methods; of none: the simple bound."""
    simple = {key: b.simple for (_, key), b in found.items()}
    ratios = []
    for key, value in plans.items():
        if key[1] == k:
            of = [found[method, key] for method in above]
            best = max((b.bound for b in of), default=simple[key])
            ratios.append(min((b.value for b in of), default=value) / best)
    return f"{geometric_mean(ratios):.3f}"


def tables(found: Found, plans: dict[Key, float]) -> Iterator[str]:
    """Lines of both tables; `plans` are the values of the plans at the start."""
    methods = list(dict.fromkeys(method for method, _ in found))
    counts = sorted({k for _, k in plans})
    head = "".join(f"{f'k = {k}':>13}" for k in counts)
    yield f"{'bound / simple':14}{head}"
    for method in (m for m in methods if m != OURS):
        yield f"{method:14}" + "".join(f"{improvement(found, method, k):>13}" for k in counts)
    yield f"{'plan / bound':14}{head}"
    for row in (SIMPLE, *(m for m in methods if m not in LOOSE)):
        above = methods[: methods.index(row) + 1] if row != SIMPLE else []
        name = f"{row} *" if row == OURS else row
        yield f"{name:14}" + "".join(f"{so_far(found, plans, above, k):>13}" for k in counts)


class _Parser(argparse.ArgumentParser):
    """Takes lists of files with as many names a line as there are."""

    def convert_arg_line_to_args(self, arg_line: str) -> list[str]:
        return arg_line.split()


def main() -> None:
    """Print the tables of the files that are named."""
    parser = _Parser(description="Print tables of bounds.", fromfile_prefix_chars="@")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="GRAPH.METHOD.K")
    found: Found = {}
    plans = {}
    for path in parser.parse_args().files:
        graph, method, count = path.name.rsplit(".", 2)
        key = graph, int(count)
        plan, bound = read(path)
        if bound is None:
            plans[key] = plan["value"]
        else:
            found[method, key] = bounded(plan, bound, method)
    for line in tables(found, plans):
        print(line)


if __name__ == "__main__":
    main()
