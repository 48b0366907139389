"""Placement by name: nodes of a name, rules, methods that heed them, and refusals."""

from __future__ import annotations

import json
from collections import Counter
from itertools import permutations
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from dnnp.given_split import least_bottleneck
from support.graphs import to_bytes
from support.ruled import (
    LAYERS,
    compared,
    compared_latency,
    decoder,
    ruled_case,
    ruled_latency,
    with_forged_rule,
)
from support.run import Result, dnnp


def planned(*words: str, status: int = 0, k: int = 4) -> tuple[Result, list[dict[str, Any]]]:
    """Split the decoder, check the plan, and return its stages."""
    result = dnnp("partition", "-k", str(k), "--bandwidth", "10", *words, stdin=to_bytes(decoder()))
    assert result.status == status, result.err
    if status:
        return result, []
    checked = dnnp("check", stdin=result.out)
    assert checked.status == 0, checked.err
    return result, result.records("stage")


def stage_of(stages: list[dict[str, Any]]) -> dict[str, int]:
    """Stage of each node, by its name without `/model/`."""
    names = [row["name"].removeprefix("/model/") for row in decoder().get("node")]
    return {names[v]: stage["id"] for stage in stages for v in stage["nodes"]}


HEEDING = ("auto", "exact", "heuristic", "slice", "ip", "anneal")
ORDERS = ("dpl", "random", "brkga", "mla", "mla-weighted")


@pytest.mark.parametrize("method", HEEDING)
def test_cut_before_a_layer(method: str) -> None:
    _, stages = planned("--cut-before", "layers.2", "--method", method, k=3)
    where = stage_of(stages)
    before = {where[name] for name in where if "layers.2" not in name and "layers.3" not in name}
    before -= {where["/lm_head/MatMul"]}
    here = {where["layers.2/attn/MatMul"], where["layers.2/mlp/MatMul"]}
    assert not before & here
    assert where["layers.2/mlp/Transpose"] == where["layers.2/mlp/MatMul"]  # it prepares a weight


@pytest.mark.parametrize("method", [*HEEDING, "greedy", "uniform", "brkga"])
def test_pin_the_head(method: str) -> None:
    """All methods heed it, or find nothing."""
    words = ("--pin", "lm_head=gpu/2", "--method", method, "--effort", "0.1")
    result = dnnp("partition", "-k", "4", "--bandwidth", "10", *words, stdin=to_bytes(decoder()))
    assert result.status in ((0,) if method in HEEDING else (0, 4)), result.err
    if result.status == 0:
        assert dnnp("check", stdin=result.out).status == 0
        (head,) = [s for s in result.records("stage") if 11 in s["nodes"]]
        assert head["device"] == "gpu/2"


LATENCY, BLOCKS = ("--objective", "latency"), ("--execution", "blocks")


@pytest.mark.parametrize("execution", [(), BLOCKS])
def test_pins_of_latency(execution: tuple[str, ...]) -> None:
    pins = ("--pin", "embed_tokens=gpu/1", "--pin", "mask=gpu/3")
    result, stages = planned(*LATENCY, *pins, *execution)
    homes = {v: s["device"] for s in stages for v in s["nodes"]}
    assert (homes[0], homes[1]) == ("gpu/3", "gpu/1")
    assert [rule["rule"] for rule in result.one("plan")["rules"]] == ["pin", "pin"]


