"""The ways to use the devices: against brute force, and by hand."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

import dnnp
from dnnp.core.check.plan import check_choices, check_plan
from dnnp.core.cost.problem import SplitProblem, make_plan
from dnnp.core.model.errors import InfeasibleError, UsageError
from dnnp.core.model.plan import Block
from dnnp.core.model.search_context import MethodOptions
from dnnp.core.split.ways import (
    WAYS,
    all_replicas,
    compare_ways,
    faster_replicas,
    way_of,
    whole_blocks,
    with_best_replicas,
)
from dnnp.formats.stream import Stream
from dnnp.running import predictions_of
from support.brute import brute_force
from support.cases import Case, random_case
from support.graphs import header, node, tensor, to_bytes
from support.run import Result
from support.run import dnnp as command

INF = float("inf")


def with_all(case: Case) -> SplitProblem:
    """The problem of a case where a stage may run on all devices of a class."""
    options = replace(case.options, max_replicas=all_replicas(case.devices))
    return case.problem.with_options(options)


def plain_values(problem: SplitProblem) -> dict[str, float]:
    """The best whole model and the best replicas, by trying each class and number of devices."""
    nodes, best = problem.graph.order, {"whole": INF, "replicas": INF}
    for device in problem.devices:
        for replicas in range(1, device.count + 1):
            way = "whole" if replicas == 1 else "replicas"
            with contextlib.suppress(InfeasibleError):
                best[way] = min(best[way], problem.value([Block(nodes, device, replicas)]))
    return best


@pytest.mark.parametrize("seed", range(150))
def test_all_ways_equal_brute_force(seed: int) -> None:
    """Devices of several classes, CPUs, capacities, overflow, colours and training among them."""
    case = random_case(seed, 6, memory_model="sum")
    problem = with_all(case)
    best = brute_force(problem)[0]
    single = brute_force(problem.with_options(replace(problem.options, max_replicas=1)))[0]
    if best == INF:
        with pytest.raises(InfeasibleError):
            compare_ways(problem, MethodOptions())
        return
    solution, made = compare_ways(problem, MethodOptions())
    ways = {way.name: way for way in made}
    assert tuple(ways) == WAYS
    value = problem.value(solution.blocks)
    assert value == pytest.approx(best, rel=1e-9)
    assert solution.bound <= value * (1 + 1e-9)
    values = {name: INF if way.value is None else way.value for name, way in ways.items()}
    for name, least in plain_values(problem).items():
        assert values[name] == pytest.approx(least, rel=1e-9), name
    assert min(values["whole"], values["pipeline"]) == pytest.approx(single, rel=1e-9)
    assert all(bool(way.reason) == (way.value is None) for way in made)
    simplest = next(n for n in WAYS if values[n] <= min(values.values()) * (1 + 1e-9))
    assert way_of(solution.blocks) == simplest
    plan = make_plan(problem, solution.blocks, bound=solution.bound)
    plan = replace(plan, ways=made)
    assert check_plan(case.graph, case.units, plan).violations == ()


@pytest.mark.parametrize("seed", range(60))
def test_the_number_of_replicas_is_the_best(seed: int) -> None:
    """Weight synchronisation makes it a matter of trying."""
    case = random_case(seed, 5, training=True, limited=False)
    for block in whole_blocks(case.problem, MethodOptions())[0]:
        device = replace(block.device, count=9)
        problem = case.problem.with_devices(device)
        found = with_best_replicas(problem, block._replace(device=device))
        values = [
            problem.value([Block(block.nodes, device, replicas)]) for replicas in range(2, 10)
        ]
        assert problem.value([found]) == pytest.approx(min(values), rel=1e-12)


def chain(*times: float, size: float = 1.0, params: float = 0.0, classes: int = 1) -> Stream:
    """A chain of nodes with a tensor between neighbours, each with a parameter of its own.

    Class `d1` is twice as slow as `d0`.
    """
    count = len(times)
    tensors = [tensor(v, "activation", size) for v in range(count)]
    tensors += [tensor(count + v, "parameter", params) for v in range(count)]
    nodes = []
    for v, time in enumerate(times):
        cost = {f"d{c}": (c + 1) * time for c in range(classes)}
        nodes.append(node(v, "Op", [*([v - 1] if v else []), count + v], [v], time_s=cost))
    devices = [
        {
            "type": "device",
            "class": f"d{c}",
            "kind": "accelerator",
            "count": 2,
            "bandwidth_bytes_per_s": 1.0,
        }
        for c in range(classes)
    ]
    return Stream(header=header(), records={"device": devices, "tensor": tensors, "node": nodes})


def partition(stream: Stream, *options: str) -> Result:
    result = command("partition", *options, stdin=to_bytes(stream))
    assert result.status == 0, result.err
    checked = command("check", stdin=result.out)
    assert checked.status == 0, checked.err
    return result


def ways_of(result: Result) -> dict[str, dict]:
    return {way["way"]: way for way in result.one("plan")["ways"]}


def test_replicas_are_chosen_where_transfers_cost() -> None:
    result = partition(chain(4, 4, size=1), "--allow-replicas")
    plan = result.one("plan")
    assert (plan["value"], plan["method"], plan["status"]) == (4, "replicas", "optimal")
    assert plan["max_replicas"] == 2
    assert plan["ways"] == [
        {"way": "whole", "stages": 1, "devices": 1, "value": 8, "class": "d0"},
        {"way": "replicas", "stages": 1, "devices": 2, "value": 4, "class": "d0"},
        {"way": "pipeline", "stages": 2, "devices": 2, "value": 5},
        {"way": "replicated-pipeline", "reason": "none is faster than the replicas"},
    ]
    assert result.err.splitlines()[-1] == (
        "dnnp-partition: chosen: replicas on 2 devices, 4 s; pipeline 5 s (1.25 times as long); "
        "whole model 8 s (2 times as long); no replicated pipeline: none is faster than the "
        "replicas"
    )
    assert [(s["replicas"], s["device"]) for s in result.records("stage")] == [(2, "d0/0")]


def test_memory_rules_replicas_out() -> None:
    result = partition(chain(4, 4, params=10), "--allow-replicas", "--memory", "15")
    ways = ways_of(result)
    assert ways["whole"]["reason"] == "the stage on d0/0 needs 22 B, its device has 15 B"
    assert ways["replicas"] == {"way": "replicas", "reason": ways["whole"]["reason"]}
    assert result.one("plan")["value"] == ways["pipeline"]["value"] == 5
    assert "; no whole model or replicas: the stage on d0/0 needs 22 B" in result.err
    quiet = partition(chain(4, 4, params=10), "--memory", "15")
    assert "allow-replicas" not in quiet.err


def test_a_stage_of_replicas_where_the_whole_does_not_fit() -> None:
    """The slow half takes two of three devices; nothing holds both halves."""
    result = partition(
        chain(4, 8, params=10, size=0), "--allow-replicas", "--memory", "15", "-k", "3"
    )
    ways = ways_of(result)
    assert (ways["pipeline"]["value"], ways["replicated-pipeline"]["value"]) == (8, 4)
    assert ways["replicated-pipeline"] | {"value": 0} == {
        "way": "replicated-pipeline", "stages": 2, "devices": 3, "value": 0,
    }  # fmt: skip
    assert [s.get("replicas", 1) for s in result.records("stage")] == [1, 2]


def test_ties_go_to_the_simpler_way() -> None:
    """Without transfers a pipeline of equal halves is as fast as replicas."""
    tied = partition(chain(4, 4, size=0), "--allow-replicas")
    ways = ways_of(tied)
    assert ways["pipeline"]["value"] == ways["replicas"]["value"] == 4
    assert len(tied.records("stage")) == 1
    alone = partition(chain(4, size=0), "--allow-replicas", "-k", "1")
    assert ways_of(alone)["whole"]["value"] == 4
    assert alone.one("plan")["method"] == "whole"
    assert "max_replicas" not in alone.one("plan")
    assert "allow-replicas" not in partition(chain(4, 4, size=0)).err  # not faster: not named


def test_devices_of_two_classes() -> None:
    """Replicas use one class; stages use both, so that the pipeline is faster."""
    result = partition(chain(4, 4, 2, 2, size=0, classes=2), "--allow-replicas")
    ways = ways_of(result)
    assert (ways["whole"]["class"], ways["whole"]["value"]) == ("d0", 12)
    assert (ways["replicas"]["class"], ways["replicas"]["value"]) == ("d0", 6)
    assert result.one("plan")["value"] == ways["pipeline"]["value"] == 4
    assert ways["replicated-pipeline"]["reason"] == "none is faster than the pipeline"


def test_training_pays_for_weights() -> None:
    """The same chain with a backward pass: two replicas synchronise half of 20 bytes."""
    stream = chain(4, 4, params=10, size=0)
    count = len(stream.get("tensor"))
    stream.records["tensor"] += [tensor(count + i, "activation", 0) for i in range(2)]
    for i, reads in enumerate(([1], [count])):
        late = {"time_s": {"d0": 4}, "backward": True, "color": 1 - i}
        stream.records["node"].append(node(2 + i, "Op", reads, [count + i], **late))
        stream.get("node")[i]["color"] = i
    result = partition(stream, "--allow-replicas")
    ways = ways_of(result)
    assert (ways["whole"]["value"], ways["replicas"]["value"]) == (16, 8 + 10)
    assert result.one("plan")["value"] == ways["pipeline"]["value"] == 8
    assert "allow-replicas" not in partition(stream).err


def test_a_note_names_faster_replicas() -> None:
    result = partition(chain(4, 4))
    assert result.err.splitlines()[-1] == (
        "dnnp-partition: 2 replicas of the whole model fit and are predicted 1.25 times as fast: "
        "4 s (--allow-replicas compares them)"
    )
    assert "ways" not in result.one("plan")
    for options in (["-q"], ["--max-replicas", "1"], ["-k", "1"]):
        assert "replicas" not in partition(chain(4, 4), *options).err
    assert (
        "replicas"
        not in command("partition", "--objective", "latency", stdin=to_bytes(chain(4, 4))).err
    )


@pytest.mark.parametrize(("size", "said"), [(0.39, 0), (0.41, 1)])
def test_replicas_are_named_where_they_are_a_tenth_faster(size: float, said: int) -> None:
    """Replicas take 4 s, each stage of a pipeline the transfer besides. Several methods: once."""
    result = partition(chain(4, 4, size=size), "--method", "slice,uniform")
    assert "tried: slice" in result.err
    assert result.err.count("replicas of the whole model") == said
    assert "replicas" not in command("view", stdin=result.out).out.decode()


def test_a_note_costs_nothing_where_replicas_cannot_be_faster() -> None:
    case = random_case(3, 6, memory_model="sum")
    assert faster_replicas(case.problem, 0.0) is None


def test_methods_without_replicas_say_so() -> None:
    result = partition(chain(4, 4), "--allow-replicas", "--method", "slice")
    plan = result.one("plan")
    assert ways_of(result)["replicated-pipeline"]["reason"] == "method slice makes no replicas"
    assert (plan["value"], plan["bound"]) == (4, pytest.approx(4))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--max-replicas", "2", "-k", "3"],
            "--allow-replicas compares up to all 3 devices of a class: leave --max-replicas 2 out",
        ),
        (["--objective", "latency"], "no --allow-replicas"),
        (["--eval", "split.json"], "--allow-replicas finds a plan; --eval only prices one"),
        (
            ["--cluster-size", "2", "--inner-bandwidth", "2"],
            "--allow-replicas knows no clusters; --max-replicas does",
        ),
    ],
)
def test_what_does_not_go_together(options: list[str], message: str) -> None:
    result = command("partition", "--allow-replicas", *options, stdin=to_bytes(chain(4, 4)))
    assert (result.status, result.out) == (2, b"")
    assert message in result.err
    assert len(result.err.splitlines()) == 1


def test_nothing_fits() -> None:
    words = ("--allow-replicas", "--memory", "5")
    result = command("partition", *words, stdin=to_bytes(chain(4, 4, params=10)))
    assert result.status == 4
    assert "needs" in result.err


def test_a_graph_without_nodes() -> None:
    empty = chain()
    assert (
        command("partition", "--allow-replicas", stdin=to_bytes(empty)).status
        == command("partition", stdin=to_bytes(empty)).status
    )


def test_a_limit_of_time_leaves_a_plan(tmp_path) -> None:
    stream = command("import", "--synthetic", "--nodes", "300").out
    result = command(
        "partition", "-k", "4", "--allow-replicas", "--time-limit", "0.01", stdin=stream
    )
    assert result.status == 0, result.err
    assert command("check", stdin=result.out).status == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"value": 7.0}, "way whole: the value is 7.0, recomputed 8"),
        ({"class": "d7"}, "there are no 1 devices of class 'd7'"),
        ({"devices": 2}, "is one of 1 stages on 2 devices"),
        ({"value": 3.0}, "better than the plan's 4.0"),
        ({"devices": 9}, "has 1 stages on 9 devices, of 2 devices and 2 nodes"),
    ],
)
def test_false_ways_are_found(change: dict, message: str) -> None:
    result = partition(chain(4, 4), "--allow-replicas")
    records = result.records()
    plan = next(r for r in records if r["type"] == "plan")
    plan["ways"][0] |= change
    checked = command("check", stdin=lines(records))
    assert checked.status == 3
    assert message in checked.err


def test_false_reasons_are_found() -> None:
    records = partition(chain(4, 4), "--allow-replicas").records()
    plan = next(r for r in records if r["type"] == "plan")
    plan["ways"][0] = {"way": "whole", "reason": "it is too large"}
    checked = command("check", stdin=lines(records))
    assert "cannot be, it says, but 'd0' holds the whole model" in checked.err


def lines(records: list[dict]) -> bytes:
    import orjson

    return b"".join(orjson.dumps(record) + b"\n" for record in records)


def test_bounds_go_on_from_the_plan() -> None:
    result = partition(chain(4, 4), "--allow-replicas", "--method", "slice")
    bounded = command("bound", stdin=result.out)
    assert bounded.status == 0, bounded.err
    assert bounded.one("plan")["ways"] == result.one("plan")["ways"]
    assert command("check", stdin=bounded.out).status == 0


def test_from_python() -> None:
    graph = dnnp.generate(nodes=12)
    split = dnnp.split(graph, k=2, allow_replicas=True)
    assert split.plan is not None
    assert [way["way"] for way in split.plan.record["ways"]] == list(WAYS)
    with pytest.raises(UsageError, match="leave --max-replicas 1 out"):
        dnnp.split(graph, k=2, allow_replicas=True, max_replicas=1)


def test_what_was_predicted_of_a_choice() -> None:
    judged = sum(map(judged_choices, range(40)))
    assert judged > 60


def judged_choices(seed: int) -> int:
    """Check what a run states of a random case, and 0.1 % more or less; count the modes."""
    case = random_case(seed, 6, training=False, limited=bool(seed % 2))
    try:
        solution = compare_ways(with_all(case), MethodOptions())[0]
    except InfeasibleError:
        return 0
    plan = make_plan(with_all(case), solution.blocks, bound=0.0)
    predictions = predictions_of(plan, case.graph, case.units)
    judged = 0
    exact = plan.options.memory_model == "sum" or not seed % 2
    for mode, sessions in (("pipeline", 1), ("whole", 1), ("replicas", 2)):
        ratio = predictions.predicted(mode, sessions, as_planned=True)
        if mode in predictions.ruled_out or ratio is None:
            continue
        for factor in (1, 1.001, 0.999):
            runs = [{"mode": "pipeline"}, {"mode": mode, "k": sessions}]
            runs[0]["choice"] = {"mode": mode, "predicted_ratio": ratio * factor}
            found = check_choices(case.graph, case.units, plan, runs)
            assert bool(found) == (factor != 1) or (factor != 1 and not exact), (mode, factor)
        judged += 1
    return judged


def test_a_note_names_replicas_that_take_no_time() -> None:
    """Copies take none if all time is that of transfers."""
    result = partition(chain(0, 0), "--method", "uniform")
    assert result.one("plan")["value"] == 1
    assert (
        "dnnp-partition: 2 replicas of the whole model fit and are predicted to take no time: 0 "
        "(--allow-replicas compares them)"
    ) in result.err.splitlines()
