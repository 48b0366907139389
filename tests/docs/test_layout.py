"""The tree is what pyproject.toml and the design say: packages, imports, versions, words."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Collection, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import dnnp
from support.project import DOOR, FOLDERS, ROOT, module_of, pyproject, sources, syntax_nodes

LAYERS = [
    line.split()
    for line in re.findall(
        r"^```text\n(.*?)^```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL | re.MULTILINE
    )[0].splitlines()
]
"""Areas by rows, as CONTRIBUTING.md draws them: each imports from rows below its own."""
ROW = {area: row for row, areas in enumerate(LAYERS) for area in areas}
APART = {
    "core.check": {"core.model"},
    "core.certificates": {"core.model", "core.check"},
    "core.runtime": {"core.model", "formats"},
    "formats": {"core.model", "core.tensor_parallel"},
}
"""Areas that may import these alone: checks share no code with what they judge."""

WORLD = {"os", "sys", "io", "pathlib", "shutil", "subprocess", "socket", "tempfile", "onnxruntime"}
"""Modules that core outside core/api, core/runtime and core/extras has no use for."""

SLOW = {
    "scipy", "numba", "onnxruntime", "sympy", "mip", "highspy", "ortools", "pymetis", "resvg_py",
    "importlib.metadata", "importlib.resources",
}  # fmt: skip
"""Libraries that take longer to load than most streams to read."""

EXCEPTIONS = (
    "core/baselines/partitioners.py",  # starts and ends a program
    "core/kernels/kernel.py",  # heeds NUMBA_DISABLE_JIT, and looks whether numba is there
    "core/kernels/cache.py",  # reads and writes compiled kernels, and says where they are
    "core/solver/child.py",  # starts and ends the process that solves integer programs
    "core/solver/worker.py",  # is that process
    "core/model/processes.py",  # asks how many there are
)


def area_of(module: str) -> str:
    """`dnnp.core.cost.load` -> `core.cost`; `dnnp.formats.stream` -> `formats`; `dnnp` itself and
    its modules -> `core.api`."""
    name = module.partition(".")[2]
    if name.split(".")[0] not in FOLDERS:
        return "core.api"
    return max((a for a in ROW if f"{name}.".startswith(f"{a}.")), key=len, default=name)


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
        area = area_of(module_of(path))
        if area == "core":
            continue
        assert area in ROW, f"{path}: CONTRIBUTING.md has no row for {area}"
        for line, name in imports(path):
            target = area_of(name)
            if name.split(".")[0] != "dnnp" or target == area:
                continue
            if ROW[target] <= ROW[area] or target not in APART.get(area, ROW):
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


def test_core_outside_api_runtime_and_extras_keeps_to_itself() -> None:
    wrong = []
    for path in sorted((ROOT / "core").rglob("*.py")):
        where = path.relative_to(ROOT)
        outside = where.parts[1] in ("api", "runtime", "extras")
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
        if {name, name.split(".")[0]} & SLOW and not path.match("core/kernels/kernel*.py")
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
    # What is written into another file is no module: PyTorch need not be there.
    bare -= {ROOT / "formats" / "export" / "torch"}
    assert not bare, f"folders without __init__.py: {sorted(map(str, bare))}"
    for folder in (DOOR, *(ROOT / name for name in FOLDERS)):
        assert (folder / "py.typed").exists()


def test_version_is_one() -> None:
    version = pyproject()["project"]["version"]
    assert re.search(rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d$", read("CHANGELOG.md"), re.M)
    assert f"\nversion: {version}\n" in read("CITATION.cff")
    assert version == dnnp.__version__
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
