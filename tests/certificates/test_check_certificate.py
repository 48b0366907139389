"""dnnp-check --certificate: what is verified, what is not, and what it says of either."""

from __future__ import annotations

import orjson
import pytest

from support.graphs import random_stream, to_bytes
from support.run import Result, dnnp, edited

CERTIFICATE = ("check", "--certificate")


def bounded(method: str, plan_by: str = "slice") -> bytes:
    """A stream with a plan by this method and a bound by this argument."""
    plan = dnnp("partition", "-k", "3", "--method", plan_by, stdin=to_bytes(random_stream(3, 7)))
    assert plan.status == 0, plan.err
    bound = dnnp("bound", "--method", method, stdin=plan.out)
    assert bound.status == 0, bound.err
    return bound.out


def claiming(data: bytes, **fields: object) -> bytes:
    """The stream with other fields in the certificate of its bound."""
    return edited(data, "bound", lambda record: record["certificate"].update(fields))


def told(result: Result) -> list[dict]:
    """The certificates in the object of --json."""
    return orjson.loads(result.out)["certificates"]


@pytest.mark.parametrize("method", ["simple", "pairs"])
def test_a_proof_is_verified(method):
    result = dnnp(*CERTIFICATE, "--json", stdin=bounded(method))
    assert result.status == 0, result.err
    assert told(result) == [{"argument": method, "verdict": "verified", "detail": ""}]
    assert f"bound verified ({method})" in result.err


def test_a_claim_beyond_the_proof_fails():
    data = bounded("pairs")
    units = next(r for r in map(orjson.loads, data.splitlines()) if r["type"] == "bound")
    for fields in (
        {"units": units["certificate"]["units"] * 2},
        {"cuts": []},
        {"cliques": 3},
        {"quantum": -1.0},
    ):
        result = dnnp(*CERTIFICATE, "--json", stdin=claiming(data, **fields))
        assert result.status == 6, fields
        assert told(result)[0]["verdict"] == "refuted"
        (violation,) = orjson.loads(result.out)["violations"]
        assert violation["kind"] == "certificate"
        assert "does not prove it" in result.err
        assert len(result.err.splitlines()) == 2
        assert max(map(len, result.err.splitlines())) < 300
        # Without the option the record is taken at its word.
        assert dnnp("check", stdin=claiming(data, **fields)).status == 0
    for argument in ("simple", "none", "x" * 900, "two\nlines\x1b[2J"):
        # It contradicts the method of the bound as well.
        result = dnnp(*CERTIFICATE, "--json", stdin=claiming(data, argument=argument))
        assert result.status == 3, argument
        assert told(result)[0]["verdict"] == "refuted"
        kinds = {violation["kind"] for violation in orjson.loads(result.out)["violations"]}
        assert "certificate" in kinds
        assert max(map(len, result.err.splitlines())) < 300
        assert "\x1b" not in result.err


def test_what_is_not_checkable_is_said_plainly():
    result = dnnp(*CERTIFICATE, "--quiet", "--json", stdin=bounded("exact"))
    assert result.status == 9
    (line,) = result.err.splitlines()
    assert "the bound is not verified" in line
    assert "solver cbc" in line
    assert told(result)[0]["verdict"] == "not checkable"
    assert not orjson.loads(result.out)["ok"]
    result = dnnp(*CERTIFICATE, stdin=bounded("exact"))
    assert "not verified, all else holds: " in result.err
    assert ", gap not verified, bound not checkable (exact)\n" in result.err


def test_a_bound_without_a_certificate_is_not_verified():
    data = edited(bounded("simple"), "bound", lambda record: record.pop("certificate"))
    assert dnnp("check", stdin=data).status == 0
    result = dnnp(*CERTIFICATE, stdin=data)
    assert result.status == 9
    assert "the bound is not verified: its certificate (none)" in result.err


def test_a_bound_of_the_plan_beyond_the_proof_is_not_verified():
    """The exact search proves more than the argument simple; a forger claims as much."""
    proven = bounded("simple", "auto")
    value = next(r for r in map(orjson.loads, proven.splitlines()) if r["type"] == "bound")["value"]

    def claim(plan: dict) -> None:
        bound = (plan["value"] + value) / 2
        plan |= {"bound": bound, "gap": 1 - bound / plan["value"], "status": "feasible"}

    claims = {
        "that it is optimal": proven,
        "its bound ": edited(bounded("simple"), "plan", claim),
    }
    for what, data in claims.items():
        assert dnnp("check", stdin=data).status == 0
        result = dnnp(*CERTIFICATE, stdin=data)
        assert result.status == 6
        assert f"dnnp-check: plan: {what}" in result.err
        assert f"is not verified: the certificate (simple) proves {value!r}" in result.err
        assert "gap 0," not in result.err
        assert result.err.endswith(", bound verified (simple)\n")


def test_no_bound_to_verify():
    plan = dnnp("partition", "-k", "3", stdin=to_bytes(random_stream(3, 7))).out
    for data, missing in ((plan, "bound"), (to_bytes(random_stream(3, 7)), "plan")):
        result = dnnp(*CERTIFICATE, stdin=data)
        assert result.status == 3
        assert result.err.count("\n") == 1
        assert f"no {missing} record" in result.err
    assert told(dnnp("check", "--json", stdin=plan)) is None
