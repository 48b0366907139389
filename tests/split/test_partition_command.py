"""dnnp-partition as a user meets it."""

from __future__ import annotations

import orjson
import pytest

from dnnp.formats.stream import Stream
from support.graphs import chain, random_stream, to_bytes
from support.run import dnnp, dnnp_process

COMPILING = "compiling kernels; this happens once and takes up to a minute"


def partition(stream: Stream, *arguments: str):
    return dnnp("partition", *arguments, stdin=to_bytes(stream))


def test_golden_chain():
    # work 3 1 | 2 | 3 with unit transfers at 1 byte/s: loads 3+1+1, 1+2+1, 1+3
    result = partition(chain(3, 1, 2, 3), "-k", "3", "--bandwidth", "1")
    assert result.status == 0
    plan = result.one("plan")
    digest = plan.pop("digest")
    assert plan == {
        "type": "plan",
        "id": 0,
        "k": 3,
        "method": "auto",
        "objective": "throughput",
        "validity": "ordered",
        "value": 5.0,
        "bound": 5.0,
        "gap": 0.0,
        "status": "optimal",
        "comm": "sum",
        "memory_model": "peak",
        "memory_mode": "hard",
        "charge_io": False,
        "devices": [
            {"class": "dev", "kind": "accelerator", "count": 3, "bandwidth_bytes_per_s": 1.0}
        ],
    }
    assert len(digest) == 64
    assert [(s["nodes"], s["load_s"]) for s in result.records("stage")] == [
        ([0, 1], 5.0),
        ([2], 4.0),
        ([3], 4.0),
    ]
    assert result.records("stage")[1] == {
        "type": "stage",
        "id": 1,
        "device": "dev/1",
        "class": "dev",
        "nodes": [2],
        "load_s": 4.0,
        "in_s": 1.0,
        "compute_s": 2.0,
        "overflow_s": 0.0,
        "out_s": 1.0,
        "memory_bytes": 2.0,
        "peak_bytes": 2.0,
        "peak_bound_bytes": 2.0,
    }
    said = result.err.splitlines()
    assert said[-2:] == [
        "dnnp-partition: 3 stages, auto: largest load 5 s, optimal, ordered",
        "dnnp-partition: 3 replicas of the whole model fit and are predicted 1.67 times as fast: "
        "3 s (--allow-replicas compares them)",
    ]
    assert said[:-2] in ([], ["dnnp-partition: " + COMPILING])


@pytest.mark.parametrize("nodes", [12, 8000])
def test_what_is_not_compiled_is_not_announced(tmp_path, nodes):
    """So few nodes need nothing compiled, and what is kept is not compiled again."""
    stream = dnnp("import", "--synthetic", "--nodes", str(nodes)).out
    words = ("partition", "-k", "3", "--method", "slice")
    said = [
        dnnp_process(*words, stdin=stream, env={"NUMBA_CACHE_DIR": str(tmp_path)}).err
        for _ in range(2)
    ]
    assert (COMPILING in said[0]) == (nodes > 12)
    assert COMPILING not in said[1]


def test_a_heuristic_has_the_simple_bound():
    result = partition(chain(3, 1, 2, 3), "-k", "3", "--bandwidth", "1", "--method", "slice")
    plan = result.one("plan")
    assert (plan["value"], plan["status"]) == (5, "feasible")
    assert (plan["bound"], plan["gap"]) == pytest.approx((3, 0.4))
    assert "3 stages, slice: largest load 5 s, bound 3 s, gap 40 %, ordered\n" in result.err


def test_one_device_is_proven_optimal():
    plan = partition(chain(3, 1, 2), "-k", "1").one("plan")
    assert (plan["value"], plan["bound"], plan["gap"], plan["status"]) == (6, 6, 0, "optimal")


@pytest.mark.parametrize(
    ("method", "stages"),
    [
        ("uniform", [[0, 1], [2, 3]]),
        ("params", [[0, 1, 2, 3]]),
        ("single", [[0, 1, 2, 3]]),
        ("slice", [[0], [1, 2, 3]]),
    ],
)
def test_methods(method, stages):
    stream = chain(9, 1, 1, 1)
    if method == "params":
        tensors = stream.get("tensor")
        tensors.append({**tensors[0], "id": 9, "name": "w", "kind": "parameter", "size_bytes": 50})
        for node in stream.get("node"):
            node["inputs"].append(9)
    result = partition(stream, "-k", "2", "--method", method)
    assert [s["nodes"] for s in result.records("stage")] == stages


def test_more_devices_than_nodes_is_a_notice():
    result = partition(chain(3, 1), "-k", "5")
    assert result.status == 0
    assert len(result.records("stage")) == 2
    assert "k = 5, but there are only 2 units: 2 stages" in result.err


