"""The ``weft`` command: one file per verb, imported only when that verb is called.

``weft --help`` therefore answers without loading torch, numpy, scipy or even the argument parser.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Sequence

from weft.errors import UsageError, WeftError
from weft.version import __version__

# verb -> (module whose `app` is its Typer application, line for the overview)
VERBS: dict[str, tuple[str, str]] = {
    "bench": ("weft.cli.bench", "measure weft against its peers on this machine"),
    "demo": ("weft.cli.demo", "watch workers move between small real jobs; about a minute, no GPU"),
    "run": ("weft.cli.run", "run one training script on several workers of this machine"),
    "sim": ("weft.cli.sim", "replay a queue of jobs under several policies"),
    "trace": ("weft.cli.trace", "read a recorded step timeline in words, or join several into one"),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run one verb and leave with its exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        _dispatch(args)
    except WeftError as error:
        print(f"weft: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def _dispatch(args: list[str]) -> None:
    if not args or args[0] in ("-h", "--help", "help"):
        print(overview())
        return
    verb, rest = args[0], args[1:]
    if verb in ("-V", "--version"):
        print(f"weft {__version__}")
        return
    if verb not in VERBS:
        near = difflib.get_close_matches(verb, VERBS, n=1)
        hint = f"did you mean `weft {near[0]}`?" if near else "`weft --help` lists the commands"
        raise UsageError(f"there is no command {verb!r}: {hint}")
    module, _ = VERBS[verb]
    importlib.import_module(module).app(args=rest, prog_name=f"weft {verb}")


def overview() -> str:
    """The text of ``weft --help``."""
    width = max(map(len, VERBS))
    lines = [f"  {verb:<{width}}  {line}" for verb, (_, line) in sorted(VERBS.items())]
    return "\n".join(
        [
            "weft weaves distributed PyTorch training jobs together so that no device and no link sits idle.",
            "",
            "usage: weft COMMAND [options]      (weft COMMAND --help says more)",
            "",
            *lines,
        ]
    )
