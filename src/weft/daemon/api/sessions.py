"""Browsers that gave the token: each has a session of its own, so that the token itself need not stay in a browser.

[Note: two values]
Browsers do not keep cookies apart by port: what 127.0.0.1:8477 sets, a server of somebody else on 127.0.0.1:9000 is
sent too.  So the cookie opens the page's own files and nothing else; they are the same for everybody.  What opens the
api is the session's key, which the page keeps in storage of its own origin (port included) and sends in the
``Authorization`` header, as the token is sent.  It is not sent by itself, so no other page can make a browser use it.

Kept in memory only: a key that a browser still has is worth nothing once the controller has ended.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

VALID_S = 12 * 3600.0
MAX_SESSIONS = 16

SessionId = bytes
"""Digest of a key: names the session, opens nothing."""


@dataclass(frozen=True, slots=True)
class Admission:
    """What a browser is given once."""

    key: str
    """For the api; goes into the ``Authorization`` header."""
    cookie: str
    """For the page's files."""


@dataclass(frozen=True, slots=True)
class _Session:
    cookie_digest: bytes
    ends_s: float


class Sessions:
    """All of them.  Digests are looked up, not secrets compared: the time that takes tells nothing of use."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._by_id: dict[SessionId, _Session] = {}

    def begin(self) -> Admission:
        """One more; beyond :data:`MAX_SESSIONS` the oldest ends."""
        self._drop_expired()
        while len(self._by_id) >= MAX_SESSIONS:
            del self._by_id[next(iter(self._by_id))]
        given = Admission(secrets.token_urlsafe(32), secrets.token_urlsafe(32))
        self._by_id[_digest(given.key.encode())] = _Session(_digest(given.cookie.encode()), self._now_s() + VALID_S)
        return given

    def of_key(self, key: bytes) -> SessionId | None:
        """The session this key opens, if it opens one."""
        self._drop_expired()
        session_id = _digest(key)
        return session_id if session_id in self._by_id else None

    def knows_cookie(self, cookie: bytes) -> bool:
        """Whether it was given with a session that goes on."""
        self._drop_expired()
        digest = _digest(cookie)
        return any(session.cookie_digest == digest for session in self._by_id.values())

    def end(self, session_id: SessionId) -> None:
        self._by_id.pop(session_id, None)

    def end_all(self) -> None:
        self._by_id.clear()

    def _drop_expired(self) -> None:
        # In order of beginning, and all last equally long.
        while self._by_id and next(iter(self._by_id.values())).ends_s <= self._now_s():
            del self._by_id[next(iter(self._by_id))]


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()
