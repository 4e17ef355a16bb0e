"""The checks of ``weft doctor``.  Each checks one thing and changes nothing."""

from __future__ import annotations

import enum
import os
import resource
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

from weft.client import Client
from weft.core.plural import plural
from weft.crossover.gpu import has_mps
from weft.daemon.disk import in_units, low_in_words, usage
from weft.daemon.home import Home
from weft.errors import NoControllerError, WeftError

MIN_PYTHON = (3, 11)
MIN_TORCH = (2, 10)
MIN_FREE_BYTES = 1 << 30
LOW_FREE_BYTES = 10 << 30
MIN_OPEN_FILES = 1024
MIN_PROCESSES = 512
# weft did not exist before this date: a clock that shows an earlier one was never set.
EARLIEST_S = 1_767_225_600.0
_GPU_FILES = "nvidia[0-9]*"


class Level(enum.Enum):
    """How serious a finding is."""

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
    """All checks, in the order shown."""
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
    """Does not import torch: that would take seconds."""
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
    of = "" if cores == total else f" (of {total}; this process is limited to these)"
    text = plural(len(gpus), "GPU") if gpus else f"no GPUs: a device is a core, {plural(cores, 'core')}{of}"
    yield _good("devices", text)
    load = os.getloadavg()[0]
    if load > cores + 1:
        advice = "other programs compete with the jobs for CPU time: step times will vary"
        yield _warning("load", f"{load:.1f} on {plural(cores, 'core')}", advice)


def _nearest_existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _home(home: Home) -> Iterator[Finding]:
    if not home.root.exists():
        folder = _nearest_existing(home.root)
        if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
            yield _good("home", f"{home.root} will be created by `weft up`")
        else:
            why = "is not writable" if folder.is_dir() else "is not a folder"
            advice = "set WEFT_HOME to a folder you can write to"
            yield _bad("home", f"{home.root} cannot be created: {folder} {why}", advice)
        return
    status = home.root.stat()
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid != os.getuid():
        advice = "set WEFT_HOME to a folder that you own"
        yield _bad("home", f"{home.root} belongs to user {status.st_uid}", advice)
    elif mode & 0o077:
        yield _bad("home", f"{home.root} is accessible to other users ({mode:04o})", f"chmod 700 {home.root}")
    elif not os.access(home.root, os.W_OK | os.X_OK):
        yield _bad("home", f"{home.root} is not writable", "run chmod u+wx on it, or set WEFT_HOME to another folder")
    else:
        yield _good("home", str(home.root))
    if home.token_file.exists() and stat.S_IMODE(home.token_file.stat().st_mode) & 0o077:
        advice = "the token is no longer secret: delete the file and restart the controller"
        yield _bad("token", f"{home.token_file} is readable by other users", advice)


def _controller(home: Home) -> Iterator[Finding]:
    pid = home.holder()
    try:
        health = Client(home.root, timeout_s=5.0).health()
    except NoControllerError:
        if pid is None:
            yield _good("controller", "not running; `weft up` starts one")
        else:
            advice = f"it may still be starting; see {home.log_file}"
            yield _warning("controller", f"process {pid} has locked {home.root} but does not respond", advice)
    except WeftError as error:
        yield _bad("controller", str(error), f"see {home.log_file}")
    else:
        yield _good(
            "controller", f"process {health['pid']} responds, weft {health['version']}, policy {health['policy']}"
        )


def _disk(home: Home) -> Iterator[Finding]:
    folder = _nearest_existing(home.root)
    free = shutil.disk_usage(folder).free
    text = f"{free / (1 << 30):.1f} GiB free at {folder}"
    if free < MIN_FREE_BYTES:
        yield _bad("disk", text, "checkpoints will not fit: free some space, or move WEFT_HOME")
    elif free < LOW_FREE_BYTES:
        yield _warning("disk", text, "checkpoints of large models may not fit")
    else:
        yield _good("disk", text)
    if home.root.exists():
        kinds = ", ".join(f"{kind} {in_units(num_bytes)}" for kind, num_bytes in usage(home).items())
        low = low_in_words(home)
        yield _warning("usage", kinds, low) if low else _good("usage", kinds)


def _limits(home: Home) -> Iterator[Finding]:
    for name, what, least in (
        ("open files", resource.RLIMIT_NOFILE, MIN_OPEN_FILES),
        ("processes", resource.RLIMIT_NPROC, MIN_PROCESSES),
    ):
        soft, hard = resource.getrlimit(what)
        text = f"{name}: {'no limit' if soft == resource.RLIM_INFINITY else soft}"
        if soft != resource.RLIM_INFINITY and soft < least:
            flag = "-n" if what == resource.RLIMIT_NOFILE else "-u"
            yield _warning("limits", text, f"many workers may need more: run `ulimit {flag} {least}` (at most {hard})")
        else:
            yield _good("limits", text)
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft != resource.RLIM_INFINITY:
        advice = "checkpoints may fail: run `ulimit -f unlimited`"
        yield _warning("limits", f"files are limited to {soft} bytes", advice)


def _clock(home: Home) -> Iterator[Finding]:
    """The controller tolerates clock jumps, but its times would confuse readers."""
    now_s = time.time()
    if now_s < EARLIEST_S:
        advice = "the clock was never set: reported times will be wrong"
        yield _warning("clock", time.strftime("%Y-%m-%d %H:%M"), advice)
        return
    newest_s = max((path.stat().st_mtime for path in (home.journal_file, home.log_file) if path.exists()), default=0.0)
    if newest_s > now_s + 60:
        behind = f"{newest_s - now_s:.0f} s behind the newest file in {home.root}"
        yield _warning("clock", behind, "the clock was set back; nothing is lost, but new times may look old")
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
        yield _warning("memory", text, "data loaders may fail; in a container, increase it with --shm-size")


def _gpu_sharing(home: Home) -> Iterator[Finding]:
    """Two jobs on one GPU need MPS: NCCL kernels spin and would block the other job."""
    if not list(Path("/dev").glob(_GPU_FILES)):
        return
    if has_mps(os.environ):
        yield _good("sharing", "MPS is running: two jobs can share a GPU")
    else:
        advice = "jobs will not share GPUs; to enable sharing, run nvidia-cuda-mps-control -d"
        yield _warning("sharing", "MPS is not running", advice)
