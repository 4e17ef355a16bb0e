"""A real Ray cluster on one machine: each node has its own network, its own processes, and its own /tmp.

A node is the init process of its namespaces: killed, everything on it is gone at once, as when power is lost.  Nodes
see one folder in common, which they are given; anything else they share would be an accident.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from tests.hang_limit import HANG_S

TOKEN = "0123456789abcdef0123456789abcdef0123456789abcdef"
PORT = 6379
STARTS_WITHIN_S = HANG_S
REPOSITORY = Path(__file__).resolve().parents[1]
_numbers = itertools.count()

_NODE = """
set -e
stage=$(mktemp -d /tmp/weft-stage.XXXXXX)
mount -t tmpfs none $stage
for path in {visible}; do mkdir -p $stage/${{path#/tmp/}}; mount --bind $path $stage/${{path#/tmp/}}; done
mount --move $stage /tmp
mount -t tmpfs none /dev/shm
{run} {ray} start {role} --node-ip-address={address} --num-cpus={num_cpus} --object-store-memory=80000000 \\
  --disable-usage-stats {labels} --block{after}
"""


def why_not() -> str:
    """Why no such cluster can be made here; empty if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "unshare", "nsenter") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} is missing"
    return "" if Path(sys.prefix, "bin", "ray").exists() else "Ray is not installed"


