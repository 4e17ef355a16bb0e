"""The ``weft`` command: each command is the function of that name in the module of that name.

Modules are imported only when their command is called, so ``weft --help`` loads neither torch, numpy, nor the parser.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.errors import UsageError, WeftError
from weft.version import __version__

if TYPE_CHECKING:
    from weft.cli.verb import Group, Verb

# What a shell reports after Ctrl-C and SIGPIPE.
INTERRUPTED = 130
PIPE_CLOSED = 141

# Every command with its line in `weft --help`, in the order shown there.
SECTIONS = {
    "getting started": {
        "demo": "watch workers move between small real jobs; needs no GPU",
    },
    "cluster": {
        "up": "start the controller",
        "down": "shut down the controller",
        "nodes": "list nodes, their devices, and the jobs on them",
        "top": "show the cluster live",
    },
    "jobs": {
        "submit": "submit a job",
        "status": "list jobs",
        "logs": "show a job's output",
        "explain": "explain why a job has its current workers",
        "wait": "wait for jobs to finish; the exit code reflects their outcome",
        "cancel": "cancel jobs",
        "change": "change a job's weight, priority, or number of workers",
        "whatif": "forecast the queue with a different policy, cluster, or job",
    },
    "without a controller": {
        "run": "run a training script on several workers on this machine",
        "checkpoint": "write a plain state dict from a checkpoint",
        "trace": "summarize a recorded step timeline, or show where a job ran",
        "predict": "predict step times on another cluster",
        "sim": "simulate a queue of jobs under several policies",
        "bench": "compare weft with its peers on this machine",
    },
    "this machine": {
        "doctor": "look for problems on this machine",
        "purge": "delete finished jobs with their logs and checkpoints",
        "repair": "rebuild a damaged journal from what is still readable",
        "completion": "print a completion script for your shell",
        "man": "show the manual page: every command with its options",
    },
}
VERBS = {verb: line for section in SECTIONS.values() for verb, line in section.items()}


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and exit with its exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    _open_missing_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file and job names may not be valid Unicode
    try:
        try:
            _dispatch(args)
        finally:
            # Flushed here: a closed pipe cannot be handled while the interpreter shuts down.
            sys.stdout.flush()
    except WeftError as error:
        _complain(str(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except MemoryError:
        print("weft: out of memory: use smaller values", file=sys.stderr)
        sys.exit(WeftError.exit_code)
    except BrokenPipeError:
        # The reader is done (`weft status | head`): exit silently, including at interpreter exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(PIPE_CLOSED)
    except OSError as error:
        # A problem of the machine, not of weft: full disk, permissions, out of file descriptors.
        from weft.core.system_trouble import in_words

        _complain(in_words(error))
        sys.exit(WeftError.exit_code)


def _open_missing_streams() -> None:
    """Where a service or ``>&-`` has closed one: ``print`` would fail, or write messages to standard output."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest free number, so that no other file becomes a standard stream of programs started from here.
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def load(verb: str) -> Verb | Group:
    """The command of that name."""
    from weft.cli.verb import Group, Verb

    found = getattr(importlib.import_module(f"weft.cli.{verb}"), verb)
    return found if isinstance(found, Group) else Verb(found)


def _dispatch(args: list[str]) -> None:
    if not args or args[0] in ("-h", "--help", "help"):
        print(overview())
    elif args[0] in ("-V", "--version"):
        print(f"weft {__version__}")
    elif args[0] in VERBS:
        from weft.cli.settings import use_home

        use_home(VERBS)
        load(args[0])(args[1:], f"weft {args[0]}")
    else:
        from weft.core.nearest_name import nearest_name

        near = nearest_name(args[0], VERBS)
        hint = f"did you mean `weft {near}`?" if near else "`weft --help` lists the commands"
        raise UsageError(f"there is no command {args[0]!r}: {hint}")


def _complain(message: str) -> None:
    """Print an error; names in it may come from anyone, so characters that could control the terminal are escaped."""
    from weft.cli.render import plain, terminal_width, wrapped

    text = "\n".join(map(plain, message.split("\n")))
    print(wrapped(f"weft: {text}", terminal_width(sys.stderr), indent=6), file=sys.stderr)


def overview() -> str:
    """The text of ``weft --help``."""
    width = max(map(len, VERBS))
    lines = [
        "weft weaves distributed PyTorch training jobs together so that no device and no",
        "link sits idle.",
        "",
        "usage: weft COMMAND [options]      (see `weft COMMAND --help`)",
        "       weft -V, --version",
    ]
    for title, verbs in SECTIONS.items():
        lines += ["", f"{title}:", *(f"  {verb:<{width}}  {line}" for verb, line in verbs.items())]
    return "\n".join(lines)
