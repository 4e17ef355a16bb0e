"""A function as a command: its annotated parameters are the options, its docstring is the help.

    def wait(job_ids: Annotated[list[str], Argument("ID")], as_json: Json = False) -> None: ...
    app = Verb(wait)

[Note: why not Typer]
Typer, which `sim`, `bench` and `run` use, loads pydantic to convert any argument: more time than everything else
that `weft status` does.  People type these verbs all day and shells call them at every tab.  So the standard
library's parser does it, with the same way of writing a verb.
"""

from __future__ import annotations

import argparse
import math
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, Union, get_args, get_origin, get_type_hints

from weft.errors import UsageError

if TYPE_CHECKING:
    from weft.client import Client

_WORDS = {int: "a whole number", float: "a number"}


@dataclass(frozen=True, slots=True)
class Argument:
    """Stands by its place."""

    metavar: str
    help: str = ""


@dataclass(frozen=True, slots=True)
class Option:
    """Stands by its name; ``name`` and ``short`` if it is not the parameter's."""

    help: str = ""
    name: str = ""
    short: str = ""
    metavar: str = ""
    min: float = -math.inf
    max: float = math.inf

    def flags(self, parameter: str) -> list[str]:
        return [*filter(None, [self.short]), self.name or "--" + parameter.replace("_", "-")]


Json = Annotated[bool, Option("print JSON", name="--json")]


class Verb:
    """One verb of the command line."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __call__(self, args: Sequence[str], prog_name: str, **given: Any) -> None:
        """Parse ``args`` and do it; ``given`` are parameters that are no options."""
        values = vars(self.parser(prog_name).parse_intermixed_args(args))
        self._function(**values, **given)

    def flags(self) -> list[str]:
        """The long names of its options."""
        return [option for action in self.parser("")._actions for option in action.option_strings if option[1] == "-"]

    def parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = _Parser(
            prog=prog_name,
            description=_paragraphs(self._function.__doc__ or ""),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        hints = get_type_hints(self._function, include_extras=True)
        code, defaults = self._function.__code__, self._function.__defaults__ or ()
        names = code.co_varnames[: code.co_argcount]
        by_default = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
        for name in names:
            if get_origin(hints[name]) is Annotated:
                kind, about = get_args(hints[name])[:2]
                _add(parser, name, kind, about, by_default)
        return parser


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (`{self.prog} --help` says more)")


def _add(
    parser: argparse.ArgumentParser, name: str, kind: Any, about: Argument | Option, defaults: dict[str, Any]
) -> None:
    kind, is_list = _element(kind)
    text = about.help.replace("%", "%%")
    default = defaults.get(name)
    if isinstance(about, Argument):
        nargs = ("*" if name in defaults else "+") if is_list else ("?" if name in defaults else None)
        parser.add_argument(name, metavar=about.metavar, help=text, nargs=nargs, default=default, type=kind)
        return
    flags = about.flags(name)
    if kind is bool:
        parser.add_argument(*flags, dest=name, help=text, action="store_true")
        return
    if default is not None:
        text = f"{text} [default: {default}]"
    parser.add_argument(
        *flags,
        dest=name,
        help=text,
        metavar=about.metavar or kind.__name__.upper().replace("STR", "TEXT"),
        type=_converter(kind, about),
        action="append" if is_list else "store",
        default=default,
    )


def _element(kind: Any) -> tuple[Any, bool]:
    """The type of one value, and whether there may be several: ``list[str] | None`` is (str, True)."""
    if get_origin(kind) in (Union, types.UnionType):
        (kind,) = (part for part in get_args(kind) if part is not type(None))
    if get_origin(kind) is list:
        return get_args(kind)[0], True
    return kind, False


def _converter(kind: Any, about: Option) -> Callable[[str], Any]:
    if kind not in (int, float):
        return Path if kind is Path else str

    def convert(text: str) -> float:
        try:
            value: float = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {_WORDS[kind]}") from None
        if not (about.min <= value <= about.max and math.isfinite(value)):
            least = f" of at least {about.min:g}" if about.min > -math.inf else ""
            most = f", at most {about.max:g}" if about.max < math.inf else ""
            raise argparse.ArgumentTypeError(f"{text} is out of range: expected {_WORDS[kind]}{least}{most}")
        return value

    return convert


def _paragraphs(docstring: str) -> str:
    return "\n".join(line.strip() for line in docstring.strip().splitlines())


def connect() -> Client:
    """The controller of this home; HTTP is loaded only now, `--help` needs none."""
    from weft.client import Client

    return Client()
