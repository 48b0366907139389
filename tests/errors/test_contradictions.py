"""A plan that contradicts itself is refused by dnnp-check, and by all later steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from support import seeds
from support.run import dnnp

Record = dict[str, Any]

COMMANDS: dict[str, tuple[str, ...]] = {
    "bound": (),
    "export": ("--to", "msr-split"),
    "run": (),
    "schedule": ("-n", "2"),
    "check": (),
}
"""Commands that build on a plan, and the one that judges it."""


def stage(number: int, **fields: Any) -> Callable[[list[Record], Record], Any]:
    return lambda stages, plan: stages[number].update(fields)


def plan(**fields: Any) -> Callable[[list[Record], Record], Any]:
    return lambda stages, plan: plan.update(fields)


def device(**fields: Any) -> Callable[[list[Record], Record], Any]:
    return lambda stages, plan: plan["devices"][0].update(fields)


CONTRADICTIONS: dict[str, tuple[Callable[[list[Record], Record], Any], str]] = {
    "k above the devices": (plan(k=4), "k is 4, but its devices are 3"),
    "k below its use": (plan(k=2), "3 accelerators are in use, but k is 2"),
    "fewer devices": (device(count=1), "there is no device 'acc/1'"),
    "a device twice": (stage(1, device="acc/0"), "device acc/0 is already used by stage 0"),
    "a class twice": (device(**{"class": "cpu"}), "dev"),
    "load": (stage(2, load_s=18.0), "load_s is 18.0"),
    "out": (stage(0, out_s=11.0), "stage 0: "),
    "sync": (stage(0, sync_s=1.0), "stage 0: "),
    "value": (plan(value=18.0, gap=12 / 18), "the value is 18.0"),
    "bound": (plan(bound=20.0, gap=0.0), "the bound 20.0 exceeds the value 19.0"),
    "gap": (plan(gap=0.5), "the gap is 0.5, recomputed"),
    "status": (plan(status="optimal"), "claims to be optimal"),
    "comm": (plan(comm="overlap"), "stage 0: load_s is 15.0"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_plan_that_contradicts_itself(name):
    change, message = CONTRADICTIONS[name]
    records = seeds.planned()
    change(
        [r for r in records if r["type"] == "stage"],
        next(r for r in records if r["type"] == "plan"),
    )
    for command, arguments in COMMANDS.items():
        result = dnnp(command, *arguments, stdin=seeds.encode(records))
        assert (result.status, result.out) == (3, b""), command
        assert message in result.err, command
        if command != "check":
            assert result.err.startswith(f"dnnp-{command}: <stdin>:"), result.err
            assert result.err.count("\n") == 1


def test_device_records_that_were_edited_after_a_plan():
    made = dnnp("partition", stdin=seeds.encode(seeds.graph_records())).out
    for name, options in (("memory_bytes", ("--memory", "900")), ("count", ("-k", "2"))):
        data = made.replace(f'"{name}":'.encode(), f'"{name}":1'.encode(), 1)
        for command, arguments in COMMANDS.items():
            result = dnnp(command, *arguments, stdin=data)
            assert (result.status, result.out) == (3, b""), command
            assert f"was made for devices with {name} " in result.err
        # An option says what counts: no record has an effect, before or after.
        free = dnnp("partition", *options, stdin=made).out
        data = free.replace(f'"{name}":'.encode(), f'"{name}":1'.encode(), 1)
        assert dnnp("bound", stdin=data).status == 0
        assert dnnp("check", stdin=data).status == 0


@pytest.mark.parametrize("objective", ["throughput", "latency"])
def test_a_class_that_is_counted_as_cpus_has_no_limits(objective):
    """Any statement of a record of an accelerator."""
    records = seeds.graph_records()
    records[1].pop("count")
    limits = {"memory_bytes": 500, "bandwidth_bytes_per_s": 4.0}
    records[2] = {"type": "device", "class": "cpu", "kind": "accelerator", **limits}
    arguments = ("-k", "2", "--cpus", "1", "--objective", objective)
    made = dnnp("partition", *arguments, stdin=seeds.encode(records)).out
    for command in ("bound", "check", "export"):
        result = dnnp(command, *COMMANDS[command], stdin=made)
        assert result.status == 0, result.err
    # The records of the accelerators still count.
    edited = made.replace(b'"memory_bytes":1000', b'"memory_bytes":1001', 1)
    assert "was made for devices with memory_bytes " in dnnp("check", stdin=edited).err


def test_k_of_a_plan_that_a_command_made_counts_its_accelerators():
    """A plan made by hand may use fewer than there are."""
    made = dnnp("partition", "--method", "single", stdin=seeds.encode(seeds.graph_records())).out
    for k in (2, 4):
        result = dnnp("check", stdin=made.replace(b'"k":3', b'"k":%d' % k))
        assert result.status == 3
        assert f"plan: k is {k}, but " in result.err


def test_the_message_names_the_field():
    records = seeds.planned()
    next(r for r in records if r["type"] == "plan").update(value=18.0, gap=12 / 18)
    result = dnnp("export", "--to", "msr-split", stdin=seeds.encode(records))
    assert result.err == (
        "dnnp-export: <stdin>:19: field 'value': the plan contradicts itself: plan: the value is "
        "18.0, but by its stages 19.0; dnnp-check says more\n"
    )


def test_a_bound_that_no_argument_proves():
    data = dnnp("bound", stdin=seeds.encode(seeds.planned())).out
    records = [r for r in dnnp("bound", stdin=data).records() if r["type"] != "end"]
    bound = next(r for r in records if r["type"] == "bound")
    assert dnnp("check", stdin=seeds.encode(records)).status == 0
    proves = next(e for e in bound["tried"] if e["method"] == bound["method"])
    for change, message in (
        (lambda: proves.update(value=proves["value"] / 2), f"but {bound['method']} proves "),
        (lambda: proves.update(value=bound["value"] * 2), "which is more than"),
        (lambda: bound.update(method="luck"), "the method 'luck' is not among those tried"),
    ):
        kept = (dict(proves), bound["method"])
        change()
        result = dnnp("check", stdin=seeds.encode(records))
        assert result.status == 3
        assert message in result.err
        proves.update(kept[0])
        bound["method"] = kept[1]


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("block", {"pass": 10**6}),
        ("block", {"end_s": 1e9}),
        ("schedule", {"bound_s": 1e9}),
        ("bound", {"tried": [{"method": "simple", "status": "solved", "value": 1e9}]}),
        ("stage", {"in_s": 0.0, "compute_s": 15.0}),
    ],
)
def test_what_the_checker_refuses_is_not_shown(kind, fields):
    """Of bounds and schedules too, which no other command reads."""
    data = dnnp("bound", stdin=seeds.encode(seeds.planned())).out
    data = dnnp("schedule", "-n", "2", stdin=data).out
    rows = [orjson.loads(line) for line in data.splitlines()][:-1]
    assert dnnp("view", stdin=seeds.encode(rows)).status == 0
    next(r for r in rows if r["type"] == kind).update(fields)
    edited = seeds.encode(rows)
    checked, shown = dnnp("check", "-q", stdin=edited), dnnp("view", stdin=edited)
    assert checked.status == shown.status == 3
    assert len(shown.err.splitlines()) == 1
    assert "dnnp-check says more" in shown.err
