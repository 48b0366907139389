"""Stages on a Ray cluster; without Ray only that it is missing is said."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dnnp.core.model.errors import LimitError
from dnnp.core.runtime.workers.pool import WorkerSpec
from dnnp.core.runtime.workers.ray import Placement, placements
from support.faults import Case, check
from support.run import PATIENCE_S, dnnp
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


def seated(nodes: Nodes, *specs: WorkerSpec) -> tuple[list[str], list[Placement]]:
    said: list[str] = []
    return said, placements(nodes, specs, said.append)


def test_actors_go_where_their_device_is() -> None:
    nodes = Nodes(
        {"Resources": {"CPU": 8.0}, "Labels": {"dnnp-class": "cpu-core"}},
        {"Resources": {"CPU": 2.0}, "Labels": {"dnnp-device": "cpu-core.1"}},
        {"Resources": {"CPU": 2.0, "t4": 1.0, "GPU": 1.0}},
    )
    specs = [
        WorkerSpec("d", device="a100/0", threads=3),
        WorkerSpec("a", device="cpu-core/0"),
        WorkerSpec("b", device="cpu-core/1"),
        WorkerSpec("c", device="t4/0", gpus=1),
    ]
    said, found = seated(nodes, *specs)
    assert found == [
        Placement("0", False, {"num_cpus": 3}),
        Placement("0", True, {"num_cpus": 1}),
        Placement("1", True, {"num_cpus": 1}),
        Placement("2", True, {"num_cpus": 1, "num_gpus": 1}),
    ]
    assert not said
    with pytest.raises(LimitError, match=r"^e: no node of the cluster has a GPU for it"):
        seated(nodes, WorkerSpec("e", gpus=2))


def test_those_that_can_go_anywhere_leave_room() -> None:
    nodes = Nodes({"Resources": {"CPU": 2.0}},
                  {"Resources": {"CPU": 2.0}, "Labels": {"dnnp-device": "x.1"}})  # fmt: skip
    specs = [
        WorkerSpec("a", device="x/0"),
        *[WorkerSpec("b", device="x/1")] * 2,
        WorkerSpec("c", device="x/2"),
    ]
    said, found = seated(nodes, *specs)
    assert [placement.node for placement in found] == ["0", "1", "1", "0"]
    assert {placement.options["num_cpus"] for placement in found} == {1}
    assert not said


def test_actors_share_processors_where_there_are_few() -> None:
    nodes = Nodes({"Resources": {"CPU": 1.0}}, {"Resources": {"CPU": 1.0}},
                  {"Resources": {"CPU": 9.0}, "Alive": False})  # fmt: skip
    said, found = seated(nodes, *(WorkerSpec(str(i)) for i in range(3)))
    assert sorted(placement.options["num_cpus"] for placement in found) == [0.5, 0.5, 1]
    assert said == ["3 workers of 3 threads share processors of Ray, 2 in all"]
    assert seated(nodes, WorkerSpec("wide", threads=2))[1][0].options["num_cpus"] == 1


def test_without_ray_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    result = dnnp("run", "-q", "--engine", "ray", stdin=planned(network(), tmp_path, SPLIT))
    assert result.status == 7
    assert result.err == "dnnp-run: --engine ray needs Ray: pip install 'dnnp[ray]'\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--ray-address", "auto"), "--ray-address is for --engine ray"),
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


HELD = """
import json, os, sys, time
from pathlib import Path
from dnnp.core.runtime.workers.ray import connected
from dnnp.core.runtime.workers.pool import Rules

def listening():
    "Addresses where this process, and those that it started, listen."
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            pass
    mine, more = set(), {os.getpid()}
    while more:
        mine |= more
        more = {child for child, parent in parents.items() if parent in more} - mine
    sockets = set()
    for folder in (f"/proc/{number}/fd" for number in mine):
        try:
            sockets |= {os.readlink(f"{folder}/{name}") for name in os.listdir(folder)}
        except OSError:
            pass
    rows = [row.split() for kind in ("tcp", "tcp6") for row in open(f"/proc/net/{kind}")]
    rows = [row for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets]
    return sorted({row[1][-13:-5] for row in rows})

for _ in range(2):  # each with a token of its own
    with connected(None, Rules()) as ray:
        found = ray.get(ray.remote(lambda: os.environ["RAY_AUTH_TOKEN"]).remote())
        told = [listening(), found, [node["NodeManagerAddress"] for node in ray.nodes()]]
        print(json.dumps(told), flush=True)
        sys.stdin.readline()
print([name for name in os.environ if name.startswith("RAY_AUTH")])
"""


def seen_by_another(folder: Path) -> list[str]:
    """Entries of a folder and its folders that another user can list."""
    program = """
import os, sys
os.setgroups([])
os.setuid(65534)
names = [(top, name) for top, *both in os.walk(sys.argv[1]) for some in both for name in some]
print([os.path.join(*name) for name in names])
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", program, folder], capture_output=True, text=True, check=True
    )
    return ast.literal_eval(done.stdout)


@needs_ray
def test_a_cluster_of_this_machine_is_for_this_user_alone(tmp_path: Path) -> None:
    """Its folder, its ports and its token, while it runs; nothing is left in the home folder."""
    home = tmp_path / "home"
    home.mkdir()
    with tempfile.TemporaryDirectory(prefix="x", dir="/tmp") as place:
        Path(place).chmod(0o755)
        env = {name: v for name, v in os.environ.items() if not name.startswith("RAY_")}
        process = subprocess.Popen(
            [sys.executable, "-c", HELD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**env, "HOME": str(home), "TMPDIR": place},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        tokens = []
        for _ in range(2):
            addresses, token, nodes = json.loads(process.stdout.readline())
            tokens.append(token)
            assert set(addresses) == {"0100007F"}
            assert nodes == ["127.0.0.1"]
            (folder,) = Path(place).iterdir()
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            files = [path for path in folder.rglob("*") if path.is_file() or path.is_socket()]
            assert len(files) > 4
            assert not any(path.stat().st_mode & 0o077 for path in files)
            if os.getuid() == 0:  # only root may become another user
                assert seen_by_another(Path(place)) == [str(folder)]
            process.stdin.write("\n")
            process.stdin.flush()
        assert process.communicate(timeout=PATIENCE_S)[0] == "[]\n"
        assert process.returncode == 0
        assert not list(Path(place).iterdir())
    assert len({*tokens}) == 2
    assert not list(home.rglob("*"))
