"""dnnp-profile --tensor-parallel from the outside."""

from __future__ import annotations

import pytest

from dnnp.core.cost.load_formula import ALL_REDUCE, moved_bytes
from support.graphs import node, tensor
from support.run import dnnp
from support.seeds import encode, header


def records(*, backward: bool = False) -> list[dict]:
    """Two large products with an activation between them."""
    weight, rows = 4 * 4096 * 4096, 4 * 512 * 4096
    of = {"dtype": "float32"}
    wide, square = {"shape": [512, 4096], **of}, {"shape": [4096, 4096], **of}
    last = {"backward": True} if backward else {}
    flop = 2.0 * 512 * 4096 * 4096
    return [
        header(),
        tensor(0, "input", rows, **wide),
        tensor(1, "parameter", weight, **square),
        tensor(2, "parameter", weight, **square),
        tensor(3, "activation", rows, **wide),
        tensor(4, "activation", rows, **wide),
        tensor(5, "activation", rows, output=True, **wide),
        node(0, "MatMul", [0, 1], [3], flop=flop, bytes=2 * rows + weight),
        node(1, "Relu", [3], [4], flop=512.0 * 4096, bytes=2 * rows),
        node(2, "MatMul", [4, 2], [5], flop=flop, bytes=2 * rows + weight, **last),
    ]


@pytest.mark.parametrize("most", [2, 5])
def test_nodes_state_every_power_of_two(most: int) -> None:
    result = dnnp("profile", "--tensor-parallel", str(most), stdin=encode(records()))
    assert result.status == 0
    found = result.records("node")
    degrees = [2, 4][: most // 2]
    for record in found:
        assert [one["devices"] for one in record["shards"]] == degrees
        for one in record["shards"]:
            whole = record["time_s"]["cpu-core"]
            assert one["time_s"]["cpu-core"] == pytest.approx(whole / one["devices"], rel=0.1)
    for i, t in enumerate(degrees):
        weights = [record["shards"][i]["weight_bytes"] for record in found]
        assert weights == [4 * 4096 * 4096 / t, 0, 4 * 4096 * 4096 / t]
        exchanged = [c for r in found for c in r["shards"][i].get("collectives", [])]
        moved = sum(moved_bytes(c["kind"], c["bytes"], t) for c in exchanged)
        assert 0 < moved <= moved_bytes(ALL_REDUCE, 4 * 512 * 4096, t)


def test_a_plan_of_them_is_checked() -> None:
    priced = dnnp("profile", "--tensor-parallel", "2", stdin=encode(records()))
    plan = dnnp("partition", "-k", "2", "--tensor-parallel", "2", stdin=priced.out)
    assert plan.status == 0, plan.err
    assert "no more" not in plan.err
    assert dnnp("check", stdin=plan.out).status == 0
    more = dnnp("partition", "-k", "3", "--tensor-parallel", "3", stdin=priced.out)
    assert "--tensor-parallel 3: nodes are priced on no more devices than 2; see" in more.err


def test_other_backward_passes_are_refused() -> None:
    result = dnnp("profile", "--tensor-parallel", "2", stdin=encode(records(backward=True)))
    assert result.status != 0
    assert "node 2 of the backward pass is none that dnnp-import --training makes" in result.err
