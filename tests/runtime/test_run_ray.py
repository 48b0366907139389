"""Stages on a Ray cluster; without Ray only that it is missing is said."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dnnp.core.model.errors import LimitError
from dnnp.core.runtime.workers.ray_staff import Seat, seats
from dnnp.core.runtime.workers.staff import Post
from support.faults import Case, check
from support.run import dnnp
from support.running import SPLIT, network, planned

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed"
)


class Nodes:
    """Stands for Ray where only its nodes matter."""

    def __init__(self, *nodes: dict) -> None:
        self._nodes = nodes

    def nodes(self) -> list[dict]:
        return [
            {"NodeID": str(i), "Alive": True, "Labels": {}, **node}
            for i, node in enumerate(self._nodes)
        ]


def seated(nodes: Nodes, *posts: Post) -> tuple[list[str], list[Seat]]:
    said: list[str] = []
    return said, seats(nodes, posts, said.append)


def test_actors_go_where_their_device_is() -> None:
    nodes = Nodes(
        {"Resources": {"CPU": 8.0}, "Labels": {"dnnp-class": "cpu-core"}},
        {"Resources": {"CPU": 2.0}, "Labels": {"dnnp-device": "cpu-core.1"}},
        {"Resources": {"CPU": 2.0, "t4": 1.0, "GPU": 1.0}},
    )
    posts = [Post("d", device="a100/0", threads=3), Post("a", device="cpu-core/0"),
             Post("b", device="cpu-core/1"), Post("c", device="t4/0", gpus=1)]  # fmt: skip
    said, found = seated(nodes, *posts)
    assert found == [
        Seat("0", False, {"num_cpus": 3}),
        Seat("0", True, {"num_cpus": 1}),
        Seat("1", True, {"num_cpus": 1}),
        Seat("2", True, {"num_cpus": 1, "num_gpus": 1}),
    ]
    assert not said
    with pytest.raises(LimitError, match=r"^e: no node of the cluster has a GPU for it"):
        seated(nodes, Post("e", gpus=2))


def test_those_that_can_go_anywhere_leave_room() -> None:
    nodes = Nodes({"Resources": {"CPU": 2.0}},
                  {"Resources": {"CPU": 2.0}, "Labels": {"dnnp-device": "x.1"}})  # fmt: skip
    posts = [Post("a", device="x/0"), *[Post("b", device="x/1")] * 2, Post("c", device="x/2")]
    said, found = seated(nodes, *posts)
    assert [seat.node for seat in found] == ["0", "1", "1", "0"]
    assert {seat.options["num_cpus"] for seat in found} == {1}
    assert not said


def test_actors_share_processors_where_there_are_few() -> None:
    nodes = Nodes({"Resources": {"CPU": 1.0}}, {"Resources": {"CPU": 1.0}},
                  {"Resources": {"CPU": 9.0}, "Alive": False})  # fmt: skip
    said, found = seated(nodes, *(Post(str(i)) for i in range(3)))
    assert sorted(seat.options["num_cpus"] for seat in found) == [0.5, 0.5, 1]
    assert said == ["3 workers of 3 threads share processors of Ray, 2 in all"]
    assert seated(nodes, Post("wide", threads=2))[1][0].options["num_cpus"] == 1


def test_without_ray_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    result = dnnp("run", "-q", "--engine", "ray", stdin=planned(network(), tmp_path, SPLIT))
    assert result.status == 7
    assert result.err == "dnnp-run: --engine ray needs Ray: pip install 'dnnp[ray]'\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--ray-address", "auto"), "--ray-address: is for --engine ray"),
        (("--engine", "ray", "--workers", "process"), "with --engine ray stages are actors"),
    ],
)
def test_options_that_contradict(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    result = dnnp("run", *words, stdin=planned(network(), tmp_path, SPLIT))
    assert (result.status, message in result.err) == (2, True)


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Two nodes, the second one for one device of a plan."""
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 2, "include_dashboard": False}
    found = Cluster(initialize_head=True, head_node_args=head)
    found.add_node(num_cpus=2, labels={"dnnp-device": "cpu-core.1"})
    ray.init(address=found.address, log_to_driver=False, configure_logging=False)
    yield found.address
    ray.shutdown()
    found.shutdown()


@needs_ray
@pytest.mark.parametrize("replicas", [(1, 1, 1), (1, 2, 1)])
def test_two_nodes_compute_what_the_whole_model_computes(
    cluster: str, tmp_path: Path, replicas: tuple[int, ...]
) -> None:
    stream = planned(network(), tmp_path, SPLIT, replicas=replicas)
    words = ("--engine", "ray", "--ray-address", cluster, "--verify", "--warmup", "1", "-n", "8")
    result = dnnp("run", *words, "--save-outputs", tmp_path / "ray.npz", stdin=stream)
    assert result.status == 0, result.err
    record = result.one("run")
    assert (record["verified"], record["workers"], record["restarts"]) == (True, "ray", [])
    dnnp("run", "--save-outputs", tmp_path / "threads.npz", "-n", "8", stdin=stream)
    got, expected = np.load(tmp_path / "ray.npz"), np.load(tmp_path / "threads.npz")
    assert sorted(got) == sorted(expected)
    for name in expected:
        np.testing.assert_array_equal(got[name], expected[name])


@needs_ray
@pytest.mark.parametrize("how", ["kill", "raise", "interrupt"])
@pytest.mark.usefixtures("cluster")
def test_actors_that_fail_or_are_lost(how: str) -> None:
    assert not check(Case("ray", how))
