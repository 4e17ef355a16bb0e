"""Jobs on several kinds of devices: a profile for each kind, and the cluster option that names the kinds."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from weft.core.cluster import MAX_DEVICES, Cluster, Shape
from weft.core.nearest_name import unknown_name
from weft.core.speed import StepTime
from weft.errors import UsageError
from weft.sim.workload import JobStage, Profile, TrueJob, Workload

_GROUP = re.compile(r"(?P<num>[0-9]+)x(?P<kind>[A-Za-z][A-Za-z0-9_.-]*)(:(?P<per_node>[0-9]+))?")
_EXAMPLE = "16xT4:4,8xA100:8 (16 devices of kind T4 in nodes of 4, and 8 of kind A100 in one node of 8)"


@dataclass(frozen=True, slots=True)
class KindGroup:
    """Devices of one kind."""

    num_devices: int
    kind: str
    per_node: int


def kind_groups(text: str, per_node: int) -> tuple[KindGroup, ...]:
    """The groups in ``--cluster``; ``per_node`` for those that do not say.

    >>> kind_groups("16xT4:4,8xA100", per_node=8)
    (KindGroup(num_devices=16, kind='T4', per_node=4), KindGroup(num_devices=8, kind='A100', per_node=8))
    """
    groups = []
    for part in text.split(","):
        match = _GROUP.fullmatch(part.strip())
        numbers = [int(match[name] or per_node) for name in ("num", "per_node")] if match and len(part) < 80 else []
        if match is None or not numbers or min(numbers) < 1:
            raise UsageError(f"--cluster {text[:80]}: expected groups NxKIND:M such as {_EXAMPLE}, all above 0")
        groups.append(KindGroup(numbers[0], match["kind"], numbers[1]))
    if sum(group.num_devices for group in groups) > MAX_DEVICES:
        raise UsageError(f"--cluster {text[:80]}: expected at most {MAX_DEVICES} devices")
    return tuple(groups)


def cluster_of_kinds(groups: Sequence[KindGroup]) -> Cluster:
    """Full nodes of each group, and a smaller one for the rest.

    >>> cluster_of_kinds(kind_groups("6xT4:4,2xA100:8", 4)).devices_by_node
    (4, 2, 2)
    """
    nodes: list[int] = []
    kinds: list[str] = []
    for group in groups:
        full, rest = divmod(group.num_devices, group.per_node)
        sizes = (group.per_node,) * full + ((rest,) if rest else ())
        nodes += sizes
        kinds += [group.kind] * len(sizes)
    return Cluster(tuple(nodes), kinds=tuple(kinds))


def kind_factors(text: str, kinds: Sequence[str]) -> dict[str, float]:
    """The factors in ``--kind-speed A100=2.5,T4=1``."""
    factors: dict[str, float] = {}
    for part in text.split(",") if text else ():
        kind, _, value = part.strip().partition("=")
        try:
            factor = float(value)
        except ValueError:
            raise UsageError(f"--kind-speed {part.strip()[:80]}: expected KIND=FACTOR, such as A100=2.5") from None
        if not (math.isfinite(factor) and factor > 0):
            raise UsageError(f"--kind-speed {part.strip()[:80]}: expected a finite factor above 0, such as A100=2.5")
        if kind not in kinds:
            raise UsageError(f"--kind-speed: {unknown_name('device kind in --cluster', kind, list(kinds))}")
        if kind in factors:
            raise UsageError(f"--kind-speed has {kind} twice: remove one")
        factors[kind] = factor
    return factors


@dataclass(frozen=True, eq=False)
class ScaledProfile:
    """A profile on devices that compute ``factor`` times as fast; waits for the network stay as long as they are."""

    profile: Profile
    factor: float
    _known: dict[Shape, StepTime] = field(default_factory=dict, repr=False)

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.profile.sizes

    def step_time(self, shape: Shape) -> StepTime:
        time = self._known.get(shape)
        if time is None:
            time = self._known[shape] = self.scaled(self.profile.step_time(shape))
        return time

    def scaled(self, time: StepTime) -> StepTime:
        return StepTime(time.compute_s / self.factor + time.exposed_s, time.exposed_s)


@dataclass(frozen=True, eq=False)
class KindProfile:
    """The behavior of a job by device kind."""

    by_kind: Mapping[str, Profile]
    own: Profile | None = None
    """The profile as it was given, without a kind, if there is one."""

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        profiles = [*self.by_kind.values(), *([self.own] if self.own else [])]
        return tuple(sorted({size for profile in profiles for size in profile.sizes}))

    def step_time(self, shape: Shape) -> StepTime:
        """On no particular kind: as it was given, or on the first kind that has this size."""
        profiles = [self.own] if self.own else [one for one in self.by_kind.values() if sum(shape) in one.sizes]
        return profiles[0].step_time(shape)


def on_kind(profile: Profile, kind: str) -> Profile:
    """The behavior of a job on devices of this kind."""
    return profile.by_kind[kind] if isinstance(profile, KindProfile) else profile


def with_kinds(workload: Workload, cluster: Cluster, factors: Mapping[str, float]) -> Workload:
    """The workload with a profile for every kind of the cluster; raises :class:`UsageError` where one is missing.

    A kind's own tables come first, then its factor; the one kind that has neither runs at the speeds as given.
    """
    if not cluster.is_mixed:
        return _on_one_kind(workload, cluster.kind_names[0], factors)
    known: dict[Profile, Profile] = {}
    jobs: list[TrueJob] = []
    for job in workload.jobs:
        profiles = []
        for profile in (job.profile, *(stage.profile for stage in job.stages)):
            if profile not in known:
                known[profile] = _complete(profile, cluster, factors)
            profiles.append(known[profile])
        stages = tuple(
            JobStage(stage.left_steps, profile) for stage, profile in zip(job.stages, profiles[1:], strict=True)
        )
        jobs.append(_fitted(replace(job, profile=profiles[0], stages=stages), cluster))
    return replace(workload, jobs=tuple(jobs))


def _on_one_kind(workload: Workload, kind: str, factors: Mapping[str, float]) -> Workload:
    """For a cluster of one kind: its tables, or its factor, instead of the speeds as given."""
    known: dict[Profile, Profile] = {}

    def plain(profile: Profile) -> Profile:
        if profile not in known:
            measured = profile.by_kind.get(kind) if isinstance(profile, KindProfile) else None
            own = profile.own if isinstance(profile, KindProfile) else profile
            known[profile] = measured or _scaled(own or profile, factors.get(kind, 1.0))
        return known[profile]

    jobs = [
        replace(
            job,
            profile=plain(job.profile),
            stages=tuple(JobStage(stage.left_steps, plain(stage.profile)) for stage in job.stages),
        )
        for job in workload.jobs
    ]
    return replace(workload, jobs=tuple(jobs))


def _complete(profile: Profile, cluster: Cluster, factors: Mapping[str, float]) -> KindProfile:
    measured = dict(profile.by_kind) if isinstance(profile, KindProfile) else {}
    own = profile.own if isinstance(profile, KindProfile) else profile
    missing = [kind for kind in cluster.kind_names if kind not in measured and kind not in factors]
    if len(missing) > 1 or (own is None and len(measured) < len(cluster.kind_names)):
        lacking = missing[-1] if missing else next(kind for kind in cluster.kind_names if kind not in measured)
        raise UsageError(
            f"nothing says how fast jobs run on {lacking}: give --kind-speed {lacking}=FACTOR, compared with the "
            f"speeds in the workload or its profiles, or profiles of its own (--profiles DIR with a folder {lacking})"
        )
    by_kind = {
        kind: measured[kind] if kind in measured or own is None else _scaled(own, factors.get(kind, 1.0))
        for kind in cluster.kind_names
    }
    return KindProfile(by_kind, own)


def _scaled(profile: Profile, factor: float) -> Profile:
    return profile if factor == 1.0 else ScaledProfile(profile, factor)


def _fitted(job: TrueJob, cluster: Cluster) -> TrueJob:
    """All workers of a job are on one kind: check that some kind has enough devices, and reduce what it asks for."""
    profile = job.profile
    sizes = sorted(
        {
            size
            for kind, part in cluster.by_kind.items()
            for size in job.spec.allowed_sizes(part.num_devices)
            if size in on_kind(profile, kind).sizes
        }
    )
    if not sizes:
        raise UsageError(
            f"job {job.spec.id} needs at least {job.spec.min_workers} devices of one kind, this cluster has at most "
            f"{cluster.most_of_one_kind} of one kind: lower its minimum or enlarge --cluster"
        )
    requested = max((size for size in sizes if size <= job.spec.requested_workers), default=sizes[0])
    return (
        job
        if requested == job.spec.requested_workers
        else replace(job, spec=replace(job.spec, requested_workers=requested))
    )
