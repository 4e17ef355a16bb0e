"""Job ids: short enough to type, unique, and safe as folder names."""

from __future__ import annotations

import re
import secrets
from collections.abc import Container

_FIRST = "abcdefghjkmnpqrstvwxyz"
_REST = "0123456789" + _FIRST
_LENGTH = 8
_PATTERN = re.compile(rf"[{_FIRST}][{_REST}]{{{_LENGTH - 1}}}")


def new_id(taken: Container[str]) -> str:
    """An unused id without letters that look like digits; never starts like an option."""
    while True:
        made = secrets.choice(_FIRST) + "".join(secrets.choice(_REST) for _ in range(_LENGTH - 1))
        if made not in taken:
            return made


def is_id(text: str) -> bool:
    """Whether ``text`` could be a job id.

    >>> is_id("k3v9x2qa"), is_id("../../etc")
    (True, False)
    """
    return _PATTERN.fullmatch(text) is not None
