"""dnnp-profile from the outside, and pricing by commands that need costs."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from onnx import TensorProto, helper
from onnxruntime import get_available_providers

from dnnp import measuring
from dnnp.cmds.shell.context import Context
from dnnp.core.model import processes
from dnnp.core.runtime import measure_in_situ
from dnnp.core.runtime import measure_operators as measure
from dnnp.core.runtime.model import providers
from dnnp.core.runtime.model.providers import Place, SessionConfig
from dnnp.core.runtime.report.statistics import summarize
from dnnp.formats.stream import read_bytes
from dnnp.workload import priced
from support.graphs import node as unpriced
from support.graphs import tensor
from support.run import Result, dnnp
from support.seeds import encode, group, header, planned
from support.split_models import array, make, node, value

V100 = {
    "type": "device", "class": "v100", "kind": "accelerator", "memory_bytes": 34359738368.0,
    "bandwidth_bytes_per_s": 150e9, "fast_memory_bytes": 6291456.0,
    "name": "NVIDIA Tesla V100 SXM2 32 GB",
}  # fmt: skip


def records() -> list[dict]:
    """A product and two activations of 16 MB tensors, float16, then an unknown operator."""
    size = 16_000_000
    half = {"dtype": "float16"}
    return [
        header(),
        tensor(0, "input", size, **half),
        tensor(1, "parameter", size, **half),
        tensor(2, "activation", size, **half),
        tensor(3, "activation", size, **half),
        tensor(4, "activation", size, **half),
        tensor(5, "activation", size, output=True, **half),
        unpriced(0, "MatMul", [0, 1], [2], flop=125e9, bytes=3 * size),
        unpriced(1, "Relu", [2], [3], flop=8e6, bytes=2 * size),
        unpriced(2, "Exp", [3], [4], flop=80e6, bytes=2 * size),
        unpriced(3, "Mystery", [4], [5], domain="org.example"),
    ]


def test_golden_roofline() -> None:
    """125 GFLOP on 125 TFLOP/s: 1 ms. 32 MB on 900 GB/s: 35.6 us. 5 us a launch."""
    groups = [group(0, [0]), group(1, [1, 2]), group(2, [3])]
    result = dnnp("profile", "--device", "v100", stdin=encode([*records(), *groups]))
    assert result.status == 0
    traffic = 5e-6 + 32e6 / 900e9
    times = [r["time_s"]["v100"] for r in result.records("node")]
    assert times == pytest.approx([1e-3 + 5e-6, traffic, traffic, traffic])
    found = result.records("group")
    assert [r["time_s"]["v100"] for r in found] == pytest.approx([1e-3 + 5e-6, traffic, traffic])
    assert [(r["cost"], r["flop"], r["bytes"]) for r in found] == [
        ("analytic", 125e9, 48e6),
        ("analytic", 88e6, 32e6),
        ("analytic", 0.0, 32e6),
    ]
    assert result.one("device") == V100
    assert result.one("header")["provenance"][-1]["tool"] == "dnnp-profile"
    assert result.err == (
        "dnnp-profile: 1 of 4 nodes, 3.6% of the time on v100, are priced by the bytes they move "
        "only, as the work of their operators or a shape is unknown: org.example:Mystery (1)\n"
        "dnnp-profile: v100: priced by stated rates, not by rates fitted to operators that ran "
        "there (python -m dnnp.samples.fit_device)\n"
        "dnnp-profile: 4 nodes in 3 groups, one after the other: 1.086 ms on v100\n"
        "dnnp-profile: heaviest on v100: MatMul 89.2% (1), Relu 3.6% (1), Exp 3.6% (1), "
        "org.example:Mystery 3.6% (1)\n"
    )


def test_several_classes_and_a_device_file(tmp_path: Path) -> None:
    slow = {
        "name": "slow",
        "kind": "cpu",
        "peak_flop_per_s": {"float32": 1e9},
        "memory_bytes": 1,
        "memory_bandwidth_bytes_per_s": 1e6,
        "link_bandwidth_bytes_per_s": 1,
        "launch_overhead_s": 0,
    }
    path = tmp_path / "slow.json"
    path.write_text(json.dumps(slow))
    result = dnnp("profile", "--device", "t4", "--device", path, "-q", stdin=encode(records()))
    assert [r["class"] for r in result.records("device")] == ["t4", "slow"]
    assert result.records("node")[1]["time_s"]["slow"] == 32.0
    assert set(result.records("node")[0]["time_s"]) == {"t4", "slow"}


def test_same_bytes_again() -> None:
    first, second = (dnnp("profile", stdin=encode(records())) for _ in range(2))
    assert first.out == second.out
    again = dnnp("profile", stdin=first.out)
    assert again.records("node") == first.records("node")


def test_later_kinds_are_dropped_and_counts_are_kept() -> None:
    stream = planned(groups=True)
    result = dnnp("profile", "--device", "v100", stdin=encode(stream))
    assert result.status == 0
    assert not result.records("plan")
    assert not result.records("stage")
    assert len(result.records("group")) == 5
    assert "dropped what the old costs led to: plan, stage records" in result.err
    for record in stream:
        if record["type"] == "device" and record["class"] == "acc":
            record["class"] = "v100"
    result = dnnp("profile", "--device", "v100", stdin=encode(stream))
    assert result.one("device") == {**V100, "count": 3}


def test_costs_in_an_unknown_unit_are_not_mixed() -> None:
    stream = planned()
    stream[0]["units"] = {"time": "unknown"}
    result = dnnp("profile", stdin=encode(stream))
    assert result.status == 2
    assert "unknown unit of time" in result.err
    bare = records()
    bare[0]["units"] = {"time": "unknown"}
    result = dnnp("profile", stdin=encode(bare))
    assert result.status == 0
    assert result.one("header")["units"] == {"time": "s"}


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--device", "v1000"], 2, "unknown device 'v1000'; did you mean 'v100'?"),
        (["--device", "none.json"], 1, "none.json: No such file"),
        (["--device", "t4", "--device", "t4"], 2, "a class is there twice"),
        (["--mode", "measure", "--device", "t4", "--device", "p4"], 2, "one --device"),
        (["--mode", "measure", "--device", "t4"], 2, "this machine's CPU"),
        (["--provider", "cuda"], 2, "--provider needs --mode measure"),
        (
            ["--mode", "measure", "--provider-option", "a=1"],
            2,
            "--provider-option needs --provider",
        ),
        (["--mode", "measure", "--allow-fallback"], 2, "--allow-fallback needs --provider"),
        (["--mode", "measure", "--provider", "cuda"], 2, "cuda needs --device: the class that it"),
        (["--mode", "measure", "--provider", "cudda", "--device", "t4"], 2, "did you mean 'cuda'"),
        (["--mode", "measure"], 3, "names no source model; give one with --model"),
        (["--mode", "measure", "--model", "none.onnx"], 1, "none.onnx: No such file"),
        (["--mode", "guess"], 2, "invalid choice: 'guess'; known: analytic"),
        (["--repeats", "0"], 2, "0 is too small"),
        (["--cache", "x", "--no-cache"], 2, "give --cache or --no-cache, not both"),
    ],
)
def test_failures(
    arguments: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = dnnp("profile", *arguments, stdin=encode(records()))
    assert (result.status, result.out) == (status, b"")
    assert message in result.err + capsys.readouterr().err


def test_pricing_by_default_prices_once_like_the_default() -> None:
    expected = dnnp("profile", stdin=encode(records()))
    stream = read_bytes(encode(records()))
    console = io.StringIO()
    context = Context("dnnp-partition", [], None, io.BytesIO(), console)
    priced(stream, context)
    assert stream.get("node") == expected.records("node")
    assert stream.get("device") == expected.records("device")
    assert console.getvalue().count("no costs in the stream") == 1
    priced(stream, context)
    assert console.getvalue().count("no costs in the stream") == 1


N = 128


@pytest.fixture
def imported(tmp_path: Path) -> bytes:
    """A model of two products, a symbolic dimension and a duplicate name, imported."""
    body = helper.make_graph(
        [
            node("MatMul", ["x", "w"], ["a"], name="same"),
            node("Relu", ["a"], ["b"], name="same"),
            node("MatMul", ["b", "w"], ["y"]),
        ],
        "g",
        [value("x", ["rows", N])],
        [value("y", ["rows", N])],
        [array("w", [[0.01] * N] * N)],
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(make(body).SerializeToString())
    result = dnnp("import", path, "--dim", f"rows={N}")
    assert result.status == 0, result.err
    return result.out


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more rounds than are needed."""
    monkeypatch.setattr(measure_in_situ, "PATIENCE_S", 0.0)


