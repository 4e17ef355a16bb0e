"""What `weft up` can set.  Declared once: the parser, its help text, and the controller all use this class."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from typing import Annotated

from weft.core.command_line import Option
from weft.core.submission import MAX_WORKERS
from weft.errors import UsageError

DEFAULT_PORT = 8477


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    """Options of one controller, with their defaults."""

    engine: Annotated[str, Option("run workers on this machine or on a Ray cluster", choices=("local", "ray"))] = (
        "local"
    )
    address: Annotated[
        str | None, Option("head of the Ray cluster", "auto: the one this machine is part of", metavar="HOST:PORT")
    ] = None
    insecure_ray: Annotated[
        bool,
        Option(
            "accept a Ray cluster without token authentication: anyone who can reach its ports can run code as you "
            "on every node"
        ),
    ] = False
    checkpoints: Annotated[
        str,
        Option(
            "shared: every node sees this home; relay: nodes keep checkpoints themselves, and copies are kept here",
            choices=("shared", "relay"),
        ),
    ] = "shared"
    code: Annotated[
        str,
        Option(
            "shared: every node sees the jobs' folders; ship: a job's folder is packed and sent to its nodes",
            choices=("shared", "ship"),
        ),
    ] = "shared"
    devices: Annotated[
        int | None, Option("number of devices", "every GPU, or every core without GPUs", min=1, max=MAX_WORKERS)
    ] = None
    policy: Annotated[str, Option("decides how many workers each job gets", metavar="NAME")] = "balanced"
    port: Annotated[int, Option("port of the API and dashboard on 127.0.0.1; 0 picks a free one", max=65535, min=0)] = (
        DEFAULT_PORT
    )
    grace_s: Annotated[float, Option("time for workers to save a checkpoint before they are killed", min=0)] = 120.0
    hold_s: Annotated[float, Option("minimum time between resizes of a job", min=0)] = 10.0
    quota: Annotated[
        str | None,
        Option("most devices a user's jobs may hold together, such as ana=4,bo=2", "none", metavar="USER=N[,...]"),
    ] = None
    cold: Annotated[bool, Option("start workers without the warm pool")] = False
    no_share: Annotated[bool, Option("never let two jobs take turns on a device")] = False
    keep: Annotated[
        str | None, Option("delete finished jobs after this long, such as 30d", "forever", metavar="DURATION")
    ] = None
    otel: Annotated[
        bool, Option("send OpenTelemetry traces of jobs to the collector that the OTEL_* environment variables name")
    ] = False
    accept_loss: Annotated[bool, Option("start even if the journal has lost events")] = False
    paranoid: Annotated[bool, Option("check every invariant after every event")] = False

    @property
    def quotas(self) -> dict[str, int]:
        """Devices by user, from ``quota``.

        >>> ControllerOptions(quota="ana=4,bo=2").quotas
        {'ana': 4, 'bo': 2}
        """
        found: dict[str, int] = {}
        for part in [] if self.quota is None else self.quota.split(","):
            user, _, number = part.strip().rpartition("=")
            if not user or not number.isascii() or not number.isdigit() or user in found:
                raise UsageError(f"--quota {self.quota}: expected each user once, with a number: --quota ana=4,bo=2")
            found[user] = int(number)
        return found

    def command(self, *python_flags: str) -> list[str]:
        """The command that runs this controller in the foreground.  ``WEFT_HOME`` says where."""
        words = [sys.executable, *python_flags, "-m", "weft", "up", "--foreground"]
        for name, value in asdict(self).items():
            if value is not None and value is not False:
                words += ["--" + name.replace("_", "-"), *([] if value is True else [str(value)])]
        return words
