"""What all verbs have in common."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="print JSON")]

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


def make_app() -> typer.Typer:
    """The application of one verb: plain help, no machinery that has to be loaded first."""
    return typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
