"""Progress of long commands: on a terminal, and without one."""

from __future__ import annotations

import io
import re
from _thread import allocate_lock
from itertools import pairwise
from pathlib import Path

import pytest

import dnnp
from dnnp.callbacks import Bar, Callbacks
from dnnp.cmds.shell import CLEAR, guardian
from dnnp.cmds.shell.context import LINE_S, PATIENCE_S, REDRAWN_S, ProgressBar
from dnnp.core.model.search_context import Progress
from support.run import INTERRUPTED
from support.run import dnnp as command
from support.split_models import branches
from support.watching import Hands, Terminal, frames, numbers, shares, watched


@pytest.fixture(autouse=True)
def able_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")


def bar_on(console: io.StringIO, clock: Hands, limit_s: float | None = None) -> ProgressBar:
    lock = allocate_lock()
    return ProgressBar("dnnp-x", "searching", console, lock, limit_s=limit_s, clock=clock)


def test_nothing_is_drawn_at_first() -> None:
    console, clock = Terminal(), Hands()
    with bar_on(console, clock) as bar:
        clock.now = PATIENCE_S / 2
        bar.update(Progress("slicing", share=0.3))
    assert console.getvalue() == ""


@pytest.mark.parametrize(
    ("in_seconds", "found"), [(False, "period 2, bound 1.5"), (True, "period 2 s, bound 1.5 s")]
)
def test_what_stands_in_the_line(in_seconds: bool, found: str) -> None:
    console, clock = Terminal(), Hands()
    with bar_on(console, clock) as bar:
        clock.now = 12.4
        bar.update(Progress("annealing", 2.0, 1.5, 0.255, "period", in_seconds))
    line = f"dnnp-x: annealing 25 %, 12 s, {found}, gap 25 %"
    assert console.getvalue() == f"{CLEAR}{line}{CLEAR}"  # no room for a bar in 80 columns


def test_a_bar_where_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dnnp.cmds.shell.context._columns", lambda console: 120)
    console, clock = Terminal(), Hands()
    with bar_on(console, clock) as bar:
        clock.now = 5.0
        bar.update(Progress(doing="slicing", share=0.5))
    assert "dnnp-x: [##########          ] slicing 50 %, 5 s" in console.getvalue()


def test_without_a_share_there_is_no_percentage() -> None:
    console, clock = Terminal(), Hands()
    with bar_on(console, clock) as bar:
        clock.now = 5.0
        bar.update(Progress("integer program", value=3.0))
    assert f"{CLEAR}dnnp-x: integer program, 5 s, value 3{CLEAR}" in console.getvalue()


def test_a_limit_is_what_the_share_is_of() -> None:
    console, clock = Terminal(), Hands()
    with bar_on(console, clock, limit_s=20.0) as bar:
        clock.now = 5.0
        bar.update(Progress("annealing", share=0.9))
    assert "annealing 25 %, 5 of at most 20 s" in console.getvalue()


def test_it_is_drawn_ten_times_a_second_at_most() -> None:
    console, clock = Terminal(), Hands()
    with bar_on(console, clock) as bar:
        for number in range(1000):
            clock.now = PATIENCE_S + number * REDRAWN_S / 100
            bar.update(Progress("annealing", share=number / 1000))
    assert 9 <= len(frames(console.getvalue(), "dnnp-x")) <= 11


def test_a_line_is_as_long_as_the_terminal_at_most() -> None:
    console, clock = Terminal(), Hands()
    with bar_on(console, clock) as bar:
        clock.now = 5.0
        bar.update(Progress("x" * 200, share=0.5))
    assert len(console.getvalue().split(CLEAR)[1]) == 79


def test_control_characters_are_escaped() -> None:
    console, clock = Terminal(), Hands()
    with bar_on(console, clock) as bar:
        clock.now = 5.0
        bar.update(Progress("a\x1b[31m"))
    assert r"a\x1b[31m, 5 s" in console.getvalue()


