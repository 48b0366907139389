"""List tests that pass although a function that they call does nothing.

    python tests/tools/mutate.py tests/split/test_linked.py
    python tests/tools/mutate.py --out survivors.txt tests

A function under test is one of the package that a test names: in its own code, in helpers and
fixtures of its module, or in tables of the module. One at a time is replaced, wherever it is
called from, by one that returns None, by one that raises, and by one that returns its first
argument. All tests of the module that name it run; a test with all its parameters survives if it
passes and called the replacement. One line a survivor: how, function, test.

`raise` raises an error of every type of the package, so that tests which catch such errors and go
on are found. A test that expects an error survives it rightly: those that use `pytest.raises` are
listed only for the other two. A `first` may be right as well, where the answer is the argument.

Tests are collected once, in one process that imports all; a replacement is a fork of it, which
ends as soon as all tests of its function have failed. One that takes too long counts as failed.
All modules take about half an hour of processor time; lines of the file OUT that are there
already are not tried again, so that a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import builtins
import gc
import importlib
import inspect
import mmap
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import Phase, settings

from dnnp.core.kernels.kernel import Kernel
from dnnp.core.model import errors

WAYS = ("none", "raise", "first")
LIMIT_S = 30
"""Processor time that the tests of one replacement may take."""

IDLE_S = 8
"""Time without any work after which a test waits for what will never be."""

ALL = "."

LOADED_FIRST = ("numba", "onnx", "onnxruntime", "scipy.optimize", "scipy.sparse.csgraph", "sympy")
"""Modules that forks would otherwise import one by one."""

ERRORS: tuple[type[Exception], ...] = tuple(
    error
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, Exception) and not error.__subclasses__()
)


class MutantError(*ERRORS):  # type: ignore[misc]
    """An error that each handler of an error of the package catches."""

    def __init__(self) -> None:
        Exception.__init__(self, "replaced")

    def __str__(self) -> str:
        return "replaced"


calls = mmap.mmap(-1, 1)
"""Not zero once a replacement was called, in a fork of a fork too."""


def _called() -> None:
    calls[0] = 1


def _none(*_: Any, **__: Any) -> Any:
    builtins.mutant_called()  # type: ignore[attr-defined]
    return None


def _raise(*_: Any, **__: Any) -> Any:
    raise builtins.mutant_called() or builtins.MutantError  # type: ignore[attr-defined]


def _first(*positional: Any, **named: Any) -> Any:
    builtins.mutant_called()  # type: ignore[attr-defined]
    return positional[0] if positional else next(iter(named.values()), None)


REPLACEMENTS = {"none": _none, "raise": _raise, "first": _first}


def replace(function: Any, way: str) -> None:
    """Replace what a function does, for all that hold it."""
    new = REPLACEMENTS[way]
    if isinstance(function, Kernel):
        function._loaded = new
        return
    if hasattr(function, "cache_clear"):
        function.cache_clear()
    plain(function).__globals__.setdefault("builtins", builtins)
    plain(function).__code__ = new.__code__


def plain(function: Any) -> Any:
    """The function itself, below its decorators."""
    return inspect.unwrap(function)


def is_product(value: Any) -> bool:
    """True if a value is a function of the package whose code can be replaced."""
    if isinstance(value, Kernel):
        return True
    if isinstance(value, type) or not callable(value) or not hasattr(value, "__module__"):
        return False
    if not str(value.__module__).startswith("dnnp."):
        return False
    return isinstance(plain(value), FunctionType) and not plain(value).__closure__


def functions_in(value: Any) -> Iterator[Any]:
    """Functions of the package in a value: itself, or elements of a table of the test module."""
    if is_product(value):
        yield value
    elif isinstance(value, dict):
        yield from (one for one in value.values() if is_product(one))
    elif isinstance(value, list | tuple | set | frozenset):
        yield from (one for one in value if is_product(one))


def codes(code: CodeType) -> Iterator[CodeType]:
    """A code object and those within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def named(function: Any, found: dict[int, Any], seen: set[int]) -> set[str]:
    """Collect functions of the package that one of a test module names; return all names."""
    function = plain(function)
    if not isinstance(function, FunctionType) or id(function) in seen:
        return set()
    seen.add(id(function))
    names = {name for code in codes(function.__code__) for name in code.co_names}
    every = set(names)
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, ModuleType) and value.__name__.startswith("dnnp"):
            values = [getattr(value, other, None) for other in names]
        else:
            values = [value]
        for one in values:
            found |= {id(plain(product)): product for product in functions_in(one)}
        if getattr(value, "__module__", "") == function.__module__:
            every |= named(value, found, seen)
    return every


class Target(NamedTuple):
    """A function under test, and the tests that name it."""

    function: Any
    tests: dict[str, list[pytest.Item]]

    @property
    def name(self) -> str:
        """Module and name."""
        return f"{self.function.__module__}.{plain(self.function).__qualname__}"


