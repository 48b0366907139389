"""Arguments that the checker can verify come first; what it cannot verify says so."""

from __future__ import annotations

from collections import Counter

import pytest
from tools.agree_bounds import random_kind, verdict

from dnnp.core.bounds.auto import bound
from dnnp.core.bounds.lower_bound import BoundTask
from dnnp.core.certificates.certificate import NOT_CHECKABLE, REFUTED, VERIFIED
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.methods.bounds import BOUNDS
from dnnp.core.model.errors import InfeasibleError
from dnnp.core.model.search_context import PLAIN
from dnnp.core.split import exact as ideal
from dnnp.core.split.slices import best_slicing
from support.cases import accelerators_case, random_case


@pytest.mark.parametrize("seed", [1414, 1546, 2242, 2598, 2683, 2858, 5337])
def test_a_proof_that_can_be_checked_is_given(seed: int) -> None:
    """A better split or the largest bound came from an argument that cannot be checked."""
    counts: Counter[str] = Counter()
    assert random_kind(seed, 7, counts) == []
    (kind,) = counts
    assert kind.endswith(VERIFIED)


def test_peaks_that_change_nothing_leave_a_certificate() -> None:
    """The search without any memory proves the same, or there is no certificate."""
    verdicts: Counter[str] = Counter()
    for seed in (*range(40), 5829, 5969, 5985):
        drawn = {} if seed > 40 else {"training": False, "colors": False}
        peak = {"memory_model": "peak", "objective": "throughput"}
        case = random_case(seed, 7, **drawn, **peak)
        problem = SplitProblem(case.graph, case.units, case.devices, case.options)
        try:
            blocks = best_slicing(problem)
        except InfeasibleError:
            continue
        known = BoundTask("ordered", blocks, problem.value(blocks))
        claim = BOUNDS["ideal"].function()(problem, known, PLAIN)
        verdicts[verdict(problem, "ordered", claim)] += 1
    assert not verdicts[REFUTED]
    assert verdicts[VERIFIED] > verdicts[NOT_CHECKABLE] > 0


def test_where_ideals_are_too_many_to_verify_others_are_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two devices: minimum cuts prove the same in fewer steps."""
    methods = Counter[str]()
    for most in (ideal.MOST_STEPS, 0):
        monkeypatch.setattr(ideal, "MOST_STEPS", most)
        for seed in range(60):
            case = accelerators_case(seed, 9)
            problem = SplitProblem(case.graph, case.units, case.devices, case.options)
            if sum(d.count for d in problem.devices) != 2 or problem.graph.backward.any():
                continue
            blocks = best_slicing(problem)
            proof = bound(problem, BoundTask("ordered", blocks, problem.value(blocks)))
            assert proof.claim.checkable or proof.method == "ideal"
            methods[f"{proof.method} {most}"] += 1
    assert methods[f"ideal {ideal.MOST_STEPS}"] == 0
    assert methods["halves 0"] > 0
