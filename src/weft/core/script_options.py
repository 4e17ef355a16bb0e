"""Options of ``weft submit`` inside a script, in comment lines that begin with ``#WEFT``."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from weft.errors import InputError

MARK = "#WEFT"
# Formatters put a space after "#"; then only options count, since the line may also be a sentence about weft.
_MARKED = re.compile(r"#WEFT(?=\s|$)|# WEFT(?=\s+-)")
_MAX_READ_BYTES = 100_000


def script_options(path: Path) -> list[tuple[int, list[str]]]:
    """The words of each ``#WEFT`` line before the first line of code, with its line number; none if unreadable."""
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_READ_BYTES).decode(errors="replace")
    except OSError:
        return []
    found, is_code = [], False
    for number, line in enumerate(text.splitlines(), start=1):
        is_code |= bool(line.strip()) and not line.startswith("#")
        marked = _MARKED.match(line)
        if marked is None:
            continue
        try:
            if is_code:
                raise ValueError("this line comes after the first line of code: move it to the top of the file")
            found.append((number, shlex.split(line[marked.end() :], comments=True)))
        except ValueError as error:
            raise InputError(f"{MARK}: {str(error).lower()}", file=str(path), line=number) from None
    return found
