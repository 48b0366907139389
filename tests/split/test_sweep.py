"""Plans for several numbers of devices in one call: `-k 2..64`, and `dnnp.sweep`."""

from __future__ import annotations

import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import dnnp
from dnnp.core.cost.load_formula import ROUNDING
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.search_context import MethodOptions, Solution
from dnnp.core.split.auto import solve
from dnnp.core.split.ways import Curve
from support.cases import random_case
from support.graphs import random_stream, to_bytes
from support.run import PATIENCE_S, dnnp_process
from support.run import dnnp as command
from support.served import program
from support.wide import branches

SMALL = command("import", "-q", "--synthetic", "erdos-renyi", "--nodes", "10", "--seed", "3").out
TRAINED = to_bytes(random_stream(2, 12, training=True, memory=True))
LONG = branches(6, 9)
"""A million ideals: the exact search takes minutes."""
FLAT = ("--bandwidth", "100")


def sweep(folder: Path, counts: str, *words: str, stdin: bytes = SMALL) -> dict[int, bytes]:
    """The files of a sweep, by number of devices; each is checked."""
    done = command("partition", "-k", counts, *words, "-o", folder / "p-{k}.st", stdin=stdin)
    assert (done.status, done.out) == (0, b""), done.err
    found = {int(path.stem[2:]): path.read_bytes() for path in folder.glob("p-*.st")}
    for data in found.values():
        assert command("check", stdin=data).status == 0
    return dict(sorted(found.items()))


def plan_of(data: bytes) -> dnnp.graph.Plan:
    plan = dnnp.Graph.from_bytes(data).plan
    assert plan is not None
    return plan


@pytest.mark.parametrize("data", [SMALL, TRAINED], ids=["inference", "training"])
@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--comm", "overlap"),
        ("--max-replicas", "2"),
        ("--memory", "150", "--memory-mode", "overflow"),
        ("--cluster-size", "2", "--inner-bandwidth", "1000"),
        ("--method", "slice"),
        ("--method", "slice,greedy"),
        ("--validity", "free", "--effort", "0.01"),
        ("--data-parallel", "2"),
        ("--allow-replicas",),
        ("--objective", "latency", "--effort", "0.05"),
    ],
    ids=" ".join,
)
def test_no_plan_is_worse_than_alone(words: tuple[str, ...], data: bytes, tmp_path: Path) -> None:
    found = sweep(tmp_path, "2..4,7", *FLAT, *words, stdin=data)
    assert list(found) == [2, 3, 4, 7]
    for k, planned in found.items():
        alone = plan_of(command("partition", "-k", str(k), *FLAT, *words, stdin=data).out)
        mine = plan_of(planned)
        assert mine.record["k"] == k
        assert mine.value <= alone.value * (1 + ROUNDING)
        assert mine.bound >= alone.bound * (1 - ROUNDING)


def with_count(problem: SplitProblem, k: int) -> SplitProblem:
    first, *others = problem.devices
    return problem.sharing(replace(problem, devices=(replace(first, count=k), *others)))


def answer(problem: SplitProblem, asked: MethodOptions) -> Solution | None:
    try:
        return solve(problem, asked)
    except InfeasibleError:
        return None


@pytest.mark.parametrize("seed", range(60))
def test_what_is_shared_changes_no_optimum(seed: int) -> None:
    """With CPUs, replicas, capacities, colours and both passes."""
    base, curve, asked = random_case(seed).problem, Curve(), MethodOptions()
    for k in range(1, 6):
        problem = with_count(base, k)
        alone, found = answer(problem, asked), answer(problem, curve.asked(problem, asked))
        assert (alone is None) == (found is None)
        if alone is not None and found is not None:
            value, mine = problem.value(alone.blocks), problem.value(found.blocks)
            assert mine <= value * (1 + ROUNDING)
            assert alone.bound * (1 - ROUNDING) <= found.bound <= value * (1 + ROUNDING)
            curve.take(problem, found)


def test_a_bound_for_more_devices_ends_the_others(tmp_path: Path) -> None:
    """The largest number is searched as soon as one more device is of no use."""
    found = sweep(tmp_path, "1..40", "--bandwidth", "1e9")
    values = [plan_of(data).value for data in found.values()]
    assert values == sorted(values, reverse=True)
    assert values[20] == values[-1]
    assert {plan_of(data).status for data in found.values()} == {"optimal"}


