"""Time limits, Ctrl-C and messages of dnnp-partition while it searches."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from dnnp.formats.stream import Stream
from support.graphs import header, node, random_stream, to_bytes
from support.run import dnnp, interrupted
from support.wide import branches

LONG = branches(6, 9)
"""A million ideals: the exact search takes minutes."""


CASES = {
    "auto": ((), "slicing:"),
    "anneal": (("--method", "anneal", "--effort", "1000"), "slicing:"),
    "ip": (("--method", "ip", "--effort", "1e-6"), "ideals"),
    "exact": (("--method", "exact"), "searching"),
}
"""Arguments of searches that do not end, and what they say before Ctrl-C comes."""


@pytest.mark.parametrize("name", CASES)
def test_interrupt(name: str, tmp_path: Path) -> None:
    arguments, after = CASES[name]
    path = tmp_path / "long.dnnp"
    path.write_bytes(LONG)
    devices = ("-k", "5", "--bandwidth", "1")
    result = interrupted("partition", "-v", *devices, *arguments, path, after=after)
    assert result.one("plan")["status"] == "interrupted"


def test_time_limit() -> None:
    result = dnnp("partition", "-k", "5", "--bandwidth", "1", "--time-limit", "1", stdin=LONG)
    assert result.status == 0, result.err
    plan = result.one("plan")
    assert plan["status"] == "feasible"
    assert 0 < plan["bound"] < plan["value"]
    assert dnnp("check", stdin=result.out).status == 0


@pytest.mark.parametrize(
    "method", ["auto", "exact", "slice", "dpl", "ip", "anneal", "local-search", "pipedream"]
)
def test_no_time_at_all(method: str) -> None:
    """The first split there is, or as good as."""
    data = to_bytes(random_stream(3, 60))
    result = dnnp(
        "partition",
        "-k",
        "4",
        "--bandwidth",
        "1",
        "--method",
        method,
        "--time-limit",
        "0",
        stdin=data,
    )
    assert result.status == 0, result.err
    assert result.one("plan")["status"] == "feasible"
    assert dnnp("check", stdin=result.out).status == 0


def test_a_limit_before_any_split() -> None:
    """Without a split in hand, the end of the time is not the end of the possibilities."""
    nodes = [
        node(v, "Op", [], [], time_s={"dev": 1}, memory_bytes=size)
        for v, size in enumerate([3, 3, 2, 2])
    ]
    data = to_bytes(Stream(header=header(), records={"node": nodes}))
    # Two of the nodes fit together, but not two neighbours in the order.
    arguments = ("-k", "2", "--memory", "5")
    assert dnnp("partition", *arguments, stdin=data).one("plan")["status"] == "optimal"
    assert dnnp("partition", *arguments, "--method", "slice", stdin=data).status == 4
    result = dnnp("partition", *arguments, "--time-limit", "0", stdin=data)
    assert (result.status, result.out) == (5, b"")
    assert "no split that fits was found before the search was stopped" in result.err


def test_verbose() -> None:
    data = to_bytes(random_stream(3, 60))
    result = dnnp("partition", "-v", "-k", "4", "--bandwidth", "1", stdin=data)
    lines = [line.removeprefix("dnnp-partition: ") for line in result.err.splitlines()]
    assert lines[0].startswith("read the stream after ")
    assert any(line.startswith("slicing: ") for line in lines)
    assert any(" ideals, " in line and " blocks: " in line for line in lines)
    assert ", auto: largest load " in lines[-3]
    assert "replicas of the whole model fit" in lines[-2]
    assert lines[-1].startswith("wrote the stream after ")
    assert dnnp("partition", "-q", "-k", "4", stdin=data).err == ""


def test_timings_are_in_the_header_only_when_asked_for() -> None:
    data = to_bytes(random_stream(3, 10))
    for arguments, there in (((), False), (("--timings",), True)):
        out = dnnp("partition", "-k", "2", *arguments, stdin=data).out
        entry = orjson.loads(out.splitlines()[0])["provenance"][-1]
        assert ("elapsed_s" in entry) is there
