"""Scotch through its program gpart: k parts with balanced work and a small cut."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dnnp.core.baselines.blocks import checked
from dnnp.core.baselines.parts import part_graph, split_of_parts, tell_what_is_left
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.asked import Asked, Solution
from dnnp.core.model.errors import FormatError, LimitError, UnavailableError
from dnnp.core.model.orphan import die_with_parent
from dnnp.core.model.run import PLAIN, Run
from dnnp.formats.files import scratch_folder
from dnnp.formats.scotch import read_mapping, write_graph

PROGRAMS = ("scotch_gpart", "gpart")
"""Names of the program: Debian's package scotch adds the prefix, Scotch itself does not."""

TIME_LIMIT_S = 300.0
"""Seconds after which the program is ended."""

POLL_S = 0.05


def scotch(
    problem: SplitProblem, asked: Asked, run: Run = PLAIN, *, time_limit_s: float = TIME_LIMIT_S
) -> Solution:
    """Split with Scotch's gpart, run in a private temporary directory.

    The parts need not be contiguous.

    Raises
    ------
    UnavailableError
        The program is not installed, fails, or is another one of that name.
    LimitError
        It takes longer than the limit, or the run is to stop before it is done.
    InfeasibleError
        A part is too much for the memory of its device: Scotch knows none.
    """
    program = _installed()
    weighted = part_graph(problem)
    tell_what_is_left(weighted, "scotch", run)
    part = np.zeros(weighted.vertices, dtype=np.int64)
    if weighted.parts > 1 and weighted.vertices > 1:
        text = write_graph(
            weighted.ptr.tolist(),
            weighted.neighbors.tolist(),
            weighted.edge_weights.tolist(),
            weighted.weights.tolist(),
        )
        mapping = _run(program, weighted.parts, text, run.stop, time_limit_s)
        try:
            part[:] = read_mapping(mapping, weighted.vertices, weighted.parts, "its mapping")
        except FormatError as error:
            raise UnavailableError(f"{program} does not answer as Scotch does: {error}") from None
    return checked(problem, split_of_parts(problem, weighted, part))


def _installed() -> str:
    """Path of the program."""
    for name in PROGRAMS:
        path = shutil.which(name)
        if path is not None:
            return os.path.abspath(path)
    raise UnavailableError(
        f"method scotch needs the program {' or '.join(PROGRAMS)}; Debian has it in the package "
        "scotch (its package gpart is another program)"
    )


def _run(
    program: str, parts: int, graph: bytes, stop: Callable[[], bool], time_limit_s: float
) -> bytes:
    """Run `program PARTS GRAPH MAPPING` and return the mapping."""
    with scratch_folder() as folder:
        source, result, log = (Path(folder, name) for name in ("in.grf", "out.map", "log"))
        source.write_bytes(graph)
        deadline = time.monotonic() + time_limit_s
        with log.open("wb") as messages:
            # A process group of its own: Ctrl-C is for this command to act on.
            try:
                child = subprocess.Popen(
                    [program, str(parts), str(source), str(result)],
                    stdin=subprocess.DEVNULL,
                    stdout=messages,
                    stderr=messages,
                    cwd=folder,
                    process_group=0,
                    preexec_fn=die_with_parent,
                )
            except OSError as error:
                raise UnavailableError(f"{program} cannot be run: {error.strerror}") from None
            try:
                while not _ended(child):
                    if stop():
                        raise LimitError(f"interrupted before {program} was done")
                    if time.monotonic() > deadline:
                        raise LimitError(f"{program} was not done after {time_limit_s:g} s")
            finally:
                child.kill()
                child.wait()
        if child.returncode != 0 or not result.is_file():
            said = log.read_bytes()[:2000].decode(errors="replace").strip().splitlines()
            reason = _ending(child.returncode) + (f": {said[0]}" if said else "")
            raise UnavailableError(f"{program} {reason}; is it Scotch's gpart?")
        return result.read_bytes()


def _ended(child: subprocess.Popen[bytes]) -> bool:
    """Wait a moment; whether the process is done."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(POLL_S)
    return child.returncode is not None


def _ending(status: int) -> str:
    """How a process ended without an answer."""
    if status == 0:
        return "wrote no mapping"
    return f"failed with status {status}" if status > 0 else f"ended by signal {-status}"
