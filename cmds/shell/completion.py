"""Completion for shells, written from the parser of a command: options, names and files.

`--print-completion SHELL` prints a script; man/build.py writes all of them to man/completions, from
where an installation takes them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from dnnp.cmds.shell.arguments import SHELLS

FILES = ("FILE", "FILE|LIST", "PATH", "DIR", "STREAM", "MODEL", "NAME|FILE", "RULES")
"""Names of values that are files."""


class Argument(NamedTuple):
    """An option, or a positional argument, and what may follow it."""

    options: tuple[str, ...]
    """Empty: positional."""
    help: str
    value: str
    """Name of its value; empty: it takes none."""
    optional: bool
    """True where the value may be left out."""
    words: tuple[str, ...]
    """Values, if they have names."""
    files: bool
    """True where the value may be a file."""


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The completion of a command for one of `SHELLS`."""
    return _WRITERS[shell](parser.prog, _arguments(parser))


def _arguments(parser: argparse.ArgumentParser) -> list[Argument]:
    """List what a command takes, in the order of its help."""
    found = []
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        takes = action.nargs != 0
        value = str(action.metavar or action.dest.upper()) if takes else ""
        words = tuple(map(str, action.choices or ())) or _names(action)
        formatter = argparse.HelpFormatter(parser.prog)
        text = " ".join(formatter._expand_help(action).split()) if action.help else ""
        brief = text.partition(" (default")[0]
        options, optional = tuple(action.option_strings), action.nargs == "?"
        found.append(Argument(options, brief, value, optional, words, value in FILES))
    return found


def _names(action: argparse.Action) -> tuple[str, ...]:
    """Names of what comes with the package, for the options that take one of them or a file."""
    from dnnp.formats.files import bundled_names
    from dnnp.formats.inputs.devices import device_names

    names: dict[tuple[str, str], Callable[[], Iterable[str]]] = {
        ("--device", "NAME|FILE"): device_names,
        ("--from", "NAME|FILE"): device_names,
        ("--devices", "FILE|LIST"): lambda: [*bundled_names("clusters"), *device_names()],
        ("--rules", "RULES"): lambda: [*bundled_names("rules"), "none", "ort"],
    }
    option = (action.option_strings or [""])[-1]
    return tuple(names.get((option, str(action.metavar)), tuple)())


def _bash(name: str, arguments: list[Argument]) -> str:
    function = "_" + name.replace("-", "_")
    lines = [
        f"# bash completion for {name}",
        f"{function}() {{",
        '  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words="" files=""',
        "  COMPREPLY=()",
        "  # Of --option=value, bash makes three words.",
        '  if [[ $cur == "=" ]]; then cur=""',
        '  elif [[ $prev == "=" ]]; then prev=${COMP_WORDS[COMP_CWORD-2]}; fi',
        '  if [[ $cur == -?* ]]; then prev=""; fi',
        "  case $prev in",
    ]
    for a in arguments:
        if a.options and a.value:
            done = (f' words="{" ".join(a.words)}"' if a.words else "") + " files=1" * a.files
            lines.append(f"    {'|'.join(a.options)}){done or ' return'} ;;")
    positional = any(a.files for a in arguments if not a.options)
    lines += [
        "    *)",
        "      if [[ $cur == -* ]]; then",
        f'        words="{" ".join(option for a in arguments for option in a.options)}"',
        f"      {'else files=1; fi' if positional else 'fi'} ;;",
        "  esac",
        '  if [[ $words ]]; then mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur"); fi',
        "  if [[ $files ]]; then",
        '    mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -- "$cur")',
        "    compopt -o filenames 2> /dev/null",
        "  fi",
        "}",
        f"complete -F {function} {name}",
    ]
    return "\n".join(lines) + "\n"


def _zsh(name: str, arguments: list[Argument]) -> str:
    lines = [f"#compdef {name}", "", "local -a arguments=("]
    for a in arguments:
        text = _quoted(a.help, "[]:\\")
        message = _quoted(a.value, ":\\")
        if a.words and a.files:
            kinds = f'"names\\:name\\:({" ".join(a.words)})" "files\\:file\\:_files"'
            action = f" _alternative {kinds}"
        else:
            action = f"({' '.join(a.words)})" if a.words else "_files" if a.files else " "
        value = f"{'::' if a.optional else ':'}{message}:{action}" if a.value else ""
        if not a.options:
            lines.append(f"  '{value}'")
            continue
        # Options may be repeated: the command says which may not.
        for option in a.options:
            joined = ("=" if option.startswith("--") else "+") if a.value else ""
            lines.append(f"  '*{option}{joined}[{text}]{value}'")
    lines += [")", "_arguments -s : $arguments"]
    return "\n".join(lines) + "\n"


