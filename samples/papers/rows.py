"""Rows of the tables of MTPP (Archer et al. 2024): the options of dnnp-partition behind each name.

    python -m dnnp.samples.papers.rows ROW

prints them. `random-T` draws T orders, `heuristic-S` searches for S seconds.
"""

from __future__ import annotations

import argparse
import re
from typing import Any

_FIXED: dict[str, dict[str, Any]] = {
    "mla": {"method": "mla"},
    "mla-weighted": {"method": "mla-weighted"},
    "brkga-100": {"method": "brkga", "population": 10, "generations": 10},
    "brkga-10000": {"method": "brkga", "population": 100, "generations": 100},
    "slice": {"method": "slice"},
}
_COUNTED = {
    "random": ("samples", re.compile("[1-9][0-9]*"), int),
    "heuristic": ("time_limit", re.compile(r"[0-9]+(\.[0-9]+)?"), float),
}
OURS = ("slice", "heuristic")
"""Methods that the paper does not have."""


def split_options(row: str) -> dict[str, Any]:
    """Options of `dnnp.split` for a row.

    Raises
    ------
    ValueError
        There is no such row.
    """
    if row in _FIXED:
        return dict(_FIXED[row])
    method, _, number = row.partition("-")
    if method in _COUNTED:
        option, form, kind = _COUNTED[method]
        if form.fullmatch(number):
            return {"method": method, option: kind(number)}
    raise ValueError(f"no row '{row}' in the tables of mtpp")


def row(text: str) -> str:
    """A row, for the command line."""
    try:
        split_options(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def main() -> None:
    """Print the options of a row."""
    parser = argparse.ArgumentParser(description="Print options of dnnp-partition.")
    parser.add_argument("row", type=row, metavar="ROW")
    options = split_options(parser.parse_args().row)
    words = [f"--{name.replace('_', '-')} {value}" for name, value in options.items()]
    print(*words)


if __name__ == "__main__":
    main()
