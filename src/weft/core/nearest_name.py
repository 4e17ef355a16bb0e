"""The message for an unknown name."""

from __future__ import annotations

from collections.abc import Collection


def unknown_name(kind: str, name: str, known: Collection[str]) -> str:
    """Suggests the nearest known name, or else lists all of them.

    >>> unknown_name("key", "wokers", ["workers", "name"])
    "there is no key 'wokers': did you mean 'workers'?"
    """
    import difflib  # imported only for messages: it would slow down every command

    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f"there is no {kind} {name!r}: did you mean {near[0]!r}?"
    return f"there is no {kind} {name!r}: expected one of {', '.join(sorted(known))}"
