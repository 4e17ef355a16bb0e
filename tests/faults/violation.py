"""What a schedule reports when something that must always hold did not."""

from __future__ import annotations

from pathlib import Path


class Violation(AssertionError):
    """Something that must always hold did not."""


def text_of(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
