"""Every method of dnnp-partition, through the command, on graphs that are easy to get wrong."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys

import orjson
import pytest

from dnnp.core.methods.splits import SPLITS
from dnnp.core.split.auto import resolved, validity_asked
from dnnp.formats.stream import Stream
from support.graphs import header, node, random_stream, tensor, to_bytes
from support.run import PATIENCE_S, Result, dnnp

HERE = [
    method
    for method in SPLITS
    if (method != "scotch" or shutil.which("scotch_gpart"))
    and (method != "metis" or importlib.util.find_spec("pymetis"))
]
"""Methods whose program or package is installed."""

SHORT = 50_000
"""Work of a round of annealing here."""

PROVES = ("auto", "exact", "ip")
QUICK = ("--effort", "0.001")


def few(method: str) -> tuple[str, ...]:
    """Options with which a method that evolves orders soon ends."""
    return ("--generations", "3") if "generations" in SPLITS[method].heeds else ()


@pytest.fixture(autouse=True)
def short_annealing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds that are long enough for a handful of nodes."""
    monkeypatch.setattr("dnnp.core.split.annealing.anneal.LEAST_WORK", SHORT)
    monkeypatch.setattr("dnnp.core.split.annealing.anneal.MOST_WORK", SHORT)


def stream(edges: list[tuple[int, int]], *times: float, size: float = 1, **extra: object) -> Stream:
    """A graph with one tensor an edge, priced for `dev` and, three times slower, for `cpu`."""
    tensors = [tensor(i, "activation", size) for i in range(len(edges))]
    nodes = []
    for v, time in enumerate(times):
        reads = [i for i, (_, head) in enumerate(edges) if head == v]
        makes = [i for i, (tail, _) in enumerate(edges) if tail == v]
        cost = {"dev": time, "cpu": 3 * time}
        nodes.append(node(v, "Op", reads, makes, time_s=cost, **extra))
    device = {
        "type": "device",
        "class": "dev",
        "kind": "accelerator",
        "bandwidth_bytes_per_s": 1.0,
    }
    cpu = {"type": "device", "class": "cpu", "kind": "cpu"}
    return Stream(
        header=header(), records={"device": [device, cpu], "tensor": tensors, "node": nodes}
    )


CHAIN = [(0, 1), (1, 2), (2, 3)]


def checked(made: Stream, *arguments: str) -> Result:
    """Split it; the checker has agreed, and the bound is none above the value."""
    result = dnnp("partition", *arguments, stdin=to_bytes(made))
    assert result.status == 0, result.err
    assert "Traceback" not in result.err
    report = dnnp("check", "--json", stdin=result.out)
    assert report.status == 0, report.err
    plan = result.one("plan")
    assert orjson.loads(report.out)["value"] == pytest.approx(plan["value"], rel=1e-9)
    assert plan["bound"] <= plan["value"]
    return result


def test_auto_stands_for_methods_that_find_what_is_asked():
    for validity in ("ordered", "convex", "free"):
        assert validity in SPLITS[resolved("auto", validity)].kinds
        assert validity_asked("auto", validity) == validity
    assert validity_asked("auto", None) == "ordered"
    assert validity_asked("metis", None) == "free"


@pytest.mark.parametrize("method", HERE)
def test_every_method(method):
    for seed in range(3):
        made = random_stream(seed, 12, params=True, colors=seed == 1, training=seed == 2)
        result = checked(made, "-k", "3", "--bandwidth", "3", "--method", method, *QUICK)
        assert result.one("plan")["method"] == method
        validity = result.one("plan")["validity"]
        assert SPLITS[method].kinds[0] == "free" or validity == "ordered"


