"""The process that starts workers, waits for them, and cleans up after them.

A warm pool imports torch once and forks: a worker then starts in hundredths of a second instead of seconds.  For
scripts without torch, a bare pool forks without importing it.
A fork copies memory but only the calling thread.  So nothing that starts threads may run here: no OpenMP region, no
autograd, no process group, no CUDA context.  The pool checks that before the first fork; if an import has started a
thread, it starts workers cold (fork and exec) and says why.

The pool is the workers' parent and adopts the processes they leave behind.  When the supervisor ends, for whatever
reason, the control socket closes and the pool kills every process below itself.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Iterable
from typing import Any, NoReturn

from weft.engines import pool_messages, process_tree
from weft.engines.script import leave, report_failure, run
from weft.engines.worker_launch import SERVES_WORKERS, Worker

# torch.optim loads torch._dynamo with the first optimizer of a process (1.4 s of a cold start).
PRELOADED = ("torch", "torch.distributed", "torch.utils.data", "torch._dynamo", "weft.overlap", "weft.worker")
# For an interpreter that preloads: threads started by an import would prevent forking.
SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

NOT_EXECUTABLE, NOT_FOUND = 126, 127  # a shell's exit codes when it cannot start a program

INHERITED = "WEFT_INHERITED_FILE"  # the number of the open file that a worker was started with, if any


def preload(names: Iterable[str]) -> str:
    """Import what workers will need.  Returns why forking is not possible, or ""."""
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            if error.name is not None and error.name.split(".")[0] == name.split(".")[0]:
                continue  # not installed: the script does not need it, or will say so itself
            return f"importing {name} failed ({error})"
        if process_tree.num_threads() > 1:
            return f"importing {name} started a thread, which does not survive a fork"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "importing initialized CUDA, which does not survive a fork"
    gc.collect()
    gc.freeze()  # otherwise the collector would write to every page that workers share with us
    return ""


class ForkServer:
    """Has imported what its forks need, and serves one control socket; says "ready", then wakes for orders and ends."""

    def __init__(self, control: socket.socket, *, warm: bool) -> None:
        self._control = control
        self._warm = warm
        self._selector = selectors.DefaultSelector()
        self._wake, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def _get_ready(self, preloaded: Iterable[str] = PRELOADED) -> None:
        process_tree.adopt_orphans()
        reason = preload(preloaded) if self._warm else ""
        self._warm = self._warm and not reason
        signal.signal(signal.SIGCHLD, lambda *_: None)  # with a handler, the interpreter writes to the pipe
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        self._selector.register(self._control, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._tell(kind="ready", reason=reason)

    def _has_children_to_reap(self, file: int) -> bool:
        """Whether a child ended, or was paused or resumed; otherwise ``file`` is the control socket."""
        if file == self._wake:
            os.read(self._wake, 4096)
        return file == self._wake

    def _leave_in_fork(self) -> None:
        """In a fork: give up what belongs to the server."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        self._control.close()
        os.close(self._wake)
        os.close(self._waker)

    def _tell(self, **event: Any) -> None:
        with contextlib.suppress(OSError):  # the other side is gone; select() will report it
            pool_messages.send(self._control, event)


