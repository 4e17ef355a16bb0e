"""The message for an unknown name."""

from __future__ import annotations

from collections.abc import Collection


def unknown_name(kind: str, name: str, known: Collection[str]) -> str:
    """A message that suggests the nearest known name, or else lists all of them.

    >>> unknown_name("key", "wokers", ["workers", "name"])
    "there is no key 'wokers': did you mean 'workers'?"
    """
    near = nearest_name(name, known)
    if near is not None:
        return f"there is no {kind} {name!r}: did you mean {near!r}?"
    return f"there is no {kind} {name!r}: expected one of {', '.join(sorted(known))}"


def nearest_name(name: str, known: Collection[str]) -> str | None:
    """The known name that was probably meant.

    >>> nearest_name("pyhton", ["python", "bash"])
    'python'
    >>> nearest_name("--model", ["--help"])  # the dashes do not make them similar
    """
    import difflib  # imported only for messages: it would slow down every command

    bare = {one.lstrip("-"): one for one in known}
    return next((bare[one] for one in difflib.get_close_matches(name.lstrip("-"), bare, n=1)), None)
