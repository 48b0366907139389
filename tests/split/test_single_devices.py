"""Limits of single devices: capacities and speeds that others of their class do not have."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dnnp.core.model.plan import Stage
from dnnp.core.runtime.model.providers import SessionConfig, Target, homes_of
from dnnp.options.split import SplitOptions
from support.graphs import to_bytes
from support.ruled import decoder
from support.run import Result, dnnp


def planned(*words: str, status: int = 0, k: int = 2) -> Result:
    result = dnnp("partition", "-k", str(k), "--bandwidth", "1K", *words, stdin=to_bytes(decoder()))
    assert result.status == status, result.err
    if not status:
        checked = dnnp("check", stdin=result.out)
        assert checked.status == 0, checked.err
    return result


def loads(result: Result) -> dict[str, dict[str, float]]:
    return {stage["device"]: stage for stage in result.records("stage")}


@pytest.mark.parametrize("method", ["auto", "exact", "slice", "ip", "anneal"])
def test_two_devices_of_a_type_with_different_room(method: str) -> None:
    result = planned("--memory", "1K", "--memory", "gpu/0=220", "--method", method)
    stages = loads(result)
    assert stages["gpu/0"]["memory_bytes"] <= 220 < stages["gpu/1"]["memory_bytes"]
    rooms = {d["class"]: d["memory_bytes"] for d in result.one("plan")["devices"]}
    assert rooms == {"gpu[0]": 220.0, "gpu": 1000.0}


@pytest.mark.parametrize("method", ["auto", "exact", "slice", "ip", "anneal"])
def test_one_of_two_devices_is_half_busy(method: str) -> None:
    stages = loads(planned("--speed", "gpu/1=0.5", "--method", method))
    work = {name: sum(10.0 for v in stage["nodes"]) for name, stage in stages.items()}
    assert work["gpu/1"] < work["gpu/0"]
    alone = loads(planned("--speed", "gpu/0=0.5", k=1))["gpu/0"]
    assert alone["compute_s"] == pytest.approx(2 * loads(planned(k=1))["gpu/0"]["compute_s"])


@pytest.mark.parametrize("words", [(), ("--link", "gpu,gpu=1K"), ("--max-replicas", "2")])
def test_a_class_stands_for_its_devices(words: tuple[str, ...]) -> None:
    limits = ("500", "9K,gpu=500", "9K,gpu=1K,gpu/0=500,gpu/1=500")
    plans = [planned("--memory", limit, *words).one("plan") for limit in limits]
    assert plans == plans[:1] * 3
    halves = [planned("--speed", f"{x},gpu/1=0.25").one("plan") for x in ("gpu=0.5", "gpu/0=0.5")]
    assert halves[0] == halves[1]


def test_latency_knows_them() -> None:
    values = [
        planned("--objective", "latency", *words).one("plan")["value"]
        for words in ((), ("--speed", "gpu/1=4"))
    ]
    assert values[1] == pytest.approx(values[0] / 4, rel=0.2)


def test_idle_devices_are_named_with_the_reason() -> None:
    result = planned("--speed", "gpu/1=0.001", k=2)
    assert "1 device is idle (gpu/1): there is no faster plan that uses more" in result.err
    assert "1 device is idle (gpu/2): --exactly 2" in planned("--exactly", "2", k=3).err


def test_what_builds_on_a_plan_knows_them() -> None:
    plan = planned("--speed", "gpu/1=0.5", "--memory", "gpu/0=1K", k=3)
    bounded = dnnp("bound", stdin=plan.out)
    scheduled = dnnp("schedule", "-n", "4", stdin=bounded.out)
    checked = dnnp("check", "--certificate", stdin=scheduled.out)
    assert checked.status == 0, checked.err
    assert "bound verified" in checked.err
    unit = {u["name"]: u for u in scheduled.one("schedule")["units"]}
    assert unit["gpu/0"]["memory_bytes"] == 1000.0
    table = dnnp("view", "--as", "csv", "--table", "nodes", stdin=plan.out)
    assert table.status == 0, table.err


def test_gpus_have_the_numbers_of_their_devices() -> None:
    """As only then it matters which GPU is which; a class in `--place` is that of all devices."""
    config = SessionConfig("cuda")
    parts = [Stage(f"gpu/{i}", name, (), *[0.0] * 6) for i, name in ((2, "gpu[2]"), (0, "gpu"))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dnnp.core.runtime.model.providers.count_gpus", lambda: 3)
        assert [spot.device_id for (spot,) in homes_of(parts, config)[0]] == [2, 0]
        alike = [replace(part, device_class="gpu") for part in parts]
        assert [spot.device_id for (spot,) in homes_of(alike, config)[0]] == [0, 1]
        on_cpu = replace(config, targets={"gpu": Target("cpu")})
        assert [spot.provider for (spot,) in homes_of(parts, on_cpu)[0]] == ["cpu", "cpu"]


def test_a_given_split_may_name_them(tmp_path) -> None:
    nodes = [[*range(6)], [*range(6, 12)]]
    split = {"stages": [{"device": f"gpu/{1 - i}", "nodes": n} for i, n in enumerate(nodes)]}
    (tmp_path / "split.json").write_text(json.dumps(split))
    result = planned("--speed", "gpu/1=0.5", "--eval", str(tmp_path / "split.json"))
    assert [stage["device"] for stage in result.records("stage")] == ["gpu/1", "gpu/0"]


def test_a_list_in_python_is_the_option_again() -> None:
    options = SplitOptions(memory=["16G", "gpu/1=3M"], speed=("gpu/0=0.5", "gpu/1=0.25"))
    assert (options.memory, options.speed) == ("16G,gpu/1=3M", "gpu/0=0.5,gpu/1=0.25")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--memory", "gpu/2=1K"), "--memory: there is no device 'gpu/2'"),
        (("--speed", "gpu/2=0.5"), "--speed: there is no device 'gpu/2'"),
        (("--memory", "gpu/0=x"), "'x' is not a size"),
        (("--memory", "gpu/0=1K,gpu/0=2K"), "states one twice"),
        (("--memory", "1K", "--memory", "gpu/0=1K", "--memory", "2K"), "states one twice"),
        (("--speed", "0.5"), "write DEVICE=X"),
        (("--memory", "gpu/0=fast"), "class 'gpu' states no fast_memory_bytes"),
        (("--pin", "lm_head=tpx"), "known: gpu, gpu/0, gpu/1\n"),
        (("--speed", "gpu/0=0"), "is not above 0"),
        (("--speed", "gpu/0=0.5", "--max-replicas", "2"), "with replicas"),
        (("--speed", "gpu/0=0.5", "--data-parallel", "2"), "with parallel plans"),
        (("--speed", "gpu/0=0.5", "--link", "gpu,gpu=1"), "over links"),
        (
            ("--speed", "gpu/0=0.5", "--cluster-size", "2", "--inner-bandwidth", "2K"),
            "in clusters",
        ),
    ],
)
def test_refusals(words: tuple[str, ...], reason: str) -> None:
    assert reason in planned(*words, status=2).err


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"names": ["gpu/0"]}, "a device is in two classes"),
        ({"names": ["gpu/1", "gpu/2"]}, "has 2 names"),
        ({"names": ["tpu/1"]}, "does not name 1 devices of 'gpu'"),
        ({"speed": 1.0}, "compute_s"),
    ],
)
def test_forged_classes_are_found(change: dict[str, object], reason: str) -> None:
    lines = [json.loads(line) for line in planned("--speed", "gpu/1=0.5").out.splitlines()]
    for record in lines:
        if record["type"] == "plan":
            record["devices"][1].update(change)
    forged = b"".join(json.dumps(record).encode() + b"\n" for record in lines)
    checked = dnnp("check", stdin=forged)
    assert checked.status in (3, 6), checked.err
    assert reason in checked.err
