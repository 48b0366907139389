"""Random graphs: what each family looks like, what nodes cost, and what is refused."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from dnnp.core.model.errors import UsageError
from dnnp.core.synthetic import layered_graph
from dnnp.options import table
from dnnp.samples.papers import regal
from dnnp.samples.papers.regal import (
    FAMILIES,
    LEAST_NODES,
    MOST_NODES,
    READINGS,
    Synthetic,
    regal_graph,
)
from support.project import ROOT
from support.run import Result, dnnp, ended, output_of
from support.served import served

TABLE = json.loads((ROOT / "samples" / "regal.json").read_text())
LARGE = 20_000


def generate(*arguments: object) -> Result:
    """A graph that must be good."""
    result = dnnp("import", "--synthetic", *map(str, arguments))
    assert (result.status, result.err) == (0, ""), result.err
    return result


def degrees(graph: Synthetic) -> np.ndarray:
    return np.bincount(np.concatenate((graph.tail, graph.head)), minlength=graph.n)


def edge_set(graph: Synthetic) -> set[tuple[int, int]]:
    return set(zip(graph.tail.tolist(), graph.head.tolist(), strict=True))


def near(count: float, trials: int, probability: float) -> bool:
    """True if a binomial count is within five deviations of its mean."""
    deviation = math.sqrt(trials * probability * (1 - probability))
    return abs(count - trials * probability) <= 5 * deviation


def test_command_and_core_know_the_same_families() -> None:
    assert tuple(FAMILIES) == table.FAMILIES == tuple(TABLE["families"])
    assert tuple(READINGS) == table.READINGS
    assert set(LEAST_NODES) == set(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("n", [None, 5, 7, 64, 201, 3000])
def test_simple_acyclic_and_sorted(family: str, n: int | None) -> None:
    graph = regal_graph(family, n, 5)
    assert graph.n == n or (n is None and 50 <= graph.n <= 200)
    assert graph.family == family
    assert (graph.tail < graph.head).all()
    assert (graph.tail >= 0).all()
    assert (graph.head < graph.n).all()
    pairs = list(zip(graph.head.tolist(), graph.tail.tolist(), strict=True))
    assert pairs == sorted(set(pairs))


@pytest.mark.parametrize("family", FAMILIES)
def test_least_size(family: str) -> None:
    least = LEAST_NODES[family]
    for seed in range(20):
        graph = regal_graph(family, least, seed)
        assert graph.n == len(graph.size) == len(graph.cost) == least
    with pytest.raises(UsageError, match=f"has at least {least} nodes, not {least - 1}$"):
        regal_graph(family, least - 1)


def test_erdos_renyi_edges() -> None:
    pairs = math.comb(200, 2)
    count = sum(len(regal_graph("erdos-renyi", 200, seed).tail) for seed in range(20))
    assert near(count, 20 * pairs, 0.05)
    large = regal_graph("erdos-renyi", LARGE, 1)
    assert near(len(large.tail), math.comb(LARGE, 2), 0.05 * 200 / LARGE)
    degree = degrees(large)
    # Poisson: the variance is the mean, which is that of 200 nodes.
    assert abs(degree.mean() - 10) < 0.2
    assert abs(degree.var() / degree.mean() - 1) < 0.1


def test_every_pair_is_as_likely() -> None:
    seen = np.zeros((6, 6), dtype=int)
    rng = np.random.default_rng(0)
    rounds = 8000
    for _ in range(rounds):
        for u, v in regal.erdos_renyi(6, rng).tolist():
            seen[u, v] += 1
    for u, v in itertools.combinations(range(6), 2):
        assert near(seen[u, v], rounds, 0.05)
    assert seen.sum() == sum(seen[u, v] for u, v in itertools.combinations(range(6), 2))


def test_numbers_of_pairs() -> None:
    expected = [(u, v) for v in range(60) for u in range(v)]
    assert list(map(tuple, regal._pairs(np.arange(len(expected))).tolist())) == expected
    n = MOST_NODES
    last = np.array([math.comb(n - 1, 2) - 1, math.comb(n - 1, 2), math.comb(n, 2) - 1])
    assert regal._pairs(last).tolist() == [[n - 3, n - 2], [0, n - 1], [n - 2, n - 1]]


@pytest.mark.parametrize("n", [3, 4, 50, 2000])
def test_barabasi_albert_degrees(n: int) -> None:
    edges = regal.barabasi_albert(n, np.random.default_rng(n))
    assert len(edges) == 2 * (n - 2)
    new, old = edges.T
    assert (np.bincount(new, minlength=n)[2:] == 2).all()
    assert (old < new).all()
    if n == 2000:
        degree = np.bincount(edges.ravel())
        # Few nodes gather many edges: half of the nodes keep the least degree, roughly.
        assert np.median(degree) <= 3
        assert degree.max() > 40
        assert degree[:20].mean() > 5 * degree[-1000:].mean()


def test_watts_strogatz_edges() -> None:
    n = 3000
    edges = regal.watts_strogatz(n, np.random.default_rng(4))
    assert len(edges) == 2 * n
    steps = (edges[:, 1] - edges[:, 0]) % n
    ring = np.isin(steps, (1, 2)).sum()
    assert near(ring, 2 * n, 0.7)
    degree = np.bincount(edges.ravel(), minlength=n)
    assert degree.min() >= 2
    assert degree.mean() == 4
    # A whole graph has no other end for an edge.
    assert (
        len({frozenset(e) for e in regal.watts_strogatz(5, np.random.default_rng(0)).tolist()})
        == 10
    )


@pytest.mark.parametrize(("n", "thinning"), [(200, 1.0), (4000, 0.05)])
def test_stochastic_block_edges(n: int, thinning: float) -> None:
    rounds, within, across = 10, 0, 0
    for seed in range(rounds):
        edges = regal.stochastic_block(n, np.random.default_rng(seed))
        block = edges * 4 // n
        within += int((block[:, 0] == block[:, 1]).sum())
        across += int((block[:, 0] != block[:, 1]).sum())
    inside = 4 * math.comb(n // 4, 2)
    assert near(within, rounds * inside, 0.3 * thinning)
    assert near(across, rounds * (math.comb(n, 2) - inside), 0.01 * thinning)


def test_order_is_random() -> None:
    """The hubs of a growing graph are anywhere in the order, not at its beginning."""
    places = []
    for seed in range(60):
        graph = regal_graph("barabasi-albert", 100, seed)
        places.append(int(degrees(graph).argmax()))
    assert abs(np.mean(places) - 49.5) < 5 * 28.9 / math.sqrt(60)
    assert len(set(places)) > 30


def test_sizes_and_costs() -> None:
    graph = regal_graph("erdos-renyi", LARGE, 2)
    assert (graph.size >= 1).all()
    assert abs(graph.size.mean() - 50) < 5 * 10 / math.sqrt(LARGE)
    assert abs(graph.size.std() - 10) < 0.5
    read = np.zeros(LARGE)
    np.add.at(read, graph.head, graph.size[graph.tail])
    part = (graph.cost - read - graph.size) / graph.size.sum()
    assert (part > -1e-12).all()
    assert abs(np.mean(part**2) - 0.01) < 0.001
    assert abs(part.mean() - 0.1 * math.sqrt(2 / math.pi)) < 0.003


@pytest.mark.parametrize("family", FAMILIES)
def test_readings(family: str) -> None:
    """Costs by hand from sizes and r, which all readings share."""
    n = 300
    plain = regal_graph(family, n, 4)
    total = plain.size.sum()
    read = np.bincount(plain.head, weights=plain.size[plain.tail], minlength=n)
    share = regal_graph(family, n, 4, "written").cost / plain.size - 1
    assert (share < 0).any()
    assert abs(share.std() - 0.1) < 0.02
    assert np.allclose(plain.cost, read + plain.size + abs(share) * total)
    cut = regal_graph(family, n, 4, "cut-off")
    assert np.allclose(cut.cost, np.maximum(read + plain.size + share * total, 0))
    assert (cut.cost == 0).any()
    own = regal_graph(family, n, 4, "own")
    assert np.allclose(own.cost, (read + plain.size) * (1 + share))
    for graph in (cut, own):
        assert edge_set(graph) == edge_set(plain)
        assert (graph.size == plain.size).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_normal_reading(family: str) -> None:
    """The same edges and sizes, most of them 0, costs of their own, and a last node."""
    n = 600
    plain, graph = regal_graph(family, n, 9), regal_graph(family, n, 9, "normal")
    assert graph.n == len(graph.size) == len(graph.cost) == n + 1
    unread = set(range(n)) - set(plain.tail.tolist())
    assert edge_set(graph) == edge_set(plain) | {(node, n) for node in unread}
    assert (graph.size[n], graph.cost[n]) == (0, 0)
    silent = graph.size[:n] == 0
    assert near(silent.sum(), n, 0.8)
    assert (graph.size[:n][~silent] == plain.size[~silent]).all()
    share = regal_graph(family, n, 9, "written").cost / plain.size - 1
    assert np.allclose(graph.cost[:n], 50 + 100 * share)


def test_records_say_which_reading() -> None:
    for reading in READINGS:
        result = generate("watts-strogatz", "--nodes", 40, "--reading", reading)
        header = result.one("header")
        ending = "" if reading == "absolute" else f"-{reading}"
        n = 41 if reading == "normal" else 40
        assert header["model"] == f"watts-strogatz-{n}-seed0{ending}"
        assert header["provenance"][0]["arguments"][-2:] == ["--reading", reading]
        made = regal_graph("watts-strogatz", 40, 0, reading)
        assert [n["time_s"]["unit"] for n in result.records("node")] == made.cost.tolist()
        assert edge_set(made) == {(t, n["id"]) for n in result.records("node") for t in n["inputs"]}
        plan = dnnp("partition", "-k", "3", "--method", "slice", stdin=result.out)
        assert dnnp("check", stdin=plan.out).status == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_stream(family: str) -> None:
    result = generate(family, "--nodes", 80, "--seed", 9)
    graph = regal_graph(family, 80, 9)
    header = result.one("header")
    assert header["model"] == f"{family}-80-seed9"
    assert header["units"] == {"time": "unknown"}
    assert "source" not in header
    assert result.one("device") == {
        "type": "device",
        "class": "unit",
        "kind": "accelerator",
        "bandwidth_bytes_per_s": 1,
    }
    tensors = {t["id"]: t for t in result.records("tensor")}
    nodes = result.records("node")
    assert len(nodes) == len(tensors) == 80
    total = sum(t["size_bytes"] for t in tensors.values())
    read_by: dict[int, list[int]] = {i: [] for i in tensors}
    for node in nodes:
        (out,) = node["outputs"]
        assert out == node["id"]
        moved = sum(tensors[t]["size_bytes"] for t in [*node["inputs"], out])
        assert node["time_s"]["unit"] >= moved * (1 - 1e-12)
        assert node["time_s"]["unit"] - moved < 0.6 * total
        for t in node["inputs"]:
            read_by[t].append(node["id"])
    edges = {(t, reader) for t, readers in read_by.items() for reader in readers}
    assert edges == edge_set(graph)
    assert {t for t, record in tensors.items() if record.get("output")} == {
        t for t, readers in read_by.items() if not readers
    }
    assert [t["size_bytes"] for t in tensors.values()] == graph.size.tolist()
    assert [n["time_s"]["unit"] for n in nodes] == graph.cost.tolist()


@pytest.mark.parametrize("family", ["regal", *FAMILIES])
def test_partition_and_check_take_it(family: str) -> None:
    result = generate(family, "--seed", 11)
    assert dnnp("check", stdin=result.out).status == 0
    plan = dnnp("partition", "-k", "4", "--method", "slice", stdin=result.out)
    assert plan.status == 0, plan.err
    assert len(plan.records("stage")) == 4
    checked = dnnp("check", stdin=plan.out)
    assert checked.status == 0, checked.err
    # Without readers nothing leaves the device: the last stage sends nothing.
    assert plan.records("stage")[-1]["out_s"] == 0
    crossing = sum(s["out_s"] for s in plan.records("stage"))
    assert 0 < crossing <= sum(t["size_bytes"] for t in plan.records("tensor"))


def test_default_method_takes_it() -> None:
    result = generate("barabasi-albert", "--nodes", 12)
    plan = dnnp("partition", "-k", "4", stdin=result.out)
    assert plan.one("plan")["status"] == "optimal"
    assert dnnp("check", stdin=plan.out).status == 0


def test_same_seed_same_bytes() -> None:
    for arguments in (
        (),
        ("regal", "--seed", 6),
        ("erdos-renyi", "--nodes", 70, "--seed", 2**53 - 1),
    ):
        assert generate(*arguments).out == generate(*arguments).out


def test_seeds_differ() -> None:
    seen = {
        (g.tail.tobytes(), g.size.tobytes())
        for g in (regal_graph("erdos-renyi", 60, s) for s in range(30))
    }
    assert len(seen) == 30


def test_defaults_by_the_seed() -> None:
    def body(result: Result) -> list[bytes]:
        return result.out.splitlines()[1:]

    for seed, family in enumerate(FAMILIES):
        plain = generate("regal", "--seed", seed)
        n = len(plain.records("node"))
        assert body(plain) == body(generate(family, "--nodes", n, "--seed", seed))
    assert body(generate()) == body(generate("regal", "--seed", 0))
    assert generate("--name", "mine").one("header")["model"] == "mine"


def test_frozen() -> None:
    """Published results name seeds, so what a seed gives must not change unseen."""
    graph = regal_graph(None, None, 3)
    assert (graph.family, graph.n, len(graph.tail)) == ("stochastic-block", 172, 1201)
    assert [round(x, 6) for x in (graph.size[0], graph.size[-1])] == [52.055317, 51.815534]
    assert round(graph.cost.sum(), 3) == 183376.329


BAD: dict[str, tuple[tuple[str, ...], str]] = {
    "unknown family": (("--synthetic", "grid"), "argument --synthetic: invalid choice: 'grid'"),
    "no node": (("--synthetic", "--nodes", "0"), "erdos-renyi has at least 2 nodes, not 0"),
    "one node": (("--synthetic", "erdos-renyi", "--nodes", "1"), "at least 2 nodes, not 1"),
    "two nodes": (("--synthetic", "barabasi-albert", "--nodes", "2"), "at least 3 nodes, not 2"),
    "four nodes": (("--synthetic", "watts-strogatz", "--nodes", "4"), "at least 5 nodes, not 4"),
    "three nodes": (("--synthetic", "stochastic-block", "--nodes", "3"), "at least 4 nodes, not 3"),
    "nodes below 0": (("--synthetic", "--nodes", "-5"), "argument --nodes: -5 is below 0"),
    "nodes no number": (("--synthetic", "--nodes", "1e3"), "'1e3' is not a whole number"),
    "too many nodes": (("--synthetic", "--nodes", "1000001"), "at most 1000000 nodes, not 1000001"),
    "seed below 0": (("--synthetic", "--seed", "-1"), "argument --seed: -1 is below 0"),
    "seed no number": (("--synthetic", "--seed", "x"), "argument --seed: 'x' is not a whole"),
    "seed too large": (("--synthetic", "--seed", str(10**30)), "argument --seed: "),
    "nothing": ((), "nothing to import: give MODEL or --synthetic"),
    "both": (("m.onnx", "--synthetic"), "give MODEL or --synthetic, not both"),
    "both, family": (("--synthetic", "regal", "m.onnx"), "give MODEL or --synthetic, not both"),
    "file as family": (("--synthetic", "m.onnx"), "invalid choice: 'm.onnx'"),
    "format": (("--synthetic", "--from", "onnx"), "--from is for files, not for --synthetic"),
    "dimension": (("--synthetic", "--dim", "a=1"), "--dim is for files, not for --synthetic"),
    "one tensor": (("--synthetic", "--one-tensor"), "--one-tensor is for files, not for --synth"),
    "one tensor of others": (("m.onnx", "--one-tensor"), "--one-tensor is for costgraph, not for"),
    "seed of a file": (("m.onnx", "--seed", "1"), "--seed is for --synthetic, not for a file"),
    "reading of a file": (("m.onnx", "--reading", "own"), "--reading is for --synthetic, not"),
    "unknown reading": (("--synthetic", "--reading", "mean"), "argument --reading: invalid choice"),
    "reading of layers": (
        ("--synthetic", "layered", "--reading", "own"), "--reading is not for --synthetic layered"),
    "nodes of a file": (("m.onnx", "--nodes", "9"), "--nodes is for --synthetic, not for a file"),
    "name not UTF-8": (("--synthetic", "--name", "\udcff"), "is not UTF-8"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_usage(name: str) -> None:
    arguments, message = BAD[name]
    result = dnnp("import", *arguments)
    assert (result.status, result.out) == (2, b"")
    assert message in result.err
    assert result.err.count("\n") == 1
    assert result.err.startswith("dnnp-import: ")


def test_core_refuses() -> None:
    bad = [("grid", 60, 0), ("erdos-renyi", 60, -1), ("erdos-renyi", MOST_NODES + 1, 0)]
    for arguments in (*bad, (None, None, 0, "mean")):
        with pytest.raises(UsageError):
            regal_graph(*arguments)


def test_table_of_samples() -> None:
    assert [row["seed"] for row in TABLE["graphs"]] == list(range(40))
    for row in TABLE["graphs"]:
        graph = regal_graph(None, None, row["seed"])
        assert row == {
            "name": f"{row['seed']:02d}",
            "family": graph.family,
            "nodes": graph.n,
            "seed": row["seed"],
        }
    assert TABLE["families"] == {
        "erdos-renyi": {"edge_probability": regal.EDGE_PROBABILITY},
        "barabasi-albert": {"edges_of_a_new_node": regal.ATTACHMENTS},
        "watts-strogatz": {
            "nearest_neighbours": regal.NEIGHBOURS,
            "rewiring_probability": regal.REWIRED,
        },
        "stochastic-block": {
            "blocks": regal.BLOCKS,
            "edge_probability_within": regal.WITHIN,
            "edge_probability_across": regal.ACROSS,
        },
    }


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_writes_them(tmp_path: Path) -> None:
    variables = [f"GENERATED={tmp_path}", f"VENV={served()}"]
    make = ["make", "-C", ROOT / "samples", *variables]
    output_of([*make, "regal", "GRAPHS=02 39"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["02.dnnp", "39.dnnp"]
    for seed in (2, 39):
        written = (tmp_path / f"{seed:02d}.dnnp").read_bytes().splitlines()
        assert written[1:] == generate("regal", "--seed", seed).out.splitlines()[1:]
    assert "40 graphs" in output_of([*make, "-n", "regal"])
    wrong = ended([*make, "regal", "GRAPHS=40"])
    assert wrong.returncode != 0
    assert "no graph 40 in regal.json" in wrong.stderr


def test_layered_graphs() -> None:
    """Four classes of one device each, and the generator's numbers."""
    words = ("--synthetic", "layered", "--nodes", "30", "--ratio", "2", "--seed", "5")
    result = dnnp("import", *words)
    assert result.status == 0, result.err
    made = layered_graph(30, 2.0, 5)
    devices = result.records("device")
    assert [(d["class"], d["count"]) for d in devices] == [(name, 1) for name in made.times]
    for i, node in enumerate(result.records("node")):
        assert node["time_s"] == {name: float(times[i]) for name, times in made.times.items()}
    assert [t["size_bytes"] for t in result.records("tensor")] == made.size.tolist()
    assert dnnp("check", stdin=result.out).status == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ratio", "1"], "--ratio is for --synthetic layered"),
        (["--ratio", "-1", "--synthetic", "layered"], "--ratio"),
        (["--synthetic", "layered", "--nodes", "0"], "1 to 1000000 nodes"),
    ],
)
def test_bad_layered_options(arguments: list[str], message: str) -> None:
    words = arguments if "--synthetic" in arguments else ["--synthetic", "regal", *arguments]
    result = dnnp("import", *words)
    assert result.status == 2
    assert message in result.err
