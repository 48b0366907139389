"""dnnp-profile --mode scaled: measured times carried to another device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dnnp.core.profile.work import scaled_times, scaling_error
from support import graphs
from support.graphs import tensor
from support.run import dnnp
from support.seeds import encode, group, header

SIZE = 16_000_000


def stream(times: dict[str, list[float]], grouped: bool = False) -> bytes:
    """A product and an activation, priced on some classes."""
    half = {"dtype": "float16"}

    def node(i: int, op: str, reads: list[int], writes: int, flop: float, moved: float) -> dict:
        spent = {name: values[i] for name, values in times.items()}
        return graphs.node(i, op, reads, [writes], flop=flop, bytes=moved, time_s=spent)

    head = {**header(), "units": {"time": "s"}}
    rows = [
        head,
        tensor(0, "input", SIZE, **half),
        tensor(1, "parameter", SIZE, **half),
        tensor(2, "activation", SIZE, **half),
        tensor(3, "activation", SIZE, output=True, **half),
        node(0, "MatMul", [0, 1], 2, 125e9, 3 * SIZE),
        node(1, "Relu", [2], 3, 8e6, 2 * SIZE),
    ]
    return encode([*rows, group(0, [0, 1])] if grouped else rows)


def test_ratio_of_rooflines() -> None:
    measured = np.array([2.0, 3.0, 1.0, np.inf])
    source = np.array([1.0, 4.0, 0.0, 1.0])
    target = np.array([0.5, 1.0, 0.0, 1.5])
    # The third has no roofline: the totals' ratio, 3 / 6.
    assert scaled_times(measured, source, target).tolist() == [1.0, 0.75, 0.5, np.inf]


def test_nothing_to_compare_with() -> None:
    assert scaled_times(np.array([2.0]), np.zeros(1), np.zeros(1)).tolist() == [2.0]
    error = scaling_error(np.array([np.inf]), np.array([1.0]))
    assert (error.count, error.weighted, error.median) == (0, 0.0, 0.0)


def test_error_against_measurement() -> None:
    error = scaling_error(np.array([1.0, 4.0, 1.0, 7.0]), np.array([2.0, 2.0, 0.0, np.inf]))
    assert (error.count, error.predicted_s, error.measured_s) == (3, 6.0, 4.0)
    assert error.median == 0.75
    assert error.weighted == 1.0


@pytest.mark.parametrize("grouped", [False, True])
def test_command(grouped: bool) -> None:
    data = stream({"v100": [4e-3, 1e-3]}, grouped)
    analytic = dnnp("profile", "--device", "v100", "--device", "a100", stdin=data)
    result = dnnp("profile", "--mode", "scaled", "--device", "a100", stdin=data)
    assert result.status == 0, result.err
    kind = "group" if grouped else "node"
    for before, after in zip(analytic.records(kind), result.records(kind), strict=True):
        ratio = before["time_s"]["a100"] / before["time_s"]["v100"]
        own = after["time_s"]["v100"]
        assert after["time_s"]["a100"] == pytest.approx(own * ratio)
    assert result.records("node")[0]["time_s"]["v100"] == 4e-3
    assert [r["class"] for r in result.records("device")] == ["v100", "a100"]
    if grouped:
        assert result.one("group")["cost"] == "scaled"


def test_held_out_measurement(tmp_path: Path) -> None:
    data = stream({"v100": [4e-3, 1e-3]})
    scaled = dnnp("profile", "--mode", "scaled", "--device", "a100", stdin=data)
    (tmp_path / "held-out").write_bytes(scaled.out)
    result = dnnp(
        "profile",
        "--mode",
        "scaled",
        "--device",
        "a100",
        "--against",
        tmp_path / "held-out",
        stdin=data,
    )
    assert "2 nodes" in result.err
    assert "error 0.0 % by time, 0.0 % median" in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mode", "scaled"], "needs --device"),
        (["--from", "v100"], "--from is for --mode scaled"),
        (["--against", "x"], "--against is for --mode scaled"),
        (["--mode", "scaled", "--device", "v100"], "this class is what times are carried from"),
        (["--mode", "scaled", "--device", "t4", "--from", "a100"], "does not price it"),
    ],
)
def test_bad_options(arguments: list[str], message: str) -> None:
    result = dnnp("profile", *arguments, stdin=stream({"v100": [4e-3, 1e-3]}))
    assert result.status == 2
    assert message in result.err


def test_source_must_be_clear(tmp_path: Path) -> None:
    two = stream({"v100": [1.0, 1.0], "t4": [1.0, 1.0]})
    result = dnnp("profile", "--mode", "scaled", "--device", "a100", stdin=two)
    assert (result.status, "priced: t4, v100" in result.err) == (2, True)
    unknown = dnnp(
        "profile", "--mode", "scaled", "--device", "a100", stdin=stream({"mine": [1.0, 1.0]})
    )
    assert (unknown.status, "--from FILE" in unknown.err) == (2, True)
    other = tmp_path / "other"
    other.write_bytes(stream({"a100": [1.0, 1.0]}, grouped=True))
    one = stream({"v100": [1.0, 1.0]})
    scaled = ("profile", "--mode", "scaled", "--device", "t4", "--against", other)
    assert dnnp(*scaled, stdin=one).status == 2
    grouped = dnnp(*scaled, stdin=stream({"v100": [1.0, 1.0]}, grouped=True))
    assert (grouped.status, "prices none of" in grouped.err) == (2, True)
