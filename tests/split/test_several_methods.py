"""Several methods on one graph: the best plan is kept, and the record tells of all."""

from __future__ import annotations

import orjson
import pytest

import dnnp as api
from dnnp.core.methods.splits import LATENCY, SPLITS
from dnnp.core.model.errors import InfeasibleError, LimitError, UnavailableError
from dnnp.core.model.plan import Plan
from dnnp.splitting import try_methods
from support.graphs import random_stream, to_bytes
from support.run import Result, dnnp

GRAPH = to_bytes(random_stream(3, 9))


def split(methods: str, *words: str, data: bytes = GRAPH) -> Result:
    """A plan of three stages by these methods, which holds."""
    result = dnnp("partition", "-k", "3", "--method", methods, *words, stdin=data)
    assert result.status == 0, result.err
    checked = dnnp("check", stdin=result.out)
    assert checked.status == 0, checked.err
    return result


@pytest.mark.parametrize(
    ("words", "methods"),
    [
        ((), ["uniform", "greedy", "random", "slice", "exact"]),
        (("--objective", "latency"), ["single", "heft", "m-etf", "auto"]),
    ],
    ids=["throughput", "latency"],
)
def test_the_best_of_all_that_each_finds_alone(words: tuple[str, ...], methods: list[str]) -> None:
    known = LATENCY if words else SPLITS
    methods = [name for name in methods if name in known]
    alone = [split(name, *words).one("plan") for name in methods]
    together = split(",".join(methods), *words)
    plan = together.one("plan")
    fields = ("value", "bound", "gap", "validity", "status")
    assert [{name: entry[name] for name in fields} for entry in plan["tried"]] == [
        {name: each[name] for name in fields} for each in alone
    ]
    assert [entry["method"] for entry in plan["tried"]] == methods
    best = min(alone, key=lambda each: each["value"])
    assert (plan["value"], plan["method"]) == (best["value"], best["method"])
    assert plan["bound"] == max(each["bound"] for each in alone)
    assert "time_s" not in plan["tried"][0]
    assert "dnnp-partition: tried: " in together.err


def test_at_ties_the_first_with_the_best_bound() -> None:
    """Slicing finds the optimum here, exact proves it."""
    assert split("slice").one("plan")["status"] == "feasible"
    first, second = (split(m).one("plan") for m in ("slice,exact", "exact,slice"))
    assert (first["method"], second["method"]) == ("slice", "exact")
    assert first["value"] == second["value"]
    assert first["bound"] == second["bound"] == first["value"]
    assert first["status"] == second["status"] == "optimal"
    assert first["tried"][0]["status"] == "feasible"


def test_a_bound_of_fewer_splits_says_nothing_of_more() -> None:
    """A bound proven for ordered splits is no bound of a better free one."""
    for seed in range(30):
        data = to_bytes(random_stream(seed, 9))
        plan = split("exact,anneal", data=data).one("plan")
        ordered, free = plan["tried"]
        if free["value"] < ordered["value"] * (1 - 1e-6):
            assert ordered["bound"] == ordered["value"] > plan["value"]
            assert (plan["validity"], plan["bound"]) == ("free", free["bound"])
            return
    pytest.fail("no free split is better")


def test_what_fails_is_told_and_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    class Greedy:
        """A program that is not there."""

        def __call__(self, *_: object) -> None:
            raise ModuleNotFoundError(name="pymetis")

    monkeypatch.setattr("dnnp.core.baselines.partitioners.solve", Greedy(), raising=False)
    monkeypatch.setitem(
        SPLITS, "metis", SPLITS["metis"]._replace(where="dnnp.core.baselines.partitioners:solve")
    )
    result = split("metis,slice")
    plan = result.one("plan")
    assert plan["method"] == "slice"
    reason = "the package pymetis is not installed"
    entry = {"method": "metis", "status": "unavailable", "reason": reason}
    assert plan["tried"][0] == entry
    assert "; metis unavailable: the package pymetis is not installed" in result.err


def test_all_that_fail_say_why() -> None:
    data = to_bytes(random_stream(4, 8, memory=True))
    words = ("-k", "2", "--memory", "1", "--method", "uniform,slice")
    result = dnnp("partition", "-q", *words, stdin=data)
    assert (result.status, result.out) == (4, b"")
    (line,) = result.err.splitlines()
    assert "uniform: " in line
    assert "; slice: " in line


