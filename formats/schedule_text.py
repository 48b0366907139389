"""A schedule in words."""

from __future__ import annotations

from dnnp.formats.stream import Record


def schedule_line(record: Record, asked: str) -> str:
    """One line about a schedule record; `asked` is the method that was asked for."""
    makespan, bound = record["makespan_s"], record["bound_s"]
    number = record["micro_batches"]
    proven = "optimal" if record["status"] == "optimal" else f"bound {bound:.6g}"
    by = "" if record["method"] == asked else f" by {record['method']}"
    parts = [
        f"makespan {makespan:.6g} of {number} micro-batch{'es' * (number != 1)}{by}, {proven}, "
        f"bubble {100 * record['bubble']:.3g} %"
    ]
    repetend = record.get("repetend")
    if repetend is not None:
        unroll = repetend["unroll"]
        each = f" for {unroll} micro-batches" if unroll > 1 else ""
        parts.append(
            f"period {repetend['period_s']:.6g}{each}, memory {repetend['memory_bytes']:.6g}, "
            f"span {repetend['span_s']:.6g} ({_proof(repetend)})"
        )
    elif "rate_s" in record:
        parts.append(f"{record['rate_s']:.6g} for each of many")
    interrupted = ", interrupted" if record["status"] == "interrupted" else ""
    return "; ".join(parts) + interrupted


def trade_off_lines(record: Record) -> list[str]:
    """The trade-off between period and memory of a schedule record as a table; empty: none."""
    if "pareto" not in record:
        return []
    rows = [("memory", "period", "bound")]
    rows += [
        (f"{p['memory_bytes']:.6g}", f"{p['period_s']:.6g}", f"{p['period_bound_s']:.6g}")
        for p in record["pareto"]
    ]
    width = [max(len(row[c]) for row in rows) for c in range(3)]
    return ["  ".join(text.rjust(w) for text, w in zip(row, width, strict=True)) for row in rows]


def _proof(repetend: Record) -> str:
    """What is proven about a repetend, in words."""
    if repetend["status"] == "optimal":
        return "all proven"
    pairs = (
        ("period", "period_s", "period_bound_s"),
        ("memory", "memory_bytes", "memory_bound_bytes"),
        ("span", "span_s", "span_bound_s"),
    )
    open_ = [
        f"{name} at least {repetend[bound]:.6g}"
        for name, value, bound in pairs
        if repetend[value] > repetend[bound] * (1 + 1e-9)
    ]
    return ", ".join(open_) or "not proven"