class RayTestNode:
    """One node; it can be started again after it was killed."""

    def __init__(self, cluster: RayTestCluster, number: int) -> None:
        self._cluster = cluster
        self.number = number
        self.address = f"10.{cluster.network}.0.{number + 1}"
        self._space = f"{cluster.name}n{number}"
        self.link = f"{cluster.name}v{number}"
        self._process: subprocess.Popen[bytes] | None = None
        self._options: dict[str, object] = {}
        _ip("netns", "add", self._space)
        _ip("link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", self._space)
        _ip("link", "set", self.link, "master", cluster.bridge, "up")
        for words in (["addr", "add", f"{self.address}/24", "dev", "eth0"], ["link", "set", "eth0", "up"]):
            _ip("-n", self._space, *words)
        _ip("-n", self._space, "link", "set", "lo", "up")

    def start(
        self,
        *,
        token: str | None = TOKEN,
        num_cpus: int = 2,
        variables: Mapping[str, str] | None = None,
        is_service: bool = False,
        kind: str = "",
    ) -> None:
        """Start Ray; returns at once, see :meth:`wait_until_up`.

        ``variables``: more of Ray's environment.  ``is_service``: the node outlives its Ray, and starts it again.
        ``kind``: of its devices, as a label.
        """
        self._options = {
            "token": token,
            "num_cpus": num_cpus,
            "variables": variables,
            "is_service": is_service,
            "kind": kind,
        }
        is_head = self.number == 0
        head = self._cluster.nodes[0].address if self._cluster.nodes else self.address
        visible = [str(self._cluster.shared), str(REPOSITORY), str(Path(sys.prefix))]
        script = _NODE.format(
            visible=" ".join(path for path in visible if path.startswith("/tmp/")),
            run="while sleep 1; do" if is_service else "exec",
            ray=Path(sys.prefix, "bin", "ray"),
            role=f"--head --port={PORT} --include-dashboard=false" if is_head else f"--address={head}:{PORT}",
            address=self.address,
            num_cpus=num_cpus,
            labels=f"--labels weft.kind={kind}" if kind else "",
            after=" || true; done" if is_service else "",
        )
        spaces = ["nsenter", f"--net=/run/netns/{self._space}", "unshare", "--mount", "--pid", "--fork"]
        self.log = self._cluster.shared / f"node{self.number}.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*spaces, "--kill-child", "--mount-proc", "bash", "-c", script],
                env={**environment(token), **(variables or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def start_again(self) -> None:
        """As it was started before, and wait until it is up."""
        self.kill()
        self.start(**self._options)  # type: ignore[arg-type]
        self.wait_until_up()

    def wait_until_up(self) -> None:
        until(self._is_up, STARTS_WITHIN_S, lambda: self.log.read_text())

    def _is_up(self) -> bool:
        if self.has_ended():
            self.start(**self._options)  # type: ignore[arg-type]  # on a busy machine Ray loses patience with itself
        return b"Ray runtime started" in self.log.read_bytes()

    def has_ended(self) -> bool:
        """Whether Ray has given up on this node by itself."""
        return self._process is None or self._process.poll() is not None

    @property
    def init(self) -> int:
        """The process that is the node."""
        assert self._process is not None
        return _children(self._process.pid)[0]

    def enter(self) -> list[str]:
        """Words that run a command on this node."""
        return ["nsenter", "-t", str(self.init), "--net", "--mount", "--pid", "--"]

    def pids(self, word: str) -> list[int]:
        """Processes of this node whose command line or name has this word."""
        found = []
        space = os.readlink(f"/proc/{self.init}/ns/pid")
        for entry in os.scandir("/proc"):
            with contextlib.suppress(OSError):
                is_here = entry.name.isdigit() and os.readlink(f"{entry.path}/ns/pid") == space
                words, name = (Path(entry.path, file).read_bytes() for file in ("cmdline", "comm"))
                # A zombie has no command line: the node's first process is Ray's, which does not reap the others'.
                if is_here and words and word.encode() in words + name:
                    found.append(int(entry.name))
        return sorted(found)

    def workers(self) -> list[int]:
        """Children of this node's keepers."""
        return [child for keeper in self.pids("weft-keeper") for child in _children(keeper)]

    def kill(self) -> None:
        """As if power was lost."""
        if self._process is not None:
            with contextlib.suppress(IndexError, ProcessLookupError):
                os.kill(self.init, signal.SIGKILL)
            self._process.kill()
            self._process.wait()
            self._process = None

    def cut(self) -> None:
        """Nothing gets through to the other nodes."""
        _ip("link", "set", self.link, "down")

    def join(self) -> None:
        _ip("link", "set", self.link, "up")

    def close(self) -> None:
        self.kill()
        _ip("netns", "del", self._space)


class RayTestCluster:
    """Nodes on one bridge; node 0 is the head."""

    def __init__(self, shared: Path) -> None:
        self.shared = shared
        number = next(_numbers)  # links of a cluster that was just closed may still be there
        self.name = f"wr{os.getpid() % 100_000}{chr(ord('a') + number % 26)}"
        self.network = 64 + (os.getpid() + 37 * number) % 150
        self.bridge = f"{self.name}b"
        self.nodes: list[RayTestNode] = []
        _ip("link", "add", self.bridge, "type", "bridge")
        _ip("link", "set", self.bridge, "up")

    def add(self, **options: object) -> RayTestNode:
        node = RayTestNode(self, len(self.nodes))
        self.nodes.append(node)
        node.start(**options)  # type: ignore[arg-type]
        if node.number == 0:
            node.wait_until_up()
        return node

    @property
    def address(self) -> str:
        return f"{self.nodes[0].address}:{PORT}"

    def close(self) -> None:
        for node in reversed(self.nodes):
            node.close()
        _ip("link", "del", self.bridge)


@contextlib.contextmanager
def cluster_in(folder: Path) -> Iterator[RayTestCluster]:
    """Without nodes, gone at the end; skips the test where none can be made."""
    if reason := why_not():
        pytest.skip(reason)
    made = RayTestCluster(folder)
    try:
        yield made
    finally:
        made.close()


def environment(token: str | None = TOKEN) -> dict[str, str]:
    """For Ray and everything that talks to it."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    authentication = {} if token is None else {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    return {**own, **authentication, "RAY_DISABLE_IMPORT_WARNING": "1", "RAY_raylet_start_wait_time_s": "150"}


def until(holds: Callable[[], bool], within_s: float, tell: Callable[[], str] = lambda: "waited in vain") -> None:
    latest_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < latest_s, tell()
        time.sleep(0.05)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _children(pid: int) -> Sequence[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