@pytest.mark.parametrize("method", ["scotch", "metis"])
def test_what_is_not_installed_is_named(method, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setitem(sys.modules, "pymetis", None)
    result = dnnp(
        "partition", "-k", "2", "--method", method, stdin=to_bytes(stream(CHAIN, 1, 2, 3, 4))
    )
    assert (result.status, result.out) == (7, b"")
    assert f"method {method} needs the " in result.err


@pytest.mark.parametrize("method", HERE)
def test_other_validities(method):
    for validity in ("ordered", "convex", "free"):
        arguments = ("-k", "3", "--method", method, "--validity", validity, *QUICK)
        if validity in SPLITS[method].kinds:
            checked(random_stream(3, 9), *arguments)
            continue
        result = dnnp("partition", *arguments, stdin=to_bytes(stream(CHAIN, 1, 2, 3, 4)))
        assert (result.status, result.out) == (2, b"")
        assert (
            f"method {method} makes {SPLITS[method].kinds[0]} splits; {validity} ones" in result.err
        )


def test_weaker_validities_are_never_worse():
    for seed in range(3):
        made = random_stream(seed, 7)
        values = [
            checked(made, "-k", "3", "--bandwidth", "2", "--method", "ip", "--validity", v).one(
                "plan"
            )
            for v in ("ordered", "convex", "free")
        ]
        assert {plan["status"] for plan in values} == {"optimal"}
        assert values[0]["value"] >= values[1]["value"] >= values[2]["value"]


@pytest.mark.parametrize("method", HERE)
def test_one_colour(method):
    made = stream(CHAIN, 3, 1, 2, 3, color=7)
    result = checked(made, "-k", "3", "--method", method)
    assert [s["nodes"] for s in result.records("stage")] == [[0, 1, 2, 3]]
    assert (result.one("plan")["value"], result.one("plan")["status"]) == (9, "optimal")


@pytest.mark.parametrize("method", HERE)
def test_capacity_below_a_colour(method):
    made = stream([*CHAIN, (3, 4)], 3, 1, 2, 3, 1, size=10)
    for record in made.get("node")[1:4]:
        record["color"] = 0
    fits = ("-k", "2", "--memory-model", "sum", "--method", method, *few(method))
    result = dnnp("partition", *fits, "--memory", "29", stdin=to_bytes(made))
    assert (result.status, result.out) == (4, b"")
    assert result.err.endswith(
        "infeasible: node 1 ('n1') and 2 more that belong with it, as 'n1' and 'n3' have one "
        "colour, 0, needs 30 B; "
        "the largest device has 29 B\n"
    )


@pytest.mark.parametrize("method", HERE)
def test_capacity_below_a_node(method):
    made = stream(CHAIN, 3, 1, 2, 3)
    made.get("node")[2]["memory_bytes"] = 500
    fits = ("-k", "3", "--memory", "100", "--method", method, *few(method))
    result = dnnp("partition", *fits, stdin=to_bytes(made))
    assert (result.status, result.out) == (4, b"")
    assert "node 2 ('n2') needs 500 B; the largest device has 100 B" in result.err


@pytest.mark.parametrize("method", PROVES)
def test_capacity_for_no_split(method):
    made = stream(CHAIN, 3, 1, 2, 3, size=10)
    arguments = ("-k", "2", "--memory", "19", "--memory-model", "sum", "--method", method)
    result = dnnp("partition", *arguments, stdin=to_bytes(made))
    assert (result.status, result.out) == (4, b"")
    assert "infeasible: no ordered split fits" in result.err


@pytest.mark.parametrize("method", HERE)
def test_cpus_only(method):
    result = checked(stream(CHAIN, 3, 1, 2, 3), "-k", "0", "--cpus", "2", "--method", method)
    assert {s["class"] for s in result.records("stage")} == {"cpu"}
    assert result.one("plan")["k"] == 0
    if method in PROVES:
        assert result.one("plan")["value"] == 15


@pytest.mark.parametrize("method", HERE)
def test_isolated_nodes(method):
    result = checked(stream([], 3, 1, 2, 3), "-k", "3", "--method", method)
    # The optimum; a method that need not find it is an exception, as `single` is.
    assert result.one("plan")["value"] == (9 if method == "single" else 3)


@pytest.mark.parametrize("method", HERE)
def test_parallel_edges(method):
    # Cut anywhere, three tensors of one byte move: 9, or 3 + 3 | 3 + 6, or 4 + 3 | 3 + 5, ...
    made = stream([edge for edge in CHAIN for _ in range(3)], 3, 1, 2, 3)
    result = checked(made, "-k", "2", "--method", method)
    assert 8 <= result.one("plan")["value"] <= 9
    if method in PROVES:
        assert result.one("plan")["value"] == 8


@pytest.mark.parametrize("method", HERE)
def test_zero_costs(method):
    plan = checked(stream(CHAIN, 0, 0, 0, 0, size=0), "-k", "3", "--method", method).one("plan")
    # Nothing is known that could be optimal.
    assert (plan["value"], plan["bound"], plan["gap"], plan["status"]) == (0, 0, 0, "feasible")
    assert plan["unknown"]["time"] == 1


@pytest.mark.parametrize("method", HERE)
@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_tiny_and_huge_numbers(method, scale):
    made = stream(CHAIN, *(scale * t for t in (3, 1, 2, 3)), size=scale)
    plan = checked(made, "-k", "3", "--method", method, *QUICK).one("plan")
    assert plan["value"] / scale <= 9 * (1 + 1e-9)
    if method in PROVES:
        assert plan["value"] / scale == pytest.approx(5)
        assert plan["gap"] < 1e-5


@pytest.mark.parametrize("method", HERE)
def test_numbers_far_apart(method):
    made = stream(CHAIN, 1e-12, 1e12, 1e-12, 5e11)
    for record, size in zip(made.get("tensor"), (1e12, 1e-12, 1e-12), strict=True):
        record["size_bytes"] = size
    plan = checked(made, "-k", "3", "--bandwidth", "1M", "--method", method, *QUICK).one("plan")
    if method in PROVES:
        assert plan["value"] == pytest.approx(1e12)
        assert plan["gap"] < 1e-5


@pytest.mark.parametrize("method", HERE)
def test_one_node_and_many_devices(method):
    devices = ("-k", "1000000", "--cpus", "1000")
    result = checked(stream([], 3), *devices, "--method", method, *few(method))
    assert len(result.records("stage")) == 1
    assert "k = 1000000, but there is only 1 unit: 1 stage" in result.err


def test_empty_graph():
    made = Stream(header=header(), records={})
    for method in SPLITS:
        result = dnnp("partition", "-k", "2", "--method", method, stdin=to_bytes(made))
        assert (result.status, result.out) == (3, b"")
        assert result.err == "dnnp-partition: <stdin>: the stream has no node records\n"


@pytest.mark.parametrize("method", ["auto", "exact", "ip", "pipedream", "anneal"])
def test_replicas(method):
    # One stage on two devices, 10 / 2, and 5 + 1: nothing moves but one byte.
    made = stream([(0, 1)], 8, 4)
    result = checked(made, "-k", "3", "--max-replicas", "2", "--method", method)
    assert result.one("plan")["max_replicas"] == 2
    assert result.one("plan")["value"] == 5
    assert [s.get("replicas", 1) for s in result.records("stage")] == [2, 1]
    assert "2 stages on 3 devices" in result.err


@pytest.mark.parametrize("method", ["auto", "exact", "slice", "pipedream", "greedy"])
def test_clusters(method):
    links = ("--cluster-size", "2", "--bandwidth", "1", "--inner-bandwidth", "4")
    made = stream(CHAIN, 5, 5, 5, 5, size=4)
    result = checked(made, "-k", "4", *links, "--method", method, *QUICK)
    assert result.one("plan")["devices"][0]["cluster_size"] == 2
    if method in ("auto", "exact"):
        # 5 + 1 | 1 + 5 + 4 || 4 + 5 + 1 | 1 + 5, or 10 + 4 || 4 + 10: 10.
        assert result.one("plan")["value"] == 10
        assert result.one("plan")["status"] in ("optimal", "feasible")


CLUSTERS = ("--cluster-size", "2", "--bandwidth", "1", "--inner-bandwidth", "4")


@pytest.mark.parametrize(
    ("most", "value", "stages"),
    [
        # 6 + 1 | 1 + 18, and the heavy node on both devices of a cluster.
        (1, 19, [("dev/0", 1), ("dev/1", 1)]),
        # 6 + 4 || (4 + 18) / 2
        (2, 11, [("dev/0", 1), ("dev/2", 2)]),
        # (6 + 18) / 4, in both clusters
        (4, 6, [("dev/0", 4)]),
    ],
)
def test_replicas_in_clusters(most, value, stages):
    links = ("--cluster-size", "2", "--bandwidth", "1", "--inner-bandwidth", "4")
    made = stream([(0, 1)], 6, 18, size=4)
    result = checked(made, "-k", "4", *links, "--max-replicas", str(most))
    assert result.one("plan")["value"] == value
    assert [(s["device"], s.get("replicas", 1)) for s in result.records("stage")] == stages


def test_gpipe_in_clusters():
    made = random_stream(3, 14, training=True, colors=True)
    value = {}
    for objective in ("throughput", "gpipe"):
        result = checked(made, "-k", "4", *CLUSTERS, "--objective", objective)
        stages = result.records("stage")
        passes = [max(s[name] for s in stages) for name in ("forward_s", "backward_s")]
        value[objective] = sum(passes)
    assert result.one("plan")["value"] == pytest.approx(value["gpipe"])
    assert value["gpipe"] <= value["throughput"] * (1 + 1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--method", "ip"), "method ip knows no clusters"),
        (("--validity", "free"), "method anneal knows no clusters"),
    ],
)
def test_clusters_with_what_they_cannot_have(arguments, message):
    made = random_stream(1, 10, training=True)
    result = dnnp("partition", "-k", "4", *CLUSTERS, *arguments, stdin=to_bytes(made))
    assert (result.status, result.out) == (2, b"")
    assert message in result.err


