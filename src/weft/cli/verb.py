"""A function as a command: its annotated parameters are the arguments and options, its docstring is the help text.

    def wait(job_ids: Annotated[list[str], Argument("ID", "jobs to wait for")], as_json: Json = False) -> None: ...

A parameter may also be a dataclass: each of its annotated fields is an option.

[Note: why argparse]  Typer and click take longer to import than most commands take to run, and shells run `weft` at
every tab.  The standard library's parser costs 10 ms.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, Union, get_args, get_origin, get_type_hints

from weft.cli.render import note, print_text
from weft.cli.settings import Setting, settings_of
from weft.core.command_line import Argument, Option, Rest, Tail
from weft.core.nearest_name import nearest_name, unknown_name
from weft.errors import UsageError

if TYPE_CHECKING:
    from weft.client import Client

SEPARATOR = "--"
_SCRIPTS = (".py", ".sh")
_MAX_NUMBER = 10**300
_MAX_S = 1_000_000_000
"""30 years: what the system can sleep."""
_KINDS = {int: "a whole number", float: "a number"}
_METAVARS = {int: "N", float: "X", Path: "PATH", str: "TEXT"}

Json = Annotated[bool, Option("print JSON", name="--json")]


class Verb:
    """One command."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function
        self._parameters = _declared(function)

    def __call__(self, args: Sequence[str], prog: str) -> None:
        """Parse ``args`` and run the command."""
        self._function(**self.parse(args, prog))

    def flags(self) -> list[str]:
        """The long names of its options."""
        return sorted(["--help", *(p.about.flag(p.name) for p in self._parameters if isinstance(p.about, Option))])

    def option_names(self) -> list[str]:
        """The names of its options in a file or an environment variable, with ``_``."""
        return [p.setting for p in self._parameters if isinstance(p.about, Option)]

    def parse(self, args: Sequence[str], prog: str, settings: Mapping[str, Setting] | None = None) -> dict[str, Any]:
        """The arguments for the function; raises :class:`UsageError` if ``args`` are wrong.

        ``settings``: values of options that are missing in ``args``, by name; by default those of the command ``prog``.
        """
        parser, tail, typed = self.parser(prog), None, args
        if settings is None:
            settings = settings_of(prog.split()[1:], self.option_names())
        for parameter in self._parameters:
            if parameter.setting in settings and isinstance(parameter.about, Option):
                parser.set_defaults(**{parameter.name: parameter.converted(settings[parameter.setting])})
        for parameter in self._parameters:
            if isinstance(parameter.about, Tail):
                args, tail = self._split(args, parameter.about)
        if any(isinstance(parameter.about, Rest) for parameter in self._parameters):
            found, extra = parser.parse_known_args(args)
        else:
            found, extra = parser.parse_known_intermixed_args(args)
        if extra:
            _refuse(parser, extra[0], self.flags())
        for parameter in self._parameters:
            value, about = getattr(found, parameter.name, None), parameter.about
            # argparse turns the value of `--gpus=--` into an empty list.
            if isinstance(about, Option) and isinstance(value, list) and (not value or [] in value):
                parser.error(f"{about.flag(parameter.name)}: expected a value, not {SEPARATOR!r}")
        self._note_misplaced(typed, prog)
        values = {p.name: tail if isinstance(p.about, Tail) else getattr(found, p.name) for p in self._parameters}
        for group, kind in _groups(self._function).items():
            values[group] = kind(**{field.name: values.pop(field.name) for field in dataclasses.fields(kind)})
        return values

    def _split(self, args: Sequence[str], tail: Tail) -> tuple[Sequence[str], list[str] | None]:
        """The words before the tail, and the tail: it starts after ``--``, or at the first word that begins one."""
        with_value = {
            flag
            for p in self._parameters
            if isinstance(p.about, Option) and p.kind is not bool
            for flag in (p.about.flag(p.name), p.about.short)
        }
        is_value = False
        for place, word in enumerate(args):
            if word == SEPARATOR:
                return args[:place], list(args[place + 1 :])
            if not is_value and not word.startswith("-"):
                if tail.begins(word):
                    return args[:place], list(args[place:])
                break
            is_value = not is_value and word in with_value
        if SEPARATOR in args:
            cut = list(args).index(SEPARATOR)
            return args[:cut], list(args[cut + 1 :])
        return args, None

    def _note_misplaced(self, args: Sequence[str], prog: str) -> None:
        """Point out options after the script that the script does not seem to have, although the command does.

        They belong to the script all the same.  After ``--`` they are meant to.
        """
        if not any(isinstance(p.about, Tail | Rest) for p in self._parameters):
            return
        typed = args[: args.index(SEPARATOR)] if SEPARATOR in args else args
        script = next((word for word in typed if word.endswith(_SCRIPTS) and os.path.isfile(word)), None)
        if script is None:
            return
        flags = {word.partition("=")[0] for word in typed[typed.index(script) + 1 :]} & {*self.flags()} - {"--help"}
        try:
            text = Path(script).read_text(errors="replace") if flags else ""
        except OSError:
            return
        for flag in sorted(flags):
            name = flag.removeprefix("--")
            if name not in text and name.replace("-", "_") not in text:
                note(
                    f"{flag} comes after {script}, so it goes to the script: put options of `{prog}` before the script"
                )

    def parser(self, prog: str) -> argparse.ArgumentParser:
        words = [_usage(parameter) for parameter in self._parameters if isinstance(parameter.about, Argument)]
        parser = _Parser(
            prog=prog,
            usage=" ".join([prog, "[options]", *words]).replace("%", "%%"),
            description=_paragraphs(self._function.__doc__ or ""),
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=30),
            allow_abbrev=False,
        )
        for parameter in self._parameters:
            parameter.add_to(parser)
        return parser