def _fish(name: str, arguments: list[Argument]) -> str:
    lines = [f"# fish completion for {name}"]
    if not any(a.files for a in arguments if not a.options):
        lines.append(f"complete -c {name} -f")
    for a in arguments:
        if not a.options:
            continue
        parts = [f"complete -c {name}"]
        parts += [f"-l {o[2:]}" if o.startswith("--") else f"-s {o[1:]}" for o in a.options]
        if a.value and not a.optional:
            parts.append("-r -F" if a.files else "-x")
        if a.words:
            parts.append(f"-a '{' '.join(a.words)}'")
        parts.append(f"-d '{_quoted(a.help, chr(92))}'".replace("'\\''", "\\'"))
        lines.append(" ".join(parts))
    return "\n".join(lines) + "\n"


def _tcsh(name: str, arguments: list[Argument]) -> str:
    rules = []
    for a in arguments:
        for option in a.options if a.value else ():
            what = f"({' '.join(a.words)})" if a.words else "f" if a.files else f"x:{a.value}:"
            rules.append(f"'n@{option}@{what}@'")
    words = " ".join(option[1:] for a in arguments for option in a.options)
    rules.append(f"'c@-@({words})@'")
    if any(a.files for a in arguments if not a.options):
        rules.append("'p@*@f@'")
    return f"# tcsh completion for {name}\ncomplete {name} " + " \\\n  ".join(rules) + "\n"


def _quoted(text: str, special: str) -> str:
    """Text for single quotes, with a backslash before special characters."""
    return "".join(f"\\{c}" if c in special else c for c in text).replace("'", "'\\''")


def front_script(shell: str, commands: Mapping[str, str]) -> str:
    """The completion of `dnnp`: a command, and then what that command takes.

    `commands`: name -> one line about it.
    """
    return _FRONTS[shell](commands)


_FRONT_OPTIONS = "--help --version --print-completion"


def _bash_front(commands: Mapping[str, str]) -> str:
    names = " ".join(commands)
    return f"""# bash completion for dnnp
_dnnp() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} name=${{COMP_WORDS[1]}} words=""
  COMPREPLY=()
  if (( COMP_CWORD == 1 )); then words="{names} help {_FRONT_OPTIONS}"
  elif [[ $name == help ]]; then words="{names}"
  elif [[ $name == --print-completion ]]; then words="{" ".join(SHELLS)}"
  elif [[ " {names} " == *" $name "* ]]; then
    if ! declare -F "_dnnp_$name" > /dev/null; then
      eval "$("dnnp-$name" --print-completion bash 2> /dev/null)"
    fi
    COMP_WORDS=("dnnp-$name" "${{COMP_WORDS[@]:2}}")
    (( COMP_CWORD-- ))
    "_dnnp_$name"
    return
  fi
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
}}
complete -F _dnnp dnnp
"""


def _zsh_front(commands: Mapping[str, str]) -> str:
    rows = [f"  '{_quoted(name, ':')}:{_quoted(text, ':')}'" for name, text in commands.items()]
    listed = "\n".join([*rows, "  'help:this list, or the options of a command'"])
    return f"""#compdef dnnp

local -a commands=(
{listed}
)
if (( CURRENT == 2 )) || [[ $words[2] == help ]]; then
  _describe command commands
else
  words=("dnnp-$words[2]" "${{(@)words[3,-1]}}")
  (( CURRENT-- ))
  _normal
fi
"""


def _fish_front(commands: Mapping[str, str]) -> str:
    lines = ["# fish completion for dnnp", "complete -c dnnp -f"]
    first = "test (count (commandline -opc)) -eq 1"
    for name, text in {**commands, "help": "the list of commands"}.items():
        said = _quoted(text, chr(92)).replace("'\\''", "\\'")
        lines.append(f"complete -c dnnp -n '{first}' -a {name} -d '{said}'")
    lines += [f"complete -c dnnp -n '{first}' -l {o[2:]}" for o in _FRONT_OPTIONS.split()]
    rest = r"(complete -C (string replace -r '^\s*dnnp\s+' dnnp- -- (commandline -cp)))"
    lines.append(f'complete -c dnnp -n "test (count (commandline -opc)) -gt 1" -a "{rest}"')
    return "\n".join(lines) + "\n"


def _tcsh_front(commands: Mapping[str, str]) -> str:
    names = " ".join(commands)
    rules = [f"'n@help@({names})@'", f"'p@1@({names} help {_FRONT_OPTIONS})@'", "'p@*@f@'"]
    return "# tcsh completion for dnnp\ncomplete dnnp " + " \\\n  ".join(rules) + "\n"


_FRONTS = dict(zip(SHELLS, (_bash_front, _zsh_front, _fish_front, _tcsh_front), strict=True))
_WRITERS = dict(zip(SHELLS, (_bash, _zsh, _fish, _tcsh), strict=True))
