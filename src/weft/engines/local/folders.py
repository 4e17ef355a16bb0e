"""Where the local engine keeps what it must not forget.

<home>/engine/lock              held by the controller that uses this home
<home>/engine/nudges            a fifo: keepers say here that there is news
<home>/engine/zygote.log        last words of the process that forks keepers
<home>/engine/orders/J@N.json   one file per attempt that is not forgotten: what to start
<home>/jobs/J/attempts/N/       one folder per attempt, for good:
    rank0.out rank0.err ...         what its workers printed
    claim.json                      who keeps it; made once, so that it is started once
    status.json                     its workers, and how it ended
    stop, kill                      it was asked to
    keeper.log                      last words of its keeper
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from weft.errors import EngineError

LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class Folders:
    """The places below one home."""

    home: Path

    @property
    def engine(self) -> Path:
        return self.home / "engine"

    @property
    def orders(self) -> Path:
        return self.engine / "orders"

    @property
    def nudges(self) -> Path:
        return self.engine / "nudges"

    def order(self, job_id: str, attempt: int) -> Path:
        return self.orders / f"{_quoted(job_id)}@{attempt}.json"

    def attempt(self, job_id: str, attempt: int) -> AttemptFolder:
        return AttemptFolder(self.home / "jobs" / _quoted(job_id) / "attempts" / str(attempt))

    def ordered(self) -> list[tuple[str, int]]:
        """Attempts that were ordered and not forgotten."""
        names = sorted(file.name.removesuffix(".json") for file in self.orders.glob("*@*.json"))
        parts = [name.rpartition("@") for name in names]
        return [(unquote(job), int(attempt)) for job, _, attempt in parts if attempt.isascii() and attempt.isdigit()]


@dataclass(frozen=True, slots=True)
class AttemptFolder:
    """The files of one attempt."""

    path: Path

    @property
    def claim(self) -> Path:
        return self.path / "claim.json"

    @property
    def status(self) -> Path:
        return self.path / "status.json"

    @property
    def stop(self) -> Path:
        return self.path / "stop"

    @property
    def kill(self) -> Path:
        return self.path / "kill"

    @property
    def keeper_log(self) -> Path:
        return self.path / "keeper.log"


def _quoted(job_id: str) -> str:
    """A file name that is this id and no path, whatever the id holds; ordinary ids stay as they are.

    >>> _quoted("resnet-7"), _quoted("../a b")
    ('resnet-7', '%2E.%2Fa%20b')
    """
    name = quote(job_id, safe="", errors="surrogatepass")
    if name.startswith("."):
        name = "%2E" + name[1:]
    if not 0 < len(name) <= LONGEST_NAME:
        raise EngineError(
            f"job id {job_id[:40]!r}: expected 1 to {LONGEST_NAME} characters, most of them plain letters"
        )
    return name
