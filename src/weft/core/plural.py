"""A number with its noun."""

from __future__ import annotations


def plural(num: int, noun: str) -> str:
    """
    >>> plural(1, "worker"), plural(2, "worker")
    ('1 worker', '2 workers')
    """
    return f"{num} {noun}{'s' if num != 1 else ''}"
