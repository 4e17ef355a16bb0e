"""Inside a worker: run the user's script as if it had been started alone, and say at once when it fails.

The same code serves both kinds of start. A warm worker is forked and calls :func:`run`; a cold one is a fresh
interpreter (``python -m weft.engines.script``).
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import runpy
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

from weft.engines.launch import Script

INTERRUPTED = 130  # what shells report for a program ended by SIGINT


def run(script: Script, report_file: int) -> int:
    """Run the script as ``__main__`` and return the exit code Python would have left with."""
    sys.argv = [script.target, *script.args]
    try:
        if script.is_module:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(script.target, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(script.target).resolve().parent))
            runpy.run_path(script.target, run_name="__main__")
    except SystemExit as leaving:
        return _exit_code(leaving, report_file)
    except KeyboardInterrupt:
        _report(report_file, "KeyboardInterrupt")
        return INTERRUPTED
    except BaseException as error:
        # Before the traceback is printed and the sockets close: the others fail as soon as they do.
        _report(report_file, f"{type(error).__name__}: {error}".removesuffix(": "))
        error.__traceback__ = _from_script_on(error.__traceback__)  # torch's own hook looks here, not at its argument
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def leave(code: int) -> None:
    """End this process as the interpreter would, without the time it takes to tear down every module."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for the threads that are no daemons
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # closed by the script, or nobody reads any more
            continue
    ctypes.CDLL(None).fflush(None)  # what C code printed
    os._exit(code)


def _exit_code(leaving: SystemExit, report_file: int) -> int:
    code = leaving.code
    if code is None:
        return 0
    if not isinstance(code, int):
        print(code, file=sys.stderr)
        _report(report_file, str(code))
        return 1
    if code != 0:
        _report(report_file, "")
    return code & 0xFF


def _report(report_file: int, error: str) -> None:
    first_line = error.strip().partition("\n")[0][:500]
    line = json.dumps({"time_s": time.monotonic(), "error": first_line}) + "\n"
    try:
        os.write(report_file, line.encode())
    except OSError:  # the supervisor is gone: there is nobody to tell
        return


def _from_script_on(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without our frames and runpy's, as the user knows it from ``python train.py``."""
    frame = trace
    while frame is not None and frame.tb_frame.f_code.co_filename in (__file__, runpy.run_path.__code__.co_filename):
        frame = frame.tb_next
    return frame  # None for a syntax error in the script itself


def main() -> None:
    report_file, kind, target, *args = sys.argv[1:]
    sys.path.pop(0)  # the folder that `-m` looked for us in
    leave(run(Script(target, tuple(args), is_module=kind == "module"), int(report_file)))


if __name__ == "__main__":
    main()
