"""Graph partitioners of others: Scotch as a program, METIS as a package."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from dnnp.core.baselines.partitioners import PROGRAMS, TOTAL, metis, part_graph, scotch
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.errors import FormatError, InfeasibleError, LimitError, UnavailableError
from dnnp.core.model.search_context import MethodOptions, SearchContext
from dnnp.formats.graph import graph_of
from dnnp.formats.workloads.scotch import read_mapping, write_graph
from support.cases import random_case
from support.graphs import random_stream
from support.problems import DEGENERATE, chain, priced, problem_of, workload

# The graph that part_graph makes


def test_vertices_and_edges_weigh_what_they_cost() -> None:
    problem = problem_of(chain(1.0, 3.0, 4.0, transfer=2.0), DeviceClass("dev", count=2))
    graph = part_graph(problem)
    assert graph.parts == 2
    assert graph.ptr.tolist() == [0, 1, 3, 4]
    assert graph.neighbors.tolist() == [1, 0, 2, 1]
    assert graph.weights.tolist() == [TOTAL // 8, 3 * TOTAL // 8, TOTAL // 2]
    # Edges are whole numbers in proportion too; the last node's tensor goes nowhere.
    assert graph.edge_weights.tolist() == [TOTAL // 2] * 4


def test_the_graph_is_symmetric_and_fits_32_bits() -> None:
    counted = 0
    for seed in range(40):
        case = random_case(seed)
        try:
            graph = part_graph(case.problem)
        except InfeasibleError:
            continue
        tail = np.repeat(np.arange(graph.vertices), np.diff(graph.ptr))
        edges = {
            (u, v): w
            for u, v, w in zip(
                tail.tolist(), graph.neighbors.tolist(), graph.edge_weights.tolist(), strict=True
            )
        }
        assert len(edges) == len(tail)
        for (u, v), weight in edges.items():
            assert u != v
            assert edges[v, u] == weight > 0
        assert 0 < graph.weights.sum() < 2**31
        assert graph.edge_weights.sum() < 2**31
        counted += len(edges) > 0
    assert counted > 20


# Scotch's files


def test_graph_file() -> None:
    # A path 0 - 1 - 2 with edges of 5 and 7
    text = write_graph([0, 1, 3, 4], [1, 0, 2, 1], [5, 5, 7, 7], [10, 20, 30])
    assert text == b"0\n3 4\n0 011\n10 1 5 1\n20 2 5 0 7 2\n30 1 7 1\n"


def test_mapping_file() -> None:
    assert read_mapping(b"3\n0\t1\n2\t0\n1\t1\n", 3, 2, "map") == [1, 1, 0]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "map:1: expected 1 integer$"),
        (b"x\n", "map:1: expected 1 integer$"),
        (b"2\n0 0\n1 0\n", "map:1: 2 vertices, expected 3"),
        (b"3\n0 0\n1\n", "map:3: expected 2 integers"),
        (b"3\n0 0\n1 2\n", "map:3: vertex 1 is in part 2 of 2"),
        (b"3\n0 0\n1 -1\n", "map:3: vertex 1 is in part -1"),
        (b"3\n0 0\n0 1\n", "map:3: vertex 0 is unknown, or has a part already"),
        (b"3\n0 0\n9 1\n", "map:3: vertex 9 is unknown"),
        (b"3\n0 0\n1 0\n", "vertex 2 has no part"),
        (b"\xff\xfe\n", "map:1: expected 1 integer"),
    ],
)
def test_bad_mappings(data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_mapping(data, 3, 2, "map")


# Scotch as a program

FAKE = """#!{python}
import os, sys
parts, graph, mapping = sys.argv[1:]
assert not sys.stdin.read()
with open(graph) as file:
    lines = file.read().splitlines()
