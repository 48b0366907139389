"""Integer programs: their models row by row, and their answers against brute force."""

from __future__ import annotations

import _ctypes
import importlib.metadata
import importlib.util
import math
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tools.agree_ip import disagreements, lanes_case, mixed_case

from dnnp.core.cost.items import free_items_of
from dnnp.core.cost.problem import SplitProblem, make_plan
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import InfeasibleError, LimitError, UnavailableError, UsageError
from dnnp.core.model.graph import (
    NodeColumns,
    TensorColumns,
    clustering_of_labels,
    make_graph,
    singletons,
)
from dnnp.core.model.plan import Block, CostOptions
from dnnp.core.model.search_context import PLAIN, SearchContext
from dnnp.core.solver import child, slices
from dnnp.core.solver.slices import SAFETY, Slices, solve_slices
from dnnp.core.split.ip.solve import (
    Loop,
    best_split,
    blocks_of,
    places_of_blocks,
    solve_ip,
    task_of,
)
from dnnp.core.split.ip.task import (
    Net,
    cells_of,
    count_places,
    nets_of,
    places_of,
    without_shortcuts,
)
from dnnp.core.split.ip.throughput import formulate
from dnnp.formats.graph import graph_of, units_of
from dnnp.formats.workloads.msr import read_workload
from dnnp.options.split import SplitOptions, usual_solver
from support.brute import brute_force
from support.cases import Case, random_case
from support.graphs import random_stream
from support.run import PATIENCE_S

VALIDITIES = ("ordered", "convex", "free")
SUM = CostOptions(memory_model="sum")
needs_highs = pytest.mark.skipif(
    importlib.util.find_spec("highspy") is None, reason="needs the extra 'highs'"
)


def value_of(case: Case, blocks) -> float:
    plan = make_plan(
        case.problem,
        blocks,
        method="ip",
        bound=0.0,
        digest="",
    )
    return plan.value


def small_case(seed: int, n: int, devices, options: CostOptions = SUM, **kinds: object) -> Case:
    stream = random_stream(seed, n, **kinds)
    graph = graph_of(stream)
    return Case(seed, graph, units_of(stream, graph), tuple(devices), options)


def hard_case(seed: int = 5, n: int = 60) -> tuple[Case, list[Block]]:
    """More than a solver proves in a minute, and a split of it."""
    devices = [DeviceClass("dev", count=6, bandwidth_bytes_per_s=20.0)]
    case = small_case(seed, n, devices)
    order = np.asarray(case.graph.order)
    blocks = [Block(part, devices[0]) for part in np.array_split(order, 6)]
    return case, blocks


# The model itself, without a solver.


def check_solution(case: Case, validity: str, blocks: list[Block], value: float) -> int:
    """A split meets every row of its programs, and the objective is its value; how many fit."""
    ordered = validity == "ordered"
    choices = case.problem.item_choices if ordered else (case.problem.free_items,)
    fits = 0
    for items in choices:
        task = task_of(case.problem, validity, items)
        draft = formulate(task, value)
        at = places_of_blocks(draft, task.line.item_of_node, blocks)
        if at is None:
            continue
        fits += 1
        start = draft.start(at)
        assert start is not None
        for columns, weights, sense, bound in draft.program.rows:
            total = sum(w * start[c] for c, w in zip(columns, weights, strict=True))
            low = total >= bound - 1e-9 or sense == "<"
            high = total <= bound + 1e-9 or sense == ">"
            assert low, (case.seed, columns, weights, sense)
            assert high, (case.seed, columns, weights, sense)
        objective = sum(start[top] for top in draft.tops)
        assert objective <= 1 + 1e-9
        if task.storage.exact:
            assert objective == pytest.approx(1.0, rel=1e-9)
        again = blocks_of(case.graph, draft, draft.assignment(start))
        assert value_of(case, again) == pytest.approx(value)
    return fits


@pytest.mark.parametrize("validity", VALIDITIES)
def test_the_best_split_is_a_solution_with_its_objective(validity):
    tried = 0
    for seed in range(80):
        case = mixed_case(seed, 6)
        value, blocks = brute_force(case.problem, validity)
        if 0 < value < math.inf:
            assert check_solution(case, validity, blocks, value), seed
            tried += 1
    assert tried > 60