@pytest.mark.parametrize("method", HERE)
def test_gpipe(method):
    made = random_stream(3, 14, training=True, colors=True)
    result = checked(made, "-k", "3", "--objective", "gpipe", "--method", method, *QUICK)
    plan, stages = result.one("plan"), result.records("stage")
    ahead, behind = (max(s[key] for s in stages) for key in ("forward_s", "backward_s"))
    assert plan["value"] == pytest.approx(ahead + behind)
    assert "forward plus backward load" in result.err


IDLE = {
    "order": (("--order", "dfs"), ("local-search", "pipedream", "metis", "dpl")),
    "solver": (("--solver", "highs"), ("auto", "exact", "slice", "greedy")),
    "effort": (("--effort", "2"), ("slice", "greedy", "single")),
    "seed": (("--seed", "2"), ("slice", "ip", "greedy")),
    "max-replicas": (("--max-replicas", "2"), ("slice", "greedy", "metis")),
}


@pytest.mark.parametrize("option", IDLE)
def test_options_without_effect_are_named(option, tmp_path):
    arguments, methods = IDLE[option]
    made = to_bytes(stream(CHAIN, 3, 1, 2, 3))
    for method in methods:
        if method not in HERE:
            continue
        result = dnnp("partition", "-k", "2", "--method", method, *arguments, stdin=made)
        assert result.status == 0, result.err
        assert f"--{option} has no effect with method {method}\n" in result.err
    if option == "max-replicas":
        return
    file = tmp_path / "split.json"
    file.write_bytes(b"[[0, 1, 2, 3]]")
    result = dnnp("partition", "-k", "2", "--eval", str(file), *arguments, stdin=made)
    assert f"--{option} has no effect with --eval\n" in result.err


