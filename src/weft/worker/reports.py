"""What a worker tells about its progress: a few numbers, a few times a second, to whoever listens."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from weft.core.turns import TURNS
from weft.overlap.handle import Overlap
from weft.worker.channel import Channel

_REPORT_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class StepReport:
    """One datagram of the channel, and one line of the progress bar.

    Metrics are this worker's own (``loss`` among them): averaging them here would cost a collective.
    """

    job_id: str | None
    attempt: int
    rank: int
    world_size: int
    step: int
    total_steps: int | None
    epoch: int
    step_s: float
    exposed_s: float
    samples_per_s: float
    turn_s: float = 0.0
    """Part of ``step_s`` in which the worker waited for its turn on a device that it shares."""
    metrics: dict[str, float] = field(default_factory=dict)
    memory_bytes: int = 0
    """Most this worker has had in memory so far."""
    takes_turns: bool = False
    """Whether it could share its device: it computes behind a gate, which also saw its waits for the network."""
    can_resume: bool = True
    """Whether a stop would lose nothing: it has said what is to be saved."""

    def message(self) -> dict[str, Any]:
        return {"kind": "step", **asdict(self)}


class Meter:
    """Step time and samples per second since the last report."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._since_s = now()
        self._num_steps = 0
        self._num_samples = 0
        self._turn_wait_s = TURNS.turn_wait_s
        self._network_wait_s = TURNS.network_wait_s
        self._waited_s = 0.0
        self._metrics: dict[str, Any] = {}

    def log(self, metrics: dict[str, Any]) -> None:
        # Reading a number off a GPU waits for it; kept as it is until a report is due.
        for name, value in metrics.items():
            self._metrics[name] = value.detach() if isinstance(value, torch.Tensor) else value

    def step_done(self, num_samples: int) -> None:
        self._num_steps += 1
        self._num_samples += num_samples

    @property
    def due(self) -> bool:
        return self._num_steps > 0 and self._now() - self._since_s >= _REPORT_EVERY_S

    def take(self) -> tuple[float, float, float, dict[str, float]]:
        """Seconds per step, how many of them waiting for the turn, samples (of all workers) per second, and the newest
        metrics; then begin anew."""
        elapsed_s = max(self._now() - self._since_s, 1e-9)
        step_s = elapsed_s / self._num_steps if self._num_steps else 0.0
        turn_s = (TURNS.turn_wait_s - self._turn_wait_s) / max(self._num_steps, 1)
        self._waited_s = (TURNS.network_wait_s - self._network_wait_s) / max(self._num_steps, 1)
        self._turn_wait_s, self._network_wait_s = TURNS.turn_wait_s, TURNS.network_wait_s
        samples_per_s = self._num_samples / elapsed_s
        self._since_s, self._num_steps, self._num_samples = self._now(), 0, 0
        return step_s, turn_s, samples_per_s, {name: float(value) for name, value in self._metrics.items()}

    def exposed_s(self, handle: Overlap | None) -> float:
        """Seconds of a step in which the worker waited for the network, after :meth:`take`; 0 where nobody measures it.

        An overlapped model knows its own waits; those of other models are seen only behind a gate.
        """
        if handle is not None and handle.schedule.clock.steps:
            return handle.schedule.clock.steps[-1].exposed_s
        return self._waited_s


def peak_memory_bytes() -> int:
    """Most this process has had in memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def send_report(channel: Channel | None, report: StepReport) -> None:
    if channel is not None:
        channel.send(report.message())