def test_lines_where_there_is_no_terminal() -> None:
    console, clock = io.StringIO(), Hands()
    with bar_on(console, clock) as bar:
        for number in range(1, 101):
            clock.now = float(number)
            bar.update(Progress("annealing", value=2.0, share=number / 100))
    assert console.getvalue().splitlines() == [
        f"dnnp-x: annealing {s:.0f} %, {s:.0f} s, value 2" for s in (LINE_S, 2 * LINE_S, 3 * LINE_S)
    ]


def test_lines_come_soon_and_then_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dnnp.cmds.shell.context.FIRST_S", 2.0)
    console, clock = io.StringIO(), Hands()
    with bar_on(console, clock) as bar:
        for number in range(1, 101):
            clock.now = float(number)
            bar.update(Progress("annealing"))
    said = [line.split(", ")[1] for line in console.getvalue().splitlines()]
    assert said == ["2 s", "4 s", "8 s", "16 s", "32 s", "62 s", "92 s"]


def test_what_was_silent_before_counts() -> None:
    console, clock = io.StringIO(), Hands()
    clock.now = 40.0
    bar = ProgressBar("dnnp-x", "writing", console, allocate_lock(), since=5.0, clock=clock)
    bar.update(Progress("writing"))
    bar.close()
    assert console.getvalue() == "dnnp-x: writing, 0 s\n"


def test_nothing_is_drawn_once_it_is_over() -> None:
    """By a search that was left alone."""
    console, clock = Terminal(), Hands()
    bar = bar_on(console, clock)
    clock.now = 5.0
    bar.update(Progress("annealing"))
    bar.close()
    clock.now = 9.0
    bar.update(Progress("annealing"))
    bar.close()
    assert console.getvalue().endswith(f"5 s{CLEAR}")


def test_whoever_ends_a_command_clears_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[int, bytes]] = []
    monkeypatch.setattr(guardian.os, "isatty", lambda number: True)
    with monkeypatch.context() as patched:
        patched.setattr(guardian.os, "write", lambda *what: written.append(what))
        guardian.clear()
        patched.setenv("TERM", "dumb")
        guardian.clear()
    assert written == [(2, CLEAR.encode())]


# Commands

CASES = {
    "latency": ("partition", "--objective", "latency", "-k", "3", "--effort", "0.05"),
    "heuristic": ("partition", "--method", "heuristic", "-k", "3", "--effort", "0.05"),
    "brkga": ("partition", "--method", "brkga", "-k", "3", "--generations", "5"),
    "free": ("partition", "--validity", "free", "-k", "3", "--effort", "0.05"),
    "exact": ("partition", "-k", "3"),
    "bound": ("bound",),
}


@pytest.fixture(scope="module")
def graph() -> bytes:
    options = ("--synthetic", "watts-strogatz", "--nodes", "30", "--seed", "2")
    return command("import", *options).out


def check_frames(shown: list[str]) -> None:
    """Something is shown, which gets no worse."""
    assert shown
    percent, known = shares(shown), numbers(shown)
    assert percent == sorted(percent)
    assert all(0 <= share <= 100 for share in percent)
    for what, values in known.items():
        if what not in ("gap", "bound"):
            assert values == sorted(values, reverse=True), what


@pytest.mark.parametrize("case", CASES)
def test_a_search_shows_where_it_stands(case: str, graph: bytes) -> None:
    name, *options = CASES[case]
    if name == "bound":
        graph = command("partition", "-k", "3", "--method", "slice", stdin=graph).out
    result = watched(name, *options, stdin=graph)
    assert result.status == 0, result.err
    tool = f"dnnp-{name}"
    shown = frames(result.err, tool)
    check_frames(shown)
    known = numbers(shown)
    (plan,) = result.records("plan")
    assert known["value"][-1] >= float(f"{plan['value']:.6g}")
    assert known["bound"] == sorted(known["bound"])
    if name == "bound":
        assert known["bound"][-1] <= result.one("bound")["value"] * (1 + 1e-5)
    assert result.out == command(name, *options, stdin=graph).out