def test_groups_stay_whole():
    stream = chain(3, 1, 2, 3)
    stream.records["group"] = [
        {"type": "group", "id": i, "name": "g", "nodes": nodes}
        for i, nodes in ((4, [0, 1]), (7, [2, 3]))
    ]
    result = partition(stream, "-k", "3")
    assert [s["nodes"] for s in result.records("stage")] == [[0, 1], [2, 3]]


def test_a_new_plan_drops_runs_of_the_old_one():
    first = partition(chain(3, 1), "-k", "2").out.splitlines()
    digest = "0" * 64
    run = {"type": "run", "mode": "pipeline", "provider": "cpu", "samples": 1, "digest": digest}
    data = b"\n".join([*first[:-1], orjson.dumps(run), first[-1]]) + b"\n"
    result = dnnp("partition", "-k", "1", stdin=data)
    assert not result.records("run")
    assert "dropped what an earlier plan led to: run records" in result.err


def test_devices_of_the_stream_are_the_default():
    stream = chain(3, 1, 2)
    stream.records["device"] = [
        {"type": "device", "class": "dev", "kind": "accelerator", "count": 2, "memory_bytes": 9}
    ]
    plan = partition(stream).one("plan")
    assert plan["devices"] == [
        {"class": "dev", "kind": "accelerator", "count": 2, "memory_bytes": 9.0}
    ]
    assert partition(stream, "-k", "3").one("plan")["k"] == 3


@pytest.mark.parametrize(
    ("split", "stages"),
    [
        ([[0, 1], [2]], [[0, 1], [2]]),
        ([[2], [1, 0]], [[0, 1], [2]]),
        ({"fpgas": [{"nodes": [0]}, {"nodes": [1, 2]}], "cpus": []}, [[0], [1, 2]]),
    ],
)
def test_eval(tmp_path, split, stages):
    file = tmp_path / "split.json"
    file.write_bytes(orjson.dumps(split))
    result = partition(chain(3, 1, 2), "-k", "2", "--eval", str(file))
    assert result.status == 0
    assert result.one("plan")["method"] == "given"
    assert [s["nodes"] for s in result.records("stage")] == stages


def test_accelerators_beside_cpus():
    stream = chain(8, 4, 4, 8)
    for node, slower in zip(stream.get("node"), (30, 9, 5, 30), strict=True):
        node["time_s"]["cpu-core"] = slower
    stream.records["device"] = [
        {"type": "device", "class": "dev", "kind": "accelerator", "bandwidth_bytes_per_s": 1}
    ]
    result = partition(stream, "-k", "2", "--cpus", "1")
    # 8 + 1 | 9 on the CPU, whose transfers are free | 1 + 4 + 8; or 5 on the CPU: 1 + 8 + 4
    assert result.one("plan")["value"] == 13
    assert [s["class"] for s in result.records("stage")].count("cpu-core") <= 1
    assert dnnp("check", stdin=result.out).status == 0
    same = partition(chain(3, 1), "-k", "1", "--cpus", "1")
    assert same.status == 2
    priced_twice = chain(3, 1)
    for node in priced_twice.get("node"):
        node["time_s"] = {"cpu-core": 1}
    same = partition(priced_twice, "-k", "1", "--cpus", "1")
    assert "cannot be both accelerator and CPU" in same.err


def test_eval_of_a_split_that_is_not_contiguous(tmp_path):
    file = tmp_path / "split.json"
    file.write_bytes(orjson.dumps([[0, 2], [1]]))
    result = partition(chain(3, 1, 2), "-k", "2", "--eval", str(file), "--bandwidth", "1")
    assert result.one("plan")["validity"] == "free"
    assert result.one("plan")["value"] == 3 + 2 + 1 + 1
    assert dnnp("check", stdin=result.out).status == 0


NUMBERED = [
    {"nodes": [0], "device": "dev/2"},
    {"nodes": [1], "device": "dev/0", "replicas": 2},
    {"nodes": [2], "device": "dev/3"},
]


def test_eval_keeps_replicas_and_device_numbers(tmp_path):
    file = tmp_path / "split.json"
    file.write_bytes(orjson.dumps({"fpgas": NUMBERED}))
    clusters = ("--bandwidth", "1", "--cluster-size", "2", "--inner-bandwidth", "4")
    result = partition(chain(8, 6, 4), "-k", "4", *clusters, "--eval", str(file))
    assert result.status == 0, result.err
    assert [(s["device"], s.get("replicas", 1)) for s in result.records("stage")] == [
        ("dev/2", 1),
        ("dev/0", 2),
        ("dev/3", 1),
    ]
    # Every transfer is between clusters: 8 + 1 | (1 + 6 + 1) / 2 | 1 + 4
    assert [s["load_s"] for s in result.records("stage")] == [9, 4, 5]
    assert result.one("plan")["max_replicas"] == 2
    assert "3 stages on 4 devices" in result.err
    assert dnnp("check", stdin=result.out).status == 0
    exported = dnnp("export", "--to", "msr-split", stdin=result.out)
    file.write_bytes(exported.out)
    again = partition(chain(8, 6, 4), "-k", "4", *clusters, "--eval", str(file))
    assert again.records("stage") == result.records("stage")


