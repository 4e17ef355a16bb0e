"""What a decision believes about simulated jobs, as opposed to the truth."""

from __future__ import annotations

import random

from weft.control.decision import Belief
from weft.core.cluster import Cluster
from weft.core.speed import SpeedCurve, StepTime
from weft.perf.exploration import explored_curve, relatives_curve, slowest_expected_s
from weft.perf.families import FamilySpeeds
from weft.sim.believed_lengths import USUAL_S, BelievedLengths, Lengths, family
from weft.sim.job_run import JobRun, advance
from weft.sim.replay_options import SimulationOptions
from weft.sim.workload import Profile


class SimulatedBeliefs:
    """Speed curves and remaining work as the policy sees them."""

    def __init__(self, cluster: Cluster, options: SimulationOptions) -> None:
        self.by_job: dict[str, Belief] = {}
        self._runs: dict[str, tuple[JobRun, float, Belief]] = {}
        """Each with the factor by which the belief about its remaining steps differs from the truth."""
        self._cluster = cluster
        self._options = options
        self._true: dict[Profile, SpeedCurve] = {}
        self._explored: dict[tuple[Profile, frozenset[int]], SpeedCurve] = {}
        self._wrong: dict[tuple[str, SpeedCurve, frozenset[int]], SpeedCurve] = {}
        self._lengths = BelievedLengths(options.lengths, options.prediction_error, options.seed, options.restart_s)
        self._are_steps_known = options.lengths in (Lengths.KNOWN, Lengths.DECLARED)
        self._families = FamilySpeeds()
        self._blank: set[str] = set()
        """Jobs whose speed is not even known from their family: a number of steps tells nothing about their length."""

    def add(self, run: JobRun) -> None:
        """A job was submitted."""
        options = self._options
        if options.explore and not self._families.of(family(run)):
            self._blank.add(run.id)
        belief = Belief(
            self._curve(run),
            run.remaining_steps,
            options.restart_s,
            not options.explore,
            is_length_known=self._are_steps_known and run.id not in self._blank,
        )
        self.by_job[run.id] = belief
        self._runs[run.id] = (run, self._lengths.factor(run), belief)

    def measured(self, run: JobRun) -> None:
        """The job has run at a size for the first time."""
        if run.id not in self.by_job:
            return
        true = self._curve_of(run.profile)
        for size in run.tried & true.times.keys():
            self._families.measured(family(run), self._cluster.packed_shape(size), true.times[size])
        self.by_job[run.id].curve = self._curve(run)
        self.by_job[run.id].can_share = True
        for other in [other for other in self._blank if family(self._runs[other][0]) == family(run)]:
            self.taken_over(self._runs[other][0], is_length_known=self._are_steps_known)

    def taken_over(self, run: JobRun, *, is_length_known: bool) -> None:
        """How fast the job is has become known, at least by its family."""
        self._blank.discard(run.id)
        self.by_job[run.id].is_length_known = is_length_known
        self.by_job[run.id].curve = self._curve(run)

    def restaged(self, run: JobRun) -> None:
        """The job's behavior has changed, and with it the speeds at the sizes that are known."""
        if run.id in self.by_job:
            self.by_job[run.id].curve = self._curve(run)

    def remove(self, name: str) -> None:
        """The job has finished."""
        run, _, belief = self._runs.pop(name)
        self._blank.discard(name)
        self._lengths.finished(run, belief.curve)
        del self.by_job[name]

    def update(self, now_s: float) -> set[str]:
        """Update remaining steps; returns the jobs that have not finished a step since they were started.

        These must not be touched: the controller never stops a job before its first report.
        """
        starting: set[str] = set()
        known = self._options.lengths is Lengths.KNOWN
        for run, factor, belief in self._runs.values():
            if run.devices:
                advance(run, now_s)
                is_unmeasured = self._options.measured_after_steps and len(run.devices) not in run.tried
                if now_s < run.resume_s or is_unmeasured:
                    starting.add(run.id)
            if run.id in self._blank:
                belief.remaining_steps = self._guessed_steps(run, factor)
                continue
            belief.remaining_steps = (
                run.remaining_steps * factor if known else self._lengths.remaining_steps(run, factor, belief.curve)
            )
        return starting

    def _guessed_steps(self, run: JobRun, factor: float) -> float:
        """Of a job whose curve has true times that the policy cannot know: as many of its steps as take as long."""
        true_s = self._curve_of(run.profile).times[self.by_job[run.id].curve.sizes[0]].step_s
        if not self._are_steps_known:
            return USUAL_S / true_s
        return run.remaining_steps * factor * self._families.usual_step_s / self.by_job[run.id].curve.sizes[0] / true_s

    def _curve(self, run: JobRun) -> SpeedCurve:
        """Step times by size, packed on as few nodes as possible, given the sizes at which the job has run."""
        curve = self._curve_of(run.profile)
        if self._options.explore:
            curve = self._explored_curve(run, curve)
        if self._options.prediction_error:
            curve = self._wrong_curve(run, curve)
        return curve

    def _curve_of(self, profile: Profile) -> SpeedCurve:
        curve = self._true.get(profile)
        if curve is None:
            cluster = self._cluster
            sizes = [size for size in profile.sizes if size <= cluster.num_devices]
            times = {size: profile.step_time(cluster.packed_shape(size)) for size in sizes}
            curve = self._true[profile] = SpeedCurve(times)
        return curve

    def _explored_curve(self, run: JobRun, true: SpeedCurve) -> SpeedCurve:
        """Only sizes that were tried are known: the smallest at first, later up to twice the largest tried."""
        allowed = [size for size in run.job.spec.allowed_sizes(self._cluster.num_devices) if size in true.times]
        measured = frozenset(size for size in run.tried if size in true.times)
        if not measured:
            curve = relatives_curve(self._families.of(family(run)), allowed, self._cluster)
            if curve is not None and allowed[0] in curve.times:
                return curve
            return self._explored.setdefault(
                (run.profile, frozenset({-allowed[0]})),
                SpeedCurve({allowed[0]: true.times[allowed[0]]}, untried=frozenset(allowed[:1])),
            )
        key = (run.profile, measured)
        if key not in self._explored:
            seen = {self._cluster.packed_shape(size): true.times[size] for size in sorted(measured)}
            self._explored[key] = explored_curve(seen, true.sizes, self._cluster)
        return self._explored[key]

    def _wrong_curve(self, run: JobRun, curve: SpeedCurve) -> SpeedCurve:
        """Predictions are off by one factor per size; a size at which the job has run is known."""
        key = (run.id, curve, frozenset(run.tried))
        if key not in self._wrong:
            draw = random.Random(f"speed {self._options.seed} {run.id}")
            factors = {
                size: draw.lognormvariate(0.0, self._options.prediction_error) for size in range(1, 1 + curve.sizes[-1])
            }
            true = self._curve_of(run.profile)
            measured = {size: true.times[size] for size in run.tried if size in true.times}
            times = {}
            for size, time in curve.times.items():
                if size in measured:
                    times[size] = measured[size]
                    continue
                step_s = time.step_s * factors[size]
                if self._options.explore and measured:
                    step_s = min(step_s, slowest_expected_s(measured, size))
                times[size] = StepTime(step_s, time.exposed_s * step_s / time.step_s)
            self._wrong[key] = SpeedCurve(times, curve.untried)
        return self._wrong[key]
