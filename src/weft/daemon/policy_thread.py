"""Runs a policy in its own thread, so that one that never returns cannot block the controller.

Python cannot kill a thread.  While a call is overdue, further calls fail immediately, and the caller must decide
without the policy.  When the overdue call returns, the policy can be used again.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar

from weft.errors import WeftError

MAX_DECISION_S = 10.0

Result = TypeVar("Result")


class PolicyTimeoutError(WeftError):
    """The policy did not return in time."""


class PolicyThread:
    """Runs one call at a time."""

    def __init__(self, limit_s: float = MAX_DECISION_S) -> None:
        self._limit_s = limit_s
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._overdue: Future[Any] | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_overdue(self) -> bool:
        """Whether a call that took too long is still running."""
        return self._overdue is not None and not self._overdue.done()

    def ask(self, call: Callable[[], Result]) -> Result:
        """The result of ``call``; raises what it raises, or :class:`PolicyTimeoutError`."""
        if self.is_overdue:
            raise PolicyTimeoutError(f"an earlier decision is still running after {self._limit_s:g} s")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="weft-policy", daemon=True)
            self._thread.start()
        answer: Future[Result] = Future()
        self._calls.put((call, answer))
        try:
            return answer.result(self._limit_s)
        except FutureTimeoutError:
            if answer.done():  # the call itself raised a TimeoutError
                raise
            self._overdue = answer
            raise PolicyTimeoutError(f"the decision took longer than the {self._limit_s:g} s it is allowed") from None

    def _run(self) -> None:
        while True:
            call, answer = self._calls.get()
            try:
                answer.set_result(call())
            except BaseException as error:
                answer.set_exception(error)
