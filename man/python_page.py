"""The manual page of `import dnnp`, from signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import dnnp
from dnnp.options.graph import CoarsenOptions, ImportOptions, ProfileOptions
from dnnp.options.run import CheckOptions, ExportOptions, RunOptions, ViewOptions
from dnnp.options.schedule import BoundOptions, ScheduleOptions
from dnnp.options.split import SplitOptions
from dnnp.options.table import Options

FUNCTIONS = (
    "load", "generate", "coarsen", "profile", "split", "sweep", "bound", "schedule", "check",
    "export", "run", "view", "load_stages",
)  # fmt: skip
"""In the order in which they are used."""

OPTIONS: dict[str, type[Options]] = {
    "load": ImportOptions,
    "coarsen": CoarsenOptions,
    "profile": ProfileOptions,
    "split": SplitOptions,
    "bound": BoundOptions,
    "schedule": ScheduleOptions,
    "check": CheckOptions,
    "export": ExportOptions,
    "run": RunOptions,
    "view": ViewOptions,
}
"""Step -> the class of its options."""

CLASSES = ("Graph", "Findings", "Stages", "Callbacks", "Bar", "Progress")


def roff(text: str) -> str:
    """Text with backslashes and hyphens escaped, and what is quoted set in bold."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = re.sub(r"`([^`]+)`", r"\\fB\1\\fR", text)
    return f"\\&{text}" if text[:1] in (".", "'") else text


def synopsis() -> str:
    """How it is used, as the package's docstring has it."""
    code = re.search(r"\n\n((?:    .*\n|\n)+)", dnnp.__doc__ or "")
    lines = inspect.cleandoc(code[1]).splitlines() if code else []
    return "\n".join(roff(line) for line in lines)


def paragraphs(doc: str | None) -> Iterator[str]:
    """A docstring: prose as it comes, sections of numpydoc as tagged paragraphs."""
    tagged = False
    for block in re.split(r"\n\n", inspect.cleandoc(doc or "")):
        heading = re.match(r"(Parameters|Raises|Returns)\n-+\n", block)
        if heading is None and not tagged:
            yield f".PP\n{roff(' '.join(block.split()))}"
            continue
        if heading is not None:
            tagged = True
            yield f".PP\n{heading[1]}:"
            block = block[heading.end() :]
        for name, text in re.findall(r"^(\S.*)\n((?:    .*(?:\n|$))*)", block, re.MULTILINE):
            yield f".TP\n.B {roff(name)}\n{roff(' '.join(text.split()))}"


def function(name: str) -> str:
    """One subsection a function."""
    call: Any = getattr(dnnp, name)
    parameters = inspect.signature(call).parameters.values()
    first = ", ".join(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)
    lines = [f".SS {name}({first}, ...)", *paragraphs(call.__doc__)]
    kind = OPTIONS.get(name)
    if kind is not None:
        lines.append(".PP\nOptions:\n.TP\n.B caller\nWhom the step tells what it does.")
        for row in kind.rows.values():
            said = f"{roff(f'{row.name} = {row.default!r}')}\n{roff(row.help)}"
            lines.append(f".TP\n.B {said}.")
    return "\n".join(lines)


def functions() -> str:
    """All functions."""
    return "\n".join(map(function, FUNCTIONS))


def members(name: str) -> str:
    """One subsection a class: what it has, and in a line what that is."""
    kind = getattr(dnnp, name)
    lines = [f".SS {name}", *paragraphs(kind.__doc__)]
    for member, value in vars(kind).items():
        doc = inspect.getdoc(value)
        plain = isinstance(value, property | classmethod) or inspect.isfunction(value)
        if member.startswith("_") or not plain or not doc:
            continue
        call = "" if isinstance(value, property) else "()"
        lines.append(f".TP\n.B {member}{call}\n{roff(' '.join(doc.split(chr(10) * 2)[0].split()))}")
    return "\n".join(lines)


def classes() -> str:
    """All classes that are not errors."""
    return "\n".join(map(members, CLASSES))


def errors() -> str:
    """One tagged paragraph an error, with the status that a command ends with."""
    kinds = [getattr(dnnp, name) for name in dnnp.__all__]
    kinds = [k for k in kinds if inspect.isclass(k) and issubclass(k, dnnp.DnnpError)]
    kinds.sort(key=lambda kind: (kind.exit_status, kind is not dnnp.DnnpError, kind.__name__))
    lines = []
    for kind in kinds:
        said = " ".join((kind.__doc__ or "").partition("\n\n")[0].split())
        if kind is not dnnp.DnnpError:
            said += f" Commands end with status {kind.exit_status}."
        lines.append(f".TP\n.B {kind.__name__}\n{roff(said)}")
    return "\n".join(lines)