def test_failures_and_interrupts_in_turn() -> None:
    """The status is that of the first failure; after Ctrl-C nothing more begins."""
    from dnnp.callbacks import Callbacks
    from dnnp.options.split import SplitOptions

    found = api.Graph.from_bytes(split("slice").out).stream()
    from dnnp.formats.graph import graph_of
    from dnnp.formats.plan import plan_of

    plan = plan_of(found, graph_of(found))
    assert plan is not None
    caller = Callbacks()
    options = SplitOptions(method=("exact", "slice", "greedy", "random"), caller=caller)

    def search(one: SplitOptions) -> Plan:
        match one.method:
            case "exact":
                raise LimitError("no time")
            case "slice":
                caller.interrupted = True
                return plan
        raise AssertionError(one.method)

    tried = try_methods(options, search)
    assert [(e.method, e.status) for e in tried.tried] == [
        ("exact", "limit"), ("slice", plan.status), ("greedy", "interrupted"),
        ("random", "interrupted"),
    ]  # fmt: skip
    assert tried.status == "interrupted"

    def fails(one: SplitOptions) -> Plan:
        raise {"exact": UnavailableError, "slice": InfeasibleError}[str(one.method)]("why")

    with pytest.raises(UnavailableError, match=r"^exact: why; slice: why$"):
        try_methods(SplitOptions(method="exact,slice"), fails)


def test_each_has_all_the_time() -> None:
    from dnnp.options.split import SplitOptions

    limits = []

    def search(one: SplitOptions) -> Plan:
        limits.append(one.time_limit)
        raise LimitError("over")

    with pytest.raises(LimitError):
        try_methods(SplitOptions(method="exact,slice,greedy", time_limit=5.0), search)
    assert limits[0] is not None
    assert 5.0 <= limits[0] <= limits[1] <= limits[2] < 65


def test_options_are_idle_only_for_all() -> None:
    assert "--seed has no effect" not in split("greedy,random", "--seed", "3").err
    said = split("greedy,uniform", "--seed", "3").err
    assert "--seed has no effect with methods greedy, uniform" in said
    alone = split("random", "--seed", "3", "--samples", "5").one("plan")["value"]
    both = split("greedy,random", "--seed", "3", "--samples", "5").one("plan")
    assert both["tried"][1]["value"] == alone


def test_python_takes_a_list_or_the_same_text() -> None:
    graph = api.Graph.from_bytes(GRAPH)
    listed, text = (api.split(graph, k=3, method=m) for m in (["greedy", "exact"], "greedy,exact"))
    assert listed.to_bytes() == text.to_bytes()
    command = split("greedy,exact")
    assert listed.to_bytes() == command.out
    timed = split("greedy,exact", "--timings").one("plan")
    assert all(entry["time_s"] >= 0 for entry in timed["tried"])


@pytest.mark.parametrize(
    ("methods", "words", "reason"),
    [
        ("greedy,exakt", (), "invalid choice: 'exakt'; did you mean 'exact'?"),
        ("greedy,greedy", (), "a method is there twice"),
        ("greedy,", (), "invalid choice: ''"),
        ("greedy,heft", (), "method heft is for --objective latency"),
        ("heft,slice", ("--objective", "latency"), "method slice is not for --objective latency"),
        ("exact,slice", ("--validity", "free"), "method exact makes ordered splits"),
    ],
)
def test_mistakes(methods: str, words: tuple[str, ...], reason: str) -> None:
    result = dnnp("partition", "-k", "3", "--method", methods, *words, stdin=GRAPH)
    assert (result.status, result.out) == (2, b"")
    assert reason in result.err
    assert len(result.err.splitlines()) == 1


def test_none_of_the_others_is_better() -> None:
    records = split("uniform,exact").records()
    plan = next(r for r in records if r["type"] == "plan")
    assert plan["method"] == "exact" != plan["tried"][0]["method"]
    plan["tried"][0] |= {"value": 0.5, "bound": 0.25, "gap": 0.5}
    data = b"".join(orjson.dumps(record) + b"\n" for record in records)
    result = dnnp("check", stdin=data)
    assert result.status == 3
    assert "better than the plan's" in result.err
    assert dnnp("bound", "-q", "--method", "simple", stdin=data).status == 3


def test_the_kept_one_is_the_plan() -> None:
    records = split("uniform,exact").records()
    plan = next(r for r in records if r["type"] == "plan")
    plan["tried"].pop()
    data = b"".join(orjson.dumps(record) + b"\n" for record in records)
    assert "no method that was tried has its value" in dnnp("check", stdin=data).err


def test_the_plan_is_by_the_first_of_the_best() -> None:
    records = split("uniform,exact").records()
    plan = next(r for r in records if r["type"] == "plan")
    plan["tried"][1]["validity"] = "convex"
    data = b"".join(orjson.dumps(record) + b"\n" for record in records)
    assert "is the first of the best, convex by exact, but" in dnnp("check", stdin=data).err