def measured(tmp_path: Path, stdin: bytes, *arguments: str) -> Result:
    return dnnp(
        "profile",
        "--mode",
        "measure",
        "--repeats",
        "3",
        "--cache",
        tmp_path / "cache",
        *arguments,
        stdin=stdin,
    )


def test_measure_then_remember(
    tmp_path: Path, imported: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "DISTURBED", 1.0)
    monkeypatch.setattr(processes, "available_cores", lambda: (0, 1))
    first = measured(tmp_path, imported)
    assert first.status == 0, first.err
    times = [r["time_s"]["cpu-core"] for r in first.records("node")]
    assert min(times[0], times[2]) > times[1] >= 0
    assert first.one("device")["class"] == "cpu-core"
    assert first.one("header")["units"] == {"time": "s"}

    def refuse(*arguments: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(measuring, "_time_model", refuse)
    second = measured(tmp_path, imported)
    assert second.records("node") == first.records("node")
    assert "measured before" in second.err
    for options in (
        ("--threads", "2"),
        ("--optimization", "basic"),
        ("--beside", "0"),
        ("--repeats", "4"),
        ("--warmup", "1"),
    ):
        with pytest.raises(AssertionError, match="measured again"):
            measured(tmp_path, imported, *options)
    devices = [orjson.loads(line) for line in imported.splitlines()][:-1]
    devices[1:1] = [{"type": "device", "class": "cpu-core", "kind": "cpu", "count": 1}]
    with pytest.raises(AssertionError, match="measured again"):
        measured(tmp_path, encode(devices))
    with pytest.raises(AssertionError, match="measured again"):
        measured(tmp_path, with_groups(imported, [[0, 1], [2]]))


def test_a_provider_that_is_not_here(tmp_path: Path, imported: bytes) -> None:
    words = ("--provider", "rknpu", "--device", "t4")
    result = measured(tmp_path, imported, *words)
    assert (result.status, result.out) == (7, b"")
    assert "provider 'rknpu' is not in this build of onnxruntime (it has: cpu" in result.err


@pytest.mark.parametrize("name", ["cpu", "CPUExecutionProvider", "azure"])
def test_any_provider_is_timed(
    name: str, tmp_path: Path, imported: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one for Azure leaves all nodes to the CPU, which must be allowed. Parts run by it too."""
    asked = []

    def places(count: int, config: SessionConfig, what: str) -> tuple[list[Place], list[str]]:
        asked.append(config.provider)
        return providers.places(count, config, what)

    monkeypatch.setattr(measure_in_situ, "places", places)
    if name == "azure" and "AzureExecutionProvider" not in get_available_providers():
        pytest.skip("this build has no other provider")
    device = ("--device", "t4") if name == "azure" else ()
    stream = with_groups(imported, [[0, 1], [2]])
    words = ("--provider", name, *device)
    left = "provider 'azure' leaves 3 of 3 nodes to the CPU: "
    if name == "azure":
        refused = measured(tmp_path, stream, *words)
        assert (refused.status, refused.out) == (7, b"")
        assert f"{left}" in refused.err
        assert "--allow-fallback times them there" in refused.err
        words = (*words, "--allow-fallback", "--provider-option", "key=1")
    result = measured(tmp_path, stream, *words)
    assert result.status == 0, result.err
    times = [r["time_s"]["t4" if device else "cpu-core"] for r in result.records("node")]
    assert min(times[0], times[2]) > 0
    provider = "azure" if name == "azure" else "cpu"
    assert result.one("header")["measured"]["provider"] == provider
    assert set(asked) == {provider}
    assert (left in result.err) == (name == "azure")
    facts = result.one("header")["measured"]
    assert len(facts.get("fallback", ())) == (3 if name == "azure" else 0)
    assert facts.get("provider_options") == (["key=1"] if name == "azure" else None)


def test_a_provider_that_runs_nodes_as_one(
    tmp_path: Path, imported: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is timed in parts all the same, which share their time out evenly."""
    monkeypatch.setattr(measuring, "measure_nodes", lambda model, *_: [0.0] * len(model.graph.node))
    result = measured(tmp_path, imported, "--beside", "1")
    assert result.status == 0, result.err
    assert "'cpu' tells no times of single nodes" in result.err
    assert result.one("header")["measured"]["beside"] == 1
    times = [r["time_s"]["cpu-core"] for r in result.records("node")]
    assert min(times) > 0


def test_what_other_processes_disturb_is_said_and_not_remembered(
    tmp_path: Path, imported: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "_timed", lambda call, threads: (call(), 0.25))
    monkeypatch.setattr(
        measure_in_situ, "summarize", lambda *trace: replace(summarize(*trace), taken=(0.0, 0.0))
    )
    result = measured(tmp_path, imported, "-q")
    assert result.status == 0
    assert result.err == (
        "dnnp-profile: other processes took up to 25% of the processor during 1 of 2 measurements: "
        "times may be too long, and are not kept for later\n"
    )
    assert result.one("header")["measured"]["disturbed"] is True
    plan = dnnp("partition", "-k", "2", stdin=result.out)
    assert "measured beside other processes" in plan.err
    assert "measured before" not in measured(tmp_path, imported).err


@pytest.mark.parametrize("beside", ["0", "1"])
def test_how_it_was_measured_is_in_the_stream(
    tmp_path: Path, imported: bytes, monkeypatch: pytest.MonkeyPatch, beside: str
) -> None:
    monkeypatch.setattr(measuring, "DISTURBED", 1.0)
    options = ("--beside", beside, "--optimization", "basic")
    first = measured(tmp_path, with_groups(imported, [[0, 1], [2]]), *options)
    assert first.status == 0, first.err
    how = first.one("header")["measured"]
    assert (how["beside"], how["optimization"], how["threads"]) == (int(beside), "basic", 1)
    assert how["rounds"] >= 3
    assert how["cold_s"] > 0
    groups = first.records("group")
    total = sum(r["time_s"]["cpu-core"] for r in groups)
    assert total == pytest.approx(how["total_s"], abs=1e-8)
    assert sum(r["time_s"]["cpu-core"] for r in first.records("node")) == pytest.approx(
        how["total_s"], abs=1e-8
    )
    assert all(r["spread"] >= 0 for r in (*groups, *first.records("node")))
    # The plan knows how sure it is; other costs know nothing of that.
    plan = dnnp("partition", "-k", "1", stdin=first.out)
    found = sum(r["spread"] * r["time_s"]["cpu-core"] for r in groups) / total
    assert plan.one("plan")["spread"] == pytest.approx(found)
    assert f"+- {found:.1%}" in plan.err
    priced = dnnp("profile", stdin=first.out)
    assert "measured" not in priced.one("header")
    assert not any("spread" in r for r in (*priced.records("group"), *priced.records("node")))
    assert "spread" not in dnnp("partition", "-k", "1", stdin=priced.out).one("plan")
    # Groups that are made later cost the sum of their nodes, and are known as well as these.
    again = dnnp("coarsen", "--chains", stdin=first.out)
    plan = dnnp("partition", "-k", "1", stdin=again.out)
    assert plan.one("plan")["spread"] == pytest.approx(found, rel=1.0)


def test_few_rounds_tell_no_spread(tmp_path: Path, imported: bytes) -> None:
    result = measured(tmp_path, imported, "--repeats", "1", "--beside", "0")
    assert result.status == 0, result.err
    how = result.one("header")["measured"]
    assert ("spread" in how) == (how["rounds"] >= 3)


def with_groups(stream: bytes, members: list[list[int]]) -> bytes:
    lines = [orjson.loads(line) for line in stream.splitlines()]
    return encode([*lines[:-1], *(group(i, nodes) for i, nodes in enumerate(members))])


def test_measured_groups(tmp_path: Path, imported: bytes) -> None:
    result = measured(tmp_path, with_groups(imported, [[0, 1], [2]]))
    assert result.status == 0, result.err
    assert [r["cost"] for r in result.records("group")] == ["measured", "measured"]
    assert all(r["time_s"]["cpu-core"] > 0 for r in result.records("group"))


def test_groups_that_cannot_be_timed_cost_their_sum(tmp_path: Path, imported: bytes) -> None:
    result = measured(tmp_path, with_groups(imported, [[0, 2], [1]]))
    assert result.status == 0, result.err
    times = [r["time_s"]["cpu-core"] for r in result.records("node")]
    both = result.records("group")[0]
    assert (both["cost"], both["time_s"]["cpu-core"]) == ("summed", times[0] + times[2])
    assert "cannot be timed" in result.err


def test_cache_that_cannot_be_written_is_no_error(tmp_path: Path, imported: bytes) -> None:
    (tmp_path / "cache").write_text("a file")
    assert measured(tmp_path, imported).status == 0


def test_model_that_changed(tmp_path: Path, imported: bytes) -> None:
    with (tmp_path / "model.onnx").open("ab") as file:
        file.write(b"\x22\x00")
    result = measured(tmp_path, imported)
    assert result.status == 3
    assert "not the model that was imported" in result.err


def test_stream_that_does_not_fit_the_model(tmp_path: Path, imported: bytes) -> None:
    lines = [orjson.loads(line) for line in imported.splitlines()][:-1]
    for record in lines:
        if record["type"] == "node" and record["id"] == 1:
            record["id"] = 77
    result = measured(tmp_path, encode(lines))
    assert result.status == 3
    assert "field 'id'" in result.err


def test_absent_weights(tmp_path: Path) -> None:
    weight = TensorProto(name="w", data_type=1, dims=[4, 4], data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="gone.bin")
    body = helper.make_graph(
        [node("MatMul", ["x", "w"], ["y"])],
        "g",
        [value("x", [4, 4])],
        [value("y", [4, 4])],
        [weight],
    )
    (tmp_path / "model.onnx").write_bytes(make(body).SerializeToString())
    stream = dnnp("import", tmp_path / "model.onnx")
    result = measured(tmp_path, stream.out)
    assert result.status == 1
    assert "gone.bin: no such file" in result.err


def test_it_says_which_devices_were_fitted() -> None:
    result = dnnp("profile", "--device", "cpu-core", "--device", "t4", stdin=encode(records()))
    assert result.status == 0
    assert {r["class"]: r.get("fitted") for r in result.records("device")} == {
        "cpu-core": True,
        "t4": None,
    }
    assert result.err.count("priced by stated rates") == 1
    assert "dnnp-profile: t4: priced by stated rates" in result.err
    assert "stated rates" not in dnnp("profile", stdin=encode(records())).err