class Group:
    """A command with commands of its own, such as ``weft bench``."""

    def __init__(self, about: str, *functions: Callable[..., None]) -> None:
        self._about = about
        self.verbs = {function.__name__: Verb(function) for function in functions}

    def __call__(self, args: Sequence[str], prog: str) -> None:
        if args and args[0] in ("-h", "--help"):
            print_text(self._help(prog), indent=14)
        elif not args:
            raise UsageError(f"{prog} needs a command: expected one of {', '.join(self.verbs)} (see `{prog} --help`)")
        elif args[0] not in self.verbs:
            near = nearest_name(args[0], self.verbs)
            hint = f"did you mean '{prog} {near}'?" if near else f"expected one of {', '.join(self.verbs)}"
            raise UsageError(f"there is no command '{prog} {shortened(args[0])}': {hint}")
        else:
            self.verbs[args[0]](args[1:], f"{prog} {args[0]}")

    def _help(self, prog: str) -> str:
        lines = [f"  {name:<12}{(verb._function.__doc__ or '').splitlines()[0]}" for name, verb in self.verbs.items()]
        usage = f"usage: {prog} COMMAND [options]      (see `{prog} COMMAND --help`)"
        return "\n".join([usage, "", self._about, "", "commands:", *lines])


class _Parser(argparse.ArgumentParser):
    def print_help(self, file: object = None) -> None:
        print_text(self.format_help().removesuffix("\n"))

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{shortened(message.removeprefix('argument '), 300)} (see `{self.prog} --help`)")


@dataclasses.dataclass(frozen=True, slots=True)
class _Parameter:
    """A parameter of a command's function, or a field of one of its dataclasses."""

    name: str
    kind: Any
    is_list: bool
    about: Argument | Option
    default: Any = dataclasses.MISSING

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        about, is_required = self.about, self.default is dataclasses.MISSING
        default = None if is_required else self.default
        help_text = about.help.replace("%", "%%")
        if isinstance(about, Tail):
            return
        if isinstance(about, Argument):
            nargs = ("+" if is_required else "*") if self.is_list else (None if is_required else "?")
            parser.add_argument(
                self.name,
                metavar=about.metavar,
                help=help_text,
                nargs=argparse.REMAINDER if isinstance(about, Rest) else nargs,
                default=default,
                type=_converter(self.kind, about, self.name),
            )
            return
        flags = [*filter(None, [about.short]), about.flag(self.name)]
        if self.kind is bool:
            parser.add_argument(*flags, dest=self.name, help=f"{help_text} (default: off)", action="store_true")
            return
        shown = about.default or (f"{default:g}" if isinstance(default, float) else default)
        parser.add_argument(
            *flags,
            dest=self.name,
            help=f"{help_text} (default: {shown})",
            metavar=about.metavar or self._metavar(about),
            type=_converter(self.kind, about, self.name),
            action="append" if self.is_list else "store",
            default=default,
        )

    @property
    def setting(self) -> str:
        """The name of the option in a file: its flag without dashes."""
        flag = self.about.flag(self.name) if isinstance(self.about, Option) else self.name
        return flag.lstrip("-").replace("-", "_")

    def converted(self, setting: Setting) -> Any:
        """The value of a setting, checked like one on the command line."""
        value = setting.value
        try:
            if self.kind is bool:
                return _yes_or_no(value)
            convert = _converter(self.kind, self.about, self.name)
            if not self.is_list:
                return convert(_text_of(value))
            import shlex  # only for values from a file or the environment

            words = shlex.split(value) if isinstance(value, str) else value
            return [convert(_text_of(word)) for word in words]
        except (argparse.ArgumentTypeError, ValueError, TypeError) as error:
            raise UsageError(f"{setting.origin}: {error}") from None

    def _metavar(self, about: Option) -> str:
        if about.choices:
            return "{" + ",".join(about.choices) + "}"
        return "SECONDS" if self.kind is float and self.name.endswith("_s") else _METAVARS[self.kind]


