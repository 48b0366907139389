"""2,500 seeded mutations through every reader; `make fuzz` runs 100,000."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest
from fuzz import fuzz, mutate
from fuzz.fuzz import input_of, outcome_of, run, shares
from fuzz.oracle import schema_fault
from fuzz.targets import TARGETS, Target

from dnnp.core.model.errors import FormatError, InputFileError
from support import seeds

COUNT = 3000
SEED = 20240


@pytest.mark.parametrize(("target", "count"), shares(COUNT), ids=lambda x: getattr(x, "name", ""))
def test_mutations_end_well(target: Target, count: int, tmp_path: Path) -> None:
    failures, counts = run([(target, range(count))], SEED, tmp_path)
    assert not failures, "\n\n".join(f"{f.target} case {f.case}: {f.outcome}" for f in failures[:5])
    assert sum(counts[target.name].values()) == count
    assert counts[target.name]["ok"] > 0
    assert counts[target.name]["refused"] > 0 or target.name == "cost-cache"


def test_all_shares_add_up() -> None:
    assert sum(count for _, count in shares(COUNT)) == COUNT


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_seeds_are_valid(target: Target, tmp_path: Path) -> None:
    for data in target.seeds():
        assert outcome_of(target, data, tmp_path) == ("ok", "")


def test_a_case_is_reproducible() -> None:
    for target in TARGETS:
        assert input_of(target, 17, SEED) == input_of(target, 17, SEED)
        assert len({input_of(target, case, SEED) for case in range(40)}) > 20


def _target(error: Exception | None) -> Target:
    def fail(_: bytes, __: Path) -> None:
        if error is not None:
            raise error

    return Target("planted", mutate.TEXT, lambda: [b"seed\n"], fail)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no DnnpError"),
        RecursionError("deep"),
        InputFileError("status 1"),
        FormatError("two\nlines"),
        FormatError("long " * 10_000),
        UserWarning("a warning"),
    ],
)
def test_forbidden_outcomes_are_seen(error: Exception, tmp_path: Path) -> None:
    kind, _ = outcome_of(_target(error), b"", tmp_path)
    assert kind == "FAILURE"


def _spin(_: bytes, __: Path) -> None:
    end = time.process_time() + 1
    while time.process_time() < end:
        pass


def _wait(_: bytes, __: Path) -> None:
    Event().wait(0.5)


@pytest.mark.parametrize(
    ("limit", "work", "kind"),
    [
        ("CASE_LIMIT_S", _spin, "FAILURE"),
        ("COMPILED_LIMIT_S", _spin, "FAILURE"),
        ("HANG_LIMIT_S", _wait, "FAILURE"),
        ("CASE_LIMIT_S", _wait, "ok"),
        ("COMPILED_LIMIT_S", _wait, "ok"),
    ],
)
def test_limits_of_time(
    limit: str,
    work: Callable[[bytes, Path], None],
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Work that takes too long, and waiting that does; waiting takes no processor time."""
    monkeypatch.setattr(fuzz, limit, 0.2)
    target = Target("planted", (), list, work)
    assert fuzz.outcome_in_time(target, b"", tmp_path)[0] == kind


def test_a_case_that_compiles_has_another_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz, "CASE_LIMIT_S", 0.2)
    work = iter([_spin, _wait])
    target = Target("planted", (), list, lambda data, folder: next(work)(data, folder))
    assert fuzz.outcome_in_time(target, b"", tmp_path)[0] == "ok"


def test_allowed_outcomes_are_not_failures(tmp_path: Path) -> None:
    assert outcome_of(_target(None), b"", tmp_path)[0] == "ok"
    assert outcome_of(_target(FormatError("fine")), b"", tmp_path)[0] == "refused"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"version":1', b'"version":4'),
        (b'"size_bytes":80', b'"size_bytes":NaN'),
        (b'"size_bytes":80', b'"size_bytes":-80'),
        (b'"size_bytes":80', b'"size_bytes":1e999'),
        (b'"id":3', b'"id":"3"'),
        (b'"inputs":[0]', b'"inputs":[0,0]'),
        (b'"name":"n1"', b'"name":"\xff"'),
        (b'{"type":"end"', b'{"type":"and"'),
    ],
)
def test_oracle_objects(old: bytes, new: bytes) -> None:
    data = seeds.encode(seeds.planned())
    assert schema_fault(data) is None
    assert old in data
    assert schema_fault(data.replace(old, new)) is not None


def test_mutations_change_something() -> None:
    data = seeds.encode(seeds.planned())
    for mutation in set(mutate.STREAM):
        changed = {mutation(data, random.Random(case)) for case in range(30)}
        assert len(changed - {data}) > 5, mutation.__name__
