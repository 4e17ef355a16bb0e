"""What a job's argument list means: a script that a fork can run, or a program.

A leading ``python`` means the interpreter that weft itself runs in, as with ``weft run``; give a path for another one.
No shell is involved.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from weft.engines.worker_launch import Script, script_of
from weft.errors import InputError

OWN_INTERPRETER = {"python", "python3", f"python3.{sys.version_info.minor}", sys.executable}
READ_AT_START = ("PYTHON", "LD_", "MALLOC_", "GLIBC_")
"""Variables with these prefixes are read once, when an interpreter starts: in a fork it would be too late."""
IRRELEVANT = {"PYTHONUNBUFFERED"}  # workers never buffer their output


def script_of_command(argv: Sequence[str], cwd: str) -> Script:
    """The script to run; raises InputError if it or the folder is missing.

    >>> str(script_of_command(["python", "-u", "-m", "json.tool", "x"], "/"))
    '-m json.tool'
    >>> script_of_command(["make"], "/").is_command
    True
    """
    try:
        is_folder = Path(cwd).is_dir()
        may_enter = os.access(cwd, os.X_OK)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(
            f"cannot be used as a working directory ({reason}): submit from another folder, or give --cwd", file=cwd
        ) from error
    if not is_folder:
        raise InputError("no such working directory: submit from another folder, or give --cwd", file=cwd)
    if not may_enter:
        raise InputError("permission denied: submit from a folder you can enter, or give --cwd", file=cwd)
    if not argv:
        raise InputError("the job has no command: expected a program and its arguments")
    program, *rest = argv
    if program not in OWN_INTERPRETER:
        return Script(program, tuple(rest), cwd=cwd, is_command=True)
    while rest[:1] == ["-u"]:
        rest = rest[1:]
    if rest[:1] == ["-m"] and len(rest) > 1:
        return script_of(rest[1:], is_module=True, cwd=cwd)
    if rest and not rest[0].startswith("-"):
        return script_of(rest, is_module=False, cwd=cwd)
    return Script(sys.executable, tuple(rest), cwd=cwd, is_command=True)  # -c, -X, -O ...: leave it to Python


def needs_fresh_interpreter(environment: Mapping[str, str], inherited: Mapping[str, str]) -> bool:
    """Whether ``environment`` has something that a fork of an interpreter started with ``inherited`` would miss.

    >>> needs_fresh_interpreter({"PYTHONPATH": "lib", "LR": "1"}, {"PYTHONPATH": "other"})
    True
    >>> needs_fresh_interpreter({"PYTHONPATH": "lib", "LR": "1"}, {"PYTHONPATH": "lib"})
    False
    """
    names = {*environment, *inherited} - IRRELEVANT
    return any(name.startswith(READ_AT_START) and environment.get(name) != inherited.get(name) for name in names)
