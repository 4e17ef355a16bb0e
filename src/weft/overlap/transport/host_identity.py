"""Which host a worker is on, and how all workers agree on which of them share one.

torchrun numbers its nodes: if every worker has its GROUP_RANK and the counts match LOCAL_WORLD_SIZE, that numbering is
used.  Otherwise workers share a host if they run on the same kernel (by its boot id) in the same network namespace, so
containers with their own network count as separate hosts.  WEFT_HOST, a name given to each worker, overrides both;
tests use it to make one machine look like several.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from weft.overlap.transport.host_layout import HostLayout, host_layout

HOST_VARIABLE = "WEFT_HOST"
_TORCHRUN = ("GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@dataclass(frozen=True, slots=True)
class HostIdentity:
    """What one worker knows about the host it is on."""

    machine: str
    given: str = ""
    # torchrun's GROUP_RANK, LOCAL_RANK and LOCAL_WORLD_SIZE
    torchrun: tuple[str, ...] = ()


def own_identity(environ: Mapping[str, str] = os.environ) -> HostIdentity:
    """The identity of this process's host."""
    given = tuple(environ.get(name, "") for name in _TORCHRUN)
    return HostIdentity(_machine(), environ.get(HOST_VARIABLE, ""), given if all(given) else ())


def agreed_layout(identities: Sequence[HostIdentity]) -> HostLayout:
    """Host names in rank order, from what all workers know; the same on every worker."""
    if any(identity.given for identity in identities):
        return host_layout([identity.given or identity.machine for identity in identities])
    if _is_torchrun_consistent(identities):
        return host_layout([identity.torchrun[0] for identity in identities])
    return host_layout([identity.machine for identity in identities])


def _is_torchrun_consistent(identities: Sequence[HostIdentity]) -> bool:
    """Whether every worker was started by torchrun, no number means two machines, and no worker is missing."""
    if not all(identity.torchrun for identity in identities):
        return False
    sizes = Counter(identity.torchrun[0] for identity in identities)
    machines = {(identity.torchrun[0], identity.machine) for identity in identities}
    return (
        len(machines) == len(sizes)
        and len({identity.torchrun[:2] for identity in identities}) == len(identities)
        and all(identity.torchrun[2] == str(sizes[identity.torchrun[0]]) for identity in identities)
    )


def _machine() -> str:
    parts = []
    with suppress(OSError):
        parts = [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/net")]
    return " ".join(parts) or socket.gethostname()
