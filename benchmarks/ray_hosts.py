"""A Ray cluster across the hosts of a testbed: every host has its own network, processes, and /tmp, and one core.

    with Testbed(num_hosts=2, rate_bits_per_s=125e6) as bed, RayHosts(bed, folder) as hosts:
        with hosts.controller("balanced", home) as client:
            ...

``folder`` is the only one that all hosts see under /tmp.  Everything is gone after the block: a host is the init
process of its namespaces, and ends with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.testbed import HostFailed, Testbed
from benchmarks.testbed_plan import HOST_INTERFACE, KEEP_MEMORY
from weft.client import Client
from weft.daemon.options import ControllerOptions

ROOT = Path(__file__).resolve().parents[1]
PORT = 6379
STARTS_WITHIN_S = 180.0
COMMAND_TIMEOUT_S = 240.0
OBJECT_STORE_BYTES = 80_000_000  # the least that Ray accepts, or nearly; nothing is put there
_POLL_S = 0.1

_HOST = """
set -e
stage={stage}
mount -t tmpfs none $stage
for path in {visible}; do mkdir -p $stage/${{path#/tmp/}}; mount --bind $path $stage/${{path#/tmp/}}; done
mount --move $stage /tmp
mount -t tmpfs none /dev/shm
exec taskset -c {core} {ray} start {role} --node-ip-address={address} --num-cpus={num_devices} \\
  --object-store-memory={object_store} --disable-usage-stats --block
"""


class RayHosts:
    """One Ray node per host; host 0 is the head, and the controllers run there."""

    def __init__(self, bed: Testbed, folder: Path, *, devices_per_host: int = 1) -> None:
        self._bed = bed
        self._folder = folder
        self._devices_per_host = devices_per_host
        self._hosts: list[subprocess.Popen[bytes]] = []
        # Where a host's /tmp was made; mounted only inside its own namespaces.
        self._stages: list[Path] = []
        self._environment = _environment(secrets.token_hex(24))

    def __enter__(self) -> RayHosts:
        try:
            for index in range(self._bed.plan.num_hosts):
                self._start(index)
                if index == 0:
                    self._wait_until_up(index)
            for index in range(1, self._bed.plan.num_hosts):
                self._wait_until_up(index)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """As if power was lost on all hosts."""
        for host in self._hosts:
            with contextlib.suppress(ProcessLookupError, IndexError, FileNotFoundError):
                os.kill(_init_of(host), signal.SIGKILL)
            host.kill()
            host.wait()
        self._hosts.clear()
        for stage in self._stages:
            shutil.rmtree(stage, ignore_errors=True)
        self._stages.clear()

    @contextlib.contextmanager
    def controller(self, policy: str, home: Path, *, hold_s: float, shares: bool) -> Iterator[Client]:
        """A controller on host 0; its jobs end with the block."""
        options = ControllerOptions(
            engine="ray", address=self._address, policy=policy, port=0, hold_s=hold_s, no_share=not shares
        )
        # `weft up` with the options of the process that it starts, which come after `--foreground`.
        words = options.command()
        self._weft(home, *words[words.index("--foreground") + 1 :], verb="up")
        try:
            yield Client(home)
        finally:
            self._weft(home, "--jobs", verb="down")

    def lose(self, index: int) -> None:
        """As if power was lost on this host."""
        os.kill(_init_of(self._hosts[index]), signal.SIGKILL)
        self._hosts[index].wait()

    def bring_back(self, index: int) -> None:
        """Start Ray on a host that was lost; returns when Ray says that it runs."""
        self._start(index)
        self._wait_until_up(index)

    def spawn(self, index: int, *words: str) -> subprocess.Popen[bytes]:
        """A process on a host, with what Ray has in its environment; it ends with the host."""
        return subprocess.Popen(
            [*self._enter(index), *words],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def sent_bytes(self) -> list[int]:
        """What each host has sent so far."""
        found = []
        for index in range(self._bed.plan.num_hosts):
            command = ("ip", "-n", self._bed.plan.host(index), "-j", "-s", "link", "show", HOST_INTERFACE)
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            found.append(int(json.loads(said)[0]["stats64"]["tx"]["bytes"]))
        return found

    @property
    def _address(self) -> str:
        return f"{self._bed.plan.address(0)}:{PORT}"

    def _start(self, index: int) -> None:
        visible = (str(self._folder), str(ROOT), sys.prefix)
        head = f"--head --port={PORT} --include-dashboard=false"
        stage = Path(tempfile.mkdtemp(prefix="weft-stage."))
        self._stages.append(stage)
        script = _HOST.format(
            stage=stage,
            visible=" ".join(path for path in visible if path.startswith("/tmp/")),
            core=self._bed.cores[index % len(self._bed.cores)],
            ray=Path(sys.prefix, "bin", "ray"),
            role=head if index == 0 else f"--address={self._address}",
            address=self._bed.plan.address(index),
            num_devices=self._devices_per_host,
            object_store=OBJECT_STORE_BYTES,
        )
        network = f"--net=/run/netns/{self._bed.plan.host(index)}"
        spaces = ["nsenter", network, "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        with self._log(index).open("wb") as log:
            self._hosts[index : index + 1] = [
                subprocess.Popen(
                    [*spaces, "bash", "-c", script],
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            ]

    def _log(self, index: int) -> Path:
        return self._folder / f"host{index}.log"

    def _wait_until_up(self, index: int) -> None:
        deadline_s = time.monotonic() + STARTS_WITHIN_S
        while b"Ray runtime started" not in self._log(index).read_bytes():
            if time.monotonic() > deadline_s:
                said = self._log(index).read_text(errors="replace")[-2000:]
                raise HostFailed(f"Ray did not start on host {index} within {STARTS_WITHIN_S:g} s; its output:\n{said}")
            if self._hosts[index].poll() is not None:
                self._start(index)  # on a busy machine, Ray may time out on itself
            time.sleep(_POLL_S)

    def _enter(self, index: int) -> tuple[str, ...]:
        """Words that run a command on a host."""
        return ("nsenter", "-t", str(_init_of(self._hosts[index])), "--net", "--mount", "--pid", "--")

    def _weft(self, home: Path, *words: str, verb: str) -> None:
        ended = subprocess.run(
            [*self._enter(0), sys.executable, "-m", "weft", verb, *words],
            env={**self._environment, "WEFT_HOME": str(home)},
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
        )
        if ended.returncode != 0:
            raise HostFailed(f"`weft {verb}` on host 0 ended with exit code {ended.returncode}: {ended.stderr.strip()}")


def _environment(token: str) -> dict[str, str]:
    """For Ray and all that runs on it.  Workers find the benchmark's own modules without a fresh interpreter."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "WEFT_"))}
    return {
        **own,
        **KEEP_MEMORY,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        "RAY_DISABLE_IMPORT_WARNING": "1",
        "RAY_raylet_start_wait_time_s": "150",
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src"))),
    }


def _init_of(host: subprocess.Popen[bytes]) -> int:
    """The process that is the host."""
    return int(Path(f"/proc/{host.pid}/task/{host.pid}/children").read_text().split()[0])
