"""The tree is what pyproject.toml and the design say: packages, imports, versions, words."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Collection, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from dnnp.formats.header import RELEASE
from support.project import DOOR, FOLDERS, ROOT, module_of, pyproject, sources, syntax_nodes

SOLVERS = (
    "core.dp", "core.order", "core.annealing", "core.mip", "core.latency", "core.bounds",
    "core.baselines", "core.peak",
)  # fmt: skip
BASE = ("core.model", "core.cost")
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "cmds": ("cmds", "formats", "core", "samples"),
    "core.api": (
        "core.methods", *BASE, *SOLVERS, "core.parallel", "core.portfolio", "core.coarsen",
        "core.profile", "core.schedule", "core.check", "core.synthetic", "core.training",
        "core.tensor_parallel",
        "core.runtime", "core.view", "formats",
    ),
    "formats": ("core.model",),
    "samples": ("core.api", *BASE),
    "core.methods": (),
    "core.model": (),
    "core.cost": ("core.model",),
    "core.dp": BASE,
    "core.order": (*BASE, "core.dp"),
    "core.parallel": (*BASE, "core.dp", "core.order"),
    "core.annealing": (*BASE, "core.dp", "core.order"),
    "core.mip": (*BASE, "core.dp", "core.order", "core.peak"),
    "core.latency": (*BASE, "core.dp", "core.order", "core.annealing", "core.mip"),
    "core.bounds": (*BASE, "core.dp", "core.order", "core.mip"),
    "core.baselines": (*BASE, "core.dp", "core.order", "core.mip", "core.latency", "formats"),
    "core.portfolio": ("core.methods", *BASE, *SOLVERS),
    "core.coarsen": BASE,
    "core.peak": BASE,
    "core.profile": BASE,
    "core.schedule": ("core.methods", *BASE),
    "core.check": ("core.model",),
    "core.synthetic": ("core.model",),
    "core.training": ("core.model",),
    "core.tensor_parallel": ("core.model",),
    "core.runtime": ("core.model", "formats"),
    "core.view": ("core.model", "core.cost", "core.coarsen", "formats"),
}  # fmt: skip
"""Area -> areas it may import besides itself."""

WORLD = {"os", "sys", "io", "pathlib", "shutil", "subprocess", "socket", "tempfile", "onnxruntime"}
"""Modules that core outside core/api and core/runtime has no use for."""

SLOW = {
    "scipy", "numba", "onnxruntime", "sympy", "mip", "highspy", "ortools", "pymetis",
    "importlib.metadata", "importlib.resources",
}  # fmt: skip
"""Libraries that take longer to load than most streams to read."""

EXCEPTIONS = (
    "core/baselines/partitioners.py",  # starts and ends a program
    "core/cost/kernel.py",  # heeds NUMBA_DISABLE_JIT, and looks whether numba is there
    "core/cost/kernel_cache.py",  # reads and writes compiled kernels
    "core/cost/kernel_folders.py",  # says where these are
    "core/mip/child.py",  # starts and ends the process that solves integer programs
    "core/mip/worker.py",  # is that process
    "core/model/processes.py",  # asks how many there are
)


def area_of(module: str) -> str:
    """`dnnp.core.cost.load` -> `core.cost`; `dnnp.formats.stream` -> `formats`; `dnnp` itself and
    its modules -> `core.api`."""
    parts = module.split(".")[1:]
    if not parts or parts[0] not in FOLDERS:
        return "core.api"
    return ".".join(parts[:2]) if parts[0] == "core" else parts[0]


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module) of every import in a file, inside functions too."""
    for node in syntax_nodes(path):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            yield node.lineno, node.module or ""


def test_imports_point_down() -> None:
    wrong = []
    for path in sources():
        module = module_of(path)
        area = area_of(module)
        if module == "dnnp.core":
            area = "core.model"
        assert area in MAY_IMPORT, f"{path}: no line about {area} in the import table"
        allowed = (area, *MAY_IMPORT[area])
        for line, name in imports(path):
            if name.split(".")[0] != "dnnp":
                continue
            target = area_of(name)
            if not any(target == a or target.startswith(f"{a}.") for a in allowed):
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {area} imports {name}")
    assert not wrong, "\n".join(wrong)