def _declared(function: Callable[..., None]) -> list[_Parameter]:
    """All annotated parameters of a function, with the fields of its dataclasses in their place."""
    found: list[_Parameter] = []
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    by_default = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    hints = get_type_hints(function, include_extras=True)
    groups = _groups(function)
    for name in names:
        if name in groups:
            fields = {field.name: field.default for field in dataclasses.fields(groups[name])}
            types_of = get_type_hints(groups[name], include_extras=True)
            found += [_parameter(one, types_of[one], default) for one, default in fields.items()]
        else:
            found.append(_parameter(name, hints[name], by_default.get(name, dataclasses.MISSING)))
    return found


def _groups(function: Callable[..., None]) -> Mapping[str, Any]:
    """The parameters that are dataclasses of options."""
    hints = get_type_hints(function)
    return {name: kind for name, kind in hints.items() if dataclasses.is_dataclass(kind)}


def _parameter(name: str, hint: Any, default: Any) -> _Parameter:
    kind, about = get_args(hint)[:2]
    if get_origin(kind) in (Union, types.UnionType):
        (kind,) = (part for part in get_args(kind) if part is not type(None))
    is_list = get_origin(kind) is list
    return _Parameter(name, get_args(kind)[0] if is_list else kind, is_list, about, default)


def _converter(kind: Any, about: Argument | Option, name: str) -> Callable[[str], Any]:
    if kind not in (int, float):
        return _choice(about.choices) if about.choices else Path if kind is Path else str
    low, high = (about.min, about.max) if isinstance(about, Option) else (-math.inf, math.inf)
    if name.endswith("_s"):
        high = min(high, _MAX_S)

    def convert(text: str) -> float:
        try:
            value: float = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{shortened(text)!r} is not {_KINDS[kind]}") from None
        # Compared as is, never converted to float: a whole number may have any number of digits.
        if not (low <= value <= high and -_MAX_NUMBER < value < _MAX_NUMBER):
            limits = [f"at least {low}"] * (low > -math.inf) + [f"at most {high}"] * (high < math.inf)
            expected = " of ".join(filter(None, [_KINDS[kind], " and ".join(limits)]))
            raise argparse.ArgumentTypeError(f"{shortened(text)} is out of range: expected {expected}")
        return value

    return convert


_YES_OR_NO = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def _yes_or_no(value: Any) -> bool:
    found = value if isinstance(value, bool) else _YES_OR_NO.get(str(value).lower())
    if found is None:
        raise argparse.ArgumentTypeError(f"{shortened(str(value))!r}: expected yes or no")
    return found


def _text_of(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise argparse.ArgumentTypeError(f"{shortened(str(value))}: expected a single value")
    return str(value)


def _choice(choices: Sequence[str]) -> Callable[[str], str]:
    def convert(text: str) -> str:
        if text in choices:
            return text
        raise argparse.ArgumentTypeError(unknown_name("value", shortened(text), choices))

    return convert


def _refuse(parser: argparse.ArgumentParser, word: str, flags: Sequence[str]) -> NoReturn:
    name = word.partition("=")[0]
    if not name.startswith("-") or name == "-":
        parser.error(f"unexpected argument {shortened(word)!r}")
    parser.error(unknown_name("option", shortened(name), flags))


def _usage(parameter: _Parameter) -> str:
    metavar = parameter.about.metavar
    if isinstance(parameter.about, Tail):
        return f"[-- {metavar}]"
    if parameter.is_list and not isinstance(parameter.about, Rest):
        metavar += "..."
    return metavar if parameter.default is dataclasses.MISSING else f"[{metavar}]"


def shortened(text: str, max_length: int = 40) -> str:
    """What was typed, cut to a length that fits in a message."""
    return text if len(text) <= max_length else text[: max_length - 3] + "..."


def _paragraphs(docstring: str) -> str:
    return "\n".join(line.strip() for line in docstring.strip().splitlines())


def connect() -> Client:
    """The controller of this home.  HTTP is imported here because `--help` does not need it."""
    from weft.client import Client

    return Client()