@pytest.mark.parametrize("options", [(), ("--pareto",), ("--method", "tessel")])
def test_a_schedule_shows_where_it_stands(options: tuple[str, ...]) -> None:
    words = ("--shape", "NN", "-n", "8", "--effort", "0.01", *options)
    result = watched("schedule", *words)
    assert result.status == 0, result.err
    shown = frames(result.err, "dnnp-schedule")
    whole = [frame for frame in shown if "trade-off" not in frame]
    check_frames(whole)
    assert len(whole) == len(shown) or "--pareto" in options
    assert numbers(whole)["period"]


def test_quiet_is_quiet(graph: bytes) -> None:
    result = watched("partition", "-q", *CASES["latency"][1:], stdin=graph)
    assert result.status == 0
    assert result.err == ""


def test_without_a_terminal_there_are_lines(graph: bytes) -> None:
    result = watched("partition", *CASES["latency"][1:], stdin=graph, console=io.StringIO())
    assert CLEAR not in result.err
    shown = frames(result.err, "dnnp-partition")
    check_frames(shown)
    seconds = [int(frame.split(", ")[1].split()[0]) for frame in shown]
    assert seconds[0] >= LINE_S - 5  # reading counts, too
    assert all(b - a >= LINE_S for a, b in pairwise(seconds))


def test_a_short_command_shows_nothing(graph: bytes) -> None:
    result = watched("partition", *CASES["latency"][1:], stdin=graph, step_s=1e-9)
    assert CLEAR not in result.err
    assert not frames(result.err, "dnnp-partition")


def test_an_interrupt_leaves_the_line_clear(graph: bytes) -> None:
    result = watched("partition", *CASES["latency"][1:], stdin=graph, most=5)
    assert result.status == INTERRUPTED
    assert result.err.count(CLEAR) > 1
    before, _, after = result.err.rpartition(CLEAR)
    assert frames(before, "dnnp-partition")
    assert ": latency " in after
    assert after.endswith("interrupted\n")


def test_messages_stand_on_lines_of_their_own(graph: bytes) -> None:
    result = watched("partition", "-v", *CASES["exact"][1:], stdin=graph)
    for line in result.err.split("\n"):
        assert "dnnp-partition" not in line.rpartition(CLEAR)[2].removeprefix("dnnp-partition")


def test_a_check_shows_what_it_does(graph: bytes) -> None:
    proven = command("bound", "-k", "3", "--method", "chain", stdin=graph).out
    shown = frames(watched("check", "--certificate", stdin=proven).err, "dnnp-check")
    assert "verifying the bound" in [frame.split(",")[0] for frame in shown]


def test_a_sweep_names_its_number_of_devices(graph: bytes, tmp_path: Path) -> None:
    words = ("-k", "2..3", "--effort", "0.05", "-o", str(tmp_path / "{k}.st"))
    shown = frames(watched("partition", *words, stdin=graph).err, "dnnp-partition")
    named = [frame for frame in shown if re.match(r"k = [23]: ", frame)]
    assert {frame[:6] for frame in named} == {"k = 2:", "k = 3:"}


class Looking(Callbacks):
    """Keeps what bars are told."""

    def __init__(self) -> None:
        self.told: list[Progress] = []

    def progress(self, doing: str, limit_s: float | None = None) -> Bar:
        bar = Bar()
        bar.update = self.told.append  # type: ignore[method-assign]
        return bar


@pytest.mark.parametrize("step", ["import", "coarsen", "clusters"])
def test_a_share_is_known(step: str, graph: bytes, tmp_path: Path) -> None:
    caller = Looking()
    if step == "import":
        path = tmp_path / "m.onnx"
        path.write_bytes(branches().SerializeToString())
        dnnp.load(path, caller=caller)
    elif step == "coarsen":
        dnnp.coarsen(dnnp.Graph.from_bytes(graph), caller=caller)
    else:
        words = {"cluster_size": 2, "inner_bandwidth": 1000.0, "bandwidth": 10.0}
        dnnp.split(dnnp.Graph.from_bytes(graph), k=4, caller=caller, **words)
    known = [standing.share for standing in caller.told if standing.share is not None]
    assert known == sorted(known)
    assert len(known) > 1
    assert 0 < known[-1] <= 1
