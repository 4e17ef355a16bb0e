"""Browser sessions: a browser exchanges the token for a session, so that it need not keep the token itself.

[Note: two values]
Browsers share cookies between ports: a cookie set by 127.0.0.1:8477 is also sent to another user's server on
127.0.0.1:9000.  So the cookie gives access only to the dashboard's own files, which are the same for everyone.  Access
to the API needs the session's key, which the dashboard keeps in the storage of its own origin (port included) and sends
in the ``Authorization`` header.  Browsers never send it by themselves, so no other page can make a browser use it.

Sessions are kept in memory only: a key is worthless once the controller has ended.
"""

from __future__ import annotations

import enum
import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

VALID_S = 12 * 3600.0
MAX_SESSIONS = 16

SessionId = bytes
"""Digest of a key: identifies the session but gives no access."""


@dataclass(frozen=True, slots=True)
class Admission:
    """What a browser gets once."""

    key: str
    """For the API, in the ``Authorization`` header."""
    cookie: str
    """For the dashboard's files."""


class Permission(enum.Enum):
    """What a session may do."""

    VIEW = "view"
    """View everything, ask what-if questions, and cancel jobs."""
    CHANGE = "change"
    """Also submit and change jobs, and drain nodes.  Whoever has the key of such a session can run programs."""


@dataclass(frozen=True, slots=True)
class _Session:
    cookie_digest: bytes
    ends_s: float
    permission: Permission


class Sessions:
    """Looks up digests instead of comparing secrets, so that timing reveals nothing useful."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._by_id: dict[SessionId, _Session] = {}

    def begin(self, permission: Permission = Permission.VIEW) -> Admission:
        """Start a session; beyond :data:`MAX_SESSIONS` the oldest ends."""
        self._drop_expired()
        while len(self._by_id) >= MAX_SESSIONS:
            del self._by_id[next(iter(self._by_id))]
        given = Admission(secrets.token_urlsafe(32), secrets.token_urlsafe(32))
        self._by_id[_digest(given.key.encode())] = _Session(
            _digest(given.cookie.encode()), self._now_s() + VALID_S, permission
        )
        return given

    def of_key(self, key: bytes) -> SessionId | None:
        """The session this key belongs to, if any."""
        self._drop_expired()
        session_id = _digest(key)
        return session_id if session_id in self._by_id else None

    def permission(self, session_id: SessionId) -> Permission:
        """What a session that was just looked up may do."""
        return self._by_id[session_id].permission

    def knows_cookie(self, cookie: bytes) -> bool:
        """Whether it belongs to a current session."""
        self._drop_expired()
        digest = _digest(cookie)
        return any(session.cookie_digest == digest for session in self._by_id.values())

    def end(self, session_id: SessionId) -> None:
        self._by_id.pop(session_id, None)

    def end_all(self) -> None:
        self._by_id.clear()

    def _drop_expired(self) -> None:
        # Oldest first, and all last equally long.
        while self._by_id and next(iter(self._by_id.values())).ends_s <= self._now_s():
            del self._by_id[next(iter(self._by_id))]


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()