@pytest.mark.parametrize("method", ["auto", "anneal"])
@pytest.mark.parametrize("invocations", [1, 2])
def test_rules_of_blocks(method: str, invocations: int) -> None:
    """A stage is what a device holds, in all its blocks."""
    words = (*LATENCY, *BLOCKS, "--invocations", str(invocations), "--method", method)
    for rule in (
        ("--cut-before", "layers.2"),
        ("--layers-per-stage", "1,2,1"),
        ("--exactly", "3"),
        ("--apart", "embed_tokens,lm_head", "--cut-before", "layers.1"),
    ):
        result, stages = planned(*words, *rule)
        names = [row["name"].removeprefix("/model/") for row in decoder().get("node")]
        where = {names[v]: s["device"] for s in stages for v in s["nodes"]}
        layers = [{where[f"layers.{i}/{w}/MatMul"] for w in ("attn", "mlp")} for i in range(LAYERS)]
        if rule[0] == "--cut-before":
            assert not (layers[0] | layers[1] | {where["embed_tokens/Gather"]}) & layers[2]
        elif rule[0] == "--apart":
            assert where["embed_tokens/Gather"] != where["/lm_head/MatMul"]
        else:
            assert len(set(where.values())) == 3
        if rule[0] == "--layers-per-stage":
            assert [len(homes) for homes in layers] == [1] * LAYERS
            assert layers[1] == layers[2]
            assert len(set().union(*layers)) == 3
        free, _ = planned(*words)
        assert free.one("plan")["value"] <= result.one("plan")["value"]


def test_a_bound_leaves_plans_of_blocks_with_rules() -> None:
    ruled, _ = planned(*LATENCY, *BLOCKS, "--exactly", "3")
    bounded = dnnp("bound", stdin=ruled.out)
    assert bounded.status == 0, bounded.err
    assert bounded.one("plan")["rules"] == ruled.one("plan")["rules"]
    assert bounded.one("bound")["value"] < ruled.one("plan")["value"]
    assert dnnp("check", stdin=bounded.out).status == 0


def test_given_splits_of_blocks_keep_rules(tmp_path: Path) -> None:
    (tmp_path / "split.json").write_text('{"cuts": ["layers.2"]}')
    words = (*LATENCY, *BLOCKS, "--eval", str(tmp_path / "split.json"))
    planned(*words, "--cut-before", "layers.2", "--exactly", "2")
    for rule in (("--cut-before", "layers.1"), ("--exactly", "3")):
        result, _ = planned(*words, *rule, status=4)
        assert rule[0] in result.err


@pytest.mark.parametrize("method", HEEDING)
def test_layer_counts(method: str) -> None:
    _, stages = planned("--layers-per-stage", "1,2,1", "--method", method)
    where = stage_of(stages)
    assert len(stages) == 3
    found = [{where[f"layers.{i}/{w}/MatMul"] for w in ("attn", "mlp")} for i in range(LAYERS)]
    assert found == [{0}, {1}, {1}, {2}]


@pytest.mark.parametrize("method", HEEDING)
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_exactly(method: str, k: int) -> None:
    result, stages = planned("--exactly", str(k), "--method", method)
    assert len(stages) == k
    assert (f"with {k - 1} stage" in result.err) == (k > 1)


def test_exactly_where_fewer_are_better() -> None:
    result, stages = planned("--exactly", "3", "--bandwidth", "0.1", k=3)
    assert len(stages) == 3
    free, one = planned("--bandwidth", "0.1", k=3)
    assert len(one) == 1
    assert result.one("plan")["value"] > free.one("plan")["value"]
    assert result.one("plan")["status"] == "optimal"


@pytest.mark.parametrize("method", HEEDING)
def test_together_and_apart(method: str) -> None:
    words = ("--together", "layers.*.attn", "--apart", "embed_tokens,lm_head")
    _, stages = planned(*words, "--method", method)
    where = stage_of(stages)
    assert len({where[f"layers.{i}/attn/MatMul"] for i in range(LAYERS)}) == 1
    assert where["embed_tokens/Gather"] != where["/lm_head/MatMul"]


