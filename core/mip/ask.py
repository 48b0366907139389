"""Ask the solver process for one program."""

from __future__ import annotations

from dnnp.core.mip.child import solver_process
from dnnp.core.mip.program import TOLERANCES, Outcome, Program
from dnnp.core.model.run import PLAIN, Run

ATTEMPTS = 2
"""A solver that crashed is asked once more: CBC aborts now and then on a busy machine."""

GRACE_S = 2.0
"""How long after its limit a solver is killed."""


def ask(
    program: Program,
    *,
    seconds: float | None = None,
    patience: float,
    tolerance: float = TOLERANCES[0],
    run: Run = PLAIN,
) -> Outcome:
    """Solve a program with CBC.

    It is told to end after `seconds` (None: never, so that the answer does not depend on time), and
    killed a little after `patience`.
    """
    outcome = Outcome("limit")
    for _ in range(ATTEMPTS):
        with solver_process() as process:
            outcome = process.solve(
                "cbc", program, None, seconds, tolerance, patience=patience + GRACE_S, stop=run.stop
            )
        if outcome.status != "failed" or run.stop():
            break
    return outcome
