"""Ask the solver process for one program."""

from __future__ import annotations

from dnnp.core.model.search_context import PLAIN, Run
from dnnp.core.solver.child import SolverProcess
from dnnp.core.solver.program import TOLERANCES, Outcome, Program
from dnnp.core.solver.slices import attempted
from dnnp.core.solver.sparse import SparseProgram

GRACE_S = 2.0
"""How long after its limit a solver is killed."""

SHARE = 0.8


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

    def work(process: SolverProcess) -> Outcome:
        return process.solve(
            "cbc", program, None, seconds, tolerance, patience=patience + GRACE_S, stop=run.stop
        )

    return attempted(work, lambda outcome: outcome.status == "failed", run)


def ask_sparse(
    program: SparseProgram,
    *,
    seconds: float | None = None,
    patience: float,
    run: Run = PLAIN,
) -> Outcome:
    """Solve a sparse program with scipy's HiGHS; see `ask`.

    Of the time that the run has left it may take `SHARE`: what goes on from its answer, or does
    without, needs the rest.
    """
    run = run.part(SHARE)

    def work(process: SolverProcess) -> Outcome:
        return process.sparse(program, seconds, patience=patience + GRACE_S, stop=run.stop)

    return attempted(work, lambda outcome: outcome.status == "failed", run, "sparse")
