"""CSV files; every error names the file, the line and what was expected.

>>> rows = table_rows("name,time\\nresnet,30\\n", "jobs.csv", required=("name", "time"))
>>> rows[0].text("name"), rows[0].non_negative("time")
('resnet', 30.0)
>>> table_rows("name\\nresnet\\n", "jobs.csv", required=("name", "time"))
Traceback (most recent call last):
    ...
weft.errors.InputError: jobs.csv:1: the column 'time' is missing (found: name): add it to the header
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from weft.core.nearest_name import unknown_name
from weft.errors import InputError

# A queue of a million jobs is a few dozen megabytes; anything larger is not a queue.
MAX_FILE_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table; the getters check what they return."""

    cells: dict[str, str]
    file: str
    line: int
    cell_lines: Mapping[str, int] = field(default_factory=dict)
    """Lines of single cells, in formats where a row spans several lines."""

    def error(self, message: str, column: str = "") -> InputError:
        return InputError(message, file=self.file, line=self.cell_lines.get(column, self.line))

    def has(self, column: str) -> bool:
        """Whether the column exists and is not empty."""
        return bool(self.cells.get(column))

    def text(self, column: str) -> str:
        value = self.cells.get(column, "")
        if not value:
            raise self.error(f"{column} is empty: expected a name", column)
        return value

    def number(self, column: str, expected: str = "a number") -> float:
        text = self.cells.get(column, "")
        try:
            value = float(text)
        except ValueError:
            raise self.error(f"{column} is {text!r}: expected {expected}", column) from None
        if not math.isfinite(value):
            raise self.error(f"{column} is {text!r}: expected {expected}, and finite", column)
        return value

    def non_negative(self, column: str) -> float:
        value = self.number(column, "a number of at least 0")
        if value < 0:
            raise self.error(f"{column} is {self.cells[column]}: expected a number of at least 0", column)
        return value

    def positive(self, column: str) -> float:
        value = self.number(column, "a number above 0")
        if value <= 0:
            raise self.error(f"{column} is {self.cells[column]}: expected a number above 0", column)
        return value

    def count(self, column: str, *, at_least: int = 1) -> int:
        """A whole number; accepts ``6.0``, since many tools write integers that way."""
        expected = f"a whole number of at least {at_least}"
        value = self.number(column, expected)
        if value != int(value) or value < at_least:
            raise self.error(f"{column} is {self.cells[column]}: expected {expected}", column)
        return int(value)

    def integer(self, column: str) -> int:
        value = self.number(column, "a whole number")
        if value != int(value):
            raise self.error(f"{column} is {self.cells[column]}: expected a whole number", column)
        return int(value)


def read_text(path: Path) -> str:
    """The file's text, or an :class:`InputError` that says why it cannot be read."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            limit = MAX_FILE_BYTES // (1024 * 1024)
            raise InputError(f"the file is larger than {limit} MiB: split it", file=str(path))
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"not a text file in UTF-8 (byte {error.start})", file=str(path)) from None
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise InputError(f"cannot be read, {reason}: check the path", file=str(path)) from None


def table_header(text: str, file: str) -> list[str]:
    """The column names of a CSV text; empty for an empty file."""
    try:
        return [name.strip() for name in next(csv.reader(io.StringIO(text)), [])]
    except csv.Error as error:
        raise InputError(f"not a CSV header ({error})", file=file, line=1) from None


def table_rows(
    text: str,
    file: str,
    *,
    required: Sequence[str],
    optional: Collection[str] | None = None,
) -> list[Row]:
    """The rows of a CSV text.

    ``optional`` = None accepts any other column (a foreign format may have more than we read); with a collection,
    columns in neither list are refused, and the error suggests the nearest name.
    """
    header = table_header(text, file)
    if not any(header):
        raise InputError(f"the file is empty: expected a header line {','.join(required)}", file=file, line=1)
    _check_header(header, file, required, optional)
    reader = csv.reader(io.StringIO(text), strict=True)
    next(reader)
    rows = []
    try:
        for fields in reader:
            # Blank lines and comments are skipped; data lines must be complete.
            if not fields or fields[0].startswith("#"):
                continue
            if len(fields) != len(header):
                raise InputError(
                    f"{len(fields)} fields: expected {len(header)} ({','.join(header)})",
                    file=file,
                    line=reader.line_num,
                )
            cells = dict(zip(header, (field.strip() for field in fields), strict=True))
            rows.append(Row(cells, file, reader.line_num))
    except csv.Error as error:
        raise InputError(f"not a CSV line ({error})", file=file, line=reader.line_num) from None
    return rows


def read_table(path: Path, *, required: Sequence[str]) -> list[Row]:
    return table_rows(read_text(path), str(path), required=required)


def _check_header(header: Sequence[str], file: str, required: Sequence[str], optional: Collection[str] | None) -> None:
    for column in required:
        if column not in header:
            found = ", ".join(header)
            raise InputError(
                f"the column {column!r} is missing (found: {found}): add it to the header", file=file, line=1
            )
    for position, column in enumerate(header):
        if column in header[:position]:
            raise InputError(f"the column {column!r} occurs twice: remove one", file=file, line=1)
        if optional is not None and column not in required and column not in optional:
            raise InputError(unknown_name("column", column, [*required, *optional]), file=file, line=1)