class Pool(ForkServer):
    """Serves one control socket until it closes."""

    def __init__(self, control: socket.socket, *, warm: bool, outlive: bool) -> None:
        super().__init__(control, warm=warm)
        self._outlive = outlive
        self._worker_of: dict[int, int] = {}  # pid -> the supervisor's number for it
        self._training: set[int] = set()  # pids of workers with a rank

    def serve(self, preloaded: Iterable[str] = PRELOADED) -> None:
        self._get_ready(preloaded)
        supervised = True
        while supervised or (self._outlive and self._training):
            for key, _ in self._selector.select():
                if self._has_children_to_reap(key.fd):
                    self._reap()
                elif not self._obey():
                    supervised = False
                    self._selector.unregister(self._control)
        process_tree.sweep()

    def _obey(self) -> bool:
        received = pool_messages.receive(self._control)
        if received is None:
            return False
        request, files = received
        if request["kind"] == "start":
            self._start(request["number"], Worker.from_json(request["worker"]), files)
        else:
            for pid, number in self._worker_of.items():
                if number == request["number"]:
                    process_tree.kill(pid, request["signal"])
        return True

    def _start(self, number: int, worker: Worker, files: list[int]) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            self._tell(kind="refused", number=number, reason=str(error))
        else:
            if pid == 0:
                self._become(worker, files)
            self._worker_of[pid] = number
            if worker.rank != SERVES_WORKERS:
                self._training.add(pid)
            self._tell(kind="started", number=number, pid=pid)
        finally:
            for file in files:
                os.close(file)

    def _become(self, worker: Worker, files: list[int]) -> NoReturn:
        """The child's side of the fork; never returns."""
        try:
            self._leave_in_fork()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            pool_pid = os.getppid()
            os.setpgid(0, 0)
            if not self._outlive:
                process_tree.die_with_parent(pool_pid)
            report_file = _redirect(files[:3])
            if files[3:]:
                worker.environment[INHERITED] = str(files[3])
                os.set_inheritable(files[3], True)
            os.chdir(worker.script.cwd)
            os.sched_setaffinity(0, worker.cores)
            if worker.script.is_command:
                _exec_command(worker, report_file)
            if worker.fresh or not self._warm:
                _exec(worker, report_file)
            os.environ.clear()
            os.environ.update(worker.environment)
            _refresh_after_fork(worker.environment)
            leave(run(worker.script, report_file))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def _reap(self) -> None:
        anything = os.WEXITED | os.WSTOPPED | os.WCONTINUED
        while True:
            try:
                seen = os.waitid(os.P_ALL, 0, anything | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if seen is None:
                return
            pid = seen.si_pid
            number = self._worker_of.get(pid)
            over = seen.si_code in (os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED)
            if over and number is not None:
                # Its data loaders and whatever else it started, before the pid, which names the group, is reused.
                process_tree.kill_group(pid, signal.SIGKILL)
                del self._worker_of[pid]
                self._training.discard(pid)
            # A worker that was paused for a moment may have exited since: then only its exit is left to reap.
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, pid, (os.WEXITED if over else os.WSTOPPED | os.WCONTINUED) | os.WNOHANG)
            if number is None:
                continue
            if over:
                code = seen.si_status if seen.si_code == os.CLD_EXITED else -seen.si_status
                self._tell(kind="exited", number=number, code=code)
            else:
                self._tell(kind="resumed" if seen.si_code == os.CLD_CONTINUED else "paused", number=number)


def _redirect(files: list[int]) -> int:
    """Replace the pool's output files with the worker's own.  Returns the file for failure reports."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    out, err, report = files
    for source, target in ((nothing, 0), (out, 1), (err, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(out)
    os.close(err)
    return report


def _exec(worker: Worker, report_file: int) -> NoReturn:
    script = worker.script
    os.set_inheritable(report_file, True)
    kind = "module" if script.is_module else "file"
    command = [sys.executable, "-m", "weft.engines.script", str(report_file), kind, script.target, *script.args]
    os.execve(sys.executable, command, {"PYTHONUNBUFFERED": "1", **worker.environment})


def _exec_command(worker: Worker, report_file: int) -> NoReturn:
    program = worker.script.target
    try:
        os.execvpe(program, [program, *worker.script.args], {"PYTHONUNBUFFERED": "1", **worker.environment})
    except OSError as error:
        message = f"{program} cannot be started ({error.strerror}): expected a program in PATH, or a path to one"
        report_failure(report_file, message)
        print(message, file=sys.stderr, flush=True)
        os._exit(NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE)


def _refresh_after_fork(environment: dict[str, str]) -> None:
    """Reset state that a fresh interpreter would not share with its siblings."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()  # otherwise all workers would draw the same "random" numbers
    threads = environment.get("OMP_NUM_THREADS", "")
    if (torch := sys.modules.get("torch")) is not None and threads.isdigit() and int(threads) > 0:
        torch.set_num_threads(int(threads))  # OpenMP read the variable when it was loaded, in the pool


def main() -> None:
    mode, ending, control = sys.argv[1:]
    with socket.socket(fileno=int(control)) as channel:
        pool = Pool(channel, warm=mode != "cold", outlive=ending == "outlive")
        pool.serve(preloaded=() if mode == "bare" else PRELOADED)


if __name__ == "__main__":
    main()
