"""Which job had which devices when, from the events in the journal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from weft.core.events import Event, JobsPurged, WorkersExited, WorkersStarted

MAX_BARS = 10_000


@dataclass(frozen=True, slots=True)
class AttemptBar:
    """One attempt."""

    job_id: str
    attempt: int
    start_s: float
    devices: tuple[int, ...]
    end_s: float | None = None
    """``None`` while it runs."""


class AttemptBars:
    """Gets events in order; keeps the newest bars."""

    def __init__(self) -> None:
        self._bars: dict[tuple[str, int], AttemptBar] = {}
        self._ends_s: dict[tuple[str, int], float] = {}
        """Ends of attempts that started before the first event seen here."""

    def note(self, event: Event) -> None:
        if isinstance(event, WorkersStarted):
            key = event.job_id, event.attempt
            self._bars.setdefault(key, AttemptBar(*key, event.at_s, event.devices))
            if len(self._bars) > MAX_BARS:
                del self._bars[next(iter(self._bars))]
        elif isinstance(event, WorkersExited):
            key = event.job_id, event.attempt
            if key in self._bars:
                self._bars[key] = replace(self._bars[key], end_s=event.at_s)
            else:
                self._ends_s[key] = event.at_s
        elif isinstance(event, JobsPurged):
            gone = set(event.job_ids)
            self._bars = {key: bar for key, bar in self._bars.items() if key[0] not in gone}
            self._ends_s = {key: end_s for key, end_s in self._ends_s.items() if key[0] not in gone}

    def after(self, past: AttemptBars, job_ids: Iterable[str]) -> list[AttemptBar]:
        """All bars of these jobs, oldest first: those of ``past``, which got the earlier events, and our own."""
        known = set(job_ids)
        ended = (
            replace(bar, end_s=self._ends_s.get(key)) if bar.end_s is None else bar for key, bar in past._bars.items()
        )
        # A copy: the loop's thread adds bars at the same time.
        return [bar for bar in [*ended, *self._bars.copy().values()] if bar.job_id in known]


def between(bars: Iterable[AttemptBar], since_s: float, until_s: float) -> list[AttemptBar]:
    """The bars that overlap this period; only the newest, if there are too many."""
    return [bar for bar in bars if bar.start_s <= until_s and (bar.end_s is None or bar.end_s >= since_s)][-MAX_BARS:]
