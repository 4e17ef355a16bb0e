"""Where the time of a step goes, and how far it is from the bound."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from weft.overlap.schedule_interface import Schedule
from weft.overlap.tuning import Tuner


@dataclass(frozen=True, slots=True)
class Report:
    """Medians over the last steps on this worker, in seconds; all zero before the second step."""

    num_steps: int
    step_s: float
    forward_s: float
    backward_s: float
    update_s: float
    exposed_s: float
    bound_s: float
    fraction_of_bound: float
    num_buckets: int
    plan: str
    tuned: bool
    link_bytes_per_s: float
    link_latency_s: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        if not self.step_s:
            return "weft.overlap: no step has been measured yet"
        return (
            f"step {self.step_s * 1e3:.1f} ms = forward {self.forward_s * 1e3:.1f}"
            f" + backward {self.backward_s * 1e3:.1f} + update {self.update_s * 1e3:.1f}"
            f" + exposed communication {self.exposed_s * 1e3:.1f}"
            f" (+ the rest of the loop); {self.fraction_of_bound:.0%} of the bound of {self.bound_s * 1e3:.1f} ms"
            f"\n{self.plan}, {'tuned' if self.tuned else 'not tuned yet'};"
            f" link {self._link()}"
        )

    def _link(self) -> str:
        if not self.link_latency_s and not self.link_bytes_per_s:
            return "not measured, so the bound counts no communication"
        speed = f"{self.link_bytes_per_s * 8e-6:.0f} Mb/s" if self.link_bytes_per_s else "too fast to measure"
        return f"{speed}, {self.link_latency_s * 1e3:.2f} ms"


def network_s(schedule: Schedule) -> tuple[float, float] | None:
    """How long the link carries a step's reduce-scatters and all-gathers; ``None`` until it has been measured."""
    link = schedule.clock.link
    if link is None:
        return None
    reduce_bytes = sum(bucket.exchange.reduce_bytes for bucket in schedule.buckets)
    gather_bytes = sum(bucket.exchange.gather_bytes for bucket in schedule.buckets)
    return link.beta_s_per_byte * reduce_bytes, link.beta_s_per_byte * gather_bytes


def make_report(schedule: Schedule, tuner: Tuner) -> Report:
    clock = schedule.clock
    step = clock.median(lambda s: s.total_s)
    forward = clock.median(lambda s: s.forward_s)
    backward = clock.median(lambda s: s.backward_s)
    update = clock.median(lambda s: s.update_s)
    beta = tuner.link.beta_s_per_byte if tuner.link else 0.0
    reduce, gather = network_s(schedule) or (0.0, 0.0)
    bound = schedule.bound_s(forward, backward, reduce, gather, update)
    return Report(
        num_steps=schedule.num_steps,
        step_s=step,
        forward_s=forward,
        backward_s=backward,
        update_s=update,
        exposed_s=clock.median(lambda s: s.exposed_s),
        bound_s=bound,
        fraction_of_bound=bound / step if step else 0.0,
        num_buckets=len(schedule.buckets),
        plan=tuner.describe(),
        tuned=tuner.finished,
        link_bytes_per_s=1.0 / beta if beta else 0.0,
        link_latency_s=tuner.link.alpha_s if tuner.link else 0.0,
    )
