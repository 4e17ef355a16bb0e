"""What a decision believes about simulated jobs, as opposed to the truth."""

from __future__ import annotations

import random

from weft.control.decision import Belief
from weft.core.cluster import Cluster
from weft.core.speed import SpeedCurve, StepTime, fastest
from weft.perf.exploration import explored_curve, relatives_curve, slowest_expected_s
from weft.perf.families import FamilySpeeds
from weft.sim.believed_lengths import USUAL_S, BelievedLengths, Lengths, family
from weft.sim.device_kinds import on_kind
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
        self._parts = cluster.by_kind if cluster.is_mixed else {"": cluster}
        self._options = options
        self._true: dict[tuple[Profile, str], SpeedCurve] = {}
        self._explored: dict[tuple[Profile, str, frozenset[int]], SpeedCurve] = {}
        self._wrong: dict[tuple[str, SpeedCurve, frozenset[int]], SpeedCurve] = {}
        self._lengths = BelievedLengths(options.lengths, options.prediction_error, options.seed, options.restart_s)
        self._are_steps_known = options.lengths in (Lengths.KNOWN, Lengths.DECLARED)
        self._has_families = options.explore and not cluster.is_mixed
        """On devices of several kinds, a relative's speed says too little."""
        self._families = FamilySpeeds()
        self._blank: set[str] = set()
        """Jobs whose speed is not even known from their family: a number of steps tells nothing about their length."""

    def add(self, run: JobRun) -> None:
        """A job was submitted."""
        options = self._options
        if self._has_families and not self._families.of(family(run)):
            self._blank.add(run.id)
        curves = self._curves(run)
        curve = fastest(curves) if curves else self._curve(run, "")
        belief = Belief(
            curve,
            run.remaining_steps,
            run.job.start_cost_s(options.restart_s),
            not options.explore,
            is_length_known=self._are_steps_known and run.id not in self._blank,
            curves=curves,
        )
        self.by_job[run.id] = belief
        self._runs[run.id] = (run, self._lengths.factor(run), belief)

    def measured(self, run: JobRun) -> None:
        """The job has run at a size for the first time."""
        if run.id not in self.by_job:
            return
        self.by_job[run.id].can_share = True
        self._renew(run)
        if not self._has_families:
            return
        true = self._curve_of(run.profile, "")
        for size in run.tried & true.times.keys():
            self._families.measured(family(run), self._cluster.packed_shape(size), true.times[size])
        for other in [other for other in self._blank if family(self._runs[other][0]) == family(run)]:
            self.taken_over(self._runs[other][0], is_length_known=self._are_steps_known)

    def taken_over(self, run: JobRun, *, is_length_known: bool) -> None:
        """How fast the job is has become known, at least by its family."""
        self._blank.discard(run.id)
        self.by_job[run.id].is_length_known = is_length_known
        self._renew(run)

    def restaged(self, run: JobRun) -> None:
        """The job's behavior has changed, and with it the speeds at the sizes that are known."""
        if run.id in self.by_job:
            self._renew(run)

    def _renew(self, run: JobRun) -> None:
        belief = self.by_job[run.id]
        belief.curves = self._curves(run)
        belief.curve = self._curve_here(run, belief) if belief.curves else self._curve(run, "")

    @staticmethod
    def _curve_here(run: JobRun, belief: Belief) -> SpeedCurve:
        """On the kind of its devices, or while it has none on the one where it is fastest."""
        return belief.curves[run.kind] if run.devices else fastest(belief.curves)

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
        for run, _, belief in self._runs.values():
            if belief.curves:
                belief.curve = self._curve_here(run, belief)
            if run.devices:
                if run.job.restart_s is not None:  # the next start will be one
                    belief.restart_s = run.job.restart_s
                advance(run, now_s)
                is_unmeasured = self._options.measured_after_reports and len(run.devices) not in run.tried
                if now_s < run.resume_s or is_unmeasured:
                    starting.add(run.id)
        self._lengths.progressed((run, belief.curve) for run, _, belief in self._runs.values())
        for run, factor, belief in self._runs.values():
            if run.id in self._blank:
                belief.remaining_steps = self._guessed_steps(run, factor)
                continue
            belief.remaining_steps = (
                run.remaining_steps * factor if known else self._lengths.remaining_steps(run, factor, belief.curve)
            )
        return starting

    def _guessed_steps(self, run: JobRun, factor: float) -> float:
        """Of a job whose curve has true times that the policy cannot know: as many of its steps as take as long."""
        true_s = self._curve_of(run.profile, "").times[self.by_job[run.id].curve.sizes[0]].step_s
        if not self._are_steps_known:
            return USUAL_S / true_s
        return run.remaining_steps * factor * self._families.usual_step_s / self.by_job[run.id].curve.sizes[0] / true_s

    def _curves(self, run: JobRun) -> dict[str, SpeedCurve]:
        """By device kind; empty in a cluster of one kind."""
        if not self._cluster.is_mixed:
            return {}
        able = [kind for kind in self._parts if self._allowed(run, kind)]
        return {kind: self._curve(run, kind) for kind in able}

    def _allowed(self, run: JobRun, kind: str) -> list[int]:
        """The sizes at which the job can run on this kind."""
        known = set(on_kind(run.profile, kind).sizes)
        return [size for size in run.job.spec.allowed_sizes(self._parts[kind].num_devices) if size in known]

    def _curve(self, run: JobRun, kind: str) -> SpeedCurve:
        """Step times by size, packed on as few nodes as possible, given the sizes at which the job has run."""
        curve = self._curve_of(run.profile, kind)
        if self._options.explore:
            curve = self._explored_curve(run, kind, curve)
        if self._options.prediction_error:
            curve = self._wrong_curve(run, kind, curve)
        return curve

    def _curve_of(self, profile: Profile, kind: str) -> SpeedCurve:
        curve = self._true.get((profile, kind))
        if curve is None:
            cluster, here = self._parts[kind], on_kind(profile, kind)
            sizes = [size for size in here.sizes if size <= cluster.num_devices]
            times = {size: here.step_time(cluster.packed_shape(size)) for size in sizes}
            curve = self._true[profile, kind] = SpeedCurve(times)
        return curve

    def _tried(self, run: JobRun, kind: str) -> set[int]:
        return run.tried_on.get(kind, set()) if self._cluster.is_mixed else run.tried

    def _explored_curve(self, run: JobRun, kind: str, true: SpeedCurve) -> SpeedCurve:
        """Only sizes that were tried are known: the smallest at first, later up to twice the largest tried.

        Devices of a kind that was never tried are known at the smallest size, as if one step had been timed there.
        """
        cluster = self._parts[kind]
        allowed = self._allowed(run, kind)
        measured = frozenset(size for size in self._tried(run, kind) if size in true.times)
        if not measured:
            curve = relatives_curve(self._families.of(family(run)), allowed, self._cluster)
            if curve is not None and allowed[0] in curve.times:
                return curve
            return self._explored.setdefault(
                (run.profile, kind, frozenset({-allowed[0]})),
                SpeedCurve({allowed[0]: true.times[allowed[0]]}, untried=frozenset(allowed[:1])),
            )
        key = (run.profile, kind, measured)
        if key not in self._explored:
            seen = {cluster.packed_shape(size): true.times[size] for size in sorted(measured)}
            self._explored[key] = explored_curve(seen, true.sizes, cluster)
        return self._explored[key]

    def _wrong_curve(self, run: JobRun, kind: str, curve: SpeedCurve) -> SpeedCurve:
        """Predictions are off by one factor per size; a size at which the job has run is known."""
        tried = self._tried(run, kind)
        key = (run.id, curve, frozenset(tried))
        if key not in self._wrong:
            draw = random.Random(f"speed {self._options.seed} {run.id}{kind}")
            factors = {
                size: draw.lognormvariate(0.0, self._options.prediction_error) for size in range(1, 1 + curve.sizes[-1])
            }
            true = self._curve_of(run.profile, kind)
            measured = {size: true.times[size] for size in tried if size in true.times}
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
