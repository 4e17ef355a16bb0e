"""Which commands build and reshape a small network of namespaces.  Pure: nothing is run here.

    host 0 [eth0 10.77.0.1] ---- port0 \\
    host 1 [eth0 10.77.0.2] ---- port1  } br0, in a namespace of its own
    host 2 [eth0 10.77.0.3] ---- port2 /

Every device is created inside its namespace, so the machine's own network never sees any of them.  What a host
sends is shaped at its ``eth0``.  With three hosts or more two may send to one: then what a host receives is shaped
too, at its port.  That is a full-duplex network card of the given rate behind a switch that never blocks.  Between two
hosts a second shaper would only spend core time on a limit that the sender keeps already.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from weft.errors import UsageError

Command = tuple[str, ...]

BRIDGE = "br0"
HOST_INTERFACE = "eth0"
MASTER_PORT = 29400

# One segmentation-offload packet is up to 64 KB.  A bucket of two of them lets it pass whole, as it would
# through a card with offload; a smaller one makes the shaper cut it up, and measures the core, not the link.
BURST_BYTES = 128 * 1024
# Room for a few senders at one receiver: a switch with shallow queues would turn eight hosts into a
# benchmark of packet loss.
QUEUE_BYTES = 4 * 1024 * 1024

# A step frees and allocates hundreds of megabytes.  By default, the C library returns them to the kernel each time, and
# clearing pages makes every contender's step about a tenth longer, unevenly.  So all contenders keep what they free.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(16 << 30)}

_NAMESPACE = re.compile(r"^weft-(?P<pid>\d+)-(?P<born>\d+)-(?:switch|host\d+)$")


@dataclass(frozen=True, slots=True)
class Owner:
    """The process a testbed belongs to.  Its birth time tells it from a later process with the same pid."""

    pid: int
    born_ticks: int


def owner_of(namespace: str) -> Owner | None:
    """Whose testbed a namespace belongs to; None for namespaces that are not ours.

    >>> owner_of("weft-12-99-host0")
    Owner(pid=12, born_ticks=99)
    >>> owner_of("vpn") is None
    True
    """
    match = _NAMESPACE.match(namespace)
    return Owner(int(match["pid"]), int(match["born"])) if match else None


@dataclass(frozen=True, slots=True)
class NetworkPlan:
    """A network of ``num_hosts`` hosts that belongs to one process."""

    owner: Owner
    num_hosts: int
    rate_bits_per_s: float
    workers_per_host: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.num_hosts <= 200:
            raise UsageError(f"a testbed of {self.num_hosts} hosts was requested: expected 1 to 200")
        if not 1 <= self.workers_per_host <= 64:
            raise UsageError(f"{self.workers_per_host} workers per host were requested: expected 1 to 64")
        check_rate(self.rate_bits_per_s)

    @property
    def num_workers(self) -> int:
        return self.num_hosts * self.workers_per_host

    def host_of(self, rank: int) -> int:
        """The host that a worker runs on: neighbors have consecutive ranks, as under torchrun."""
        return rank // self.workers_per_host

    @property
    def switch(self) -> str:
        return f"weft-{self.owner.pid}-{self.owner.born_ticks}-switch"

    def host(self, index: int) -> str:
        return f"weft-{self.owner.pid}-{self.owner.born_ticks}-host{index}"

    def address(self, index: int) -> str:
        return f"10.77.0.{index + 1}"

    @property
    def namespaces(self) -> tuple[str, ...]:
        return (self.switch, *(self.host(index) for index in range(self.num_hosts)))

    def build(self) -> list[Command]:
        """Commands that make the network; each needs those before it."""
        commands: list[Command] = [("ip", "netns", "add", name) for name in self.namespaces]
        commands.append(("ip", "-n", self.switch, "link", "add", BRIDGE, "type", "bridge"))
        commands.append(("ip", "-n", self.switch, "link", "set", BRIDGE, "up"))
        for index in range(self.num_hosts):
            commands += self._cable(index)
        return commands + self._shape("add", self.rate_bits_per_s)

    def reshape(self, rate_bits_per_s: float) -> list[Command]:
        """Commands that change every link's rate, even while traffic is flowing."""
        check_rate(rate_bits_per_s)
        return self._shape("change", rate_bits_per_s)

    def _cable(self, index: int) -> list[Command]:
        host, port = self.host(index), f"port{index}"
        return [
            (
                *("ip", "-n", self.switch, "link", "add", port, "type", "veth"),
                *("peer", "name", HOST_INTERFACE, "netns", host),
            ),
            # No IPv6 neighbor chatter: the interface counters are read as the benchmark's bytes on the wire.
            ("ip", "-n", self.switch, "link", "set", port, "addrgenmode", "none"),
            ("ip", "-n", host, "link", "set", HOST_INTERFACE, "addrgenmode", "none"),
            ("ip", "-n", self.switch, "link", "set", port, "master", BRIDGE, "up"),
            ("ip", "-n", host, "addr", "add", f"{self.address(index)}/24", "dev", HOST_INTERFACE),
            ("ip", "-n", host, "link", "set", HOST_INTERFACE, "up"),
            ("ip", "-n", host, "link", "set", "lo", "up"),
        ]

    def _shape(self, verb: str, rate_bits_per_s: float) -> list[Command]:
        shaper = (
            *("root", "tbf", "rate", f"{round(rate_bits_per_s)}bit"),
            *("burst", str(BURST_BYTES), "limit", str(QUEUE_BYTES)),
        )
        commands: list[Command] = []
        for index in range(self.num_hosts):
            ends = [(self.host(index), HOST_INTERFACE)]
            if self.num_hosts > 2:
                ends.append((self.switch, f"port{index}"))
            for namespace, device in ends:
                commands.append(("tc", "-n", namespace, "qdisc", verb, "dev", device, *shaper))
        return commands


def check_rate(rate_bits_per_s: float) -> None:
    """Refuse rates that ``tc`` would misread or that no run would end with."""
    if not 1e5 <= rate_bits_per_s <= 1e11:
        raise UsageError(f"a link rate of {rate_bits_per_s:g} bit/s was requested: expected between 1e5 and 1e11")


def worker_environment(plan: NetworkPlan, rank: int) -> dict[str, str]:
    """What torchrun would set."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(plan.num_workers),
        "LOCAL_RANK": str(rank % plan.workers_per_host),
        "LOCAL_WORLD_SIZE": str(plan.workers_per_host),
        "GROUP_RANK": str(plan.host_of(rank)),
        "MASTER_ADDR": plan.address(0),
        "MASTER_PORT": str(MASTER_PORT),
        "GLOO_SOCKET_IFNAME": HOST_INTERFACE,
        "OMP_NUM_THREADS": "1",
        "PYTHONFAULTHANDLER": "1",  # a Python program that hangs then says where, when it is aborted
        **KEEP_MEMORY,
    }


def worker_command(plan: NetworkPlan, rank: int, core: int, command: Command) -> Command:
    """``command`` as worker ``rank``, held to one core as if its host had no other."""
    return ("ip", "netns", "exec", plan.host(plan.host_of(rank)), "taskset", "-c", str(core), *command)