def test_any_split_is_a_solution_with_its_objective():
    tried = 0
    for seed in range(150):
        case = mixed_case(seed, 9)
        rng = np.random.default_rng(seed)
        items = free_items_of(case.graph, case.units)
        block_of_item = rng.integers(0, rng.integers(1, 5), items.count)
        order = np.asarray(case.graph.order)
        blocks = []
        for b in np.unique(block_of_item).tolist():
            device = case.devices[rng.integers(len(case.devices))]
            most = min(device.count, case.options.max_replicas)
            nodes = order[block_of_item[items.label[order]] == b]
            blocks.append(Block(nodes, device, int(rng.integers(1, most + 1))))
        try:
            value = value_of(case, blocks)
        except InfeasibleError:
            continue
        if value > 0:
            assert check_solution(case, "free", blocks, value)
            tried += 1
    assert tried > 50


def test_tensors_between_the_same_items_are_one_where_directions_share_a_link():
    stream = random_stream(0, 3)
    nodes = stream.get("node")
    for node, reads in zip(nodes, ([], [0], [1]), strict=True):
        node["inputs"] = [nodes[u]["outputs"][0] for u in reads]
    nodes[0]["color"] = nodes[2]["color"] = 0  # 0 and 2 are item 0, and 1 is between them
    for size, node in enumerate(nodes, 3):
        stream.get("tensor")[node["outputs"][0]]["transfer_s"] = size
    graph = graph_of(stream)
    units = units_of(stream, graph)
    for comm, expected in (
        ("sum", [Net(0, (1,), False, False, 7.0)]),
        ("duplex", [Net(0, (1,), False, False, 3.0), Net(1, (0,), False, False, 4.0)]),
    ):
        problem = SplitProblem(graph, units, (DeviceClass("dev"),), replace(SUM, comm=comm))
        assert nets_of(task_of(problem, "free", problem.free_items), 0) == expected


def test_memory_that_adds_up_needs_no_lessons():
    learned = 0
    for seed in range(100, 130):
        case = random_case(seed, 6, limited=True, memory_mode="hard", memory_model="sum")
        task = task_of(case.problem, "free", case.problem.free_items)
        loop = Loop(case.problem, best_split(case.problem, "free"), task, PLAIN)
        with child.solver_process() as process:
            solve_slices(loop, Slices("cbc", process, PLAIN))
        learned += len(loop.cuts)
    assert not learned


def test_shortcuts_are_exactly_the_edges_that_follow_from_others():
    rng = np.random.default_rng(3)
    for _ in range(30):
        n = int(rng.integers(1, 9))
        matrix = np.triu(rng.random((n, n)) < 0.5, 1)
        names = rng.permutation(n)
        tail, head = np.nonzero(matrix)
        left, right = without_shortcuts(n, names[tail], names[head])
        kept = set(zip(left.tolist(), right.tolist(), strict=True))
        longer = np.linalg.matrix_power(matrix.astype(np.int64) + np.eye(n, dtype=np.int64), n) > 0
        for u, v in zip(tail.tolist(), head.tolist(), strict=True):
            between = [w for w in range(n) if w not in (u, v) and longer[u, w] and longer[w, v]]
            assert ((names[u], names[v]) in kept) == (not between)


@pytest.mark.parametrize("validity", VALIDITIES)
def test_places_are_as_many_as_counted(validity):
    for seed in range(20):
        case = random_case(seed, 6)
        task = task_of(case.problem, validity, case.problem.free_items)
        assert len(places_of(task)) == count_places(task)


def test_multiples_of_a_quantum():
    case = small_case(1, 5, [DeviceClass("dev", count=2)])
    problem = case.problem.with_options(SUM)
    task = task_of(problem, "free", problem.free_items)
    assert task.quantum == 1.0
    for options in (CostOptions(max_replicas=2), CostOptions(memory_mode="overflow")):
        assert replace(task, options=options).quantum == 0.0


# Answers.


def test_agrees_with_brute_force():
    found = []
    for seed in range(30):
        found += [f"seed {seed}: {reason}" for reason in disagreements(mixed_case(seed, 6))]
    assert not found


def test_agrees_with_brute_force_where_validities_differ():
    found = []
    for seed in range(40):
        found += [f"seed {seed}: {reason}" for reason in disagreements(lanes_case(seed, 8))]
    assert not found


