"""What benchmarks that are programs of their own share: their options, and progress on stderr."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.record import results_folder


def parse(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None, *, quick: str, rounds: int = 0
) -> tuple[argparse.Namespace, Path]:
    """The options, with ``--quick`` and ``--out`` added, and the folder for the results.

    ``rounds``: the default of ``--rounds``; 0 if the benchmark has no rounds.
    """
    if rounds:
        parser.add_argument("--rounds", type=int, help=f"default: {rounds}, with --quick 1")
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--out", type=Path, help="folder for the results")
    options = parser.parse_args(argv)
    if rounds:
        options.rounds = (1 if options.quick else rounds) if options.rounds is None else options.rounds
        if options.rounds < 1:
            parser.error("--rounds: expected a whole number from 1 up")
    return options, results_folder(options.out, quick=options.quick)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def counted(number: int, what: str) -> str:
    """A number with its noun.

    >>> counted(1, "round"), counted(3, "round")
    ('1 round', '3 rounds')
    """
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