def targets(items: list[pytest.Item]) -> tuple[list[Target], set[str]]:
    """Functions under test of a module, and the tests that expect errors."""
    tests = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        tests[item.nodeid.partition("[")[0]].append(item)
    found, expecting = dict[int, Target](), set[str]()
    for name, same in tests.items():
        item: Any = same[0]
        products, seen = dict[int, Any](), set[int]()
        inner = getattr(item.function, "hypothesis", None)
        names = named(inner.inner_test if inner else item.function, products, seen)
        for fixtures in item._fixtureinfo.name2fixturedefs.values():
            for fixture in fixtures:
                if fixture.func.__module__ == item.module.__name__:
                    names |= named(fixture.func, products, seen)
        for one in same:
            values = getattr(one, "callspec", None)
            for value in values.params.values() if values else ():
                for product in functions_in(value):
                    products[id(plain(product))] = product
        if names & {"raises", "refused"}:
            expecting.add(name)
        for key, product in products.items():
            found.setdefault(key, Target(product, {})).tests[name] = same
    return [*found.values()], expecting


def passes(items: list[pytest.Item], following: pytest.Item | None) -> bool:
    """Run the items of a test in turn; True if they pass and some called the replacement."""
    counted = 0
    for item, after in zip(items, [*items[1:], following], strict=True):
        calls[0] = 0
        reports = runtestprotocol(item, log=False, nextitem=after)
        if any(report.failed for report in reports):
            item.session._setupstate.teardown_exact(following)
            return False
        counted += calls[0] and not any(report.skipped for report in reports)
    return counted > 0


def survivors(target: Target, way: str, tests: dict[str, list[pytest.Item]]) -> list[str]:
    """Tests that pass with a function replaced; one that takes too long does not."""
    found, left = list[str](), list(tests)
    while left:
        told = told_by_fork(target, way, {name: tests[name] for name in left})
        found += [line[1:] for line in told if line.startswith("+")]
        if told[-1:] == [ALL]:
            break
        left = left[sum(line.startswith(">") for line in told) or len(left) :]
    return found


def told_by_fork(target: Target, way: str, tests: dict[str, list[pytest.Item]]) -> list[str]:
    """Run tests in a fork: `>` before one that begins, `+` before one that passed; `ALL`."""
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        os.setpgid(0, 0)
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
        try:
            replace(target.function, way)
            first = [items[0] for items in tests.values()]
            for (name, items), after in zip(tests.items(), [*first[1:], None], strict=True):
                os.write(writer, f">{name}\n".encode())
                if passes(items, after):
                    os.write(writer, f"+{name}\n".encode())
            os.write(writer, ALL.encode())
        finally:
            os._exit(0)
    os.close(writer)
    wait_for(process)
    with open(reader, "rb") as file:
        return file.read().decode().splitlines()


def wait_for(process: int) -> None:
    """Wait for a process; end its group when it ends, works for too long or stands still."""
    spent, since = 0.0, time.monotonic()
    looked = since
    while os.waitpid(process, os.WNOHANG)[0] == 0:
        time.sleep(0.01)
        if time.monotonic() < looked + 1:
            continue
        looked, now = time.monotonic(), time_of_group(process)
        if now > spent:
            spent, since = now, looked
        if spent > LIMIT_S or looked > since + IDLE_S:
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return
    with suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)


def time_of_group(group: int) -> float:
    """Processor time of the living processes of a group, and of those that they have waited for."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group:
                ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


class Mutator:
    """The plugin: it runs the tests of each replacement in place of all tests once."""

    def __init__(self, out: Callable[[str], None], done: set[str], ways: list[str]) -> None:
        self.out = out
        self.done = done
        self.ways = ways

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Let hypothesis search for failures, and shrink none."""
        settings.register_profile(
            "mutants", settings.get_profile("dnnp"), phases=(Phase.explicit, Phase.generate)
        )
        settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try every replacement of every module."""
        builtins.mutant_called = _called  # type: ignore[attr-defined]
        builtins.MutantError = MutantError  # type: ignore[attr-defined]
        gc.freeze()  # forks share what is there
        modules = defaultdict[str, list[pytest.Item]](list)
        for item in session.items:
            modules[item.nodeid.partition("::")[0]].append(item)
        for module, items in modules.items():
            if f"# {module}" not in self.done:
                self._one(items)
                self.out(f"# {module}")
        return True

    def _one(self, items: list[pytest.Item]) -> None:
        found, expecting = targets(items)
        for target in found:
            for way in self.ways:
                skipped = expecting if way == "raise" else set()
                tests = {n: same for n, same in target.tests.items() if n not in skipped}
                for name in survivors(target, way, tests) if tests else ():
                    self.out(f"{way:5} {target.name} {name}")


def main() -> int:
    """Run over the given tests."""
    parser = argparse.ArgumentParser(description="List tests that cannot fail.")
    parser.add_argument("tests", nargs="+", help="test modules or folders")
    parser.add_argument("--out", type=Path, help="also append to this file, and go on after it")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    given = parser.parse_args()
    done = set[str]()
    if given.out and given.out.exists():
        done = set(given.out.read_text().splitlines())

    def out(line: str) -> None:
        print(line, file=sys.__stdout__, flush=True)
        if given.out:
            with given.out.open("a") as file:
                file.write(f"{line}\n")

    for name in LOADED_FIRST:
        importlib.import_module(name)
    arguments = ["-q", "-p", "no:cacheprovider", "--capture=no", *given.tests]
    return int(pytest.main(arguments, [Mutator(out, done, given.ways)]))


if __name__ == "__main__":
    sys.exit(main())