FAILURES = {
    "no k": ((), 2, "how many devices?"),
    "negative k": (("-k", "-1"), 2, "-1 is below 0"),
    "k = 0": (("-k", "0"), 2, "k is 0 and there are no CPUs"),
    "k is a word": (("-k", "x"), 2, "'x' is not a whole number"),
    "no CPU class": (("-k", "1", "--cpus", "1"), 2, "--cpus: the stream prices no CPU class"),
    "memory": (("-k", "2", "--memory", "1"), 4, "infeasible: "),
    "memory text": (("-k", "2", "--memory", "1x"), 2, "'1x' is not a size"),
    "memory zero": (("-k", "2", "--memory", "0G"), 2, "'0G' is not above 0"),
    "missing split": (("-k", "2", "--eval", "/nonexistent"), 1, "/nonexistent: No such file"),
    "missing devices": (("--devices", "/nonexistent"), 1, "/nonexistent: "),
    "method": (("-k", "2", "--method", "magic"), 2, "invalid choice: 'magic'"),
    "validity": (("-k", "2", "--validity", "any"), 2, "invalid choice: 'any'"),
    "objective": (("-k", "2", "--objective", "x"), 2, "invalid choice: 'x'"),
    "order": (("-k", "2", "--order", "x"), 2, "invalid choice: 'x'"),
    "solver": (("-k", "2", "--method", "ip", "--solver", "x"), 2, "invalid choice: 'x'"),
    "replicas": (("-k", "2", "--max-replicas", "0"), 2, "--max-replicas: 0 is too small"),
    "effort": (("-k", "2", "--effort", "0"), 2, "--effort: 0 is too small; above 0"),
    "effort text": (("-k", "2", "--effort", "inf"), 2, "'inf' is not a number from 0 to 1e9"),
    "time limit": (("-k", "2", "--time-limit", "-1"), 2, "'-1' is not a time"),
    "time limit text": (("-k", "2", "--time-limit", "1x"), 2, "'1x' is not a time"),
    "seed": (("-k", "2", "--seed", "-1"), 2, "-1 is below 0"),
    "method and split": (("-k", "2", "--method", "ip", "--eval", "x"), 2, "or --eval, not both"),
    "gpipe": (("-k", "2", "--objective", "gpipe"), 2, "gpipe needs a graph with a backward pass"),
    "clusters without links": (("-k", "4", "--cluster-size", "2"), 2, "needs --inner-bandwidth"),
    "links without clusters": (("-k", "4", "--inner-bandwidth", "9"), 2, "give --cluster-size"),
    "clusters without outer links": (
        ("-k", "4", "--cluster-size", "2", "--inner-bandwidth", "9"), 2, "clusters need --bandwidth"
    ),
    "slow inner links": (
        ("-k", "4", "--bandwidth", "9", "--cluster-size", "2", "--inner-bandwidth", "8"), 2,
        "the bandwidth inside a cluster of 'dev' (8 B/s) is below the one between clusters (9 B/s)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILURES)
def test_failures(name):
    arguments, status, message = FAILURES[name]
    result = partition(chain(3, 1, 2), *arguments)
    assert (result.status, result.out) == (status, b"")
    assert message in result.err
    assert result.err.count("\n") == 1


TRAINING_FAILURES = {
    "peak": (("--memory-model", "peak"), "peak is not defined for a graph with a backward pass"),
    "gpipe and overflow": (
        ("--objective", "gpipe", "--memory-mode", "overflow", "--memory", "9"),
        "--objective gpipe is not defined with --memory-mode overflow",
    ),
}


@pytest.mark.parametrize("name", TRAINING_FAILURES)
@pytest.mark.parametrize("given", [False, True])
def test_failures_with_a_backward_pass(name, given, tmp_path):
    stream = random_stream(1, 10, training=True)
    arguments, message = TRAINING_FAILURES[name]
    if given:
        file = tmp_path / "split.json"
        file.write_bytes(orjson.dumps([[node["id"] for node in stream.get("node")]]))
        arguments = (*arguments, "--eval", str(file))
    result = partition(stream, "-k", "2", *arguments)
    assert (result.status, result.out) == (2, b"")
    assert message in result.err


def test_eval_with_gpipe_needs_a_backward_pass(tmp_path):
    file = tmp_path / "split.json"
    file.write_bytes(b"[[0, 1, 2]]")
    result = partition(chain(3, 1, 2), "-k", "2", "--eval", str(file), "--objective", "gpipe")
    assert (result.status, result.out) == (2, b"")


SPLIT = {"fpgas": [{"nodes": [0, 1], "device": "dev/0"}, {"nodes": [2], "device": "dev/1"}]}


@pytest.mark.parametrize(
    ("split", "status", "message"),
    [
        ([[0, 1], [2, 9]], 3, "there is no node 9"),
        ([[0, 1]], 3, "node 2 is in no stage"),
        ([[0, 1], [1, 2]], 3, "node 1 is also in [0]"),
        ([[0], [1], [2]], 4, "needs more than the 2 devices"),
        ({"fpgas": [], "cpus": [{"nodes": [0, 1, 2]}]}, 2, "none is offered"),
        ({"fpgas": [{"nodes": [0, 1, 2], "replicas": 3}]}, 4, "needs more than the 2 devices"),
        ({"fpgas": [{"nodes": [0, 1, 2], "device": "dev/2"}]}, 4, "more than the 2 devices"),
        ({"fpgas": [{"nodes": [0, 1, 2], "device": "gpu/0"}]}, 2, "offered are: dev"),
        (
            {"fpgas": [SPLIT["fpgas"][0], {"nodes": [2], "device": "dev/0"}]},
            3,
            "two parts are on dev/0",
        ),
        (
            {"fpgas": [{**SPLIT["fpgas"][0], "replicas": 2}, SPLIT["fpgas"][1]]},
            3,
            "two parts are on dev/1",
        ),
        ({"fpgas": [SPLIT["fpgas"][0], {"nodes": [2]}]}, 3, "some parts on 'dev' have a device"),
    ],
)
def test_splits_that_do_not_fit(tmp_path, split, status, message):
    file = tmp_path / "split.json"
    file.write_bytes(orjson.dumps(split))
    result = partition(chain(3, 1, 2), "-k", "2", "--eval", str(file))
    assert (result.status, result.out) == (status, b"")
    assert message in result.err


def test_eval_above_the_replicas_allowed(tmp_path):
    file = tmp_path / "split.json"
    file.write_bytes(orjson.dumps({"fpgas": [{"nodes": [0, 1, 2], "replicas": 2}]}))
    arguments = ("-k", "2", "--eval", str(file), "--max-replicas")
    assert partition(chain(3, 1, 2), *arguments, "2").one("plan")["value"] == 3
    result = partition(chain(3, 1, 2), *arguments, "1")
    assert (result.status, result.out) == (2, b"")
    assert "runs a stage on 2 devices, above --max-replicas 1" in result.err


@pytest.mark.parametrize("method", ["slice", "uniform", "params", "single"])
def test_checker_agrees_on_random_graphs(method):
    for seed in range(25):
        stream = random_stream(seed, 12, params=True, colors=seed % 2 == 1)
        options = ("--comm", ("sum", "overlap", "duplex")[seed % 3], "--bandwidth", "3")
        limits = ("--memory", "150", "--memory-mode", "overflow") if seed % 4 == 0 else ()
        result = partition(stream, "-k", "3", "--method", method, *options, *limits)
        assert result.status == 0
        checked = dnnp("check", "--json", stdin=result.out)
        assert checked.status == 0, checked.err
        value = orjson.loads(checked.out)["value"]
        assert value == pytest.approx(result.one("plan")["value"], rel=1e-9)


def test_same_input_same_bytes():
    stream = to_bytes(random_stream(4, 40, params=True))
    first = dnnp("partition", "-k", "3", stdin=stream)
    assert first.out == dnnp("partition", "-k", "3", stdin=stream).out


EXPECTED = {
    # Optima of the 2020 paper's Table 1.
    "layer_bert24_inference": 17.79,
    "op_bert_l-3_training": 65.30,
    "op_resnet50_inference": 124.35,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_workloads_of_2020(shared_workloads, name):
    imported = dnnp("import", shared_workloads / "throughput" / f"{name}.json")
    plan = dnnp("partition", stdin=imported.out)
    assert dnnp("check", stdin=plan.out).status == 0
    assert plan.one("plan")["value"] == pytest.approx(EXPECTED[name], abs=0.005)
    assert plan.one("plan")["status"] == "optimal"


@pytest.mark.parametrize(("name", "value"), [("bert24", 20.08), ("gnmt", 46.21)])
def test_expert_splits_of_2020(shared_workloads, name, value):
    imported = dnnp("import", shared_workloads / "throughput" / f"layer_{name}_inference.json")
    expert = shared_workloads / "expert" / f"{name}_inference_expert.json"
    plan = dnnp("partition", "--eval", expert, stdin=imported.out)
    assert plan.status == 0, plan.err
    assert plan.one("plan")["value"] == pytest.approx(value, abs=0.005)
    assert dnnp("check", stdin=plan.out).status == 0