def imported(path: Path, modules: Collection[str]) -> set[str]:
    """Modules of ours that a file imports anywhere, for types too."""
    found = set()
    for node in syntax_nodes(path):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in modules else node.module for name in names}
    return (found & {*modules}) - {module_of(path)}


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    modules = {module_of(path): path for path in sources()}
    graph = {module: imported(path, modules) for module, path in modules.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_core_outside_api_and_runtime_keeps_to_itself() -> None:
    wrong = []
    for path in sorted((ROOT / "core").rglob("*.py")):
        where = path.relative_to(ROOT)
        outside = where.parts[:2] in (("core", "api"), ("core", "runtime"))
        if outside or str(where) in EXCEPTIONS:
            continue
        wrong += [f"{where}:{n}: imports {m}" for n, m in imports(path) if m.split(".")[0] in WORLD]
        for node in syntax_nodes(path):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("open", "print", "input", "exit", "quit")
            ):
                wrong.append(f"{where}:{node.lineno}: calls {node.func.id}")
    assert not wrong, "\n".join(wrong)


def test_onnxruntime_is_imported_where_its_telemetry_is_off() -> None:
    """`dnnp.core.runtime` turns it off when it is imported, which is before its modules are."""
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: imports {name}"
        for path in sources()
        if ROOT / "core" / "runtime" not in path.parents
        for line, name in imports(path)
        if name.split(".")[0] == "onnxruntime"
    ]
    assert not wrong, "\n".join(wrong)


def at_start(node: ast.AST) -> Iterator[str]:
    """Modules that are imported as soon as a file is, outside of functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield child.module or ""
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from at_start(child)


def test_libraries_that_take_long_to_load_are_imported_where_they_are_used() -> None:
    """All but the compiler, of which kernels are made when their modules are imported."""
    wrong = [
        f"{path.relative_to(ROOT)}: imports {name}"
        for path in sources()
        for name in at_start(ast.parse(path.read_bytes()))
        if {name, name.split(".")[0]} & SLOW and not path.match("core/cost/kernel*.py")
    ]
    assert not wrong, "\n".join(wrong)


def unwanted(path: Path) -> Iterator[tuple[int, str]]:
    """(line, what) of asserts, and of handlers that swallow every exception.

    A handler may clean up and raise again. In core/runtime it may also stand, with the reason
    beside it, around code of others that raises anything.
    """
    lines = path.read_text().splitlines()
    for node in syntax_nodes(path):
        if isinstance(node, ast.Assert):
            yield node.lineno, "assert"
        if not isinstance(node, ast.ExceptHandler):
            continue
        name = node.type.id if isinstance(node.type, ast.Name) else ""
        if node.type is not None and name not in ("Exception", "BaseException"):
            continue
        last = node.body[-1]
        again = isinstance(last, ast.Raise) and last.exc is None
        reasoned = "  # " in lines[node.lineno - 1] and ROOT / "core" / "runtime" in path.parents
        if not again and not reasoned:
            yield node.lineno, "broad except"


def test_no_assert_and_no_broad_except() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for path in sources()
        for line, what in unwanted(path)
    ]
    assert not wrong, "\n".join(wrong)


def test_package_list() -> None:
    found = {module_of(path) for path in sources() if path.name == "__init__.py"}
    listed = pyproject()["tool"]["setuptools"]["packages"]
    assert listed == sorted(listed)
    assert found <= set(listed), "packages that pyproject.toml does not list"
    # The others hold data only.
    for name in set(listed) - found:
        folder = ROOT.joinpath(*name.split(".")[1:])
        assert list(folder.glob("*.json")), f"{name} is listed, but not there"
        assert not list(folder.glob("*.py")), f"{name} has no __init__.py"
    bare = {p.parent for p in sources()} - {p.parent for p in sources() if p.name == "__init__.py"}
    assert not bare, f"folders without __init__.py: {sorted(map(str, bare))}"
    for folder in (DOOR, *(ROOT / name for name in FOLDERS)):
        assert (folder / "py.typed").exists()


def test_version_is_one() -> None:
    version = pyproject()["project"]["version"]
    assert re.search(rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d$", read("CHANGELOG.md"), re.M)
    assert f"\nversion: {version}\n" in read("CITATION.cff")
    assert version == RELEASE
    date = re.search(rf"^## {re.escape(version)} - (.*)$", read("CHANGELOG.md"), re.M)
    assert date is not None
    assert f'date-released: "{date[1]}"' in read("CITATION.cff")


def read(name: str) -> str:
    """Text of a file of the project."""
    return (ROOT / name).read_text()


def tracked() -> list[Path]:
    """Files under version control, and new ones that are not ignored."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    names = [name for name in listed.stdout.decode().split("\0") if name]
    return [ROOT / name for name in names if (ROOT / name).is_file()]


def test_no_paths_of_one_machine() -> None:
    # Put together so that this file does not match itself.
    machine = re.compile("/(?:work|home|root|Users)/[a-z]")
    unfinished = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b")
    wrong = []
    for path in tracked():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if machine.search(line) or unfinished.search(line):
                wrong.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert not wrong, "\n".join(wrong)


def test_licence_is_whole() -> None:
    text = read("LICENSE")
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text
