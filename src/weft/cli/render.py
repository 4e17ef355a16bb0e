"""How results look on a terminal: tables, colors, progress bars, live screens.

rich is imported by the functions that need it: importing it takes longer than most commands.
"""

from __future__ import annotations

import json
import os
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import RenderableType

# Wide enough for a whole table when there is no terminal, such as in a pipe or a log.
PIPE_WIDTH = 160
# On narrower terminals, extra columns and borders are left out.
FULL_WIDTH = 120


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: the field, its heading, and how to format a value."""

    field: str
    heading: str
    write: Callable[[Any], str] = str
    best: Callable[[Sequence[float]], float] | None = None
    """Marks the best value: ``min`` or ``max``."""
    extra: bool = False
    """Left out on narrow terminals."""


def print_json(document: Mapping[str, Any]) -> None:
    """One JSON document on stdout.  NaN is not valid JSON; writing it would be a bug."""
    print(json.dumps(document, indent=2, allow_nan=False))


def print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column], *, title: str = "") -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title=title or None, title_justify="left", title_style="bold")
    if not console.is_terminal:
        console = Console(width=PIPE_WIDTH)
    elif console.width < FULL_WIDTH:
        columns = [column for column in columns if not column.extra]
        table.box, table.pad_edge = None, False
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


def note(text: str) -> None:
    """Print a message that is not part of the result, on stderr."""
    print(styled(wrapped(text, terminal_width(sys.stderr)), "dim", sys.stderr), file=sys.stderr)


def print_text(text: str, indent: int = 0) -> None:
    """Print sentences, wrapped at the edge of the terminal; ``indent``: of the lines that this adds."""
    print(wrapped(text, terminal_width(), indent))


def wrapped(text: str, width: int | None, indent: int = 0) -> str:
    """``text`` with no line wider than ``width``, except for words that are, such as paths; None for no limit.

    >>> wrapped("a job waits for 2 devices", 12, indent=2)
    'a job waits\\n  for 2\\n  devices'
    """
    if width is None or all(_width(line) <= width for line in text.split("\n")):
        return text
    from textwrap import TextWrapper

    wrapper = TextWrapper(width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(wrapper.fill(line) for line in text.split("\n"))


@contextmanager
def progress(label: str) -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar, updated with (what, done, total); draws nothing if stderr is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not (console.is_terminal and sys.stderr.isatty()):
        yield lambda what, done, total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


_ANSI = {"dim": "2", "bold": "1", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def styled(text: str, style: str, stream: TextIO | None = None) -> str:
    """``text`` in color, if ``stream`` (default: stdout) is a terminal and NO_COLOR is not set."""
    stream = sys.stdout if stream is None else stream
    if style not in _ANSI or not stream.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{_ANSI[style]}m{text}\x1b[0m"


def plain(text: str) -> str:
    """Untrusted text made safe to print: control characters are escaped, so it cannot move the cursor.

    >>> plain("a\\x1b[2Jb\\nc\\u202ed é")
    'a\\\\x1b[2Jb\\\\nc\\\\u202ed é'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def print_columns(rows: Sequence[Sequence[str]], headings: Sequence[str], styles: Sequence[str] = ()) -> None:
    """A fast table without borders; the last column is cut at the edge of the terminal.

    ``styles`` has a color for each row, "" for none.
    """
    widths = _widths(rows, headings)
    edge = terminal_width()
    lines = [styled(_line(headings, widths, edge), "bold")]
    for index, row in enumerate(rows):
        lines.append(styled(_line(row, widths, edge), styles[index] if styles else ""))
    print("\n".join(lines))


def columns_width(rows: Sequence[Sequence[str]], headings: Sequence[str]) -> int:
    """How wide the table of :func:`print_columns` is without its last column."""
    return sum(width + len(_GAP) for width in _widths(rows, headings)[:-1])


def terminal_width(stream: TextIO | None = None) -> int | None:
    """The width of the terminal; None if ``stream`` (default: stdout) is not one."""
    stream = sys.stdout if stream is None else stream
    return os.get_terminal_size(stream.fileno()).columns if stream.isatty() else None


def _widths(rows: Sequence[Sequence[str]], headings: Sequence[str]) -> list[int]:
    return [max(map(_width, column)) for column in zip(headings, *rows, strict=True)]


_GAP = "  "


def _line(cells: Sequence[str], widths: Sequence[int], edge: int | None) -> str:
    padded = (cell + " " * (width - _width(cell)) for cell, width in zip(cells[:-1], widths, strict=False))
    return _GAP.join((*padded, cells[-1]))[:edge].rstrip()


def _width(text: str) -> int:
    """The number of terminal columns it takes."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) > 0 for c in text)


def print_renderable(picture: RenderableType) -> None:
    """Print something built with rich."""
    from rich.console import Console

    console = Console()
    (console if console.is_terminal else Console(width=PIPE_WIDTH)).print(picture)


@contextmanager
def live() -> Iterator[Callable[[RenderableType], None]]:
    """A full screen, redrawn on each call; Ctrl-C ends it and restores the terminal."""
    from rich.live import Live

    with suppress(KeyboardInterrupt), Live(screen=True, auto_refresh=False) as display:
        yield lambda picture: display.update(picture, refresh=True)


def duration(seconds: float) -> str:
    """Seconds in a readable unit.

    >>> duration(42), duration(754), duration(7512), duration(200_000)
    ('42 s', '12.6 min', '2.09 h', '2.3 d')
    """
    for limit, unit, digits in ((100, 1, 0), (6000, 60, 1), (48 * 3600, 3600, 2)):
        if seconds < limit:
            return f"{seconds / unit:.{digits}f} {({1: 's', 60: 'min', 3600: 'h'})[unit]}"
    return f"{seconds / 86400:.1f} d"


def moment(time_s: float) -> str:
    """Local time of day, with the date unless it is today."""
    then, now = time.localtime(time_s), time.localtime()
    return time.strftime("%H:%M:%S" if then[:3] == now[:3] else "%Y-%m-%d %H:%M:%S", then)


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
