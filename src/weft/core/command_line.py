"""Declares arguments and options of the command line.  Pure data: ``cli/verb.py`` is the parser that reads it.

Annotate a parameter of a command, or a field of a dataclass of options:

    timeout_s: Annotated[float | None, Option("give up after this long", default="never")] = None
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Argument:
    """A positional argument."""

    metavar: str
    help: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rest(Argument):
    """All remaining words, starting at the first one that is not an option."""


@dataclass(frozen=True, slots=True)
class Tail(Argument):
    """All words after ``--``; ``None`` if there is no ``--``."""

    begins: Callable[[str], bool] = lambda word: False
    """Whether this word, the first that is not an option, begins the tail without a ``--``."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option.  Its name is the parameter's unless ``name`` says otherwise."""

    help: str
    default: str = ""
    """The default as shown in the help text, if the value itself (``None``, ``""``) would not explain it."""
    name: str = ""
    short: str = ""
    metavar: str = ""
    choices: tuple[str, ...] = ()
    min: float = -math.inf
    max: float = math.inf

    def flag(self, parameter: str) -> str:
        return self.name or "--" + parameter.replace("_", "-")
