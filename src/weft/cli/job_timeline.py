"""Where a job ran when, from the decisions of the controller: for ``weft trace ID``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.core.chrome_trace import Span
from weft.core.status_rows import DecisionRow, JobDetail


@dataclass(frozen=True, slots=True)
class Stay:
    """A time in which a job was given the same devices, or none."""

    start_s: float
    end_s: float
    devices: tuple[int, ...]
    reason: str = ""

    @property
    def name(self) -> str:
        num = len(self.devices)
        return f"{num} worker{'s' if num != 1 else ''}" if num else "waits"

    def row(self) -> dict[str, object]:
        return {
            "start_s": self.start_s,
            "end_s": self.end_s,
            "workers": len(self.devices),
            "devices": list(self.devices),
            "reason": self.reason,
        }


def stays(job: JobDetail, decisions: Sequence[DecisionRow], now_s: float) -> list[Stay]:
    """The life of a job from submission to its end, or until now.

    A decision is a moment before the workers have followed it: they stop, and start again elsewhere.
    """
    begin_s = job["submitted_s"]
    end_s = max(job["finished_s"] if job["finished_s"] is not None else now_s, begin_s)
    found: list[Stay] = []
    devices: tuple[int, ...] = ()
    reason = ""
    for decision in decisions:
        at_s = decision["time_s"]
        if not begin_s <= at_s < end_s:
            continue
        wanted = tuple(decision["devices"].get(job["id"], ()))
        why = decision["reasons"].get(job["id"], "")
        if wanted == devices:
            reason = reason or why
            continue
        if at_s > begin_s:
            found.append(Stay(begin_s, at_s, devices, reason))
        begin_s, devices, reason = at_s, wanted, why
    found.append(Stay(begin_s, end_s, devices, reason))
    return found


def spans(job: JobDetail, lived: Sequence[Stay]) -> list[Span]:
    """The same for Perfetto: a track for the job, and one for each device it had."""
    zero_s = job["submitted_s"]
    found = []
    for stay in lived:
        tracks = ["job", *(f"device {device}" for device in stay.devices)]
        found += [
            Span(job["id"], track, stay.name, stay.start_s - zero_s, stay.end_s - stay.start_s, {"reason": stay.reason})
            for track in tracks
        ]
    return found
