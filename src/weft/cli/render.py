"""How results look on a terminal.  The only module that knows colours."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

# Wide enough for a whole table where there is no terminal to ask, such as in a pipe or a log.
PIPE_WIDTH = 160
# On narrower terminals the extra columns would only squeeze the others.
FULL_WIDTH = 120


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: the field, its heading, and how a value is written."""

    field: str
    heading: str
    write: Callable[[Any], str] = str
    best: Callable[[Sequence[float]], float] | None = None
    """Marks the best value: ``min`` or ``max``."""
    extra: bool = False
    """Left out on narrow terminals."""


def print_json(document: Mapping[str, Any]) -> None:
    """One document on stdout and nothing else there; NaN is not JSON and would be a bug of ours."""
    print(json.dumps(document, indent=2, allow_nan=False))


def print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column], *, title: str = "") -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPE_WIDTH)
    elif console.width < FULL_WIDTH:
        columns = [column for column in columns if not column.extra]
    table = Table(title=title or None, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(column.heading, justify="left" if column.write is str else "right", no_wrap=True)
    best = {
        column.field: column.best([row[column.field] for row in rows if row.get(column.field) is not None])
        for column in columns
        if column.best is not None and len(rows) > 1
    }
    for row in rows:
        table.add_row(*(_cell(row, column, best) for column in columns))
    console.print(table)


def print_line(text: str) -> None:
    """A plain line of the result; square brackets in it are text."""
    Console(soft_wrap=True).print(text, markup=False, highlight=False)


def note(text: str) -> None:
    """Something the user should know that is not part of the result."""
    Console(stderr=True, soft_wrap=True).print(text, style="dim", markup=False, highlight=False)


@contextmanager
def progress(label: str) -> Iterator[Callable[[str, int, int], None]]:
    """Reports (what, done, all); draws nothing where stderr is not a terminal."""
    console = Console(stderr=True)
    if not (console.is_terminal and sys.stderr.isatty()):
        yield lambda what, done, total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


def duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> duration(42), duration(754), duration(7512), duration(200_000)
    ('42 s', '12.6 min', '2.09 h', '2.3 d')
    """
    for limit, unit, digits in ((100, 1, 0), (6000, 60, 1), (48 * 3600, 3600, 2)):
        if seconds < limit:
            return f"{seconds / unit:.{digits}f} {({1: 's', 60: 'min', 3600: 'h'})[unit]}"
    return f"{seconds / 86400:.1f} d"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def number(digits: int) -> Callable[[float], str]:
    return lambda value: f"{value:,.{digits}f}"


def _cell(row: Mapping[str, Any], column: Column, best: Mapping[str, float]) -> str:
    value = row.get(column.field)
    if value is None:
        return "-"
    text = column.write(value).replace("[", "\\[")
    return f"[green]{text}[/green]" if column.field in best and value == best[column.field] else text