def test_one_line_for_each_number(tmp_path: Path) -> None:
    done = command("partition", "-k", "2,3", *FLAT, "-o", tmp_path / "{k}.st", stdin=SMALL)
    said = [line for line in done.err.splitlines() if ": k = " in line]
    assert [line.partition(" stages")[0] for line in said] == [
        "dnnp-partition: k = 2: 2",
        "dnnp-partition: k = 3: 3",
    ]


def test_the_same_in_python(tmp_path: Path) -> None:
    found = sweep(tmp_path, "2,3", *FLAT)
    graph = dnnp.Graph.from_bytes(SMALL)
    made = list(dnnp.sweep(graph, [3, 2], bandwidth=100.0))
    assert [one.plan.record for one in made] == [plan_of(data).record for data in found.values()]
    assert made[1].header["provenance"][-1]["arguments"] == ["-k", "3", "--bandwidth", "100.0"]
    assert graph.plan is None


REFUSED = {
    "no {k}": ((), "-k gives several plans: -o must name a file with {k}, as plan-{k}.dnnp"),
    "a word": (("-k", "2..x"), "'x' is not a whole number"),
    "none": (("-k", "3..2"), "'3..2' holds no number"),
    "many": (("-k", "1..2000"), "'1..2000' holds more than 1000 numbers"),
    "a given split": (
        ("--eval", "split.json", "-o", "{k}.st"),
        "--eval is for one number of devices",
    ),
    "a policy": (
        ("--objective", "latency", "--method", "placeto", "--save-policy", "p", "-o", "{k}.st"),
        "--save-policy is for one number of devices",
    ),
    "standard input": (
        ("--method", "slice", "--sequence", "-", "small.st", "-o", "{k}.st"),
        "--sequence - is standard input: -k would read it several times",
    ),
    "one of them": (("-k", "0..2", "-o", "{k}.st"), "k is 0 and there are no CPUs"),
    "another input": (
        ("--devices", "3.st", "-o", "{k}.st"),
        "-o 3.st would overwrite --devices: 3.st",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words, says = REFUSED[name]
    monkeypatch.chdir(tmp_path)
    for file in ("split.json", "3.st"):
        (tmp_path / file).write_bytes(b"[]")
    (tmp_path / "small.st").write_bytes(SMALL)
    before = sorted(tmp_path.iterdir())
    done = command("partition", "-k", "2..4", *FLAT, *words, stdin=SMALL)
    assert (done.status, len(done.err.splitlines())) == (2, 1), done.err
    assert says in done.err
    assert sorted(tmp_path.iterdir()) == before


def test_numbers_that_nothing_fits_are_left_out(tmp_path: Path) -> None:
    graph = to_bytes(random_stream(2, 12, memory=True))
    words = ("-k", "1..6", *FLAT, "--memory", "60", "-o", tmp_path / "{k}.st")
    done = command("partition", *words, stdin=graph)
    alone = [command("partition", "-k", f"{k}", *words[2:6], stdin=graph) for k in range(1, 7)]
    there = [k for k, one in enumerate(alone, 1) if one.status == 0]
    assert done.status == 0, done.err
    assert 0 < len(there) < 6
    assert sorted(int(path.stem) for path in tmp_path.iterdir()) == there
    assert "k = 1: infeasible" in done.err
    words = ("-k", "1,2", *FLAT, "--memory", "1", "-o", tmp_path / "none-{k}.st")
    assert command("partition", *words, stdin=graph).status == 4


def test_a_time_limit_is_for_all(tmp_path: Path) -> None:
    found = sweep(tmp_path, "2..5", "--bandwidth", "1", "--time-limit", "0", stdin=LONG)
    assert list(found) == [2, 3, 4, 5]
    assert {plan_of(data).status for data in found.values()} == {"feasible"}


def test_interrupted(tmp_path: Path) -> None:
    """Finished splits stay; the running search ends with its incumbent, and is the last."""
    words = ("-v", "-k", "1,5,6,7", "--bandwidth", "1", "-o", str(tmp_path / "{k}.st"))
    (tmp_path / "in.st").write_bytes(LONG)
    process = subprocess.Popen(
        [program("partition"), *words, tmp_path / "in.st"], stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    said = b""
    for line in process.stderr:
        said += line
        if said.count(b"slicing:") == 2:
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, said + err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.st", "5.st", "in.st"]
    assert b"interrupted: no plan for k = 6, 7" in err
    assert plan_of((tmp_path / "1.st").read_bytes()).status == "optimal"
    assert plan_of((tmp_path / "5.st").read_bytes()).status == "interrupted"
    assert dnnp_process("check", "-q", tmp_path / "5.st").status == 0
