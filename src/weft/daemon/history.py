"""What happened to each job, in sentences, for ``weft explain``; and which job had which devices when."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from weft.core.events import (
    CancelRequested,
    DevicesAssigned,
    Event,
    Fate,
    JobChanged,
    JobsPurged,
    JobSubmitted,
    WorkersExited,
    WorkersStarted,
)
from weft.daemon.attempt_bars import AttemptBars
from weft.daemon.contract import Decision, Sentence

_MAX_SENTENCES = 200
_MAX_DECISIONS = 1000


class History:
    """Gets every event, in order; keeps the last sentences of each job and the last decisions."""

    def __init__(self) -> None:
        self.bars = AttemptBars()
        self._sentences: dict[str, deque[Sentence]] = {}
        self._decisions: deque[Decision] = deque(maxlen=_MAX_DECISIONS)

    def note(self, event: Event) -> None:
        self.bars.note(event)
        if isinstance(event, JobsPurged):
            for job_id in event.job_ids:
                self._sentences.pop(job_id, None)
        for job_id, text in sentences_of(event):
            kept = self._sentences.setdefault(job_id, deque(maxlen=_MAX_SENTENCES))
            if not kept or kept[-1].text != text:
                kept.append(Sentence(event.at_s, text))
        if isinstance(event, DevicesAssigned):
            self._decisions.append(Decision(event.at_s, dict(event.devices), dict(event.reasons)))

    def of(self, job_id: str) -> list[Sentence]:
        return list(self._sentences.get(job_id, ()))

    def decisions(self, last: int) -> list[Decision]:
        kept = list(self._decisions)
        return kept[-last:] if last > 0 else []


def sentences_of(event: Event) -> Iterator[tuple[str, str]]:
    """Job and sentence, for every job the event is about; none for nodes, progress, and the clock."""
    match event:
        case JobSubmitted(spec=spec):
            sizes = " to ".join(map(str, dict.fromkeys((spec.min_workers, spec.max_workers))))
            yield spec.id, f"submitted, for {sizes} worker{'s' if spec.max_workers > 1 else ''}"
        case CancelRequested(job_id=job_id, reason=reason):
            yield job_id, reason or "canceled"
        case JobChanged(job_id=job_id):
            given = [(words, getattr(event, name)) for name, words in _CHANGED.items()]
            yield (
                job_id,
                "changed: " + ", ".join(f"{words} is now {value:g}" for words, value in given if value is not None),
            )
        case DevicesAssigned(reasons=reasons, details=details):
            for job_id, reason in reasons.items():
                yield job_id, f"{reason}; {details[job_id]}" if job_id in details else reason
        case WorkersStarted(job_id=job_id, attempt=attempt):
            yield job_id, f"workers of attempt {attempt} started"
        case WorkersExited(job_id=job_id, attempt=attempt, fate=fate):
            yield job_id, f"attempt {attempt} {_ENDS[fate]}{f': {event.reason}' if event.reason else ''}"


_CHANGED = {
    "weight": "weight",
    "priority": "priority",
    "min_workers": "minimum number of workers",
    "max_workers": "maximum number of workers",
}
_ENDS = {
    Fate.COMPLETED: "completed",
    Fate.STOPPED: "stopped as requested",
    Fate.FAILED: "failed",
    Fate.LOST: "was lost",
}
