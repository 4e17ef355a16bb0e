"""Hosts on one machine: network namespaces joined by a bridge, every link shaped, one core each.

    with Testbed(num_hosts=2, rate_bits_per_s=1e9) as bed:
        bed.run(("python", "train.py"))          # RANK, WORLD_SIZE, MASTER_ADDR ... are set as by torchrun
        bed.set_rate(5e8)

Nothing is left behind: the network is removed with the ``with`` block, also after an exception, Ctrl-C, SIGTERM, or
``sys.exit``.  After SIGKILL nothing can clean up, so the next testbed removes what dead owners left.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from types import FrameType

from benchmarks.testbed_plan import Command, NetworkPlan, Owner, owner_of, worker_command, worker_environment
from weft.errors import MissingToolError, WeftError

TOOLS = {"ip": "iproute2", "tc": "iproute2", "taskset": "util-linux"}
NUM_LINES_KEPT = 80
GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class HostOutput:
    """What one worker's command printed (its last lines when it printed much)."""

    rank: int
    exit_code: int
    lines: tuple[str, ...]


class HostFailed(WeftError):
    """A command on a host of the testbed failed; the others were stopped."""


def missing_reason() -> str | None:
    """Why no testbed can be made here, or None when one can."""
    if os.geteuid() != 0:
        return "network namespaces need root: use sudo, or a container that may administer its network"
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            return f"the command `{tool}` is not installed: install {package} (Debian: apt-get install {package})"
    return None


class Testbed:
    """A shaped network that exists inside a ``with`` block."""

    __test__ = False  # its name starts like a test class; pytest must not collect it

    def __init__(self, num_hosts: int, rate_bits_per_s: float, *, workers_per_host: int = 1) -> None:
        reason = missing_reason()
        if reason is not None:
            raise MissingToolError(f"the shaped-network testbed cannot start: {reason}")
        self.plan = NetworkPlan(_this_process(), num_hosts, rate_bits_per_s, workers_per_host)
        self.cores = tuple(sorted(os.sched_getaffinity(0)))
        self.rate_bits_per_s = rate_bits_per_s
        self._workers: list[subprocess.Popen[str]] = []
        self._previous_sigterm: object = None
        self._is_up = False

    def __enter__(self) -> Testbed:
        sweep()
        self._is_up = True
        atexit.register(self.close)
        if threading.current_thread() is threading.main_thread():
            self._previous_sigterm = signal.signal(signal.SIGTERM, _leave)
        try:
            run_all(self.plan.build())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop what still runs on the hosts and remove the network.  Harmless when done already."""
        if not self._is_up:
            return
        self._is_up = False
        self._stop_workers()
        for namespace in self.plan.namespaces:
            _remove_namespace(namespace)
        atexit.unregister(self.close)
        if self._previous_sigterm is not None:
            signal.signal(signal.SIGTERM, self._previous_sigterm)  # type: ignore[arg-type]

    def set_rate(self, rate_bits_per_s: float) -> None:
        """Set the rate of every link, both ways."""
        run_all(self.plan.reshape(rate_bits_per_s))
        self.rate_bits_per_s = rate_bits_per_s

    def core_of(self, rank: int) -> int:
        """The core of the host that worker ``rank`` is on; with fewer cores than hosts they share round robin."""
        return self.cores[self.plan.host_of(rank) % len(self.cores)]

    def run(
        self,
        command: Command,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout_s: float = 600.0,
        on_line: Callable[[int, str], None] | None = None,
    ) -> list[HostOutput]:
        """Run ``command`` on every host at once, once per worker, and wait for all.

        ``on_line(rank, line)`` sees each line as it is printed (stdout and stderr together), one call at a time.
        The first worker that fails stops the others: they would wait for it forever.
        """
        kept = [deque[str](maxlen=NUM_LINES_KEPT) for _ in range(self.plan.num_workers)]
        errors: list[Exception] = []
        one_at_a_time = threading.Lock()
        readers: list[threading.Thread] = []
        try:
            for rank in range(self.plan.num_workers):
                worker = self._start(rank, command, env or {}, cwd)
                reader = threading.Thread(
                    target=_read_lines,
                    args=(worker, rank, kept[rank], on_line, one_at_a_time, errors),
                    name=f"host{rank}",
                    daemon=True,
                )
                reader.start()
                readers.append(reader)
            self._wait(command, kept, readers, timeout_s)
        finally:
            exit_codes = self._stop_workers()
            for reader in readers:
                reader.join(GRACE_S)  # not forever: a process that left the session may keep the pipe open
        if errors:
            raise errors[0]
        return [HostOutput(rank, exit_codes[rank], tuple(kept[rank])) for rank in range(self.plan.num_workers)]

    def _start(self, rank: int, command: Command, env: Mapping[str, str], cwd: Path | None) -> subprocess.Popen[str]:
        worker = subprocess.Popen(
            worker_command(self.plan, rank, self.core_of(rank), command),
            env={**os.environ, **env, **worker_environment(self.plan, rank)},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # Ctrl-C goes to the testbed, which stops the hosts in order instead of all dying at once.
            start_new_session=True,
        )
        self._workers.append(worker)
        return worker

    def _wait(
        self,
        command: Command,
        kept: Sequence[Iterable[str]],
        readers: Sequence[threading.Thread],
        timeout_s: float,
    ) -> None:
        deadline_s = time.monotonic() + timeout_s
        waiting = dict(enumerate(self._workers))
        while waiting:
            for rank, worker in list(waiting.items()):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    exit_code = worker.wait(timeout=0.05)
                    del waiting[rank]
                    if exit_code != 0:
                        raise _failure(rank, f"ended with exit code {exit_code}", command, readers[rank], kept[rank])
            if waiting and time.monotonic() > deadline_s:
                for worker in waiting.values():  # a Python program says where its threads are when it is aborted
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(worker.pid, signal.SIGABRT)
                what = f"was still running after {timeout_s:g} s"
                failures = [_failure(rank, what, command, readers[rank], kept[rank]) for rank in waiting]
                raise HostFailed("\n".join(map(str, failures)))

    def _stop_workers(self) -> list[int]:
        """End every worker's whole session; exit codes by rank."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for worker in self._workers:
                if worker.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(worker.pid, number)
            deadline_s = time.monotonic() + GRACE_S
            for worker in self._workers:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    worker.wait(timeout=max(0.0, deadline_s - time.monotonic()))
        exit_codes = [worker.wait() for worker in self._workers]
        self._workers.clear()
        return exit_codes