def test_a_file_of_rules_is_the_options(tmp_path: Path) -> None:
    rules = {"cut-before": ["layers.1"], "pin": ["lm_head=gpu/3"], "exactly": 3}
    (tmp_path / "rules.json").write_text(json.dumps(rules))
    by_file, _ = planned("--rules", str(tmp_path / "rules.json"))
    words = ("--cut-before", "layers.1", "--pin", "lm_head=gpu/3", "--exactly", "3")
    by_words, _ = planned(*words)
    assert by_file.one("plan") == by_words.one("plan")
    assert [r["rule"] for r in by_file.one("plan")["rules"]] == ["cut-before", "pin", "exactly"]


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("layers.1", {"layers.1/attn/MatMul", "layers.1/mlp/MatMul"}),
        ("model/layers.1", {"layers.1/attn/MatMul", "layers.1/mlp/MatMul"}),
        ("layers.*.attn", {f"layers.{i}/attn/MatMul" for i in range(LAYERS)}),
        ("embed_*", {"embed_tokens/Gather"}),
        ("embed.weight", {"embed_tokens/Gather"}),
        ("layers.3.mlp.weight", {"layers.3/mlp/MatMul"}),
        ("lm_head", {"/lm_head/MatMul"}),
    ],
)
def test_names(name: str, nodes: set[str]) -> None:
    result, _ = planned("--together", name)
    (rule,) = result.one("plan")["rules"]
    names = [row["name"].removeprefix("/model/") for row in decoder().get("node")]
    assert {names[v] for v in rule["parts"][0]} == nodes


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--cut-before", "layer.2"), "nearest: layers.2, layers."),
        (("--cut-before", "layers"), ""),
        (("--together", "layers.1x"), "no node, layer or weight is called 'layers.1x'; nearest: "),
        (("--pin", "lm_head"), "write --pin NAME=DEVICE"),
        (("--pin", "lm_head=gpu/4"), "no such device; did you mean 'gpu/3'?"),
        (("--pin", "lm_head=tpu"), "no such device"),
        (("--pin", "lm_head=gpu/1", "--pin", "lm_head=gpu/2"), "contradict each other: no device"),
        (("--pin", "layers.*=gpu/1", "--apart", "layers.0,layers.1"), "no device may have"),
        (("--together", "layers.*", "--cut-before", "layers.2"), "no device may have"),
        (("--apart", "layers.0"), "write --apart NAME,NAME"),
        (("--apart", "layers.0,layers.0.mlp"), "has both names"),
        (
            ("--layers-per-stage", "1,1,1"),
            "these are 3 layers; the model has 4 with a number: model/",
        ),
        (("--exactly", "2", "--cut-before", "layers.1", "--cut-before", "layers.2"), "contradicts"),
        (("--cut-before", "mask"), "it cuts nothing"),
        (
            ("--pin", "layers.0=gpu/1", "--pin", "layers.1=gpu/2", "--pin", "layers.2=gpu/1"),
            "in an ordered split; --validity free may keep them",
        ),
        (("--layers-per-stage", "1,x"), "write --layers-per-stage N,N"),
        (("--layers-per-stage", "1,1,1,1", "--exactly", "3"), "contradicts"),
        (("--exactly", "5"), "fewer devices than 5 stages"),
        (("--exactly", "2", "--method", "metis"), "--exactly 2: not heeded by the method metis"),
        (("--cut-before", "layers.2", "--method", "greedy"), "not heeded by the method greedy"),
        (("--cut-before", "layers.2", *LATENCY), "with --execution operators; --execution blocks"),
        (("--exactly", "2", *LATENCY, *BLOCKS, "--method", "ip"), "not heeded by the method ip"),
        (("--exactly", "2", *LATENCY, "--method", "heft"), "not heeded by the method heft"),
        (("--cut-before", "layers.2", "--max-replicas", "2"), "not heeded with --max-replicas"),
        (("--pin", "lm_head=gpu", "--allow-replicas"), "not heeded with --allow-replicas"),
        (
            ("--pin", "lm_head=gpu/9", "--data-parallel", "2"),
            "no such device; did you mean 'gpu/3'?",
        ),
        (
            ("--exactly", "2", "--shared-stages", "1"),
            "--exactly 2: not heeded with --shared-stages",
        ),
        (("--exactly", "5", "--data-parallel", "2"), "fewer devices than 5 stages"),
        (
            (
                "--pin",
                "lm_head=gpu/1",
                "--data-parallel",
                "2",
                "--cluster-size",
                "2",
                "--inner-bandwidth",
                "20",
            ),
            "not heeded with clusters of devices",
        ),
        (
            ("--together", "layers.*", "--cut-before", "layers.2", "--data-parallel", "2"),
            "no device",
        ),
        (("--exactly", "2", "--link", "gpu,gpu=1"), "not heeded with links"),
        (("--pin", "lm_head=gpu/1", "--link", "gpu,gpu=1"), "clusters and over links"),
    ],
)
def test_refusals_name_the_rule(words: tuple[str, ...], reason: str) -> None:
    status = 2 if reason else 0
    result, _ = planned(*words, status=status)
    assert reason in result.err
    assert not reason or any(word in result.err for word in words if word.startswith("--"))


