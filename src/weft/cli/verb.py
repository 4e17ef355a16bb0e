"""What all verbs have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from weft.client import Client

Json = Annotated[bool, typer.Option("--json", help="print JSON")]

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


def make_app() -> typer.Typer:
    """The application of one verb: plain help, no machinery that has to be loaded first."""
    return typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def connect() -> Client:
    """The controller of this home; HTTP is loaded only now, `--help` needs none."""
    from weft.client import Client

    return Client()
