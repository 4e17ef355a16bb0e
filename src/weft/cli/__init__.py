"""The ``weft`` command: one file per verb, imported only when that verb is called.

``weft --help`` therefore answers without loading torch, numpy, scipy or even the argument parser.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Sequence

from weft.errors import UsageError, WeftError
from weft.version import __version__

# What a shell makes of Ctrl-C and of SIGPIPE.
INTERRUPTED = 130
PIPE_CLOSED = 141

# verb -> (module whose `app` is called with the arguments, line for the overview)
VERBS: dict[str, tuple[str, str]] = {
    "bench": ("weft.cli.bench", "measure weft against its peers on this machine"),
    "cancel": ("weft.cli.cancel", "stop jobs for good"),
    "completion": ("weft.cli.completion", "a script that lets your shell complete commands and job ids"),
    "demo": ("weft.cli.demo", "watch workers move between small real jobs; about a minute, no GPU"),
    "doctor": ("weft.cli.doctor", "look for what could go wrong on this machine"),
    "down": ("weft.cli.down", "stop the controller"),
    "explain": ("weft.cli.explain", "why a job has the workers it has"),
    "logs": ("weft.cli.logs", "what a job has written"),
    "nodes": ("weft.cli.nodes", "machines, devices, and who has them"),
    "run": ("weft.cli.run", "run one training script on several workers of this machine"),
    "sim": ("weft.cli.sim", "replay a queue of jobs under several policies"),
    "status": ("weft.cli.status", "the jobs, one a line"),
    "submit": ("weft.cli.submit", "hand in a job"),
    "top": ("weft.cli.top", "the cluster, live"),
    "trace": ("weft.cli.trace", "a recorded step timeline in words, or where a job ran when"),
    "up": ("weft.cli.up", "start the controller"),
    "wait": ("weft.cli.wait", "wait until jobs are over; their fate is the exit code"),
}
# What `weft --help` shows together, in this order.
GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("to begin with", ("demo",)),
    ("a cluster", ("up", "down", "nodes", "top")),
    ("its jobs", ("submit", "status", "logs", "explain", "wait", "cancel")),
    ("without a controller", ("run", "trace", "sim", "bench")),
    ("this machine", ("doctor", "completion")),
)


def main(argv: Sequence[str] | None = None) -> None:
    """Run one verb and leave with its exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        try:
            _dispatch(args)
        finally:
            # Here, not while the interpreter ends: there a closed pipe can no longer be dealt with.
            sys.stdout.flush()
    except WeftError as error:
        print(f"weft: {_printable(str(error))}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader has seen enough (`weft status | head`); nothing is left to say, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(PIPE_CLOSED)


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


def _printable(text: str) -> str:
    """Names in a message may be anybody's: what could command the terminal is written out."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def overview() -> str:
    """The text of ``weft --help``."""
    width = max(map(len, VERBS))
    lines: list[str] = []
    for title, verbs in GROUPS:
        lines += [f"{title}:", *(f"  {verb:<{width}}  {VERBS[verb][1]}" for verb in verbs), ""]
    return "\n".join(
        [
            "weft weaves distributed PyTorch training jobs together so that no device and no link sits idle.",
            "",
            "usage: weft COMMAND [options]      (weft COMMAND --help says more)",
            "",
            *lines[:-1],
        ]
    )