@pytest.mark.parametrize(
    "fixed",
    [
        {"training": True, "comm": "duplex", "max_replicas": 1},
        {"training": True, "objective": "gpipe", "memory_mode": "hard"},
        {"limited": True, "memory_mode": "hard", "memory_model": "peak", "max_replicas": 1},
        {"limited": True, "memory_mode": "overflow", "max_replicas": 2},
        {"colors": True, "charge_io": True, "comm": "overlap"},
    ],
)
def test_agrees_with_brute_force_on(fixed):
    found = []
    for seed in range(1000, 1006):
        case = random_case(seed, 6, **fixed)
        found += [f"seed {seed}: {reason}" for reason in disagreements(case)]
    assert not found


def test_groups_that_a_path_may_cross_or_not():
    """Units of several nodes: contiguity is judged by nodes, whatever the units are."""
    found = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        case = random_case(seed, 8, max_replicas=1)
        n = case.graph.n
        label = np.unique(rng.integers(0, max(1, n // 2), n), return_inverse=True)[1]
        case = replace(case, units=clustering_of_labels(case.graph, label))
        found += [f"seed {seed}: {reason}" for reason in disagreements(case)]
    assert not found


def test_a_unit_is_one_cell_where_every_way_in_leads_to_every_way_out():
    #   0 -> 1 -> 3    units {1, 2}: 1 leads to 3 only, 2 to 4 only
    #   0 -> 2 -> 4
    stream = random_stream(0, 5)
    for node, reads in zip(stream.get("node"), ([], [0], [0], [1], [2]), strict=True):
        node["inputs"] = [stream.get("node")[u]["outputs"][0] for u in reads]
    graph = graph_of(stream)
    apart = clustering_of_labels(graph, np.array([0, 1, 1, 2, 3]))
    assert len(cells_of(graph, apart).node) == 5
    chain = clustering_of_labels(graph, np.array([0, 1, 2, 1, 3]))
    cells = cells_of(graph, chain)
    assert len(cells.node) == 4
    assert list(zip(cells.tail.tolist(), cells.head.tolist(), strict=True)) == [
        (0, 1),
        (0, 2),
        (2, 3),
    ]


@needs_highs
def test_highs_agrees_too():
    found = []
    for seed in range(31):
        reasons = disagreements(mixed_case(seed, 9 if seed == 30 else 6), "highs")
        found += [f"seed {seed}: {reason}" for reason in reasons]
    assert not found


@pytest.mark.parametrize(
    ("name", "validity", "expected"),
    [
        ("op_bert_l-3_inference", "free", 21.91),
        ("op_bert_l-3_training", "free", 54.21),
        ("layer_bert24_inference", "ordered", 17.79),
    ],
)
def test_published_optimum(shared_workloads, name, validity, expected):
    path = shared_workloads / "throughput" / f"{name}.json"
    stream = read_workload(path.read_bytes(), name)
    graph = graph_of(stream)
    devices = tuple(
        DeviceClass(d["class"], d["kind"], d["count"], d.get("memory_bytes", math.inf))
        for d in stream.get("device")
    )
    case = Case(0, graph, units_of(stream, graph), devices, SUM)
    result = solve_ip(
        SplitProblem(graph, case.units, devices, SUM), validity, run=PLAIN.within(PATIENCE_S)
    )
    assert result.status == "optimal"
    assert value_of(case, result.solution) == pytest.approx(expected, abs=0.005)
    assert result.bound == pytest.approx(value_of(case, result.solution), rel=5 * SAFETY)


# Odd problems.


@pytest.mark.parametrize("validity", VALIDITIES)
def test_costs_of_zero_everywhere(validity):
    stream = random_stream(2, 5)
    for node in stream.get("node"):
        node["time_s"] = {"dev": 0}
    for tensor in stream.get("tensor"):
        tensor.update(size_bytes=0, transfer_s=0)
    graph = graph_of(stream)
    case = Case(0, graph, units_of(stream, graph), (DeviceClass("dev", count=3),), SUM)
    result = solve_ip(SplitProblem(graph, case.units, case.devices, SUM), validity)
    assert (result.status, result.bound, value_of(case, result.solution)) == ("optimal", 0, 0)


@pytest.mark.parametrize("validity", VALIDITIES)
def test_few_nodes_and_many_devices(validity):
    case = small_case(3, 1, [DeviceClass("dev", count=1000)])
    result = solve_ip(case.problem.with_options(SUM), validity)
    assert [b.nodes.tolist() for b in result.solution] == [[0]]
    case = small_case(4, 3, [DeviceClass("dev", count=1000, bandwidth_bytes_per_s=1e9)])
    result = solve_ip(case.problem.with_options(SUM), validity)
    assert result.status == "optimal"
    assert len(result.solution) == 3


def test_processors_only():
    case = small_case(6, 5, [DeviceClass("dev", kind="cpu", count=2, memory_bytes=1.0)])
    result = solve_ip(case.problem.with_options(SUM), "free")
    times = case.units.times["dev"]
    best = min(
        max(sum(times[v] for v in range(5) if side >> v & 1 == s) for s in (0, 1))
        for side in range(32)
    )
    assert value_of(case, result.solution) == best


@pytest.mark.parametrize("validity", VALIDITIES)
def test_costs_of_all_sizes(validity):
    """Times from 1e-12 to 1e12; the large ones can be avoided or not."""
    for seed in range(6):
        rng = np.random.default_rng(seed)
        stream = random_stream(seed, 5, classes=("cpu",))
        for node in stream.get("node"):
            low, high = (-12, 0) if seed % 2 else (-12, 12)
            node["time_s"] = {
                "dev": float(10.0 ** rng.uniform(low, high)),
                "cpu": float(10.0 ** rng.uniform(-12, 12)),
            }
        for tensor in stream.get("tensor"):
            tensor["transfer_s"] = float(10.0 ** rng.uniform(-12, 0))
        graph = graph_of(stream)
        devices = (DeviceClass("dev", count=2), DeviceClass("cpu", kind="cpu", count=1))
        case = Case(2 * seed, graph, units_of(stream, graph), devices, SUM)
        result = solve_ip(SplitProblem(graph, case.units, devices, SUM), validity)
        want, _ = brute_force(SplitProblem(graph, case.units, devices, SUM), validity)
        assert value_of(case, result.solution) == pytest.approx(want, rel=2 * SAFETY)
        assert want * (1 - 5 * SAFETY) <= result.bound <= want


def test_an_empty_graph():
    none, row = np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64)
    graph = make_graph(
        NodeColumns(
            ids=none,
            names=[],
            ops=[],
            reads=(row, none),
            writes=(row, none),
            times={},
        ),
        TensorColumns(
            ids=none,
            names=[],
            kind=none.astype(np.int8),
            size=np.zeros(0),
            transfer_s=np.zeros(0),
            is_output=np.zeros(0, dtype=np.bool_),
        ),
    )
    result = solve_ip(SplitProblem(graph, singletons(graph), (DeviceClass("dev"),), SUM), "free")
    assert (result.solution, result.bound, result.status) == ([], 0.0, "optimal")


def test_what_does_not_fit_is_infeasible():
    case = small_case(7, 4, [DeviceClass("dev", count=4, memory_bytes=3.0)], memory=True)
    for validity in VALIDITIES:
        with pytest.raises(InfeasibleError):
            solve_ip(case.problem.with_options(SUM), validity)
    with pytest.raises(InfeasibleError):
        solve_ip(SplitProblem(case.graph, case.units, (DeviceClass("none", count=2),), SUM), "free")
    with pytest.raises(InfeasibleError):
        solve_ip(SplitProblem(case.graph, case.units, (DeviceClass("dev", count=0),), SUM), "free")


def test_a_program_that_is_too_large():
    case = small_case(7, 500, [DeviceClass("dev", count=600)])
    whole = [Block(np.asarray(case.graph.order), case.devices[0])]
    with pytest.raises(LimitError, match="coarsen"):
        solve_ip(case.problem.with_options(SUM), "free")
    result = solve_ip(case.problem.with_options(SUM), "free", incumbent=whole)
    assert (result.solution, result.bound, result.status) == (whole, 0.0, "feasible")
    assert "too large" in result.failure


def test_what_programs_cannot_say():
    case = small_case(7, 4, [DeviceClass("dev", count=4)])
    clustered = (replace(case.devices[0], cluster_size=2, inner_bandwidth_bytes_per_s=9.0),)
    with pytest.raises(UsageError, match="exact"):
        solve_ip(SplitProblem(case.graph, case.units, clustered, SUM), "free")
    gpipe = replace(SUM, objective="gpipe")
    with pytest.raises(UsageError, match="backward"):
        solve_ip(case.problem.with_options(gpipe), "free")
    for wrong in ({"solver": "gurobi", "validity": "free"}, {"validity": "best"}):
        with pytest.raises(UsageError):
            solve_ip(case.problem.with_options(SUM), **wrong)


# Limits, interrupts, and what can happen to the solver.


@pytest.mark.parametrize("limit", [0.0, 0.05, 1.0])
def test_the_incumbent_survives_the_limit(limit):
    case, blocks = hard_case()
    result = solve_ip(
        case.problem.with_options(SUM),
        "free",
        incumbent=blocks,
        run=PLAIN.within(limit),
    )
    assert result.status == "feasible"
    assert result.bound <= value_of(case, result.solution) <= value_of(case, blocks)
    if limit < 0.01:
        assert result.bound == 0


def test_a_limit_with_nothing_to_show():
    case, _ = hard_case()
    result = solve_ip(case.problem.with_options(SUM), "free", run=PLAIN.within(0.0))
    assert (result.solution, result.bound, result.status) == (None, 0.0, "limit")


def test_a_split_that_is_too_weak_is_not_used():
    case = small_case(9, 6, [DeviceClass("dev", count=3, bandwidth_bytes_per_s=5.0)])
    weak = [Block(np.arange(6)[i::2], case.devices[0]) for i in range(2)]
    assert (
        make_plan(case.problem.with_options(SUM), weak, method="", bound=0, digest="").validity
        == "free"
    )
    result = solve_ip(
        case.problem.with_options(SUM),
        "ordered",
        incumbent=weak,
        run=PLAIN.within(0.0),
    )
    assert result.solution is None


def test_an_interrupt_takes_effect_at_once():
    case, blocks = hard_case()
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > 10

    result = solve_ip(
        case.problem.with_options(SUM),
        "convex",
        incumbent=blocks,
        run=SearchContext(interrupted=stop),
    )
    assert asked <= 13
    assert result.status == "feasible"


def test_a_solver_that_dies(monkeypatch):
    case, blocks = hard_case()
    monkeypatch.setattr(slices, "ATTEMPTS", 1)

    def kill() -> bool:
        for process in started:
            with suppress(ProcessLookupError):
                os.kill(process._process.pid, signal.SIGKILL)
        return False

    child._close_idle()
    child._idle.clear()
    for incumbent in (blocks, None):
        started = [child.SolverProcess()]
        child._idle.append(started[0])
        arguments = (case.problem.with_options(SUM), "free")
        if incumbent is None:
            with pytest.raises(LimitError, match="signal 9"):
                solve_ip(*arguments, run=SearchContext(interrupted=kill))
        else:
            result = solve_ip(*arguments, incumbent=incumbent, run=SearchContext(interrupted=kill))
            assert (result.status, result.failure) == (
                "feasible",
                "the solver cbc failed: signal 9",
            )
    # The next solve has a new process, also if this one dies between the two.
    case = small_case(4, 3, [DeviceClass("dev", count=2)])
    for _ in range(2):
        assert solve_ip(case.problem.with_options(SUM), "free").status == "optimal"
        (idle,) = child._idle
        os.kill(idle._process.pid, signal.SIGKILL)
        idle._process.wait()


def test_bounds_of_a_search_that_is_cut_short(monkeypatch):
    """The solver's answer after too little time is a bound in any case."""
    rng = random.Random(1)
    whole = Slices.times

    def short(self, *, blind):
        return rng.choice([0.001, 0.003, 0.01]), whole(self, blind=blind)[1]

    monkeypatch.setattr(Slices, "times", short)
    unfinished = 0
    for seed in range(20):
        case = mixed_case(seed, 9)
        for validity in VALIDITIES:
            if validity == "ordered" and case.graph.backward.any():
                continue  # there are two choices of items, each with a bound of its own
            want, _ = brute_force(case.problem, validity)
            items = case.problem.items if validity == "ordered" else case.problem.free_items
            task = task_of(case.problem, validity, items)
            run = PLAIN.within(0.03)
            loop = Loop(case.problem, best_split(case.problem, validity), task, run)
            with child.solver_process() as process:
                closed = solve_slices(loop, Slices("cbc", process, run))
            assert loop.low <= want * (1 + 1e-12), (seed, validity)
            unfinished += not closed
    assert unfinished


def test_a_solver_that_is_not_installed(monkeypatch):
    child._close_idle()
    child._idle.clear()
    monkeypatch.setenv("PMIP_HIGHS_LIBRARY", "/nowhere/libhighs.so")
    case = small_case(4, 3, [DeviceClass("dev", count=2)])
    with pytest.raises(UnavailableError, match=r"dnnp\[highs\]") as caught:
        solve_ip(case.problem.with_options(SUM), "free", solver="highs")
    assert caught.value.exit_status == 7
    child._close_idle()
    child._idle.clear()


def test_a_highspy_without_the_c_functions(monkeypatch, tmp_path):
    package, metadata = tmp_path / "highspy", tmp_path / "highspy-1.16.0.dist-info"
    package.mkdir()
    metadata.mkdir()
    (package / "__init__.py").touch()
    (package / "_core.py").write_text(f"__file__ = {_ctypes.__file__!r}\n")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: highspy\nVersion: 1.16.0\n")
    child._close_idle()
    child._idle.clear()
    monkeypatch.delenv("PMIP_HIGHS_LIBRARY", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    case = small_case(4, 3, [DeviceClass("dev", count=2)])
    with pytest.raises(UnavailableError, match=r"highspy 1\.16\.0 .*1\.9 to 1\.15") as caught:
        solve_ip(case.problem.with_options(SUM), "free", solver="highs")
    assert caught.value.exit_status == 7
    assert "\n" not in str(caught.value)
    child._close_idle()
    child._idle.clear()


SCRIPT = """
    import os, sys
    sys.path.insert(0, {tests!r})
    import numpy as np
    from dnnp.core.solver import child
    from dnnp.core.split.ip.solve import solve_ip
    from dnnp.core.model.device import DeviceClass
    from dnnp.core.model.plan import CostOptions
    from dnnp.core.model.search_context import PLAIN
    from dnnp.formats.graph import graph_of, units_of
    from support.graphs import random_stream
    stream = random_stream(5, 60)
    graph = graph_of(stream)
    from dnnp.core.cost.problem import SplitProblem
    process = child.SolverProcess()
    child._idle.append(process)
    os.write(2, b"%d\\n" % process._process.pid)
    devices = (DeviceClass("dev", count=6, bandwidth_bytes_per_s=20.0),)
    options = CostOptions(memory_model="sum")
    whole = SplitProblem(graph, units_of(stream, graph), devices, options)
    solve_ip(whole, "free", run=PLAIN.within({limit}))
"""


def script(limit: float) -> subprocess.Popen:
    tests = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    code = textwrap.dedent(SCRIPT).format(tests=tests, limit=limit)
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_nothing_is_printed():
    with script(1.5) as parent:
        out, err = parent.communicate(timeout=PATIENCE_S)
    assert parent.returncode == 0
    assert out == b""
    assert err.split()[0].isdigit()
    assert len(err.split()) == 1


@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="the system shows no folders")
def test_a_solver_leaves_nothing_in_the_working_folder():
    with script(600) as parent:
        pid = int(parent.stderr.readline())
        folder, end = Path(f"/proc/{pid}/cwd"), time.monotonic() + PATIENCE_S
        while os.readlink(folder) != "/proc" and time.monotonic() < end:
            time.sleep(0.05)
        assert os.readlink(folder) == "/proc"
        parent.kill()


def test_no_solver_outlives_its_parent():
    with script(600) as parent:
        pid = int(parent.stderr.readline())
        time.sleep(2.0)
        assert running(pid)
        parent.kill()
    end = time.monotonic() + PATIENCE_S
    while running(pid):
        assert time.monotonic() < end
        time.sleep(0.05)


def running(pid: int) -> bool:
    """True if a process lives, and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("version", "usual"),
    [("1.15.1", "highs"), ("1.9.0", "highs"), ("1.14.0", "cbc"), ("1.16.0", "cbc"), (None, "cbc")],
)
def test_highs_is_usual_for_splits_where_it_can_be_called(monkeypatch, version, usual):
    def found(name):
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", found)
    assert usual_solver(SplitOptions(method="ip")) == usual
    assert usual_solver(SplitOptions(validity="convex")) == usual
    assert usual_solver(SplitOptions(method="ip", objective="latency")) == "cbc"
    assert usual_solver(SplitOptions()) == "cbc"
