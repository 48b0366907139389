"""The tables of dnnp.samples.papers.tessel say what dnnp-schedule answers."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dnnp.samples.papers.tessel import PARTS, main
from dnnp.samples.papers.tessel_runs import MANY, Answer, answer, percent, repeating, steady
from support.run import dnnp


def record(period: float = 0.0, unroll: int = 1, **more: Any) -> dict[str, Any]:
    """A schedule of two devices and a link; each device is busy for 4 a micro-batch."""
    blocks = [
        {"homes": [[0]], "time_s": 1.0},
        {"homes": [[0, 1], [1, 0]], "time_s": 3.0},
        {"homes": [[0], [1]], "time_s": 1.0},
        {"homes": [[1], [0]], "time_s": 1.0},
        {"homes": [[2]], "time_s": 9.0},
        {"homes": [[1]], "time_s": 0.0},
        {"homes": [[1]], "time_s": 1.0},
    ]
    blocks[0]["time_s"] = blocks[-1]["time_s"] = 0.0
    units = [{"name": "a"}, {"name": "b"}, {"name": "a>b", "link": True}, {"name": "idle"}]
    repetend = {"period_s": period, "unroll": unroll, "memory_bytes": 3.0, "span_s": 9.0}
    return {"passes": blocks, "units": units, "repetend": repetend, **more}


def test_bubble_rates() -> None:
    assert repeating(Answer(record(5.0), 1.0)) == pytest.approx(0.2)
    assert repeating(Answer(record(9.0, 2), 1.0)) == pytest.approx(1 / 9)
    assert repeating(Answer(record(4.0 - 1e-15), 1.0)) == 0
    assert repeating(Answer(None, 1.0)) is None
    assert repeating(Answer({"passes": [], "units": []}, 1.0)) is None
    few = Answer(record(micro_batches=10, makespan_s=57.0), 1.0)
    many = Answer(record(micro_batches=30, makespan_s=157.0), 1.0)
    assert steady(few, many) == pytest.approx(0.2)
    assert steady(few, Answer(None, 1.0)) is None
    assert [percent(rate) for rate in (None, 0.0, 0.2, 1 / 3)] == ["x", "0%", "20%", "33.3%"]


class Fake:
    """Answers that follow from the arguments; remembers them."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []

    def __call__(self, words: Sequence[str]) -> Answer:
        said = dict(zip(words[::2], words[1::2], strict=True))
        self.asked.append(said)
        method, shape, count = said["--method"], said["--shape"], int(said["-n"])
        if method == "1f1b+" and shape == "K":
            return Answer(None, 0.0)
        if method in ("1f1b", "chimera", "1f1b+"):
            each = {"1f1b": 4.0, "chimera": 5.0, "1f1b+": 8.0}[method]
            return Answer(record(micro_batches=count, makespan_s=7 + each * count), 1.0)
        if method == "optimal":
            status = "optimal" if count < 6 else "interrupted"
            return Answer(record(status=status), 3.0 * count)
        most, memory = (
            float(said.get(name, math.inf)) for name in ("--max-micro-batches", "--memory")
        )
        if memory < 2:
            return Answer(None, 0.0)
        if method == "auto":
            return Answer(record(4.0), 0.5)
        return Answer(record(4.0 if min(most, memory) >= 3 else 8.0), 2.0)


def rows(text: str) -> list[list[str]]:
    """Cells of the lines that begin with a name of a shape or model."""
    names = ("V", "X", "M", "NN", "K", "GPT", "mT5", "Flava")
    return [line.split() for line in text.splitlines() if line.split(" ")[0] in names]


