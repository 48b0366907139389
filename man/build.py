"""Build the manual pages: parsers, the tables of methods, the record table and the glossary, merged
with the prose in sections/; completion for shells, from the parsers; the tables of methods.md; and
the JSON Schema of manifests.

    python man/build.py            write man/man1, 3, 5, 7, man/completions and man/methods.md
    python man/build.py --check    exit 1 and name the files that are not up to date

Pages are committed. They depend on nothing but the sources: the date is the one of the release.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import python_page
from argparse_manpage.manpage import Manpage

from dnnp.cmds.dnnp import COMMAND as FRONT
from dnnp.cmds.dnnp import COMMANDS, summaries
from dnnp.cmds.dnnp import command as command_of
from dnnp.cmds.shell.arguments import SHELLS, rows_of
from dnnp.cmds.shell.cli import Command
from dnnp.cmds.shell.completion import front_script, script
from dnnp.core.methods import Method
from dnnp.core.methods.bounds import BOUNDS, LATENCY_BOUNDS
from dnnp.core.methods.schedules import SCHEDULES
from dnnp.core.methods.splits import LATENCY, SPLITS
from dnnp.formats.export.manifest import MANIFEST, manifest_schema
from dnnp.formats.fields import MAX_ID, Field
from dnnp.formats.files import bundled_names
from dnnp.formats.inputs.devices import device_names
from dnnp.formats.records import RECORDS

HERE = Path(__file__).resolve().parent
SECTIONS = HERE / "sections"
MANUAL = "dnnp manual"
PROSE = (("dnnp-graph", 5), ("dnnp-stages", 5), ("dnnp", 7), ("dnnp-methods", 7))
"""Pages that are no command's: name and section."""
METHODS = HERE / "methods.md"
SCHEMA = HERE.parent / "formats" / "dnnp-stages.schema.json"
"""The schema of manifests, which is part of the package."""
TABLES = {
    "SPLITS": (SPLITS, "Finds {} splits"),
    "LATENCY": (LATENCY, "For {}"),
    "BOUNDS": (BOUNDS, "For {} splits"),
    "LATENCY_BOUNDS": (LATENCY_BOUNDS, "For {}"),
    "SCHEDULES": (SCHEDULES, ""),
}
"""Placeholder -> methods, and what to say of the kinds that each is for."""

PYTHON = ("dnnp", 3)
"""The page of `import dnnp`."""


def project() -> dict:
    """The [project] table of pyproject.toml."""
    return tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]


def release() -> tuple[str, str]:
    """Version, and its date by the changelog."""
    version = project()["version"]
    heading = rf"^## {re.escape(version)} - (\d{{4}}-\d\d-\d\d)$"
    found = re.search(heading, (HERE.parent / "CHANGELOG.md").read_text(), re.MULTILINE)
    if found is None:
        raise SystemExit(f"CHANGELOG.md has no heading '## {version} - YYYY-MM-DD'")
    return version, found.group(1)


def commands() -> list[Command]:
    """Every command, in the order of the list."""
    return list(map(command_of, COMMANDS))


