"""Every method on the 2020 paper's workloads, against the paper's Table 1."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from dnnp.formats.workloads.msr import read_workload
from dnnp.samples.papers.placement_values import TABLE_1, Row
from support.bench import table
from support.graphs import to_bytes
from support.run import Result, dnnp

WORKLOADS = Path(__file__).resolve().parents[3] / "shared" / "workloads"
IP_LIMIT_S = float(os.environ.get("DNNP_BENCH_IP_S", "10"))
FREE_WITHIN = 1.01
"""Largest ratio of values of splits without order to the published ones."""

Published = Callable[[Row], float | None]
METHODS: dict[str, tuple[tuple[str, ...], Published]] = {
    "auto": ((), lambda row: row.dp),
    "dpl": (("--method", "dpl"), lambda row: row.linearised),
    "expert": (("--eval",), lambda row: row.expert),
    "pipedream": (("--method", "pipedream"), lambda row: row.pipedream),
    "anneal": (("--method", "anneal"), lambda row: row.free),
    "local-search": (("--method", "local-search"), lambda row: row.local_search),
    "scotch": (("--method", "scotch"), lambda row: row.scotch),
    "metis": (("--method", "metis"), lambda row: None),
    "greedy": (("--method", "greedy"), lambda row: None),
    "uniform": (("--method", "uniform"), lambda row: None),
    "params": (("--method", "params"), lambda row: None),
    "single": (("--method", "single"), lambda row: None),
}
"""Name -> options, and the value of Table 1 that it is held against."""
PROGRAMS = ("convex", "free")
"""Validities of the integer programs."""
EXACT = ("auto", "dpl", "expert", "pipedream")
"""Columns that must equal Table 1 to the printed digits."""


def at_hand() -> list[str]:
    """Workloads that stand beside the project."""
    return [n for n in TABLE_1 if (WORKLOADS / "throughput" / f"{n}.json").is_file()]


def value_of(result: Result) -> float | None:
    """Largest load of the plan; None if the method is not there, or found none that fits."""
    if result.status in (4, 5, 7):
        return None
    if result.status != 0:
        raise SystemExit(result.err)
    value: float = result.one("plan")["value"]
    return value


def cell(result: Result, published: float | None) -> str:
    """A value, with that of Table 1 in parentheses."""
    value = value_of(result)
    what = {4: "none", 5: "none", 7: "n/a"}.get(result.status) if value is None else f"{value:.2f}"
    return f"{what}" if published is None else f"{what} ({published:.2f})"


def differs(name: str, result: Result, published: float | None) -> bool:
    """True if a value breaks a promise about Table 1."""
    value = value_of(result)
    if value is None or published is None:
        return False
    if name in EXACT:
        return round(value, 2) != published
    return name == "anneal" and value > FREE_WITHIN * published


def split_by(name: str, workload: str, data: bytes) -> Result | None:
    """Run one method; None if it has no meaning for this workload."""
    options, _ = METHODS[name]
    if name == "expert":
        short = workload.removeprefix("layer_")
        path = WORKLOADS / "expert" / f"{short}_expert.json"
        return dnnp("partition", *options, path, stdin=data) if path.is_file() else None
    return dnnp("partition", *options, stdin=data)


def program_cell(data: bytes, validity: str) -> str:
    """Value and gap of an integer program."""
    limit = f"{IP_LIMIT_S:g}"
    result = dnnp(
        "partition", "--method", "ip", "--validity", validity, "--time-limit", limit, stdin=data
    )
    if value_of(result) is None:
        return "n/a"
    plan = result.one("plan")
    proven = "optimal" if plan["status"] == "optimal" else f"gap {100 * plan['gap']:.1f}%"
    return f"{plan['value']:.2f}, {proven}"


def main() -> None:
    """Measure and print the tables."""
    names = at_hand()
    if not names:
        print("The workloads of the 2020 paper are not beside the project.")
        return
    values, exceptions, others = [], [], []
    for name in names:
        path = WORKLOADS / "throughput" / f"{name}.json"
        data = to_bytes(read_workload(path.read_bytes(), str(path)))
        row, took = [], 0.0
        for method, (_, published) in METHODS.items():
            began = time.perf_counter()
            result = split_by(method, name, data)
            took = time.perf_counter() - began if method == "anneal" else took
            if result is None:
                row.append("")
                continue
            expected = published(TABLE_1[name])
            row.append(cell(result, expected))
            if differs(method, result, expected):
                exceptions.append(f"{name}: {method} {value_of(result):.3f}, published {expected}")
        values.append((name, *row))
        others.append(
            (
                name,
                f"{TABLE_1[name].dp:.2f}",
                f"{TABLE_1[name].free:.2f}",
                row[4].split()[0],
                f"{took:.1f} s",
                *(program_cell(data, v) for v in PROGRAMS),
            )
        )
    print(
        "Largest load of the split that each method finds, priced by the cost model; in "
        "parentheses the value in Table 1 of the 2020 paper. *expert* prices the paper's own "
        "splits; seed 0; *n/a*: the program is not installed; *none*: no split that fits the "
        "memory. *auto*, *dpl*, *expert* and *pipedream* have to be equal to the printed digits, "
        f"*anneal* at most {100 * (FREE_WITHIN - 1):g}% above.\n"
    )
    print(table(("workload", *METHODS), values))
    print(f"\nExceptions: {'; '.join(exceptions) or 'none'}.\n")
    print(
        "Splits that need not be contiguous: annealing, which proves nothing, and the integer "
        f"programs with CBC, {IP_LIMIT_S:g} s each, that start from the best ordered split. The "
        "published values are within 1% of the optimum or what Gurobi found in 20 minutes.\n"
    )
    header = (
        "workload",
        "published, contiguous",
        "published, any",
        "anneal",
        "time",
        *(f"ip, {v}" for v in PROGRAMS),
    )
    print(table(header, others))


if __name__ == "__main__":
    main()
