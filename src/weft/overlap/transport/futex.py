"""Sleep until another process has changed a number in shared memory: Linux's futex.

Python does not expose it, so we call libc's ``syscall``.  Where the number of that system call is unknown, waiting is a
short sleep: slower to notice a change, but never wrong.
"""

from __future__ import annotations

import ctypes
import platform
import threading
import time

_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}
_WAIT, _WAKE = 0, 1
_EVERYBODY = 2**31 - 1
_NAP_S = 2e-4

_NUMBER = _NUMBERS.get(platform.machine()) if platform.system() == "Linux" else None
_syscall = ctypes.CDLL(None, use_errno=True).syscall if _NUMBER is not None else None
_lock = threading.Lock()


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def sleep_while(address: int, value: int, timeout_s: float) -> None:
    """Return when :func:`wake` is called on ``address``, immediately if it does not hold ``value``, or spuriously."""
    if _syscall is None:
        time.sleep(min(_NAP_S, timeout_s))
        return
    limit = _Timespec(int(timeout_s), int(timeout_s % 1.0 * 1e9))
    _syscall(
        ctypes.c_long(_NUMBER or 0),
        ctypes.c_void_p(address),
        ctypes.c_int(_WAIT),
        ctypes.c_uint32(value),
        ctypes.byref(limit),
        None,
        ctypes.c_int(0),
    )


def wake(address: int) -> None:
    """Wake every thread that sleeps on ``address``, in any process."""
    if _syscall is not None:
        number, operation = ctypes.c_long(_NUMBER or 0), ctypes.c_int(_WAKE)
        _syscall(number, ctypes.c_void_p(address), operation, ctypes.c_int(_EVERYBODY), None, None, ctypes.c_int(0))


def fence() -> None:
    """A memory barrier: others see earlier writes before later ones; likewise for reads.

    x86 guarantees this order; other processors need a lock to be acquired and released in between.
    """
    for _ in range(2):
        with _lock:
            pass
