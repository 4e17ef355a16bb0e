"""WEFT_HOME: where a controller keeps everything, and how a second controller is kept out.

<home>/                    0700
    lock                   held by the running controller; contains its pid
    controller.json        pid, start, socket, port of that controller
    token                  0600; anyone who can read it may use the controller
    journal.sqlite         what happened
    knowledge.json         measured speeds; may be deleted
    controller.log
    run/                   0700: api.sock, channel.sock; a link to a folder with a short path if this one is too long
    jobs/<id>/checkpoints
    jobs/<id>/history.jsonl  points and marks of the job's life
    jobs/<id>/attempts/<n>/rank<r>.out, rank<r>.err
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from weft.errors import UsageError, WeftError

# What fits in sun_path with the longest name in run/.
_MAX_SOCKET_FOLDER_BYTES = 107 - len("/channel.sock")


class HomeError(WeftError):
    """The controller's folder cannot be used."""


class HomeTakenError(HomeError):
    """Another controller is running in this home."""


def default_home() -> Path:
    """``WEFT_HOME``, else ``~/.weft``."""
    return Path(os.environ.get("WEFT_HOME") or "~/.weft").expanduser().absolute()


@dataclass(frozen=True, slots=True)
class Record:
    """The contents of ``controller.json``."""

    pid: int
    started_s: float
    socket: str
    port: int
    version: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class Home:
    """The layout; nothing is touched until :meth:`prepare`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lock_file = root / "lock"
        self.record_file = root / "controller.json"
        self.token_file = root / "token"
        self.journal_file = root / "journal.sqlite"
        self.knowledge_file = root / "knowledge.json"
        self.log_file = root / "controller.log"

    @property
    def sockets(self) -> Path:
        """``run/``, or the folder it links to.  Independent of the environment: running workers use the old path."""
        folder = self.root / "run"
        try:
            return Path(os.readlink(folder))
        except OSError:
            return folder

    @property
    def api_socket(self) -> Path:
        return self.sockets / "api.sock"

    @property
    def channel_socket(self) -> Path:
        return self.sockets / "channel.sock"

    def job_folder(self, job_id: str) -> Path:
        return self.root / "jobs" / job_id

    def checkpoints(self, job_id: str) -> Path:
        return self.job_folder(job_id) / "checkpoints"

    def saved_step(self, job_id: str) -> int:
        """The step of the job's newest checkpoint; 0 if there is none."""
        from weft.core.checkpoint_files import STEP_NAME  # a client needs the layout only to find its controller

        try:
            names = os.listdir(self.checkpoints(job_id))
        except OSError:
            return 0
        return max((int(found[1]) for found in map(STEP_NAME.fullmatch, names) if found), default=0)

    def attempts(self, job_id: str) -> Path:
        return self.job_folder(job_id) / "attempts"

    def history_file(self, job_id: str) -> Path:
        return self.job_folder(job_id) / "history.jsonl"

    def prepare(self) -> None:
        """Create what is missing; reject a folder that other users could enter."""
        _private_folder(self.root)
        folder = self.root / "run"
        if len(os.fsencode(folder)) > _MAX_SOCKET_FOLDER_BYTES and not self.sockets.is_dir():
            _link_to_short_folder(folder)
        for folder in (self.sockets, self.root / "jobs"):
            _private_folder(folder)

    def token(self) -> str:
        """The token of this home; created on the first call."""
        with contextlib.suppress(FileExistsError):
            # Written under a temporary name and linked, so that a reader never sees half a token.
            aside = self.root / f".token.{os.getpid()}"
            descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                with os.fdopen(descriptor, "w") as file:
                    file.write(secrets.token_urlsafe(32))
                os.link(aside, self.token_file)
            finally:
                aside.unlink()
        status = self.token_file.stat()
        if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise HomeError(
                f"{self.token_file} is readable by other users (mode {stat.S_IMODE(status.st_mode):04o}), so the "
                "token is no longer secret: delete the file and start again with a new token"
            )
        return self.token_file.read_text().strip()

    def write_record(self, record: Record) -> None:
        write_whole(self.record_file, json.dumps(asdict(record)).encode())

    def read_record(self) -> Record | None:
        """What the last controller wrote; that controller may have exited, see :meth:`holder`."""
        try:
            return Record(**json.loads(self.record_file.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the home's lock: only one controller can."""
        descriptor = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pid = _pid_in(descriptor)
                who = f"process {pid}" if pid else "another process"
                raise HomeTakenError(
                    f"a controller is already running in {self.root} ({who}): use it, shut it down with `weft down`, "
                    "or set WEFT_HOME to start another one elsewhere"
                ) from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            yield
        finally:
            os.close(descriptor)

    def holder(self) -> int | None:
        """Pid of the controller running in this home; ``None`` if there is none."""
        try:
            descriptor = os.open(self.lock_file, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _pid_in(descriptor) or 0
        finally:
            os.close(descriptor)
        return None


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file; a reader sees the old or the new content, never part of it."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    os.replace(aside, path)


def _pid_in(descriptor: int) -> int | None:
    text = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
    return int(text) if text.isdigit() else None


def _link_to_short_folder(link: Path) -> None:
    """The folder's name is random: another user could create a predictable one before us."""
    base = os.environ.get("XDG_RUNTIME_DIR") or "/tmp"
    aside = link.with_name(f".run.{os.getpid()}")
    try:
        os.symlink(tempfile.mkdtemp(prefix=f"weft-{os.getuid()}-", dir=base), aside)
        os.replace(aside, link)
    except OSError as error:
        raise HomeError(
            f"{link.parent} is too long for a socket path, and {base} is not writable ({error.strerror}): choose a "
            "shorter WEFT_HOME"
        ) from error


def _private_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise HomeError(
            f"{folder} cannot be created ({error.strerror}): set WEFT_HOME to a folder you can write to"
        ) from error
    if not stat.S_ISDIR(status.st_mode):
        raise UsageError(f"{folder} is not a folder: set WEFT_HOME to another one")
    if status.st_uid != os.getuid():
        raise HomeError(f"{folder} belongs to user {status.st_uid}: set WEFT_HOME to a folder that you own")
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise HomeError(
            f"{folder} is accessible to other users (mode {stat.S_IMODE(status.st_mode):04o}, expected 0700): run "
            f"`chmod 700` on it, or set WEFT_HOME to another folder"
        )
