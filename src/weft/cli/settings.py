"""Options set outside the command line: environment variables, ``./weft.toml``, and the user's ``config.toml``.

One rule names them all: ``weft up --policy srtf`` is ``WEFT_UP_POLICY=srtf``, and in a file::

    home = "/data/weft"      # WEFT_HOME

    [up]
    policy = "srtf"

The command line comes first, then the environment, then ``./weft.toml``, then ``~/.config/weft/config.toml``.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.core.nearest_name import unknown_name
from weft.errors import InputError

LOCAL_FILE = "weft.toml"
HOME = "WEFT_HOME"
_HOME_KEY = "home"
_MAX_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class Setting:
    """A value from outside the command line, and where it was found."""

    value: Any
    origin: str


def user_file() -> Path:
    """``config.toml`` of this user."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(folder, "weft", "config.toml")


def variable_of(command: Sequence[str], option: str) -> str:
    """The environment variable of an option.

    >>> variable_of(("up",), "hold_s")
    'WEFT_UP_HOLD_S'
    """
    return "_".join(["WEFT", *command, option]).upper().replace("-", "_")


def settings_of(command: Sequence[str], options: Collection[str]) -> dict[str, Setting]:
    """The settings for a command's options, by option name (with ``_``)."""
    found: dict[str, Setting] = {}
    for path in (user_file(), Path(LOCAL_FILE)):
        table = _table(_document(path), command, path)
        for key, value in table.items():
            name = key.replace("-", "_")
            if name not in options:
                message = unknown_name("option", key, sorted(options))
                raise InputError(f"[{'.'.join(command)}]: {message}", file=str(path))
            found[name] = Setting(value, f"{path}: {key} in [{'.'.join(command)}]")
    for name in options:
        variable = variable_of(command, name)
        if variable in os.environ:
            found[name] = Setting(os.environ[variable], variable)
    return found


def use_home(commands: Collection[str]) -> None:
    """Set ``WEFT_HOME`` from a file, unless it is already set; rejects a file with a table for an unknown command."""
    home = None
    for path in (user_file(), Path(LOCAL_FILE)):
        document = _document(path)
        for key in document:
            if key != _HOME_KEY and key not in commands:
                raise InputError(unknown_name("command or setting", key, [*commands, _HOME_KEY]), file=str(path))
        if _HOME_KEY in document:
            home = document[_HOME_KEY]
            if not isinstance(home, str) or not home:
                raise InputError(f"home is {home!r}: expected the path of a folder", file=str(path))
            home = str(Path(path.absolute().parent, os.path.expanduser(home)))
    if home is not None and not os.environ.get(HOME):
        os.environ[HOME] = home


def _document(path: Path) -> Mapping[str, Any]:
    """The parsed file; empty if there is none."""
    try:
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                return {}
            if about.st_uid not in (os.getuid(), 0) or about.st_mode & stat.S_IWOTH:
                raise InputError(
                    "belongs to another user, or anyone can write to it, so it is not used: make it yours and run "
                    "`chmod o-w` on it",
                    file=str(path),
                )
            text = file.read(_MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror}): check the permissions", file=str(path)) from None
    import tomllib  # only if there is a file: importing it takes longer than most commands

    try:
        return tomllib.loads(text.decode())
    except ValueError as error:
        raise InputError(f"is not valid TOML: {error}", file=str(path)) from None


def _table(document: Mapping[str, Any], command: Sequence[str], path: Path) -> Mapping[str, Any]:
    table: Any = document
    for word in command:
        table = table.get(word, {})
        if not isinstance(table, dict):
            raise InputError(f"{word} is {table!r}: expected a table, [{'.'.join(command)}]", file=str(path))
    return {key: value for key, value in table.items() if not isinstance(value, dict)}
