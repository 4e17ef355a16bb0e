"""``weft man``: the manual page, made from the same declarations as the parser."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Annotated

from weft.core.command_line import Option
from weft.version import __version__

_FILES = """\
~/.weft                      the home: state, token, socket, logs, checkpoints (WEFT_HOME)
~/.config/weft/config.toml   your options
weft.toml                    options for commands run in this folder"""


def man(roff: Annotated[bool, Option("print the page's source, for installing as weft.1")] = False) -> None:
    """Show the manual page: every command with its options.

    Without a terminal, or with --roff, prints the page's source: `weft man > weft.1`.
    """
    page = "\n".join(_page()) + "\n"
    viewer = shutil.which("man")
    if roff or viewer is None or not sys.stdout.isatty():
        print(page, end="")
        return
    subprocess.run([viewer, "-l", "-"], input=page, text=True, check=False)


def _page() -> Iterator[str]:
    from weft.cli import SECTIONS, load
    from weft.cli.verb import Verb

    yield f'.TH WEFT 1 "" "weft {__version__}" "User Commands"'
    yield from (".SH NAME", r"weft \- weave distributed PyTorch training jobs together")
    yield from (".SH SYNOPSIS", r".B weft", "COMMAND [options]")
    yield ".SH DESCRIPTION"
    yield "Runs, resizes, and explains data-parallel PyTorch jobs so that no device and no link sits idle."
    for title, verbs in SECTIONS.items():
        yield f'.SH "{title.upper()}"'
        for name, line in verbs.items():
            verb = load(name)
            one = {f"weft {name}": verb} if isinstance(verb, Verb) else {}
            commands = one or {f"weft {name} {sub}": found for sub, found in verb.verbs.items()}  # type: ignore[union-attr]
            yield f'.SS "weft {name}: {_escaped(line)}"'
            for prog, command in commands.items():
                yield from _literal(command.parser(prog).format_help())
    yield ".SH FILES"
    yield from _literal(_FILES)
    yield from (
        ".SH EXIT STATUS",
        "0 on success; 2 for a usage error; the documentation lists all others (docs/cli.md).",
    )


def _literal(text: str) -> Iterator[str]:
    yield ".nf"
    yield from (_escaped(line) for line in text.rstrip().splitlines())
    yield ".fi"


def _escaped(line: str) -> str:
    """A line of text that the formatter prints unchanged."""
    line = line.replace("\\", r"\e").replace("-", r"\-").replace('"', r"\(dq")
    return re.sub(r"^(?=[.'])", lambda _: r"\&", line)
