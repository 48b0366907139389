"""A schedule in words."""

from __future__ import annotations

from dnnp.core.model.text import shown_bytes, shown_time, table
from dnnp.formats.stream import Record


def schedule_line(record: Record, asked: str, in_seconds: bool) -> str:
    """One line about a schedule record; `asked` is the method that was asked for.

    Where times are not `in_seconds`, their unit and that of memory are not known.
    """
    makespan, bound = (_shown(record, name, in_seconds) for name in ("makespan_s", "bound_s"))
    number = record["micro_batches"]
    proven = "optimal" if record["status"] == "optimal" else f"bound {bound}"
    by = "" if record["method"] == asked else f" by {record['method']}"
    parts = [
        f"makespan {makespan} of {number} micro-batch{'es' * (number != 1)}{by}, {proven}, "
        f"bubble {100 * record['bubble']:.3g} %"
    ]
    repetend = record.get("repetend")
    if repetend is not None:
        unroll = repetend["unroll"]
        each = f" for {unroll} micro-batches" if unroll > 1 else ""
        period, memory, span = (
            _shown(repetend, name, in_seconds) for name in ("period_s", "memory_bytes", "span_s")
        )
        proof = _proof(repetend, in_seconds)
        parts.append(f"period {period}{each}, memory {memory}, span {span} ({proof})")
    elif "rate_s" in record:
        parts.append(f"{_shown(record, 'rate_s', in_seconds)} for each of many")
    interrupted = ", interrupted" if record["status"] == "interrupted" else ""
    return "; ".join(parts) + interrupted


def trade_off_lines(record: Record, in_seconds: bool) -> list[str]:
    """The trade-off between period and memory of a schedule record as a table; empty: none."""
    if "pareto" not in record:
        return []
    fields = ("memory_bytes", "period_s", "period_bound_s")
    rows = [[_shown(point, name, in_seconds) for name in fields] for point in record["pareto"]]
    return table(["memory", "period", "bound"], rows, left=())


def _shown(record: Record, name: str, in_seconds: bool) -> str:
    """A field of a schedule with its unit."""
    value = record[name]
    if in_seconds and name.endswith("_bytes"):
        return shown_bytes(value)
    return shown_time(value, in_seconds)


def _proof(repetend: Record, in_seconds: bool) -> str:
    """What is proven about a repetend, in words."""
    if repetend["status"] == "optimal":
        return "all proven"
    pairs = (
        ("period", "period_s", "period_bound_s"),
        ("memory", "memory_bytes", "memory_bound_bytes"),
        ("span", "span_s", "span_bound_s"),
    )
    open_ = [
        f"{name} at least {_shown(repetend, bound, in_seconds)}"
        for name, value, bound in pairs
        if repetend[value] > repetend[bound] * (1 + 1e-9)
    ]
    return ", ".join(open_) or "not proven"