version, sizes, flags, rows = lines[0], lines[1].split(), lines[2], lines[3:]
assert version == "0" and flags == "0 011", lines[:3]
vertices, arcs = map(int, sizes)
assert len(rows) == vertices
rows = [list(map(int, row.split())) for row in rows]
assert sum(row[1] for row in rows) == arcs
assert all(len(row) == 2 + 2 * row[1] for row in rows)
folder = os.path.dirname(graph)
with open({log!r}, "w") as file:
    print(folder, oct(os.stat(folder).st_mode & 0o777), parts, file=file)
{action}
"""

EVEN = """
with open(mapping, "w") as file:
    print(vertices, file=file)
    for vertex in range(vertices):
        print(vertex, vertex * int(parts) // vertices, sep="\\t", file=file)
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put a program on PATH that reads and writes Scotch's files; returns its log."""

    def install(action: str = EVEN, name: str = "gpart") -> Path:
        log = tmp_path / "log"
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(FAKE.format(python=sys.executable, log=str(log), action=action))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(program.parent))
        return log

    return install


PROBLEM = problem_of(chain(*[1.0] * 6), DeviceClass("dev", count=3))


@pytest.mark.parametrize("name", PROGRAMS)
def test_scotch_runs_in_a_private_folder(fake, name: str) -> None:
    log = fake(name=name)
    plan = priced(PROBLEM, scotch(PROBLEM, MethodOptions()).blocks)
    assert [stage.nodes for stage in plan.stages] == [(0, 1), (2, 3), (4, 5)]
    folder, mode, parts = log.read_text().split()
    assert (mode, parts) == ("0o700", "3")
    assert not Path(folder).exists()


def test_cyclic_quotients_are_reported(fake) -> None:
    fake(EVEN.replace("vertex * int(parts) // vertices", "vertex % 2"))
    plan = priced(PROBLEM, scotch(PROBLEM, MethodOptions()).blocks)
    assert [stage.nodes for stage in plan.stages] == [(0, 2, 4), (1, 3, 5)]
    assert plan.validity == "free"


def test_scotch_is_not_asked_about_one_part(fake) -> None:
    log = fake("sys.exit(3)")
    for graph, count in ((chain(1.0, 1.0), 1), (chain(1.0), 3)):
        problem = problem_of(graph, DeviceClass("dev", count=count))
        assert len(scotch(problem, MethodOptions()).blocks) == 1
    assert not log.exists()


def test_scotch_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match=r"scotch_gpart or gpart; .* package scotch") as info:
        scotch(PROBLEM, MethodOptions())
    assert info.value.exit_status == 7
    assert "\n" not in str(info.value)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("sys.exit(3)", "failed with status 3; is it Scotch's gpart"),
        ("sys.exit('no such device\\nusage: ...')", "failed with status 1: no such device; is it"),
        ("os.kill(os.getpid(), 8)", "ended by signal 8"),
        ("", "wrote no mapping"),
        ("open(mapping, 'w').write('2\\n0 0\\n1 0\\n')", "does not answer as Scotch .* 2 vertices"),
        ("os.mkdir(mapping)", "wrote no mapping"),
    ],
)
def test_programs_that_fail(fake, action: str, message: str) -> None:
    fake(action)
    with pytest.raises(UnavailableError, match=message) as info:
        scotch(PROBLEM, MethodOptions())
    assert "\n" not in str(info.value)


def test_programs_that_cannot_be_run(fake) -> None:
    fake()
    program = Path(os.environ["PATH"]) / "gpart"
    program.write_bytes(b"\x7fELF not really")
    with pytest.raises(UnavailableError, match=r"gpart cannot be run: .+"):
        scotch(PROBLEM, MethodOptions())


def test_scotch_ends_at_a_limit_or_an_interrupt(
    fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake("import time; time.sleep(3600)")
    own = tmp_path / "own"
    own.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(own))
    with pytest.raises(LimitError, match=r"not done after 0\.5 s") as info:
        scotch(PROBLEM, MethodOptions(), time_limit_s=0.5)
    assert info.value.exit_status == 5
    assert list(own.iterdir()) == []
    with pytest.raises(LimitError, match="interrupted before"):
        scotch(PROBLEM, MethodOptions(), SearchContext(interrupted=lambda: True))