def test_tables(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    fake = Fake()
    parts = ("table-2", "figure-9", "figure-11", "figure-12")
    main(fake, ["--devices", "4", "--time-limit", "7", "--csv", str(tmp_path), *parts])
    assert all(said["--devices"] == "4" and said["--time-limit"] == "7" for said in fake.asked)
    assert {said["-n"] for said in fake.asked if said["--method"] == "1f1b"} == {
        str(MANY),
        str(2 * MANY),
    }
    shown = capsys.readouterr().out.split("\n\n")
    assert len(shown) == len(parts) < len(PARTS)
    table_2, figure_9, figure_11, figure_12 = map(rows, shown)
    assert table_2 == [
        ["GPT", "(M)", "0%", "20%", "50%", "0%"],
        ["mT5", "(NN)", "0%", "20%", "50%", "0%"],
        ["Flava", "(K)", "0%", "20%", "x", "0%"],
    ]
    assert figure_9[0] == ["V", "2.000", "s", "3", "6", "x", "x", "x"]
    assert figure_11[4] == ["K", "50%", "50%", *["0%"] * 6]
    assert figure_12[2] == ["X", "x", "50%", *["0%"] * 6]
    assert figure_12[3] == ["X", "*", "x", *["0%"] * 7]
    limits = {s["--memory"] for s in fake.asked if s["--method"] == "tessel" and "--memory" in s}
    assert limits == {str(m) for m in range(1, 9)}
    limited = [s for s in fake.asked if s["--method"] == "tessel" and len(s) == 7]
    assert {s["--max-micro-batches"] for s in limited} == {"3"}
    # What was asked for figure 11 is not asked again for figure 12.
    assert len([s for s in fake.asked if "--max-micro-batches" in s and "--memory" not in s]) == 40
    assert sorted(path.stem for path in tmp_path.iterdir()) == sorted([*parts, "placements"])
    with (tmp_path / "figure-12.csv").open() as file:
        assert list(csv.reader(file))[4][:3] == ["X *", "x", "0%"]


def test_a_search_that_its_limit_ended_without_a_repetend(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake = Fake()

    def hurried(words: Sequence[str]) -> Answer:
        """The command has another schedule then."""
        found = fake(words)
        late = "--memory" not in words and "2" in words[-1:]
        if found.record is not None and late:
            found = found._replace(
                record={k: v for k, v in found.record.items() if k != "repetend"}
            )
        return found

    main(hurried, ["figure-11", "figure-12"])
    figure_11, figure_12 = map(rows, capsys.readouterr().out.split("\n\n"))
    assert figure_11[4] == ["K", "50%", "x", *["0%"] * 6]
    assert len(figure_12) == 10
    limited = [s for s in fake.asked if s["--method"] == "tessel" and len(s) == 7]
    assert {s["--max-micro-batches"] for s in limited} == {"3"}

    def nothing(words: Sequence[str]) -> Answer:
        return Answer({"passes": [], "units": [], "status": "feasible"}, 1.0)

    main(nothing, ["cases"])
    for row in rows(capsys.readouterr().out):
        assert set(row[1:]) == {"x"}


def test_parts(capsys: pytest.CaptureFixture[str]) -> None:
    main(Fake(), ["figure-11"])
    assert capsys.readouterr().out.startswith("Figure 11")
    with pytest.raises(SystemExit, match="2"):
        main(Fake(), ["figure-1"])


def test_times() -> None:
    header = b'{"type":"header","provenance":[{},{"elapsed_s":3.5}]}'
    stream = header + b'\n{"type":"schedule"}\n{"type":"block"}\n'
    said = "dnnp-schedule: searching{}\ndnnp-schedule: found the schedule after 2.750 s\n"
    assert answer(stream, said.format("")) == ({"type": "schedule"}, 3.5, [{"type": "block"}])
    assert answer(stream, said.format(" after 2.500 s")).seconds == pytest.approx(0.25)


def in_process(words: Sequence[str]) -> Answer:
    """Answers of the command, without a process of its own."""
    done = dnnp("schedule", "-q", "--timings", *words)
    return answer(done.out, done.err) if done.status == 0 else Answer(None, 0.0)


def test_table_of_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    main(in_process, ["table-2"])
    assert [line[2:] for line in rows(capsys.readouterr().out)] == [
        ["0%", "20%", "25%", "0%"],
        ["0%", "20%", "20%", "0%"],
        ["0%", "20%", "x", "0%"],
    ]
