"""The tables of dnnp.samples.papers.moirai say what the commands answer."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from dnnp.samples import build
from dnnp.samples.build import CATALOG
from dnnp.samples.papers import moirai
from dnnp.samples.papers.moirai import METHODS, PAPER, RULES, SMALLEST, Answer, command, main
from support.run import executable

VALUES = {"placeto": 8.0, "m-sct": 3.0, "getf": 2.5, "ip": 2.0, "auto": 1.0}


class Fake:
    """Answers that follow from the arguments; remembers them."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def __call__(self, words: Sequence[str], data: bytes) -> Answer:
        self.asked.append(list(words))
        if words[0] == "dnnp-import":
            return Answer(0, b'{"type":"node"}\n' * 10, "")
        if words[0] == "dnnp-coarsen":
            return Answer(0, data + b'{"type":"group"}\n' * (9 - RULES.index(words[2])), "")
        if words[0] == "dnnp-profile":
            return Answer(0, data + words[2].encode() + b"\n", "")
        method = words[words.index("--method") + 1]
        coarse, inter = b"group" in data, b"rtx2080ti" in data
        if method == "placeto" and not inter:
            return Answer(4, b"", "no fit")
        if method == "getf" and coarse:
            return Answer(5, b"", "too late")
        value = VALUES[method] * (0.5 if coarse else 1.0) / 1000
        plan = {"type": "plan", "method": method, "value": value, "bound": value / 2}
        plan["status"] = "optimal" if method == "ip" and coarse else "feasible"
        if method == "m-sct" and coarse:
            plan["method"] = "m-sct-greedy"
        line = json.dumps(plan, separators=(",", ":"))
        return Answer(0, b'{"type":"header"}\n' + line.encode() + b"\n", "")


@pytest.fixture(autouse=True)
def no_models(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "real" not in request.node.name:
        monkeypatch.setattr(build, "write", lambda model, folder, seed: folder / model)


def rows(text: str) -> list[list[str]]:
    """Cells of the lines of models and testbeds."""
    names = (*PAPER, *moirai.TESTBEDS)
    lines = [line for line in text.splitlines() if line.split(" ")[0] in names]
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]


def test_tables(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    fake = Fake()
    words = ["--keep", str(tmp_path), "--csv", str(tmp_path / "csv"), "--models", "gpt3-330m"]
    assert main(fake, [*words, "--time-limit", "7"]) == 0
    shown = capsys.readouterr().out
    found = rows(shown)
    assert found[0] == [
        "gpt3-330m", "10 (4872)", "9 10%", "8 20%", "7 30%", "6 40%", "5 50%", "(3682) 24%",
    ]  # fmt: skip
    times, latencies, most = found[1:5], found[5:9], found[9:13]
    assert [row[:3] for row in times] == [
        ["gpt3-330m", testbed, of]
        for testbed in ("moirai-inter", "moirai-intra")
        for of in ("operators", "groups")
    ]
    assert [cell.split(" ")[-1] for cell in times[0][3:7]] == ["(12600)", "(16)", "(75)", "(83)"]
    assert times[0][6].split(" ")[0].endswith("*")
    assert times[1][4].split(" ")[0].endswith("!")
    assert times[1][5] == "limit (58)"
    assert not times[1][6].split(" ")[0].endswith("*")
    assert latencies[0][3:] == ["8 4.00x", "3 1.50x", "2.5 1.25x", "2 1.00x*", "1 0.50x", "4"]
    assert latencies[1][3:] == ["4 4.00x", "1.5 1.50x!", "limit", "1 1.00x", "0.5 0.50x", "2"]
    assert latencies[2][3] == "no fit"
    assert most[0] == [
        "moirai-inter",
        "operators",
        "4.00x (2.98x)",
        "1.50x (1.77x)",
        "1.25x (1.33x)",
    ]
    assert most[3][2:] == ["- (4.28x)", "1.50x (1.74x)", "- (1.34x)"]
    limits = {words[words.index("--time-limit") + 1] for words in fake.asked if "--method" in words}
    assert limits == {"7", "35"}  # the latter for linear programs
    with (tmp_path / "csv" / "table-4.csv").open() as file:
        assert next(csv.reader(file))[:3] == ["model", "operators", "moirai"]
    # What was found is kept; another limit is another question.
    asked = len(fake.asked)
    assert main(fake, [*words, "--time-limit", "7"]) == 0
    assert capsys.readouterr().out == shown
    assert len(fake.asked) == asked
    assert main(fake, [*words, "--time-limit", "8", "--methods", "ip", "figure-10"]) == 0
    assert len(fake.asked) == asked + 4


def test_all_models_are_samples_and_of_the_paper() -> None:
    giants = {name: entry for name, entry in CATALOG.items() if entry.paper_operators}
    assert set(PAPER) == set(giants)
    assert set(SMALLEST) <= set(PAPER)
    for name, printed in PAPER.items():
        assert printed.operators == giants[name].paper_operators
        assert printed.coarsened < printed.operators
        assert len(printed.original_s) == len(printed.coarsened_s) == len(METHODS)


def test_what_is_misspelt_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for words, said in (
        (["--models", "gpt4"], "'gpt4' is not one of swin-1.8b"),
        (["--methods", "m-sct,heft"], "'heft' is not one of placeto"),
        (["figure-11"], "'figure-11' is not one of table-4"),
        (["--time-limit", "0"], "'0' is not a number above 0"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(Fake(), ["--keep", str(tmp_path), *words])
        assert said in capsys.readouterr().err


def test_a_command_that_fails_ends_the_tables(tmp_path: Path) -> None:
    def fail(words: Sequence[str], data: bytes) -> Answer:
        return Answer(3, b"", "dnnp-import: no such thing")

    with pytest.raises(SystemExit, match="no such thing"):
        main(fail, ["--keep", str(tmp_path), "table-4"])


def test_the_smallest_of_the_real_models(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(executable("import")).parent
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    words = ["--models", "gpt3-330m", "--methods", "m-sct", "--keep", str(tmp_path)]
    assert main(command, words) == 0
    found = rows(capsys.readouterr().out)
    counts = [int(cell.split(" ")[0]) for cell in found[0][1:-1]]
    # Table I fuses nothing; each backend at least the quarter that the paper's rules fuse.
    assert counts[0] == counts[1] == CATALOG["gpt3-330m"].nodes
    assert all(count < 0.76 * counts[0] for count in counts[2:])
    latencies = [float(row[3].rstrip("!")) for row in found[5:9]]
    bounds = [float(row[4]) for row in found[5:9]]
    assert all(0 < bound <= latency for bound, latency in zip(bounds, latencies, strict=True))
    assert latencies[1] < latencies[0]
    assert latencies[3] < latencies[2]
