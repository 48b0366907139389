"""The tables of methods: entries are whole, and importing them is free."""

from __future__ import annotations

import inspect
import json
import sys

import pytest

from dnnp.core.methods import Method
from dnnp.core.methods.bounds import BOUNDS, LATENCY_BOUNDS
from dnnp.core.methods.schedules import RECIPES, SCHEDULES, SEARCHES
from dnnp.core.methods.splits import LATENCY, SPLITS
from support.run import output_of

TABLES = {
    "SPLITS": (SPLITS, ("problem", "asked", "run")),
    "LATENCY": (LATENCY, ("problem", "asked", "run")),
    "BOUNDS": (BOUNDS, ("problem", "known", "run")),
    "LATENCY_BOUNDS": (LATENCY_BOUNDS, None),
    "SEARCHES": (SEARCHES, ("batch", "wanted", "run")),
    "RECIPES": (RECIPES, ("placement",)),
}
"""Name -> methods, and the parameters of their functions where all have the same."""

VALIDITIES, EXECUTIONS = {"ordered", "convex", "free"}, {"blocks", "operators"}
KINDS: dict[str, set[str]] = {
    "SPLITS": VALIDITIES,
    "LATENCY": EXECUTIONS,
    "BOUNDS": VALIDITIES,
    "LATENCY_BOUNDS": EXECUTIONS,
    "SEARCHES": set(),
    "RECIPES": set(),
}


def entries() -> list[tuple[str, Method]]:
    """(table, method) of all."""
    return [(name, method) for name, (table, _) in TABLES.items() for method in table.values()]


@pytest.mark.parametrize(("table", "method"), entries())
def test_entries_are_whole(table: str, method: Method) -> None:
    assert TABLES[table][0][method.name] is method
    assert method.help
    assert not method.help.endswith(".")
    assert not method.more or method.more.endswith(".")
    assert method.help.count("`") % 2 == method.more.count("`") % 2 == 0
    assert set(method.kinds) <= KINDS[table]
    assert bool(method.kinds) == bool(KINDS[table])
    assert 0 <= method.share <= 1
    assert method.where or method.name == "auto"
    assert isinstance(method.where, str) or tuple(method.where) == method.kinds


def test_a_table_starts_with_what_is_used_by_default() -> None:
    for methods in (SPLITS, LATENCY, BOUNDS, LATENCY_BOUNDS, SCHEDULES):
        assert next(iter(methods)) == "auto"


def test_importing_them_imports_nothing_else() -> None:
    program = (
        "import json, sys\n"
        "before = {*sys.modules}\n"
        "import dnnp.core.methods.bounds, dnnp.core.methods.schedules, dnnp.core.methods.splits\n"
        "print(json.dumps(sorted({*sys.modules} - before)))\n"
    )
    found = json.loads(output_of([sys.executable, "-c", program]))
    ours = [name for name in found if name.partition(".")[0] == "dnnp"]
    assert all(
        name in ("dnnp", "dnnp.core") or name.startswith("dnnp.core.methods") for name in ours
    )
    others = {name.partition(".")[0] for name in found} - {"dnnp"} - {*sys.stdlib_module_names}
    assert not others


def test_every_function_is_there() -> None:
    for table, method in entries():
        wanted = TABLES[table][1]
        for kind in method.kinds or ("",):
            if not method.where:
                continue
            function = method.function(kind)
            assert callable(function), method
            if wanted is not None:
                found = tuple(inspect.signature(function).parameters)
                assert found[: len(wanted)] == wanted, method
