"""dnnp-partition --method placeto: policies in files, and families to train on."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from dnnp.core.model.errors import FormatError
from dnnp.core.model.search_context import Policy
from dnnp.formats.inputs.policy import parse_policy, policy_bytes
from dnnp.samples.papers.placeto import HOPS, WIDTH, first_weights
from support.graphs import random_stream, to_bytes
from support.run import dnnp

DEVICES = ("--execution", "operators", "--bandwidth", "10", "-k", "2")


def graph(seed: int) -> bytes:
    return to_bytes(random_stream(seed, 9))


def placed(*arguments: object, stdin: bytes):
    return dnnp(
        "partition", "--objective", "latency", "--method", "placeto", *DEVICES,
        *map(str, arguments), stdin=stdin,
    )  # fmt: skip


needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="placeto needs PyTorch")


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    result = placed("--save-policy", tmp_path / "policy.json", stdin=graph(1))
    assert (result.status, result.out) == (7, b"")
    wanted = "dnnp-partition: method placeto needs PyTorch: pip install 'dnnp[placeto]'"
    assert result.err.splitlines()[-1] == wanted
    assert not [*tmp_path.iterdir()]


@needs_torch
def test_a_policy_goes_from_graph_to_graph(tmp_path: Path) -> None:
    family = []
    for seed in (1, 2):
        family.append(tmp_path / f"{seed}.jsonl")
        family[-1].write_bytes(graph(seed))
    saved = tmp_path / "policy.json"
    train = [word for path in family for word in ("--train-on", path)]
    first = placed(*train, "--episodes", 24, "--save-policy", saved, stdin=graph(3))
    assert first.status == 0, first.err
    policy = parse_policy(saved.read_bytes(), "saved")
    told = first.one("plan")["policy"]
    assert told == {
        "digest": policy.digest, "trained": 24, "episodes": 24, "asked": 24, "graphs": 2,
        "hops": HOPS, "groups": 9, "colors": 9, "rounds": 8,
    }  # fmt: skip
    assert (policy.episodes, policy.graphs) == (24, 2)
    again = placed("--policy", saved, stdin=graph(3))
    assert again.one("plan")["value"] == first.one("plan")["value"]
    assert again.one("plan")["policy"] == told | {"episodes": 0, "asked": 0, "graphs": 0}
    assert dnnp("check", stdin=again.out).status == 0
    more = tmp_path / "more.json"
    tuned = placed("--policy", saved, "--episodes", 8, "--save-policy", more, stdin=graph(4)).one(
        "plan"
    )["policy"]
    assert (tuned["trained"], tuned["episodes"]) == (32, 8)
    assert json.loads(more.read_bytes())["digest"] == tuned["digest"] != policy.digest


@needs_torch
def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    saved, other = tmp_path / "policy.json", tmp_path / "other.jsonl"
    assert placed("--episodes", 0, "--save-policy", saved, stdin=graph(1)).status == 0
    other.write_bytes(graph(2)[:200])
    cases = [
        (("--policy", tmp_path / "none.json"), 1, "No such file"),
        (("--policy", other), 3, "not "),
        (("--train-on", tmp_path / "none.jsonl"), 1, "No such file"),
        (("--train-on", other), 3, "other.jsonl"),
        (("--policy", saved, "-k", 3), 2, "for 2 devices, not for 3"),
        (("--policy", saved, "--save-policy", saved), 2, "would overwrite"),
        (("--save-policy", tmp_path / "no" / "where"), 1, "No such file"),
        (("--episodes", "-1"), 2, "--episodes"),
    ]
    for arguments, status, words in cases:
        result = placed(*arguments, stdin=graph(1))
        assert (result.status, words in result.err) == (status, True), result.err
        assert result.err.count("\n") == 1 or status == 2
        assert not result.out
    idle = dnnp("partition", "-k", "2", "--policy", str(saved), stdin=graph(1))
    assert (idle.status, "--policy is for --method placeto" in idle.err) == (2, True)


POLICY = Policy(2, 3, 4, first_weights(2, 4, np.random.default_rng(5)), 7, 2)


def test_a_file_comes_back_as_it_was() -> None:
    again = parse_policy(policy_bytes(POLICY), "again")
    assert again.weights.tobytes() == POLICY.weights.tobytes()
    assert again.digest == POLICY.digest
    assert policy_bytes(again) == policy_bytes(POLICY)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "else"}, "not a policy"),
        ({"version": 2}, "field 'version': 2 is not known"),
        ({"method": "auto"}, "field 'method'"),
        ({"devices": 0}, "field 'devices': 0 is not an integer from 1 to 1024"),
        ({"devices": 3}, "field 'digest'"),
        ({"hops": 1.5}, "field 'hops'"),
        ({"weights": []}, "field 'weights'"),
        ({"weights": {"0": 1}}, "field 'weights'"),
        ({"weights": [0.5, float("nan")]}, r"field 'weights\[1\]'"),
        ({"weights": [True]}, r"field 'weights\[0\]'"),
        ({"weights": [1e300]}, r"field 'weights\[0\]'"),
        ({"weights": [0.5]}, "field 'digest'"),
        ({"digest": "0" * 64}, "the file was changed"),
        ({"episodes": -1}, "field 'episodes'"),
        ({"more": 1}, "field 'more': is not known"),
    ],
)
def test_a_file_that_was_changed_is_refused(change: dict, words: str) -> None:
    record = json.loads(policy_bytes(POLICY)) | change
    with pytest.raises(FormatError, match=words):
        parse_policy(json.dumps(record).encode(), "policy.json")


def test_too_few_weights_are_refused(tmp_path: Path) -> None:
    """The digest is right, but the sizes ask for more."""
    path = tmp_path / "few.json"
    path.write_bytes(policy_bytes(Policy(2, HOPS, WIDTH, np.ones(5))))
    result = placed("--policy", path, stdin=graph(1))
    assert (result.status, "5 weights; its sizes ask for" in result.err) == (3, True)