def test_options_with_effect_are_not_named():
    made = to_bytes(stream(CHAIN, 3, 1, 2, 3))
    for arguments in (
        ("--order", "dfs"),
        ("--effort", "2"),
        ("--max-replicas", "2"),
        ("--method", "ip", "--solver", "cbc"),
        ("--validity", "convex", "--solver", "cbc"),
        ("--method", "local-search", "--seed", "3"),
        ("--validity", "free", "--seed", "3", *QUICK),
    ):
        assert "no effect" not in dnnp("partition", "-k", "2", *arguments, stdin=made).err


@pytest.mark.parametrize("method", ["local-search", "anneal"])
def test_seeds(method):
    made = random_stream(5, 120)
    arguments = ("-k", "4", "--bandwidth", "1", "--method", method, *QUICK, "--seed")
    first, second, other = (checked(made, *arguments, seed).records("stage") for seed in "779")
    assert first == second
    assert first != other


@pytest.mark.parametrize("method", [method for method in HERE if method != "ip"])
def test_same_bytes_twice(method):
    data = to_bytes(random_stream(4, 20, params=True))
    arguments = ("-k", "3", "--bandwidth", "2", "--method", method, *QUICK)
    first = dnnp("partition", *arguments, stdin=data)
    assert first.status == 0
    assert first.out == dnnp("partition", *arguments, stdin=data).out


@pytest.mark.parametrize("method", ["auto", "anneal", "local-search", "pipedream"])
def test_same_bytes_without_compilation(method):
    data = to_bytes(random_stream(4, 14, params=True, training=True))
    arguments = ("-k", "3", "--bandwidth", "2", "--method", method, "--effort", "0.00001")
    compiled = dnnp("partition", *arguments, stdin=data)
    program = (
        f"import dnnp.core.split.annealing.anneal as a; a.LEAST_WORK = a.MOST_WORK = {SHORT}\n"
        "from dnnp.cmds.partition import main; raise SystemExit(main())"
    )
    plain = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        input=data,
        capture_output=True,
        timeout=PATIENCE_S,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
    )
    assert (plain.returncode, compiled.status) == (0, 0), plain.stderr
    assert plain.stdout == compiled.out
    assert b"compiling" not in plain.stderr
