"""Policies of methods that learn: what they are trained on, and the files that they are in."""

from __future__ import annotations

import os

from dnnp.callbacks import Callbacks
from dnnp.core.cost.latency import LatencyProblem, latency_problem
from dnnp.core.cost.problem import SplitProblem
from dnnp.core.model.errors import UsageError
from dnnp.core.model.search_context import Learned, Training
from dnnp.formats.files import whole_file
from dnnp.formats.inputs.policy import parse_policy, policy_bytes
from dnnp.formats.stream import read_bytes
from dnnp.options.split import SplitOptions
from dnnp.problem import problem_of
from dnnp.workload import priced


def training_of(options: SplitOptions, problem: SplitProblem) -> Training:
    """Collect the options of a policy and of its training.

    Raises
    ------
    InputFileError
        A file cannot be read.
    FormatError
        A file holds no policy, or no stream.
    UsageError
        A graph to train on cannot be placed on the same devices.
    """
    policy = None
    if options.policy is not None:
        name = os.fspath(options.policy)
        policy = parse_policy(options.caller.read_input(name), name)
    family = tuple(_other(path, options, problem) for path in options.train_on or ())
    return Training(policy, family, options.episodes)


def _other(
    path: str | os.PathLike[str], options: SplitOptions, problem: SplitProblem
) -> LatencyProblem:
    """Another graph, laid out by the same options."""
    name = os.fspath(path)
    stream = read_bytes(options.caller.read_input(name), name)
    try:
        other = problem_of(priced(stream, options.caller, reprice=options.reprice), options)
    except UsageError as error:
        raise UsageError(f"--train-on {name}: {error}") from None
    if [d.name for d in other.devices] != [d.name for d in problem.devices]:
        raise UsageError(
            f"--train-on {name}: its devices are {_names(other)}, not {_names(problem)}"
        )
    return latency_problem(other)


def _names(problem: SplitProblem) -> str:
    return ", ".join(device.name for device in problem.devices)


def save_policy(path: str | os.PathLike[str], learned: Learned | None, caller: Callbacks) -> None:
    """Write a policy atomically; say so where there is none.

    Raises InputFileError: the file cannot be written.
    """
    name = os.fspath(path)
    if learned is None:
        caller.warn(f"{name} is not written: no policy made the plan")
        return
    with whole_file(name) as file:
        file.write(policy_bytes(learned.policy))