def test_a_bound_of_all_plans_is_no_claim_about_ruled_ones() -> None:
    ruled, _ = planned("--layers-per-stage", "3,1", k=2)
    bounded = dnnp("bound", stdin=ruled.out)
    assert "of plans without its rules too" in bounded.err
    assert bounded.one("plan")["value"] == ruled.one("plan")["value"]
    assert bounded.one("bound")["value"] < ruled.one("plan")["value"]
    checked = dnnp("check", "--certificate", stdin=bounded.out)
    assert checked.status == 9  # optimal among those with the rules, of which no certificate knows
    assert "that it is optimal is not checkable" in checked.err
    assert "bound verified" in checked.err


@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        ({"rule": "exactly", "stages": 3}, "--exactly 3"),
        ({"rule": "pin", "names": ["x"], "parts": [[0]], "device": "gpu/9"}, "--pin x=gpu/9"),
        ({"rule": "together", "names": ["x"], "parts": [[0, 11]]}, "--together x"),
        ({"rule": "apart", "names": ["a", "b"], "parts": [[2], [3]]}, "--apart a,b"),
        ({"rule": "cut-before", "names": ["x"], "parts": [[3]]}, "--cut-before x"),
        ({"rule": "layers-per-stage", "names": ["1"], "parts": [[2, 10]], "stages": 2}, "--layers"),
        ({"rule": "together", "names": ["x"], "parts": [[99]]}, "node 99 is not in the graph"),
    ],
)
def test_the_checker_finds_a_broken_rule(rule: dict[str, Any], kind: str) -> None:
    result, stages = planned("--layers-per-stage", "2,2", k=2)
    assert {2, 3} <= set(stages[0]["nodes"])
    checked = dnnp("check", stdin=with_forged_rule(result.out, rule))
    assert checked.status == 3, checked.err
    assert kind in checked.err


def test_a_plan_with_rules_is_of_version_3() -> None:
    plain, _ = planned()
    ruled, _ = planned("--exactly", "2")
    assert [plain.one("header")["version"], ruled.one("header")["version"]] == [1, 3]
    again = dnnp("partition", "-k", "2", stdin=ruled.out)
    assert again.one("header")["version"] == 1
    assert "rules" not in again.one("plan")


@pytest.mark.parametrize(
    ("split", "sizes"),
    [
        ('{"cuts": ["layers.1", "layers.3"]}', [4, 5, 3]),
        ('[["embed_tokens", "layers.0", "layers.1"], ["layers.2", "layers.3", "lm_head"]]', [6, 6]),
        ('[["layers.0"], ["layers.*"]]', [4, 8]),
    ],
)
def test_given_splits_by_name(split: str, sizes: list[int], tmp_path: Path) -> None:
    if "*" in split:
        split = '[["layers.0"], ["layers.1", "layers.2", "layers.3"]]'
    (tmp_path / "split.json").write_text(split)
    _, stages = planned("--eval", str(tmp_path / "split.json"))
    assert [len(stage["nodes"]) for stage in stages] == sizes
    assert sum(sizes) == len(decoder().get("node"))


