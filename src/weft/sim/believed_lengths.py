"""How much work the policy believes is left: known, declared, learned from finished jobs, or unknown."""

from __future__ import annotations

import enum
import random
from collections.abc import Iterable

from weft.core.speed import SpeedCurve
from weft.perf.families import family_of
from weft.perf.job_lengths import Kin, LengthHistory, kin_of, least_assumed_s
from weft.sim.job_run import JobRun

DECLARED_ERROR = 0.5
"""Standard deviation of the logarithm of declared over true length, unless an error is given."""
USUAL_S = 60.0
"""How long a job is assumed to run if nothing is known about it and restarts cost little, as in the controller."""


class Lengths(enum.Enum):
    """Where the policy's idea of remaining work comes from."""

    KNOWN = "known"
    """The true remaining steps (with a prediction error: off by one factor per job)."""
    DECLARED = "declared"
    """Total steps as estimated, with an error, by its owner; a job that exceeds them counts as unknown."""
    HISTORY = "history"
    """The lengths of finished jobs, first of those whose names differ only in a number at the end."""
    UNKNOWN = "unknown"
    """Only the work it has done so far, and the lengths of other jobs, first of those that request as many workers."""


class BelievedLengths:
    """Remaining steps of every simulated job as the policy sees them."""

    def __init__(self, source: Lengths, error: float, seed: int, restart_s: float) -> None:
        self._source, self._error, self._seed = source, error, seed
        self._history = LengthHistory()
        self._learns = source is not Lengths.KNOWN
        self._restart_s = restart_s

    def factor(self, run: JobRun) -> float:
        """Believed over true length; constant, as with a wrong target."""
        error = self._error or (DECLARED_ERROR if self._source is Lengths.DECLARED else 0.0)
        if not error:
            return 1.0
        return random.Random(f"steps {self._seed} {run.id}").lognormvariate(0.0, error)

    def remaining_steps(self, run: JobRun, factor: float, curve: SpeedCurve) -> float:
        if self._source is Lengths.KNOWN:
            return run.remaining_steps * factor
        total = run.job.total_steps
        done = max(total - run.remaining_steps, 0.0)
        if self._source is Lengths.DECLARED and done < total * factor:
            return total * factor - done
        step_s = curve.times[curve.sizes[0]].step_s
        least_s = least_assumed_s(USUAL_S, run.job.start_cost_s(self._restart_s))
        return self._history.remaining_s(self._kin(run), done * step_s, least_s) / step_s

    def progressed(self, unfinished: Iterable[tuple[JobRun, SpeedCurve]]) -> None:
        """Record how far all unfinished jobs have come."""
        if self._learns:
            done = ((run, run.job.total_steps - run.remaining_steps, curve) for run, curve in unfinished)
            self._history.progressed(
                (self._kin(run), steps * curve.times[curve.sizes[0]].step_s) for run, steps, curve in done
            )

    def finished(self, run: JobRun, curve: SpeedCurve) -> None:
        """Record the length of a finished job."""
        if self._learns:
            self._history.finished(self._kin(run), run.job.total_steps * curve.times[curve.sizes[0]].step_s)

    def _kin(self, run: JobRun) -> Kin:
        """Where names tell nothing, a job has no family."""
        requested = run.job.spec.requested_workers
        return kin_of(requested, family(run)) if self._source is Lengths.HISTORY else kin_of(requested)


def family(run: JobRun) -> str:
    """A simulated job's id is its name."""
    return family_of(run.job.spec.user, run.id)
