"""dnnp-view --as text: what is said of a plan."""

from __future__ import annotations

from support.run import dnnp
from support.seeds import encode, planned


def test_a_line_a_stage() -> None:
    records = planned()
    done = dnnp("view", stdin=encode(records))
    assert (done.status, done.err) == (0, "")
    lines = done.out.decode().splitlines()
    for record in (r for r in records if r["type"] == "stage"):
        assert sum(record["device"] in line for line in lines) == 1
