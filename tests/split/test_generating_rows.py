"""Plans of models that generate, priced for several rows of a pass: limits, given splits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from dnnp import check, split, sweep
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.errors import InfeasibleError, UsageError
from dnnp.core.model.plan import Plan
from dnnp.formats.stream import read_bytes
from dnnp.graph import Graph
from dnnp.options.split import SplitOptions
from dnnp.splitting import found_by
from support.decoder_models import grouped_decoder
from support.graphs import to_bytes
from support.run import dnnp

WORKLOAD = [(16, 24)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return grouped_decoder(tmp_path_factory.mktemp("model") / "m.onnx")


def priced(model: Path, rows: str) -> Graph:
    """The model with passes of so many rows over tokens."""
    phases = ["--phase", "prompt:seq=4..32", "--phase", f"token:batch={rows},past=4..64"]
    imported = dnnp("import", "-q", model, *phases)
    assert imported.status == 0, imported.err
    return Graph(read_bytes(dnnp("profile", "-q", stdin=imported.out).out))


@pytest.fixture(scope="module")
def graphs(model: Path) -> dict[str, Graph]:
    return {rows: priced(model, rows) for rows in ("1", "4", "1|4")}


def planned(graph: Graph, **more: Any) -> dict[str, Any]:
    made = split(graph, **{"k": 2, "workload": WORKLOAD, **more})
    assert check(made).ok
    return made.stream().get("plan")[0]


def rates(plan: dict[str, Any]) -> list[float]:
    return [plan[name] for name in ("value", "tokens_per_s", "ttft_s", "tpot_s")]


def test_a_limit_that_only_fewer_rows_keep(graphs: dict[str, Graph]) -> None:
    one, four = (planned(graphs[rows]) for rows in ("1", "4"))
    assert one["tpot_s"] < four["tpot_s"]
    assert one["tokens_per_s"] < four["tokens_per_s"]
    both = graphs["1|4"]
    assert rates(planned(both)) == pytest.approx(rates(four))
    between = (one["tpot_s"] + four["tpot_s"]) / 2
    found = planned(both, max_tpot=between)
    assert found["workload"]["rows"] == 1
    assert rates(found) == pytest.approx(rates(one))
    with pytest.raises(InfeasibleError, match=r"takes .* for each later token, above 1 us$"):
        planned(both, max_tpot=1e-6)


def test_what_does_not_fit_is_told_of_the_fewest_rows(
    model: Path, graphs: dict[str, Graph]
) -> None:
    words = []
    for graph in (graphs["1"], graphs["4"], priced(model, "4|1")):
        with pytest.raises(InfeasibleError, match=r"needs? .*kB") as error:
            planned(graph, memory=4e4)
        words.append(str(error.value))
    assert words[2] == words[0] != words[1]


def test_each_number_of_devices_has_the_best_rows(graphs: dict[str, Graph]) -> None:
    both = graphs["1|4"]
    swept = [g.stream().get("plan")[0] for g in sweep(both, [1, 2, 3], workload=WORKLOAD)]
    assert [plan["k"] for plan in swept] == [1, 2, 3]
    for plan in swept:
        assert plan["workload"]["rows"] == 4
        assert rates(plan) == pytest.approx(rates(planned(both, k=plan["k"])))


def halves(graph: Graph, folder: Path) -> Path:
    """A file with a split in two whose states stay whole: that of a plan."""
    stages = split(graph, k=2, workload=WORKLOAD).stream().get("stage")
    (folder / "given.json").write_bytes(orjson.dumps([stage["nodes"] for stage in stages]))
    assert len(stages) == 2
    return folder / "given.json"


def test_a_given_split_has_the_best_rows(graphs: dict[str, Graph], tmp_path: Path) -> None:
    both, file = graphs["1|4"], halves(graphs["4"], tmp_path)
    one, four = (planned(graphs[rows], eval=file) for rows in ("1", "4"))
    found = planned(both, eval=file)
    assert (found["method"], found["workload"]["rows"]) == ("given", 4)
    assert rates(found) == pytest.approx(rates(four))
    assert found["bound"] <= planned(both)["value"]
    between = (one["tpot_s"] + four["tpot_s"]) / 2
    assert rates(planned(both, eval=file, max_tpot=between)) == pytest.approx(rates(one))


def test_a_given_split_is_judged_and_not_replaced(graphs: dict[str, Graph], tmp_path: Path) -> None:
    file = halves(graphs["4"], tmp_path)
    whole, cut = (planned(graphs["4"], **more) for more in ({"k": 1}, {"eval": file}))
    between = (whole["ttft_s"] + cut["ttft_s"]) / 2
    assert whole["ttft_s"] < between < cut["ttft_s"]
    assert planned(graphs["4"], max_ttft=between)["ttft_s"] <= between
    with pytest.raises(InfeasibleError, match=r"^infeasible: the split is not within --max-ttft"):
        planned(graphs["4"], eval=file, max_ttft=between)


def judged(graph: Graph, words: Sequence[str]) -> int:
    return dnnp("check", "-q", *words, stdin=to_bytes(graph.stream())).status


@pytest.mark.parametrize("in_flight", [1, 4, 8])
def test_gates_are_for_a_sequence(graphs: dict[str, Graph], in_flight: int) -> None:
    made = split(graphs["1|4"], k=2, workload=WORKLOAD, in_flight=in_flight)
    plan, tokens = made.stream().get("plan")[0], WORKLOAD[0][1]
    alone = plan["ttft_s"] + (tokens - 1) * plan["tpot_s"]
    rate = plan["tokens_per_s"] / tokens
    for share, status in ((1.001, 0), (0.999, 8)):
        assert judged(made, ["--max-latency", f"{alone * share * 1e6}us"]) == status
        assert judged(made, ["--min-throughput", f"{rate / share}/s"]) == status


@pytest.mark.parametrize("ends", ["1", "4", "both"])
def test_an_interruption_keeps_the_plan_of_other_rows(
    graphs: dict[str, Graph], ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def search(problem: SplitProblem, options: SplitOptions) -> Plan:
        workload = problem.options.workload
        assert workload is not None
        asked.append(str(workload.rows))
        if ends in (asked[-1], "both"):
            raise KeyboardInterrupt
        return found_by(problem, options)

    monkeypatch.setattr("dnnp.splitting.found_by", search)
    if ends == "both":
        with pytest.raises(KeyboardInterrupt):
            planned(graphs["1|4"])
    else:
        assert planned(graphs["1|4"])["workload"]["rows"] == 5 - int(ends)
    assert {*asked} == {"1", "4"}


def test_parallel_plans_are_for_throughput(graphs: dict[str, Graph]) -> None:
    with pytest.raises(UsageError, match="for --objective throughput, not latency"):
        planned(graphs["4"], objective="latency", tensor_parallel=2)
