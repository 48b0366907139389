"""Links measured: the fit, the sweep, the ways between devices, and the file that comes of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnnp.core.extras.fit import fit_link
from dnnp.core.model.errors import UnavailableError
from dnnp.core.model.processes import available_cores
from dnnp.core.runtime import measure_links
from dnnp.core.runtime.measure_links import SIZES, Sweep, Transfer
from dnnp.fits.links import measured_link
from dnnp.formats.inputs.devices import load_cluster
from dnnp.samples.fit_links import main
from support.run import dnnp
from support.seeds import encode, graph_records


@given(
    latency=st.floats(1e-7, 1e-1),
    bandwidth=st.floats(1e6, 1e12),
    seed=st.integers(0, 10**6),
    disturbed=st.integers(0, 3),
)
@settings(max_examples=150, deadline=None)
def test_a_line_is_found_again(
    latency: float, bandwidth: float, seed: int, disturbed: int
) -> None:  # fmt: skip
    """With noise of 1 %, and up to three of twelve sizes that took up to ten times as long."""
    rng = np.random.default_rng(seed)
    # From a twentieth of the size at which both parts are equal to twenty times as much.
    sizes = latency * bandwidth * np.geomspace(0.05, 20, 12)
    seconds = (latency + sizes / bandwidth) * rng.uniform(0.99, 1.01, 12)
    seconds[rng.choice(12, disturbed, replace=False)] *= rng.uniform(2, 10)
    fit = fit_link(sizes.tolist(), seconds.tolist())
    assert fit.bounded
    assert fit.latency_s == pytest.approx(latency, rel=0.03)
    assert fit.bandwidth_bytes_per_s == pytest.approx(bandwidth, rel=0.03)
    assert fit.error < 0.02


def test_an_exact_line() -> None:
    """1 ms and 100 MB/s: 1 MB takes 11 ms, 4 MB 41 ms."""
    fit = fit_link([0, 1e6, 4e6], [1e-3, 11e-3, 41e-3])
    assert fit.latency_s == pytest.approx(1e-3)
    assert fit.bandwidth_bytes_per_s == pytest.approx(1e8)
    assert fit.error == pytest.approx(0, abs=1e-9)


def test_what_does_not_depend_on_the_size() -> None:
    """The bandwidth is the least that it may be: beyond it the largest would take 1 % longer."""
    fit = fit_link([1, 10, 100, 1000], [2e-5] * 4)
    assert not fit.bounded
    assert (fit.latency_s, fit.bandwidth_bytes_per_s) == pytest.approx((2e-5, 1000 / 2e-7))
    falling = fit_link([1, 10, 100, 1000], [4e-5, 3e-5, 2e-5, 1e-5])
    assert not falling.bounded
    assert falling.latency_s > 0


def test_no_latency_below_nothing() -> None:
    fit = fit_link([1e3, 1e4, 1e5, 1e6], [0.5e-6, 1e-5, 1e-4, 1e-3])
    assert 0 <= fit.latency_s < 1e-6
    assert fit.bandwidth_bytes_per_s == pytest.approx(1e9, rel=0.1)


def sleeping(latency_s: float, bandwidth: float, trips: int = 1) -> Transfer:
    """A link that sleeps, and wakes in time: the system would let it sleep a little longer."""

    def transfer(size: int) -> None:
        until = time.perf_counter() + trips * latency_s + size / bandwidth
        time.sleep(max(until - time.perf_counter() - 5e-4, 0.0))
        while time.perf_counter() < until:
            pass

    return transfer


@pytest.mark.parametrize("trips", [1, 2])
def test_a_link_that_sleeps_is_found_again(trips: int) -> None:
    """The fitted value is asserted; disturbed sizes are outvoted."""
    sizes = (256, 4096, 65536, 262144, 1048576, 4194304)
    fit = measured_link(sleeping(1e-3, 1e8, trips), sizes=sizes, trips=trips)
    assert fit.latency_s == pytest.approx(1e-3, rel=0.05)
    assert fit.bandwidth_bytes_per_s == pytest.approx(1e8, rel=0.05)
    assert fit.bounded


def test_disturbed_rounds_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that only transfers move on; every other one of them takes 40 ms longer."""
    now = [0]
    monkeypatch.setattr(measure_links.time, "perf_counter_ns", lambda: now[0])
    calls = []

    def transfer(size: int) -> None:
        calls.append(size)
        now[0] += 1000 + 10 * size + (40_000_000 if len(calls) % 2 else 0)

    sweep = Sweep(transfer, (100, 1000, 10000))
    sweep.add(rounds=8, limit_s=1e9)
    assert calls == [100, 1000, 10000] * 9
    assert sweep.points()[0] == [100.0, 1000.0, 10000.0]
    assert sweep.points()[1] == pytest.approx([2e-6, 11e-6, 101e-6])
    sweep.add(rounds=100, limit_s=0)
    assert len(calls) == 3 * (9 + 3)