def sweep() -> list[str]:
    """Remove the testbeds of processes that no longer live; the names of the namespaces removed."""
    removed = []
    for namespace in list_namespaces():
        owner = owner_of(namespace)
        if owner is not None and _born_ticks(owner.pid) != owner.born_ticks:
            _remove_namespace(namespace)
            removed.append(namespace)
    return removed


def list_namespaces() -> list[str]:
    """Names of all network namespaces on this machine, ours and others'."""
    listing = subprocess.run(("ip", "netns", "list"), capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in listing.splitlines() if line.strip()]


def run_all(commands: Iterable[Command]) -> None:
    """Run commands in sequence; the first failure raises with its output."""
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise MissingToolError(
                f"`{' '.join(command)}` failed: {done.stderr.strip() or f'exit code {done.returncode}'}. "
                "The testbed needs a kernel with namespaces, veth, bridge and tbf, and the right to use them"
            )


def _remove_namespace(namespace: str) -> None:
    """Kill what runs inside one of our namespaces, then remove it.  One that is gone already is fine."""
    if owner_of(namespace) is None:
        raise WeftError(f"refusing to remove the network namespace {namespace!r}: no testbed made it")
    deadline_s = time.monotonic() + GRACE_S
    while time.monotonic() < deadline_s:
        listed = subprocess.run(("ip", "netns", "pids", namespace), capture_output=True, text=True)
        pids = [int(pid) for pid in listed.stdout.split()]
        if not pids:
            break
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)  # a killed process leaves its namespace when the kernel gets to it; there is no event for that
    subprocess.run(("ip", "netns", "del", namespace), capture_output=True)


def _read_lines(
    worker: subprocess.Popen[str],
    rank: int,
    kept: deque[str],
    on_line: Callable[[int, str], None] | None,
    one_at_a_time: threading.Lock,
    errors: list[Exception],
) -> None:
    """Keep taking lines whatever the listener does: a full pipe would stop the worker for good."""
    if worker.stdout is None:
        raise WeftError("the worker was started without a pipe for its output")
    with worker.stdout:
        for raw in worker.stdout:
            line = raw.rstrip("\n")
            kept.append(line)
            if on_line is None or errors:
                continue
            try:
                with one_at_a_time:  # a listener that prints would mix two hosts' lines
                    on_line(rank, line)
            except Exception as error:  # handed to the caller of run(), who wrote the listener
                errors.append(error)


def _failure(rank: int, what: str, command: Command, reader: threading.Thread, kept: Iterable[str]) -> HostFailed:
    reader.join(GRACE_S)  # the last lines may still be in the pipe
    words = "\n    ".join(list(kept)[-60:]) or "(no output)"
    return HostFailed(f"worker {rank}: `{shorten(' '.join(command), 100)}` {what}; its last output:\n    {words}")


def _this_process() -> Owner:
    born_ticks = _born_ticks(os.getpid())
    if born_ticks is None:
        raise MissingToolError("/proc is not mounted: the testbed needs it to tell live owners from dead ones")
    return Owner(os.getpid(), born_ticks)


def _born_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None when there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
