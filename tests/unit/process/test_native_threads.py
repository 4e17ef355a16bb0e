"""A thread that is in torch when the interpreter shuts down does not change how the process ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.hang_limit import HANG_S

import weft

# The shutdown destroys `late`, which wakes the thread and gives it time to need the interpreter lock.
WOKEN_TOO_LATE = """
import datetime, sys, threading, time, types
import torch.distributed as dist
from weft.process.native_threads import NativeThread

store, began = dist.HashStore(), threading.Event()

def wait_in_torch():
    began.set()
    store.wait(["late"], datetime.timedelta(days=1))

class Late:
    def __del__(self, store=store, sleep=time.sleep):
        store.set("late", "")
        sleep(1.0)

sys.modules["late"] = types.ModuleType("late")
sys.modules["late"].late = Late()
NativeThread(wait_in_torch, name="weft-test").start()
began.wait()
time.sleep(0.1)  # between the event and the wait
print("trained")
if sys.argv[1] == "error":
    raise KeyError("a bug")
sys.exit(int(sys.argv[1]))
"""


def _ended(script: str, *args: str) -> tuple[int, str, str]:
    source = str(Path(weft.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {source!r})\n{script}", *args],
        env={"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(("how", "code"), [("0", 0), ("3", 3), ("error", 1)])
def test_a_thread_that_returns_from_torch_too_late_does_not_change_the_exit_code(how: str, code: int) -> None:
    returncode, stdout, stderr = _ended(WOKEN_TOO_LATE, how)
    assert (returncode, stdout) == (code, "trained\n"), stderr
    assert "terminate called" not in stderr
    assert ("KeyError: 'a bug'" in stderr) == (how == "error")