def roff(text: str) -> str:
    """Text with backslashes and hyphens escaped; safe at the start of a line."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text[:1] in (".", "'") else text


def command_page(command: Command, version: str, date: str) -> str:
    """Section 1 page of one command."""
    parser = command.parser()
    # Lines of any length: roff fills them, and argparse would break words at hyphens.
    parser.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=100_000)
    summary, parser.description = parser.description, None
    # Lists of methods are for --help alone: sections/ has them with all that is known of them.
    lists = [group for group in parser._action_groups if "\n" in (group.description or "")]
    parser._action_groups = [group for group in parser._action_groups if group not in lists]
    page = Manpage(parser)
    page.date, page.source, page.manual = date, f"dnnp {version}", MANUAL
    page.description = summary
    words = [f"\\fI{roff(str(a.metavar))}\\fR" for a in parser._get_positional_actions()]
    several = {"?": "[{}]", "*": "[{}]..."}
    forms = [several.get(str(a.nargs), "{}") for a in parser._get_positional_actions()]
    words = [form.format(word) for form, word in zip(forms, words, strict=True)]
    page.add_section(
        "synopsis", "=", " ".join([f".B {roff(command.name)}\n[\\fIoption\\fR]...", *words])
    )
    page.parse_include(SECTIONS / f"{command.name}.man")
    others = sorted(c.name for c in commands() if c.name != command.name)
    pages = [f".BR {roff(name)} ({section})" for name, section in PROSE]
    page.add_section("see also", "=", ",\n".join([references(others), *pages]))
    text = (
        str(page)
        .replace("@COMMANDS@", command_list())
        .replace("@DEVICES@", device_list())
        .replace("@CLUSTERS@", cluster_list())
    )
    for name, (methods, kinds) in TABLES.items():
        text = text.replace(f"@{name}@", method_list(methods, kinds))
    before, heading, after = text.partition(".SH EXIT STATUS\n")
    return f"{before}{terms_section(text)}\n{heading}{after}"


def synopsis(parser: argparse.ArgumentParser) -> str:
    """Name, options, and positional arguments; optional ones in brackets."""
    lines = [f".B {roff(parser.prog)}", "[\\fIoption\\fR]..."]
    for action in parser._get_positional_actions():
        word = f"\\fI{roff(str(action.metavar))}\\fR"
        lines.append(f"[{word}]" if action.nargs == "?" else word)
    return "\n".join(lines)


def references(names: list[str]) -> str:
    """Bold references to section 1 pages, separated by commas; no comma after the last."""
    return ",\n".join(f".BR {roff(name)} (1)" for name in names)


def command_list() -> str:
    """One tagged paragraph a command."""
    return "\n".join(f".TP\n.BR {roff(c.name)} (1)\n{roff(c.summary)}." for c in commands())


def method_list(methods: Mapping[str, Method], kinds: str) -> str:
    """One tagged paragraph a method: all that its entry says."""
    return "\n".join(
        f".TP\n.B {roff(method.name)}\n{marked(described(method, kinds))}"
        for method in methods.values()
    )


def knob_list() -> str:
    """One subsection a command that has tuning parameters: their names, values and defaults."""
    lines = []
    for command in commands():
        rows = [row for _, row in rows_of(command.tables) if row.tuning]
        lines += [f".SS {roff(command.name)}"] if rows else []
        for row in rows:
            lines.append(f".TP\n\\fB{roff(row.key)}\\fR=\\fI{roff(row.metavar or 'true')}\\fR")
            lines.append(f"{marked(row.help)}.")
    return "\n".join(lines)


def brief_list() -> str:
    """One subsection a table of methods: what each is, and what it heeds."""
    titles = {"SPLITS": "Splits for throughput and gpipe", "LATENCY": "Splits for latency"}
    titles |= {"BOUNDS": "Bounds for throughput and gpipe", "LATENCY_BOUNDS": "Bounds for latency"}
    lines = []
    for name, (methods, _) in TABLES.items():
        lines.append(f".SS {titles.get(name, 'Schedules')}")
        for method in methods.values():
            heeds = f" ({', '.join(method.heeds)})" if method.heeds else ""
            lines.append(f".TP\n.B {roff(method.name)}\n{marked(method.help + heeds)}")
    return "\n".join(lines)


def described(method: Method, kinds: str) -> str:
    """What a method is, what it is for, what it heeds, and where it comes from, in sentences."""
    parts = [method.help[0].upper() + method.help[1:] + ".", method.more]
    if method.kinds and kinds:
        parts.append(kinds.format(listed(method.kinds)) + ".")
    if method.heeds:
        tuning_parameters = {
            row.key for command in commands() for _, row in rows_of(command.tables) if row.tuning
        }
        flags = [
            f"`--set {name}`" if name in tuning_parameters else f"`--{name}`"
            for name in method.heeds
        ]
        parts.append(f"Heeds {listed(flags, 'and')}.")
    if method.source:
        parts.append(f"Source: {method.source}.")
    return " ".join(filter(None, parts))


def listed(words: Sequence[str], last: str = "or") -> str:
    """Words with commas, and one that comes before the last."""
    return f" {last} ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def marked(text: str) -> str:
    """Text in lines, with what stands between backticks in bold."""
    lines = textwrap.wrap(text, 100, break_on_hyphens=False)
    return re.sub(r"`([^`]+)`", r"\\fB\1\\fR", "\n".join(map(roff, lines)))


def methods_page() -> str:
    """methods.md with its tables filled in."""
    text = METHODS.read_text()
    for name, (table, _) in TABLES.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->\n"
        if begin in text:
            before, _, rest = text.partition(begin)
            _, _, after = rest.partition(end)
            text = f"{before}{begin}\n{method_table(table)}\n{end}{after}"
    return text


def method_table(methods: Mapping[str, Method]) -> str:
    """One row a method: name, what it is for if that differs, what it is, and its modules."""
    columns = {
        "method": lambda m: f"`{m.name}`",
        "for": lambda m: listed(m.kinds),
        "what it is": lambda m: m.help,
        "module": lambda m: ", ".join(dict.fromkeys(f"`{path}`" for path in modules_of(m))),
    }
    if not any(m.kinds for m in methods.values()):
        del columns["for"]
    rows = [[*columns], *([cell(m) for cell in columns.values()] for m in methods.values())]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join(lines) + "\n"


def modules_of(method: Method) -> list[str]:
    """Files that the functions of a method are in."""
    places = [method.where] if isinstance(method.where, str) else method.where.values()
    found = [place.partition(":")[0].split(".")[1:] for place in places if place]
    return [f"{'/'.join(names)}.py" for names in found]


def cluster_list() -> str:
    """The sets of devices that come with the package, separated by commas."""
    return ", ".join(f"\\fB{roff(name)}\\fR" for name in bundled_names("clusters"))


def device_list() -> str:
    """The devices that come with the package, separated by commas."""
    return ",\n".join(f".BR {roff(name)}" for name in device_names()).replace(",\n", " ,\n")


def type_name(field: Field) -> str:
    """What a field holds, in words."""
    if field.type == "list":
        inner = type_name(field.items) if field.items is not None else "value"
        return f"list of {inner}, none twice" if field.unique else f"list of {inner}"
    if field.type == "map":
        inner = type_name(field.items) if field.items is not None else "value"
        return f"object of {inner}"
    if field.const is not None:
        return repr(field.const).replace("'", '"')
    if field.type == "place":
        return "id or " + ", ".join(f'"{value}"' for value in field.enum)
    if field.enum:
        return "one of " + ", ".join(f'"{value}"' for value in field.enum)
    if field.type in ("number", "int"):
        name = "integer" if field.type == "int" else "number"
        return name if field.signed else f"{name} {'> 0' if field.positive else '>= 0'}"
    if field.type == "string" and field.pattern:
        return "string of 64 hexadecimal digits" if "{64}" in field.pattern else "string"
    return {
        "id": "id",
        "size": "size, name or null",
        "bool": "true or false",
        "object": "object",
    }.get(field.type, field.type)


def field_lines(fields: Mapping[str, Field]) -> Iterator[str]:
    """One tagged paragraph a field; the fields of objects are indented below it."""
    for name, field in fields.items():
        mark = "*" if field.required else ""
        yield f".TP\n\\fB{roff(name)}\\fR{mark}  ({roff(type_name(field))})"
        yield f"{roff(field.doc)}." if field.doc else "\\&"
        inner = field.fields or (field.items.fields if field.items is not None else {})
        if inner:
            yield ".RS"
            yield from field_lines(inner)
            yield ".RE"


def record_list() -> str:
    """One subsection a record type."""
    lines: list[str] = []
    for kind, fields in RECORDS.items():
        lines.append(f".SS {kind}")
        lines.extend(field_lines(fields))
    return "\n".join(lines)


def example() -> str:
    """The example stream, long records folded."""
    lines = (SECTIONS / "example.jsonl").read_text().splitlines()
    wrapper = textwrap.TextWrapper(64, subsequent_indent="    ", break_long_words=False)
    spaced = (re.sub(r',"', ', "', line) for line in lines)
    folded = (part for line in spaced for part in wrapper.wrap(line))
    return "\n".join(roff(part) for part in folded)


def glossary() -> dict[tuple[str, ...], str]:
    """Terms, each with its other forms, and what they mean."""
    lines = (SECTIONS / "glossary.txt").read_text().splitlines()
    pairs = (line.split(": ", 1) for line in lines)
    return {tuple(words.split(", ")): meaning for words, meaning in pairs}


def prose(page: str) -> str:
    """The words of a page on one line, without its requests, and what is set in literal blocks."""
    text = re.sub(r"^\.nf$.*?^\.fi$", "", page, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^\.[A-Z]+ ?", "", text, flags=re.MULTILINE).replace('"', "")
    return " ".join(re.sub(r"\\f.|\\[,/&]", "", text).replace("\\-", "-").split())


def terms_in(text: str) -> dict[tuple[str, ...], str]:
    """The part of the glossary that a text uses, singular or plural."""

    def used(word: str) -> bool:
        flags = re.NOFLAG if word.isupper() else re.IGNORECASE
        return re.search(rf"(?<![-\w]){re.escape(word)}s?(?![-\w])", text, flags) is not None

    return {words: text for words, text in glossary().items() if any(map(used, words))}


def terms_section(page: str) -> str:
    """What the terms on a page mean, so that nobody needs another page to read it."""
    return "\n".join([".SH TERMS", term_list(terms_in(prose(page)))])


def term_list(terms: Mapping[tuple[str, ...], str]) -> str:
    """One tagged paragraph a term."""
    return "\n".join(
        f".TP\n.B {roff(words[0])}\n{roff(meaning)}." for words, meaning in terms.items()
    )


def schema() -> str:
    """The JSON Schema of manifests, as it is shipped."""
    return json.dumps(manifest_schema(), indent=2) + "\n"


def prose_page(name: str, section: int, version: str, date: str) -> str:
    """Page whose prose stands in sections/, with its tables filled in."""
    text = (SECTIONS / f"{name}.{section}.man").read_text()
    tables = {
        "@COMMANDS@": command_list(),
        "@RECORDS@": record_list(),
        "@EXAMPLE@": example(),
        "@MAXID@": str(MAX_ID),
        "@MANIFEST@": "\n".join(field_lines(MANIFEST)),
        "@SYNOPSIS@": python_page.synopsis(),
        "@FUNCTIONS@": python_page.functions(),
        "@CLASSES@": python_page.classes(),
        "@ERRORS@": python_page.errors(),
        "@KNOBS@": knob_list(),
        "@BRIEF@": brief_list(),
        "@GLOSSARY@": term_list(glossary()),
        "@SEEALSO@": references(sorted(c.name for c in commands())),
    }
    for placeholder, table in tables.items():
        text = text.replace(placeholder, table)
    text = text.replace("@TERMS@", terms_section(text))
    title = roff(name.upper())
    return f'.TH {title} "{section}" "{roff(date)}" "dnnp {version}" "{MANUAL}"\n{text}'


def pages() -> dict[Path, str]:
    """Every page and its text."""
    version, date = release()
    known = [FRONT, *commands()]
    result = {HERE / "man1" / f"{c.name}.1": command_page(c, version, date) for c in known}
    for name, section in (*PROSE, PYTHON):
        result[HERE / f"man{section}" / f"{name}.{section}"] = prose_page(
            name, section, version, date
        )
    return result


def completions() -> dict[Path, str]:
    """Every completion script, under the name by which its shell finds it."""
    names = {"bash": "{}", "zsh": "_{}", "fish": "{}.fish", "tcsh": "{}"}
    return {
        HERE / "completions" / shell / names[shell].format(c.name): script(c.parser(), shell)
        for shell in SHELLS
        for c in commands()
    } | {
        HERE / "completions" / shell / names[shell].format("dnnp"): front_script(shell, summaries())
        for shell in SHELLS
    }


def main() -> int:
    """Write the pages and scripts, or check them."""
    parser = argparse.ArgumentParser(
        description="Build the manual pages, completion and the tables of methods.md."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; name stale files")
    check = parser.parse_args().check
    built = {**pages(), **completions(), METHODS: methods_page(), SCHEMA: schema()}
    found = {path for n in (1, 3, 5, 7) for path in (HERE / f"man{n}").glob(f"*.{n}")}
    found |= set((HERE / "completions").glob("*/*"))
    stale = [p for p, text in built.items() if not p.exists() or p.read_text() != text]
    stale += sorted(found - set(built))
    if check:
        for path in stale:
            print(f"{path.relative_to(HERE.parent)} is not up to date: run make man")
        return 1 if stale else 0
    for path in found - set(built):
        path.unlink()
    for path, text in built.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
