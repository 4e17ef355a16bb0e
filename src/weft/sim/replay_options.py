"""Options of a replay."""

from __future__ import annotations

from dataclasses import dataclass

from weft.errors import UsageError
from weft.sim.believed_lengths import Lengths

MIN_NODE_MTBF_S = 1.0
MAX_PREDICTION_ERROR = 10.0


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """Everything that determines a replay besides the workload, the cluster and the policy."""

    decision_interval_s: float = 60.0
    """Decisions are made at multiples of this; 0: immediately after every change."""
    restart_s: float = 30.0
    """Time a job loses at every start, unless it has a cost of its own."""
    seed: int = 0
    prediction_error: float = 0.0
    """Relative error (standard deviation) of lengths, and of step times at sizes at which a job has not run."""
    lengths: Lengths = Lengths.KNOWN
    explore: bool = False
    """True: speeds are known only at sizes that were tried, and predicted up to twice the largest of them."""
    measured_after_reports: int = 0
    """Reports that a job sends at a size before its speed there is believed, and before it may be stopped again."""
    report_every_s: float = 0.0
    """A job reports its steps together if they are shorter than this."""
    crossover: bool = False
    handover_s: float = 0.001
    node_mtbf_s: float = 0.0
    """Mean time between failures of one node; 0: nodes never fail."""
    node_repair_s: float = 1800.0
    explained_jobs: frozenset[str] = frozenset()
    """Jobs for which every decision is explained (costs time)."""
    record: bool = True
    """Keep allocation spans; False for very long logs where only completion times matter."""

    @property
    def learns_speeds(self) -> bool:
        """Whether running at a size tells the policy something."""
        return self.explore or self.prediction_error > 0

    def __post_init__(self) -> None:
        for name in (
            "decision_interval_s",
            "restart_s",
            "report_every_s",
            "prediction_error",
            "handover_s",
            "node_mtbf_s",
        ):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise UsageError(f"{name} is {value}: expected a finite number >= 0")
        if 0 < self.node_mtbf_s < MIN_NODE_MTBF_S:
            raise UsageError(
                f"node_mtbf_s is {self.node_mtbf_s:g}: expected at least {MIN_NODE_MTBF_S:g} s between two failures "
                "of a node, or 0 for no failures"
            )
        if self.prediction_error > MAX_PREDICTION_ERROR:
            raise UsageError(
                f"prediction_error is {self.prediction_error:g}: expected at most {MAX_PREDICTION_ERROR:g}"
            )
        if not 0 < self.node_repair_s < float("inf"):
            raise UsageError(f"node_repair_s is {self.node_repair_s}: expected a positive number")
