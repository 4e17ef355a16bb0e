"""Inside a worker: run the user's script as if it had been started alone, and report immediately when it fails.

A warm worker is forked and calls :func:`run`; a cold one is a fresh interpreter
(``python -m weft.engines.script``) that does the same.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

from weft.core.worker_environment import STOPPED_EXIT_CODE, STOPPED_UNSAVED_EXIT_CODE
from weft.engines.local_store import listen_locally
from weft.engines.worker_launch import Script

INTERRUPTED = 130  # a shell's exit code for a program ended by SIGINT
CHILD_ENDS_S = 0.1

# Keeps the script's globals alive until the process ends.  torch joins gloo's threads when the last model of a process
# group is freed; if that happens under the interpreter lock while such a thread waits for the lock, it deadlocks.
_kept: list[object] = []


def run(script: Script, report_file: int) -> int:
    """Run the script as ``__main__`` and return the exit code Python would have exited with."""
    sys.argv = [script.target, *script.args]
    listen_locally()
    try:
        if script.is_module:
            sys.path.insert(0, os.getcwd())
            _kept.append(runpy.run_module(script.target, run_name="__main__", alter_sys=True))
        else:
            sys.path.insert(0, str(Path(script.target).resolve().parent))
            _kept.append(runpy.run_path(script.target, run_name="__main__"))
    except SystemExit as leaving:
        _kept.append(leaving)
        return _exit_code(leaving, report_file)
    except KeyboardInterrupt as interrupt:
        _kept.append(interrupt)
        _mark_as_failed(interrupt)
        report_failure(report_file, "KeyboardInterrupt")
        return INTERRUPTED
    except BaseException as error:
        _kept.append(error)
        # Before printing the traceback and closing sockets: the other workers fail as soon as these close.
        lost_a_connection = isinstance(error, ConnectionError | EOFError)
        report_failure(report_file, f"{type(error).__name__}: {error}".removesuffix(": "), lost_a_connection)
        _mark_as_failed(error)
        error.__traceback__ = _from_script_on(error.__traceback__)  # torch's excepthook reads this, not its argument
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def leave(code: int) -> None:
    """End this process as the interpreter would, but without spending time on tearing down every module."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for non-daemon threads
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # closed by the script, or by the reader
            continue
    ctypes.CDLL(None).fflush(None)  # what C code printed
    os._exit(code)


def _exit_code(leaving: SystemExit, report_file: int) -> int:
    code = leaving.code
    if code is None:
        return 0
    if code not in (0, STOPPED_EXIT_CODE, STOPPED_UNSAVED_EXIT_CODE):
        _mark_as_failed(leaving)
    if not isinstance(code, int):
        print(code, file=sys.stderr)
        report_failure(report_file, str(code))
        return 1
    if code != 0:
        report_failure(report_file, "")
    return code & 0xFF


def _mark_as_failed(error: BaseException) -> None:
    """As the interpreter does: exit handlers read this to decide whether to wait for the other workers."""
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__


def report_failure(report_file: int, error: str, lost_a_connection: bool = False) -> None:
    """Tell the supervisor when and why this worker failed."""
    report = {
        "time_s": time.monotonic(),
        "error": error.strip().partition("\n")[0][:500],
        "dead_child": _dead_child(CHILD_ENDS_S if lost_a_connection else 0.0),
    }
    with contextlib.suppress(OSError):  # the supervisor is gone
        os.write(report_file, (json.dumps(report) + "\n").encode())


def _dead_child(patience_s: float) -> str:
    """A failed child process that has not been reaped yet, in words.

    When a data loader is killed, its parent often sees only a lost connection: the kernel closes a dying process's
    files before it declares it dead.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would raise in the middle of this
    latest_s = time.monotonic() + patience_s
    while True:
        try:
            seen = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return ""
        if seen is not None or time.monotonic() >= latest_s:
            break
        time.sleep(0.005)
    if seen is None or seen.si_status == 0:
        return ""
    end = "exited with code" if seen.si_code == os.CLD_EXITED else "was killed by signal"
    return f"its child process {seen.si_pid} (a DataLoader worker?) {end} {seen.si_status}"


def _from_script_on(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without our frames and runpy's, as ``python train.py`` would print it."""
    frame = trace
    while frame is not None and frame.tb_frame.f_code.co_filename in (__file__, runpy.run_path.__code__.co_filename):
        frame = frame.tb_next
    return frame  # None for a syntax error in the script itself


def main() -> None:
    report_file, kind, target, *args = sys.argv[1:]
    sys.path.pop(0)  # the folder that `-m` added
    leave(run(Script(target, tuple(args), is_module=kind == "module"), int(report_file)))


if __name__ == "__main__":
    main()