needs_scotch = pytest.mark.skipif(
    shutil.which(PROGRAMS[0]) is None, reason="Scotch is not installed"
)


@needs_scotch
def test_real_scotch() -> None:
    plan = priced(PROBLEM, scotch(PROBLEM, MethodOptions()).blocks)
    assert sorted(len(stage.nodes) for stage in plan.stages) == [2, 2, 2]
    for what, problem in DEGENERATE.items():
        assert priced(problem, scotch(problem, MethodOptions()).blocks).stages, what


@needs_scotch
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("layer_bert24_inference", 18.03),
        ("layer_bert24_training", 42.01),
        ("op_bert_l-3_inference", 35.94),
        ("op_bert_l-3_training", 416.97),
    ],
)
def test_real_scotch_gives_the_published_values(
    shared_workloads: Path, name: str, value: float
) -> None:
    problem = workload(shared_workloads, name)
    assert priced(problem, scotch(problem, MethodOptions()).blocks).value == pytest.approx(
        value, rel=0.1
    )


# METIS


def test_metis_splits() -> None:
    pytest.importorskip("pymetis")
    problem = problem_of(chain(*[1.0] * 12), DeviceClass("dev", count=3))
    plan = priced(problem, metis(problem, MethodOptions(), SearchContext(seed=1)).blocks)
    assert sorted(len(stage.nodes) for stage in plan.stages) == [4, 4, 4]
    assert plan.validity == "ordered"
    for what, degenerate in DEGENERATE.items():
        assert priced(degenerate, metis(degenerate, MethodOptions()).blocks).stages, what


def test_metis_leaves_cpus_what_accelerators_cannot_run() -> None:
    pytest.importorskip("pymetis")
    stream = random_stream(5, 9, classes=["cpu"])
    for node in stream.get("node"):
        node["time_s"]["cpu"] = 5
    del stream.get("node")[4]["time_s"]["dev"]
    devices = (DeviceClass("dev", count=2), DeviceClass("cpu", "cpu", 1))
    problem = problem_of(graph_of(stream), *devices)
    plan = priced(problem, metis(problem, MethodOptions()).blocks)
    assert [stage.nodes for stage in plan.stages if stage.device == "cpu/0"] == [(4,)]
    with pytest.raises(InfeasibleError, match=r"node 4 .* no CPU for it"):
        metis(problem_of(graph_of(stream), devices[0]), MethodOptions())


def test_metis_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pymetis", None)
    with pytest.raises(UnavailableError, match=r"dnnp\[metis\]"):
        metis(problem_of(chain(1.0), DeviceClass("dev")), MethodOptions())


BROKEN = """
import signal, time
CSRAdjacency = lambda *arrays: arrays
Options = dict
def part_graph(parts, graph, **options):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    if "hangs" in __file__:
        time.sleep(600)
    raise RuntimeError("METIS error\\nin two lines")
"""


def broken_pymetis(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a pymetis first that blocks SIGTERM, as the real one does, and fails."""
    package = folder / "pymetis"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(BROKEN)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "pymetis", raising=False)
    # No process that has loaded the real one.
    monkeypatch.setattr("dnnp.core.solver.child._idle", [])


def test_metis_fails_in_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_pymetis(tmp_path, monkeypatch)
    problem = problem_of(chain(*[1.0] * 6), DeviceClass("dev", count=2))
    for _ in range(2):
        with pytest.raises(UnavailableError, match=r"^pymetis fails: RuntimeError: METIS error$"):
            metis(problem, MethodOptions())
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert "pymetis" not in sys.modules


def test_metis_ends_at_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_pymetis(tmp_path / "hangs", monkeypatch)
    problem = problem_of(chain(*[1.0] * 6), DeviceClass("dev", count=2))
    with pytest.raises(LimitError, match=r"METIS was not done after 0\.5 s"):
        metis(problem, MethodOptions(), time_limit_s=0.5)
    with pytest.raises(LimitError, match="interrupted before METIS was done"):
        metis(problem, MethodOptions(), SearchContext(interrupted=lambda: True))