def test_given_splits_keep_rules(tmp_path: Path) -> None:
    (tmp_path / "split.json").write_text('{"cuts": ["layers.2"]}')
    words = ("--eval", str(tmp_path / "split.json"))
    planned(*words, "--cut-before", "layers.2")
    for rule in (("--cut-before", "layers.1"), ("--together", "layers.*"), ("--exactly", "3")):
        result, _ = planned(*words, *rule, status=4)
        assert rule[0] in result.err
    (tmp_path / "split.json").write_text('{"cuts": ["layer.2"]}')
    result, _ = planned(*words, status=2)
    assert "nearest: layers.2" in result.err


def test_rules_that_need_more_devices() -> None:
    cuts = [word for i in (1, 2, 3) for word in ("--cut-before", f"layers.{i}")]
    for k, words in ((3, cuts), (1, ["--apart", "layers.0,layers.1"])):
        result, _ = planned(*words, status=4, k=k)
        assert f"{k + 1} devices are needed for {' '.join(words[:2])}" in result.err
        planned(*words, k=k + 1)


def test_more_stages_than_groups() -> None:
    nodes = len(decoder().get("node"))
    result, _ = planned("--exactly", str(nodes + 1), status=2, k=nodes + 1)
    assert f"there are {nodes} groups" in result.err


def test_several_names_together() -> None:
    where = stage_of(planned("--together", "embed_tokens,lm_head", "--validity", "free")[1])
    assert where["embed_tokens/Gather"] == where["/lm_head/MatMul"]


def test_layers_by_the_names_of_weights() -> None:
    stream = decoder()
    for row in stream.get("node"):
        row["name"] = f"node_{row['id']}"
    words = ("partition", "-k", "2", "--bandwidth", "10", "--layers-per-stage", "1,3")
    result = dnnp(*words, stdin=to_bytes(stream))
    assert result.status == 0, result.err
    where = {v: stage["id"] for stage in result.records("stage") for v in stage["nodes"]}
    assert [where[v] for v in (2, 3, 4, 5, 6, 8, 9, 10)] == [0, 0, 1, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"exact": 2}', "'exact': no such rule; did you mean 'exactly'?"),
        ('{"exactly": 2.5}', "'exactly': 2.5 is not N"),
        ('{"cut-before": [1]}', "'cut-before': 1 is not NAME"),
        ('{"pin": [["a=gpu"]]}', "'pin': [\"a=gpu\"] is not NAME=DEVICE"),
        ('{"exactly": 2, "exactly": 3}', "'exactly': it is there twice"),
        ("[1]", "expected an object"),
    ],
)
def test_malformed_files_of_rules(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "rules.json").write_text(text)
    result, _ = planned("--rules", str(tmp_path / "rules.json"), status=3)
    assert "rules.json" in result.err
    assert reason in result.err


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"cuts": ["layers.3", "layers.1"]}', "[1] is empty from layers.3 to layers.1; cuts go"),
        ('{"cuts": ["ids", "layers.1"]}', ""),
        ('{"cuts": []}', "'cuts': expected a list of names"),
        ('{"cuts": "layers.1"}', "'cuts': expected a list of names"),
        ('[["layers.0"], ["layers.0", "layers.1"]]', "layers.0/attn/MatMul' is also in [0]"),
        ('[["layers.0"], [], ["layers.1"]]', "stage [1] is empty"),
        ('["layers.0", "layers.1"]', "expected a list of lists of names"),
        ('[["layers.0", 99], ["layers.1"]]', "99 is no name and no node"),
    ],
)
def test_malformed_splits_by_name(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "split.json").write_text(text)
    result, _ = planned("--eval", str(tmp_path / "split.json"), status=3 if reason else 2)
    assert reason in result.err


