"""Live tensors of latency plans: by hand, against brute force, and in the command."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from tools.agree_live import disagreements, live_case

from dnnp.core.cost.latency import LatencyProblem, Placement, latency_problem, lazy_events
from dnnp.core.cost.load_formula import SAFE_ROOM
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.latency.blocks.anneal import SINGLES, Labels, sliced_start, split_of
from dnnp.core.latency.blocks.items import block_items, held_tensors
from dnnp.core.latency.blocks.search import anneal_held, new_annealing
from dnnp.core.latency.blocks.state import new_state
from dnnp.core.latency.solve import solve_latency
from dnnp.core.methods.splits import LATENCY
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import InfeasibleError, LimitError
from dnnp.core.model.graph import Graph, singletons
from dnnp.core.model.plan import CostOptions
from dnnp.core.model.search_context import MethodOptions, SearchContext
from dnnp.core.split.first import first_latency
from dnnp.formats.graph import graph_of
from dnnp.formats.stream import Stream
from support.graphs import header, node, random_stream, tensor, to_bytes
from support.run import dnnp


def chain(*, memory: float | None = None) -> Stream:
    """x (10) -> a (40) -> b (30, +5 of weights) -> c (20) -> d (1, an output); a is read by d."""
    sizes = [("input", 10), ("activation", 40), ("activation", 30), ("activation", 20)]
    sizes += [("activation", 1), ("parameter", 5)]
    tensors = [tensor(i, kind, size) for i, (kind, size) in enumerate(sizes)]
    tensors[4]["output"] = True
    reads = [[0], [1, 5], [2], [1, 3]]
    held = {} if memory is None else {"memory_bytes": memory}
    nodes = [
        node(v, "Op", inputs, [v + 1], time_s={"dev": 1}, **held) for v, inputs in enumerate(reads)
    ]
    return Stream(header=header(), records={"tensor": tensors, "node": nodes})


def placed(home: list[int], **options: str) -> dict[int, float]:
    """Memory of the devices that run the nodes of `chain`, in their order; 10 bytes a second."""
    graph: Graph = graph_of(chain())
    device = DeviceClass("dev", count=2, memory_bytes=1e6, bandwidth_bytes_per_s=10)
    cost = CostOptions(objective="latency", execution="operators", memory_model="peak", **options)
    problem = latency_problem(SplitProblem(graph, singletons(graph), (device,), cost))
    homes = np.array(home)
    split = Placement(homes, lazy_events(problem.tasks, homes, problem.tasks.order))
    return dict(enumerate(problem.held(split).tolist()))


@pytest.mark.parametrize(
    ("home", "held"),
    [
        # 5 of weights, and a, b and c: while c is made.
        ([0, 0, 0, 0], {0: 95, 1: 0}),
        # t1 stays for d; t2 leaves after it is made and frees its memory when c is done.
        ([0, 0, 1, 0], {0: 5 + 40 + 30, 1: 50}),
        # d is elsewhere: t1 is held here until it is sent, and there until d ends.
        ([0, 0, 0, 1], {0: 95, 1: 61}),
    ],
)
def test_memory_by_hand(home: list[int], held: dict[int, float]) -> None:
    assert placed(home) == held


@pytest.mark.parametrize("execution", ["operators", "blocks"])
def test_agrees_with_brute_force_and_simulation(execution: str) -> None:
    counts: Counter[str] = Counter()
    for seed in range(12):
        assert disagreements(live_case(seed, execution, 3), counts) == [], seed
    assert min(counts[name] for name in ("found", "InfeasibleError", "costs")) > 0


def test_ideals_of_blocks_do_not_prove_too_much() -> None:
    """A column that another stood in for is open again once that one drops out."""
    assert disagreements(live_case(1009, "blocks", 4), Counter()) == []


@pytest.mark.parametrize(
    ("execution", "seed"),
    [
        # Moves look at live tensors: with room set aside for those of a split that does not fit,
        # and without an order that frees memory earlier, these were missed or not the least.
        *(("blocks", seed) for seed in (20203, 20487, 20511, 20761)),
        *(("operators", seed) for seed in (20293, 20357, 20373, 20475)),
    ],
)
def test_the_least_that_fits_is_found(execution: str, seed: int) -> None:
    counts: Counter[str] = Counter()
    assert disagreements(live_case(seed, execution, 4), counts) == []
    assert counts["least"] == 1


@pytest.mark.parametrize(
    ("execution", "seed"),
    [
        # Without the live tensors of each task in the program the bound is less, or its answer
        # does not fit.
        *(("operators", seed) for seed in (40034, 40056, 40057, 40001)),
        *(("blocks", seed) for seed in (40000, 40019, 40029, 40001)),
    ],
)
def test_a_program_proves_what_fits_with_the_live_tensors_of_each_task(
    execution: str, seed: int
) -> None:
    counts: Counter[str] = Counter()
    assert disagreements(live_case(seed, execution, 4), counts, method="ip") == []
    assert (counts["repaired"], counts["optimal"], counts["least"]) == (0, 1, 1)


def test_what_knows_no_live_tensors_is_asked_again_with_less_room() -> None:
    counts: Counter[str] = Counter()
    for seed in range(40000, 40060):
        assert disagreements(live_case(seed, "operators", 4), counts, method="m-sct") == []
    assert counts["repaired"] == 0


@pytest.mark.parametrize("seed", range(30))
def test_live_tensors_of_labels_are_those_of_their_split(seed: int) -> None:
    problem = latency_problem(live_case(seed, "blocks", 6))
    items = block_items(problem)
    start = sliced_start(items, np.random.default_rng(seed))
    state = new_state(items, start.at, start.slot, start.device)
    search = new_annealing(items, seed, SINGLES)
    search.price[:] = 1.0
    held = held_tensors(problem, items)
    for _ in range(10 if problem.live and held else 0):
        found = anneal_held(items, state, search, held, 30.0, 20)
        split = split_of(items, Labels(state.at, state.slot, state.device))
        room = problem.live.capacity * SAFE_ROOM
        over = np.maximum(problem.held(split) - room, 0.0)[items.devices]
        assert found == pytest.approx(float((over / room[items.devices]).sum()), rel=1e-9)


def short_of_memory(seed: int) -> SplitProblem:
    """12 or 40 operators on 2 to 4 devices that hold little more than all parameters."""
    rng = random.Random(f"short {seed}")
    graph = graph_of(random_stream(rng.randrange(10**9), rng.choice([12, 40]), params=True))
    count = rng.choice([2, 3, 4])
    memory = round(float(graph.tensor_bytes.sum()) * rng.uniform(0.8, 1.4) / count)
    device = DeviceClass("dev", count=count, memory_bytes=memory, bandwidth_bytes_per_s=20)
    cost = CostOptions(objective="latency", execution="operators", memory_model="peak")
    return SplitProblem(graph, singletons(graph), (device,), cost)


def listed(problem: LatencyProblem, name: str, share: float) -> float:
    """Latency by a list schedule on devices of a share of their memory; inf: it does not fit."""
    machine = replace(problem.machine, capacity=problem.machine.capacity * share)
    try:
        method = LATENCY[name].function("operators")
        found = method(
            replace(problem.relaxed, machine=machine), MethodOptions(method=name), SearchContext()
        )
        return problem.value(found.split)
    except (InfeasibleError, LimitError):
        return np.inf


@pytest.mark.parametrize("seed", [15, 27, 29])
def test_auto_is_not_behind_list_schedules_that_leave_room_for_live_tensors(seed: int) -> None:
    whole = short_of_memory(seed)
    problem = latency_problem(whole)
    shares = np.arange(0.6, 1.01, 0.05)
    least = min(listed(problem, m, s) for m in ("heft-congested", "m-etf") for s in shares)
    assert least < np.inf
    found = solve_latency(problem, MethodOptions(), SearchContext(effort=0.001))
    assert problem.value(found.split) <= least * (1 + 1e-9)


@pytest.mark.parametrize("seed", [27, 29])
@pytest.mark.parametrize("name", ["heft-congested", "m-etf", "m-sct", "getf"])
def test_list_schedules_leave_room_for_live_tensors(name: str, seed: int) -> None:
    whole, said = short_of_memory(seed), list[str]()
    problem = latency_problem(whole)
    found = solve_latency(
        problem, MethodOptions(method=name), SearchContext(effort=0.001, warn=said.append)
    )
    assert problem.fits(found.split)
    assert found.bound <= problem.value(found.split)
    assert not found.method.endswith("-repaired")
    assert len(said) == len(set(said))


@pytest.mark.parametrize("seed", [27, 29])
def test_devices_are_filled_but_for_live_tensors(seed: int) -> None:
    problem = latency_problem(short_of_memory(seed))
    split = first_latency(problem)
    assert split is not None
    assert problem.fits(split)


def partition(*arguments: object, stdin: bytes):
    return dnnp("partition", "--objective", "latency", *arguments, stdin=stdin)


@pytest.mark.parametrize("execution", ["operators", "blocks"])
def test_live_tensors_count_where_nodes_state_no_memory(execution: str) -> None:
    given = ["--execution", execution, "-k", 2, "--bandwidth", 10]
    stream = to_bytes(chain())
    short = partition(*given, "--memory", 70, stdin=stream)
    assert (short.status, short.out) == (4, b"")
    assert "needs" in short.err
    loose = partition(*given, "--memory", 70, "--memory-model", "weights", stdin=stream)
    assert loose.one("plan")["status"] == "optimal"
    assert dnnp("check", stdin=loose.out).status == 0
    roomy = partition(*given, "--memory", 100, stdin=stream)
    stages = roomy.records("stage")
    assert roomy.one("plan")["memory_model"] == "peak"
    assert stages[0]["memory_bytes"] == 95
    assert stages[0]["peak_bytes"] == 90
    assert dnnp("check", stdin=roomy.out).status == 0


def test_a_split_that_fits_is_found_where_pipelines_do_not() -> None:
    given = ["--execution", "operators", "-k", 2, "--bandwidth", 10, "--memory", 80]
    found = partition(*given, stdin=to_bytes(chain()))
    assert max(s["memory_bytes"] for s in found.records("stage")) <= 80
    assert dnnp("check", stdin=found.out).status == 0


def test_stated_memory_is_summed() -> None:
    found = partition("-k", 2, "--memory", 50, stdin=to_bytes(chain(memory=20)))
    assert found.one("plan")["memory_model"] == "sum"


def test_a_baseline_that_does_not_fit_is_repaired() -> None:
    given = ["--execution", "operators", "-k", 2, "--bandwidth", 10, "--memory", 94]
    found = partition(*given, "--method", "single", stdin=to_bytes(chain()))
    assert found.one("plan")["method"] == "single-repaired"
    assert "single does not know live tensors" in found.err
    assert dnnp("check", stdin=found.out).status == 0


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_device_without_a_limit_that_holds_nothing() -> None:
    """One of no use has as much room as there is: nothing times infinity is no number."""
    stream = chain()
    for record in stream.get("node"):
        (time,) = record["time_s"].values()
        record["time_s"] = {"dev": 0.0, "cpu": 9.0, "other": time}
    one = {"type": "device", "kind": "accelerator", "bandwidth_bytes_per_s": 1.0}
    stream.records["device"] = [
        {**one, "class": "dev", "count": 2},
        {"type": "device", "class": "cpu", "kind": "cpu", "count": 1},
        {**one, "class": "other", "count": 1},
    ]
    given = ["--execution", "operators", "--memory", 96, "--effort", 0.05, "--transfers", "edge"]
    found = partition(*given, stdin=to_bytes(stream))
    assert found.status == 0
    assert dnnp("check", stdin=found.out).status == 0
