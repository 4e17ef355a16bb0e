"""What a worker reports about its steps: one datagram of the job channel, and what the journal keeps of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from weft.core.plain_json import count, parse_object, real

MAX_MESSAGE_BYTES = 1 << 16
"""Of a datagram on the job channel."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far along a job is, and how fast."""

    step: int
    total_steps: int | None = None
    step_s: float = 0.0
    exposed_s: float = 0.0
    loss: float | None = None

    def after(self, earlier: Progress) -> Progress:
        """This progress, with unknown values taken from an earlier one.

        >>> Progress(8, step_s=0.4).after(Progress(7, total_steps=100, step_s=0.5, loss=2.0))
        Progress(step=8, total_steps=100, step_s=0.4, exposed_s=0.0, loss=2.0)
        """
        return replace(
            self,
            total_steps=earlier.total_steps if self.total_steps is None else self.total_steps,
            loss=earlier.loss if self.loss is None else self.loss,
        )


NO_PROGRESS = Progress(0)


@dataclass(frozen=True, slots=True)
class BatchReport:
    """The batch size of a job that was submitted with a range of them."""

    size: int
    """The global batch size in this attempt."""
    script_size: int
    """The global batch size set in the script."""
    noise_scale: float | None = None
    """How noisy gradients are, in samples (see ``perf/gradient_noise.py``); None until measured."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """One worker's progress, as sent.  Only the controller can tell whether the sender is who it claims to be.

    Metrics are this worker's own: averaging them over all workers would cost a collective.
    """

    job_id: str
    """Empty for a worker without a controller."""
    attempt: int
    rank: int
    world_size: int
    progress: Progress
    epoch: int = 0
    samples_per_s: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Whatever the script logs; ``loss`` is also part of its progress."""
    memory_bytes: int = 0
    """The most memory this worker has used so far."""
    takes_turns: bool = False
    """Whether it could share its device: it computes behind a gate, which also measures its waits for the network."""
    can_resume: bool | None = None
    """Whether a stop would lose nothing, because the script declares what to save; ``None`` if unknown."""
    phases: tuple[float, float, float] | None = None
    """Seconds of forward, backward, and update in its last step; only an overlapped model measures them."""
    network_s: float | None = None
    """Seconds per step in which its messages keep the link busy; only an overlapped model knows them."""
    turn_wait_s: float = 0.0
    """Seconds per step spent waiting for a turn on a shared device."""
    batch: BatchReport | None = None
    """For a job with a range of batch sizes."""

    @property
    def gap_s(self) -> float:
        """Seconds per step that another job could use.

        An overlapped model also sends while it computes: a partner would wait for the link in the rest of its gaps.
        """
        if self.phases is None:
            return self.progress.exposed_s
        step_s = self.progress.step_s
        busy_s = step_s if self.network_s is None else self.network_s
        return max(0.0, min(self.progress.exposed_s, step_s - busy_s))

    def message(self) -> dict[str, Any]:
        """The datagram.  Workers outlive controllers, so each side also reads older formats."""
        fields = asdict(self)
        progress = fields.pop("progress")
        del progress["loss"]  # among the metrics
        return {"kind": "step", **fields, **progress}


def parse_report(data: bytes) -> StepReport | None:
    """The report in ``data`` if its numbers are possible; ``None`` for anything else.

    >>> message = b'{"kind":"step","job_id":"a","attempt":1,"rank":0,"world_size":1,"step":3,"step_s":0.1}'
    >>> parse_report(message).progress
    Progress(step=3, total_steps=None, step_s=0.1, exposed_s=0.0, loss=None)
    """
    message = parse_object(data)
    if message is None or message.get("kind") != "step" or not isinstance(message.get("job_id"), str):
        return None
    attempt, rank, world_size, step = (count(message.get(name)) for name in ("attempt", "rank", "world_size", "step"))
    step_s = real(message.get("step_s"))
    if attempt is None or rank is None or world_size is None or step is None or step_s is None:
        return None
    step_s = max(step_s, 0.0)
    sent, can_resume = message.get("metrics"), message.get("can_resume")
    values = {name: real(value) for name, value in sent.items()} if isinstance(sent, dict) else {}
    metrics = {name: value for name, value in values.items() if value is not None}
    exposed_s = min(max(real(message.get("exposed_s")) or 0.0, 0.0), step_s)
    return StepReport(
        job_id=message["job_id"],
        attempt=attempt,
        rank=rank,
        world_size=world_size,
        progress=Progress(step, count(message.get("total_steps")), step_s, exposed_s, metrics.get("loss")),
        epoch=count(message.get("epoch")) or 0,
        samples_per_s=max(real(message.get("samples_per_s")) or 0.0, 0.0),
        metrics=metrics,
        memory_bytes=count(message.get("memory_bytes")) or 0,
        takes_turns=message.get("takes_turns") is True,
        phases=_phases(message.get("phases")),
        network_s=None if (network_s := real(message.get("network_s"))) is None else max(network_s, 0.0),
        turn_wait_s=max(real(message.get("turn_wait_s")) or 0.0, 0.0),
        can_resume=can_resume if isinstance(can_resume, bool) else None,
        batch=_batch(message.get("batch")),
    )


def _batch(value: object) -> BatchReport | None:
    if not isinstance(value, dict):
        return None
    size, script_size, noise_scale = count(value.get("size")), count(value.get("script_size")), value.get("noise_scale")
    if not size or not script_size:
        return None
    noise = real(noise_scale)
    return BatchReport(size, script_size, None if noise is None else max(noise, 0.0))


def _phases(value: object) -> tuple[float, float, float] | None:
    if not isinstance(value, list) or len(value) != 3:
        return None
    forward_s, backward_s, update_s = map(real, value)
    if forward_s is None or backward_s is None or update_s is None:
        return None
    return max(forward_s, 0.0), max(backward_s, 0.0), max(update_s, 0.0)
