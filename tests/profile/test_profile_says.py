"""dnnp-profile says what it found: the total, the heaviest operators, what bytes alone price."""

from __future__ import annotations

import math

import orjson

from support.graphs import header, node
from support.priced import tensor
from support.run import dnnp


def stream() -> bytes:
    """A square of 64 x 64 three times, a sum, and an unknown operator."""
    matrix = {"shape": [64, 64]}
    kinds = ["input", *["activation"] * 5, "parameter"]
    tensors = [tensor(i, kind, 16384, **matrix) for i, kind in enumerate(kinds)]
    ops = ["MatMul", "MatMul", "MatMul", "Add", "Mystery"]
    nodes = [node(i, op, [i], [i + 1]) for i, op in enumerate(ops)]
    for entry in nodes[:4]:
        entry["inputs"].append(6)
        entry["flop"] = 2.0 * 64**3
    nodes[-1]["domain"] = "com.example"
    records = [header(), *tensors, *nodes]
    records.append({"type": "end", "records": len(records)})
    return b"".join(orjson.dumps(record) + b"\n" for record in records)


def test_total_heaviest_and_bytes_alone() -> None:
    result = dnnp("profile", stdin=stream())
    assert result.status == 0, result.err
    times = [r["time_s"]["cpu-core"] for r in result.records("node")]
    whole = math.fsum(times)
    said = [line.removeprefix("dnnp-profile: ") for line in result.err.splitlines()]
    matmul, add, mystery = math.fsum(times[:3]), times[3], times[4]
    rows = sorted(
        [(matmul, "MatMul", 3), (add, "Add", 1), (mystery, "com.example:Mystery", 1)],
        key=lambda row: -row[0],
    )
    listed = ", ".join(f"{name} {time / whole:.1%} ({n})" for time, name, n in rows)
    assert said[-2].startswith("5 nodes, one after the other: ")
    assert said[-2].endswith(f"{whole * 1e6:.4g} us on cpu-core")
    assert said[-1] == f"heaviest on cpu-core: {listed}"
    share = f"{mystery / whole:.1%} of the time on cpu-core"
    assert said[0].startswith(f"1 of 5 nodes, {share}, are priced by the bytes they move only")
    assert dnnp("profile", "-q", stdin=stream()).out == result.out.replace(
        b'"arguments":[]', b'"arguments":["-q"]'
    )


def test_groups_cost_what_they_cost() -> None:
    """The total is that of the groups, on every class."""
    units = dnnp("coarsen", stdin=stream())
    groups = len(units.records("group"))
    assert 0 < groups < 5
    result = dnnp("profile", "--device", "v100", "--device", "cpu-core", stdin=units.out)
    (line,) = [line for line in result.err.splitlines() if "one after the other" in line]
    assert line.startswith(f"dnnp-profile: 5 nodes in {groups} groups, one after")
    for name in ("v100", "cpu-core"):
        total = math.fsum(r["time_s"][name] for r in result.records("group"))
        assert f"{total * 1e6:.4g} us on {name}" in line
    again = dnnp("profile", "--device", "v100", "--device", "t4", stdin=result.out)
    assert "dropped the prices of cpu-core: one call prices all" in again.err


def test_more_is_told_to_who_asks() -> None:
    verbose = dnnp("profile", "-v", stdin=stream())
    assert sum("n0 (MatMul): " in line for line in verbose.err.splitlines()) == 1
    quiet = dnnp("profile", "-q", stdin=stream())
    assert "heaviest" not in quiet.err
    assert "after the other" not in quiet.err