@pytest.mark.parametrize(
    ("words", "last"),
    [
        (("--speed", "gpu/1=0.25"), 2),
        (("--memory", "gpu/1=250"), 2),
        (("--pin", "lm_head=gpu/1"), 1),
        (("--pin", "embed_tokens=gpu/0"), 2),
        (("--speed", "gpu/0=0.25", "--objective", "latency"), 2),
    ],
)
def test_given_splits_on_single_devices(words: tuple[str, ...], last: int, tmp_path: Path) -> None:
    split = [["embed_tokens", "layers.0"], ["layers.1"], ["layers.2", "layers.3", "lm_head"]]
    (tmp_path / "split.json").write_text(json.dumps(split))
    given = ("--eval", str(tmp_path / "split.json"))
    _, stages = planned(*given, *words, k=3)
    homes = {v: stage["device"] for stage in stages for v in stage["nodes"]}
    assert homes[11] == f"gpu/{last}"
    result, _ = planned(*given, *words, k=2, status=4)
    assert "in no way do the split's 3 stages fit" in result.err


def test_least_bottleneck_is_that_of_brute_force() -> None:
    random, counted = Random(0), Counter[bool]()
    for _ in range(200):
        rows, columns = random.randint(1, 4), random.randint(1, 5)
        loads = [[random.choice([1, 2, 3, 4, inf]) for _ in range(columns)] for _ in range(rows)]
        ways = list(permutations(range(columns), rows))
        costs = [max(loads[i][j] for i, j in enumerate(way)) for way in ways]
        found = least_bottleneck(np.array(loads, dtype=np.float64))
        assert bool(found) == (min(costs, default=inf) < inf)
        if found:
            assert len({*found}) == rows
            assert max(loads[i][j] for i, j in enumerate(found)) == min(costs)
        counted[bool(found)] += 1
    assert min(counted.values()) > 30


def test_random_rules_agree_with_brute_force() -> None:
    """More by `tests/tools/agree_rules.py`."""
    seen = Counter[tuple[str, str]]()
    for seed in range(60):
        methods = ("exact", "auto", "slice", "anneal", *(["ip", *ORDERS] if seed < 8 else []))
        for method, came, fault in compared(ruled_case(seed), methods):
            assert not fault, f"seed {seed}, {method}: {fault}"
            seen[method, came] += 1
    assert min(seen[method, "best"] for method in ("exact", "auto", "slice", "anneal")) > 25
    assert seen["exact", "infeasible"] > 3
    assert seen["ip", "best"] > 3
    assert min(seen[method, "best"] + seen[method, "worse"] for method in ORDERS) > 3


@pytest.mark.parametrize("validity", ["free", "convex"])
def test_annealing_without_order_agrees_with_brute_force(validity: str) -> None:
    seen = Counter[str]()
    for seed in range(20):
        methods = ("anneal", "auto")[: 2 if seed < 4 else 1]
        for method, came, fault in compared(ruled_case(seed, 6), methods, validity):
            assert not fault, f"seed {seed}, {method}: {fault}"
            seen[came] += 1
    assert seen["best"] > 12
    assert seen["infeasible"] > 2


def test_random_rules_of_blocks_agree_with_brute_force() -> None:
    seen = Counter[tuple[str, str]]()
    for seed in range(30):
        case = ruled_latency(seed, 5)
        for method, came, fault in compared_latency(case, ("auto", "anneal")):
            assert not fault, f"seed {seed}, {method}: {fault}"
            seen[method, came.split()[0]] += 1
    assert min(seen[method, "best"] for method in ("auto", "anneal")) > 15
    assert seen["auto", "Infeasible"] > 3


def test_auto_anneals_under_rules() -> None:
    """Slicing alone is 33 % above this bound."""
    graph = dnnp("import", "--synthetic", "watts-strogatz", "--nodes", "1000", "--seed", "5")
    rules = ("--exactly", "4", "--apart", "node300,node302")
    words = ("partition", "-k", "4", "--bandwidth", "100", "--effort", "0.1", *rules)
    result = dnnp(*words, stdin=graph.out)
    assert result.status == 0, result.err
    plan, homes = result.one("plan"), [s["nodes"] for s in result.records("stage")]
    assert len(homes) == 4
    assert not any({300, 302} <= set(nodes) for nodes in homes)
    assert plan["bound"] <= plan["value"] < 1.02 * plan["bound"]
    assert dnnp("check", stdin=result.out).status == 0
