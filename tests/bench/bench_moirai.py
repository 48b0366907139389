"""Tables IV and V and figure 10 of Moirai beside what it prints; see `samples/papers/moirai.py`.

MODELS (those placed, by default the smallest of each family), METHODS, SECONDS (the limit of a
method) and KEEP (the folder of answers, build/moirai) in the environment. Table IV has all models.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from dnnp.samples.papers.moirai import (
    METHODS,
    OURS,
    PAPER,
    PATIENCE,
    SMALLEST,
    TESTBEDS,
    Place,
    Rows,
    Study,
    command,
    figure_10,
    most_slower,
    table_4,
    table_5,
)
from support.bench import table
from support.run import executable

SECONDS = float(os.environ.get("SECONDS", "20"))
KEEP = Path(os.environ.get("KEEP", "build/moirai"))


def shown(title: str, rows: Rows) -> None:
    """Print a table under its title."""
    print(f"{title}\n\n{table(rows[0], rows[1:])}\n")


def main() -> None:
    """Print the tables."""
    os.environ["PATH"] = f"{Path(executable('import')).parent}{os.pathsep}{os.environ['PATH']}"
    study = Study(command, KEEP, SECONDS, "ort-cuda")
    title = "Table IV: operators, and groups by the rules of backends, with the part that is fused"
    shown(f"{title} (in brackets: printed).", table_4(study, list(PAPER)))
    models = os.environ.get("MODELS", " ".join(SMALLEST)).split()
    methods = os.environ.get("METHODS", " ".join([*METHODS, OURS])).split()
    places = itertools.product(models, TESTBEDS, ("operators", "groups"), methods)
    found = study.all(itertools.starmap(Place, places))
    longer = ", ".join(f"`{m}` {k:g} times" for m, k in PATIENCE.items() if m in methods)
    title = (
        f"Table V: seconds of the whole command, by the clock / of the processor, limit {SECONDS:g}"
    )
    title += f" ({longer})" if longer else ""
    shown(
        f"{title}, in brackets: printed. Groups are those of `ort-cuda`.", table_5(found, methods)
    )
    title = (
        "Figure 10: latency in ms by the cost model, and how many times that of Moirai's program."
    )
    shown(title, figure_10(found, methods))
    title = (
        "The largest of these ratios over the models above (in brackets: over the paper's models)."
    )
    shown(title, most_slower(found))
    print(
        "`*`: the limit ended the integer program; the best placement known by then. `!`: another"
    )
    print("method ran in its place, which its record and a warning name.")


if __name__ == "__main__":
    main()
