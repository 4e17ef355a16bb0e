"""Threads that are in native code, in torch and gloo, when the process ends.

[Note: exit]  Python does not wait for daemon threads at exit.  A thread that needs the interpreter lock while the
interpreter shuts down is ended on the spot, by unwinding its stack.  torch's C++ does not allow that and calls
``std::terminate``: a worker that has trained everything ends with exit code -6 and "terminate called without an active
exception".  Two kinds of threads need the lock:

- Our own, when they return from native code.  Whoever owns such a thread ends it and waits for it, if that is possible.
  It is not while the thread waits for a worker that is lost, has failed, or does not leave: gloo cannot cancel the
  wait, and any message from a third worker may wake the thread at any moment.  If one still runs at exit,
  ``std::terminate`` puts its caller to sleep from then on, as Python 3.14 itself does with such threads.  The rest of
  the process ends around it as usual: exit handlers run, output is flushed, and the exit code is the script's.
- gloo's, one of which releases the tensors of a collective, ours or the script's, shortly after the script has their
  result.  Destroying the process group waits for these threads, but only if nothing else refers to it, such as a
  DistributedDataParallel model.  So we wait until they have nothing to do.

The price of the first: until the process has ended, a C++ error that would have aborted it makes it hang instead.  That
is why nothing is changed if our threads have all ended.
"""

from __future__ import annotations

import atexit
import ctypes
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

_COLLECTIVES = "pt_gloo_runloop"
_NAP_S = 0.001
_MAX_RELEASING_S = 10.0

_running: weakref.WeakSet[NativeThread] = weakref.WeakSet()
_is_exiting = False


class NativeThread(threading.Thread):
    """A daemon thread that may be in native code when the process ends: see [Note: exit]."""

    def __init__(self, target: Callable[..., None], *, name: str, args: tuple[Any, ...] = ()) -> None:
        super().__init__(target=target, args=args, name=name, daemon=True)

    def start(self) -> None:
        _running.add(self)
        if _is_exiting:  # by an exit handler that runs after ours
            _put_terminated_threads_to_sleep()
        super().start()


def _prepare_exit() -> None:
    """Exit handlers run in reverse order: those of modules that use this one, which end their threads, come first."""
    global _is_exiting
    _is_exiting = True
    if any(thread.is_alive() for thread in _running):
        _put_terminated_threads_to_sleep()
    latest_s = time.monotonic() + _MAX_RELEASING_S
    while _is_releasing_tensors() and time.monotonic() < latest_s:
        pass


def _put_terminated_threads_to_sleep() -> None:
    with suppress(OSError, AttributeError):  # another C++ library: nothing changes
        set_terminate = ctypes.CDLL("libstdc++.so.6")["_ZSt13set_terminatePFvvE"]
        set_terminate.argtypes, set_terminate.restype = [ctypes.c_void_p], ctypes.c_void_p
        set_terminate(ctypes.cast(ctypes.CDLL(None)["pause"], ctypes.c_void_p))


def _is_releasing_tensors() -> bool:
    """Whether a thread of gloo's collectives runs, or would run if it had a core; always False except on Linux."""
    time.sleep(_NAP_S)  # without the interpreter lock: one that has waited for it runs now
    for task in Path("/proc/self/task").glob("*"):
        with suppress(OSError):  # a thread may end in the meantime
            # pid (name) state ...
            name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
            if name == _COLLECTIVES and rest.split()[0] != "S":
                return True
    return False


atexit.register(_prepare_exit)
