"""The checks of ``weft doctor``.  Each looks at one thing and changes nothing."""

from __future__ import annotations

import enum
import os
import resource
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

from weft.client import Client
from weft.daemon.home import Home
from weft.errors import NoControllerError, WeftError

MIN_PYTHON = (3, 11)
MIN_TORCH = (2, 10)
MIN_FREE_BYTES = 1 << 30
SCARCE_FREE_BYTES = 10 << 30
MIN_OPEN_FILES = 1024
MIN_PROCESSES = 512
# Before this nothing of weft was written: a clock that says so was never set.
EARLIEST_S = 1_767_225_600.0
_GPU_FILES = "nvidia[0-9]*"
_TOOL_TIMEOUT_S = 10.0


class Level(enum.Enum):
    """How it looks."""

    GOOD = "ok"
    WARNING = "warning"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found, and what to do about it."""

    name: str
    level: Level
    text: str
    advice: str = ""

    def row(self) -> dict[str, str]:
        return {"check": self.name, "level": self.level.value, "found": self.text, "advice": self.advice}


def checkup(home: Home) -> list[Finding]:
    """All checks, in the order in which one would look."""
    checks: tuple[Callable[[Home], Iterator[Finding]], ...] = (
        _python,
        _torch,
        _devices,
        _home,
        _controller,
        _disk,
        _limits,
        _clock,
        _shared_memory,
        _gpu_sharing,
    )
    return [finding for check in checks for finding in check(home)]


def _good(name: str, text: str) -> Finding:
    return Finding(name, Level.GOOD, text)


def _warning(name: str, text: str, advice: str) -> Finding:
    return Finding(name, Level.WARNING, text, advice)


def _bad(name: str, text: str, advice: str) -> Finding:
    return Finding(name, Level.BAD, text, advice)


def _python(home: Home) -> Iterator[Finding]:
    text = f"{sys.version.split()[0]} in {sys.prefix}"
    if sys.version_info < MIN_PYTHON:
        yield _bad("python", text, "weft needs 3.11 or newer")
    else:
        yield _good("python", text)


def _torch(home: Home) -> Iterator[Finding]:
    """Looked at without importing it: that would take seconds."""
    if util.find_spec("torch") is None:
        advice = "only weft.overlap and weft.session need it: pip install 'weft[torch]'"
        yield _warning("torch", "not installed", advice)
        return
    version = metadata.version("torch")
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < MIN_TORCH:
        yield _bad("torch", version, "weft needs 2.10 or newer")
    else:
        yield _good("torch", version)


def _devices(home: Home) -> Iterator[Finding]:
    gpus = sorted(Path("/dev").glob(_GPU_FILES))
    cores = len(os.sched_getaffinity(0))
    total = os.cpu_count() or cores
    of = "" if cores == total else f" (of {total}; this process may use no more)"
    text = f"{len(gpus)} GPUs" if gpus else f"no GPUs: a device is a core, {cores} cores{of}"
    yield _good("devices", text)
    load = os.getloadavg()[0]
    if load > cores + 1:
        advice = "other programs compete with the jobs: step times will vary"
        yield _warning("load", f"{load:.1f} on {cores} cores", advice)


def _home(home: Home) -> Iterator[Finding]:
    if not home.root.exists():
        yield _good("home", f"{home.root} will be made by `weft up`")
        return
    status = home.root.stat()
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != os.getuid():
        yield Finding(
            "home", Level.BAD, f"{home.root} belongs to user {status.st_uid}", "set WEFT_HOME to a folder of yours"
        )
    elif mode & 0o077:
        yield _bad("home", f"{home.root} is open to others ({mode:04o})", f"chmod 700 {home.root}")
    elif not os.access(home.root, os.W_OK | os.X_OK):
        yield _bad("home", f"{home.root} may not be written to", "chmod u+wx, or another WEFT_HOME")
    else:
        yield _good("home", str(home.root))
    if home.token_file.exists() and stat.S_IMODE(home.token_file.stat().st_mode) & 0o077:
        advice = "it is no secret any more: delete it and start the controller again"
        yield _bad("token", f"{home.token_file} can be read by others", advice)


def _controller(home: Home) -> Iterator[Finding]:
    pid = home.holder()
    try:
        health = Client(home.root, timeout_s=5.0).health()
    except NoControllerError:
        if pid is None:
            yield _good("controller", "none runs; `weft up` starts one")
        else:
            advice = f"see {home.log_file}; it may still be starting"
            yield _warning("controller", f"process {pid} holds the home but does not answer", advice)
    except WeftError as error:
        yield _bad("controller", str(error), f"see {home.log_file}")
    else:
        yield _good(
            "controller", f"process {health['pid']} answers, weft {health['version']}, policy {health['policy']}"
        )


def _disk(home: Home) -> Iterator[Finding]:
    folder = next(folder for folder in (home.root, *home.root.parents) if folder.exists())
    free = shutil.disk_usage(folder).free
    text = f"{free / (1 << 30):.1f} GiB free at {folder}"
    if free < MIN_FREE_BYTES:
        yield _bad("disk", text, "checkpoints will not fit: make room, or move WEFT_HOME")
    elif free < SCARCE_FREE_BYTES:
        yield _warning("disk", text, "enough for the queue; large models' checkpoints may not fit")
    else:
        yield _good("disk", text)


def _limits(home: Home) -> Iterator[Finding]:
    for name, what, least in (
        ("open files", resource.RLIMIT_NOFILE, MIN_OPEN_FILES),
        ("processes", resource.RLIMIT_NPROC, MIN_PROCESSES),
    ):
        soft, hard = resource.getrlimit(what)
        text = f"{name}: {'no limit' if soft == resource.RLIM_INFINITY else soft}"
        if soft != resource.RLIM_INFINITY and soft < least:
            flag = "-n" if what == resource.RLIMIT_NOFILE else "-u"
            yield Finding(
                "limits", Level.WARNING, text, f"many workers may need more: ulimit {flag} {least} (at most {hard})"
            )
        else:
            yield _good("limits", text)
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft != resource.RLIM_INFINITY:
        yield Finding(
            "limits", Level.WARNING, f"files may not exceed {soft} bytes", "checkpoints will fail: ulimit -f unlimited"
        )


def _clock(home: Home) -> Iterator[Finding]:
    """The controller survives a clock that jumps; people who read its times do not."""
    now_s = time.time()
    if now_s < EARLIEST_S:
        yield Finding(
            "clock", Level.WARNING, time.strftime("%Y-%m-%d %H:%M"), "it was never set: times will confuse you"
        )
        return
    newest_s = max((path.stat().st_mtime for path in (home.journal_file, home.log_file) if path.exists()), default=0.0)
    if newest_s > now_s + 60:
        behind = f"{newest_s - now_s:.0f} s behind what was last written in {home.root}"
        yield _warning("clock", behind, "it was set back; nothing is lost, but new times may look old")
    else:
        yield _good("clock", time.strftime("%Y-%m-%d %H:%M:%S %Z"))


def _shared_memory(home: Home) -> Iterator[Finding]:
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        yield _warning("memory", "no /dev/shm", "data loaders with several workers will fail")
        return
    if free < 64 << 20:
        text = f"{free >> 20} MiB free in /dev/shm"
        yield _warning("memory", text, "data loaders may fail; in a container give it more (--shm-size)")


def _gpu_sharing(home: Home) -> Iterator[Finding]:
    """Two jobs on one GPU need MPS: NCCL's kernels spin, and would keep the other job out."""
    if not list(Path("/dev").glob(_GPU_FILES)):
        return
    tool = shutil.which("nvidia-cuda-mps-control")
    running = False
    if tool is not None:
        try:
            done = subprocess.run(
                [tool], input=b"get_server_list\n", capture_output=True, timeout=_TOOL_TIMEOUT_S, check=False
            )
            running = done.returncode == 0
        except (OSError, subprocess.TimeoutExpired):
            running = False
    if running:
        yield _good("sharing", "MPS runs: two jobs may share a GPU")
    else:
        advice = "jobs will not share GPUs; to let them, start it: nvidia-cuda-mps-control -d"
        yield _warning("sharing", "MPS does not run", advice)