CORES = available_cores()[0], available_cores()[-1]
WAYS: dict[str, Callable[[], AbstractContextManager[Transfer]]] = {
    "threads": lambda: measure_links.between_threads(*CORES),
    "shared memory": lambda: measure_links.between_processes(*CORES, 4096, shared=True),
    "pipe": lambda: measure_links.between_processes(*CORES, 4096, shared=False),
    # What is there for GPUs, with the memory of the host in place of theirs.
    "to a device": lambda: measure_links.to_gpu(CORES[0], 0, "cpu"),
    "from a device": lambda: measure_links.from_gpu(CORES[0], 0, "cpu"),
}


@pytest.mark.parametrize("way", WAYS)
def test_ways_between_devices(way: str) -> None:
    before = available_cores()
    with WAYS[way]() as transfer:
        for size in (64, 4096, 64):
            transfer(size)
    assert available_cores() == before


def test_copies_between_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = []
    monkeypatch.setattr(onnxruntime, "copy_tensors", lambda a, b: copied.append((a[0], b[0])))
    with measure_links.between_gpus(0, 0, "cpu") as transfer:
        transfer(64)
        transfer(64)
    (source, target), again = copied
    assert again == (source, target)
    assert source.shape() == target.shape() == [64]
    monkeypatch.delattr(onnxruntime, "copy_tensors")
    with (
        pytest.raises(UnavailableError, match="need onnxruntime"),
        measure_links.between_gpus(0, 0, "cpu"),
    ):
        pass


def test_gpus_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_links, "require_provider", lambda name: None)
    monkeypatch.setattr(measure_links, "count_gpus", lambda: 2)
    measure_links.require_gpus(2)
    with pytest.raises(UnavailableError, match="3 GPUs are asked for, and there are 2"):
        measure_links.require_gpus(3)


@pytest.mark.skipif(CORES[0] == CORES[1], reason="needs two cores")
def test_a_devices_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "machine.jsonl"
    assert main(["cpu-core:2", "--seconds", "0.01", "-o", str(path)]) == 0
    assert "cpu-core/0 to cpu-core/1: " in capsys.readouterr().err
    devices, links = load_cluster(str(path))
    assert [(d["class"], d["count"]) for d in devices] == [("cpu-core", 2)]
    ((link, _),) = links
    assert (link["from"], link["to"]) == ("cpu-core/0", "cpu-core/1")
    assert link["bandwidth_bytes_per_s"] > 1e6
    assert 0 <= link["latency_s"] < 1
    bare = [{k: v for k, v in r.items() if k != "time_s"} for r in graph_records()]
    priced = dnnp("profile", "-q", stdin=encode([r for r in bare if r["type"] != "device"]))
    words = ("--devices", path, "--objective", "latency", "--method", "heft")
    plan = dnnp("partition", *words, stdin=priced.out)
    assert plan.status == 0, plan.err
    assert len(plan.one("plan")["links"]) == 2


def test_both_ways_to_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As for a machine with two GPUs, whose memory is that of the host here."""
    monkeypatch.setattr(measure_links, "require_gpus", lambda count: None)
    monkeypatch.setattr(onnxruntime, "copy_tensors", lambda a, b: None)
    for name in ("to_gpu", "from_gpu", "between_gpus"):
        way = partial(getattr(measure_links, name), device="cpu")
        monkeypatch.setattr(measure_links, name, lambda a, b, way=way: way(a, 0))
    monkeypatch.setattr(measure_links, "SIZES", SIZES[:4])
    words = ["t4:2,cpu-core", "--gpu", "t4", "--seconds", "0.01", "-o", str(tmp_path / "m")]
    assert main(words) == 0, capsys.readouterr().err
    links = [json.loads(line) for line in (tmp_path / "m").read_text().splitlines()[2:]]
    ends = [(link["from"], link["to"]) for link in links]
    assert ends == [("t4/0", "t4/1"), ("t4/0", "cpu-core/0"), ("t4/1", "cpu-core/0")]
    assert all(link["back_bandwidth_bytes_per_s"] > 0 for link in links)
    assert "t4/0 from cpu-core/0: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["cpu-cor:2"], 2, "unknown device class 'cpu-cor'; did you mean 'cpu-core'?"),
        (["cpu-core:2", "--gpu", "t4"], 2, "--gpu t4: no class of the devices; known: cpu-core"),
        (["cpu-core:99999"], 2, "99999 devices are cores, and there are "),
        (["none.json:1"], 1, "none.json: No such file"),
        (["cpu-core:1", "-o", "/no/such/folder/file"], 1, "/no/such/folder/file: No such file"),
    ],
)
def test_mistakes(
    words: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == status
    said = capsys.readouterr().err
    assert said.startswith("python -m dnnp.samples.fit_links: ")
    assert said.count("\n") == 1
    assert message in said


def test_a_machine_without_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this build has CUDA")
    assert main(["cpu-core:1,t4:1", "--gpu", "t4"]) == 7
    assert "provider 'cuda' is not in this build" in capsys.readouterr().err
