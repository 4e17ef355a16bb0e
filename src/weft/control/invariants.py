"""What is true of every state, whatever happened.  Checked after every event in tests and with ``--paranoid``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from weft.control.state import Job, JobState, State
from weft.core.cluster import Cluster
from weft.errors import WeftError

_WITH_WORKERS: Final = (JobState.RUNNING, JobState.STOPPING)


class InvariantBroken(WeftError):
    """The controller is in an impossible state: a bug in weft, not a user error."""


def check(state: State) -> None:
    """Raise :class:`InvariantBroken`, saying what was expected, if an invariant does not hold."""
    active = state.jobs.active
    numbers = [job.number for job in state.jobs.values()]
    _expect(numbers == sorted(set(numbers)), f"jobs numbered as submitted, each with its own number: {numbers}")
    for job in active.values():
        _check_times(state, job)
        if job.state is JobState.PENDING:
            _check_pending(active, job)
        else:
            _check_with_workers(state.cluster, job)
        if job.partner is not None:
            _check_pair(active, job, job.partner)
        _check_wanted(state.cluster, active, job)
    for job in state.jobs.finished:
        _check_times(state, job)
        _check_final(job)
    _check_given_once("held", {job.id: (job.devices, job.partner) for job in active.values()})
    _check_given_once("promised", {job.id: (job.wanted, job.wanted_partner) for job in active.values()})


def _check_times(state: State, job: Job) -> None:
    _expect(job.submitted_s <= job.changed_s <= state.now_s, f"job {job.id} to have changed between then and now")
    if job.started_s is not None:
        _expect(job.submitted_s <= job.started_s <= state.now_s, f"job {job.id} started between then and now")
    _expect((job.started_s is None) == (job.attempt == 0), f"job {job.id}, attempt {job.attempt}, to have a start time")
    _expect(job.num_restarts == max(0, job.attempt - 1), f"job {job.id} to have counted its restarts")
    allowed = job.launch.max_restarts if job.launch else 0
    _expect(job.num_failures <= allowed + 1, f"job {job.id} to be given up after {allowed} restarts")


def _check_pending(active: Mapping[str, Job], job: Job) -> None:
    free_of = (job.devices, job.partner, job.fills, job.is_killed, job.is_cancelled, job.workers_since_s)
    _expect(free_of == ((), None, False, False, False, None), f"pending job {job.id} to hold nothing, not {free_of}")
    if job.wanted:
        partner = active.get(job.wanted_partner or "")
        may_join = partner is not None and partner.devices == job.wanted and partner.partner is None
        held = {device for other in active.values() for device in other.devices}
        waits = not may_join and not held.isdisjoint(job.wanted)
        _expect(waits, f"job {job.id}, whose devices {job.wanted} are free, to be started")


def _check_with_workers(cluster: Cluster, job: Job) -> None:
    _expect(job.state in _WITH_WORKERS, f"active job {job.id} not to be {job.state.value}")
    _expect(job.attempt >= 1, f"job {job.id} with workers to have an attempt")
    _expect(bool(job.devices), f"job {job.id} with workers to have devices")
    _expect(len(set(job.devices)) == len(job.devices), f"job {job.id} not to have a device twice: {job.devices}")
    _check_exist(cluster, job, job.devices)
    if job.state is JobState.RUNNING:
        _expect(job.devices == job.wanted, f"running job {job.id} to be where it should be, on {job.wanted}")
        _expect(not job.is_killed and not job.is_cancelled, f"job {job.id}, which should stop, not to be running")
    if not job.is_killed:
        _check_in_use(cluster, job, job.devices)


def _check_pair(active: Mapping[str, Job], job: Job, partner: str) -> None:
    other = active.get(partner)
    if other is None:
        raise InvariantBroken(f"expected the partner of job {job.id}, {partner}, to be active")
    _expect(other.partner == job.id, f"jobs {job.id} and {partner} to be partners of each other")
    _expect(other.devices == job.devices, f"jobs {job.id} and {partner} to hold the same devices")


def _check_wanted(cluster: Cluster, active: Mapping[str, Job], job: Job) -> None:
    if job.wanted:
        allowed = range(job.spec.min_workers, job.spec.max_workers + 1)
        _expect(len(job.wanted) in allowed, f"job {job.id} to be promised {allowed} devices, not {len(job.wanted)}")
        _check_exist(cluster, job, job.wanted)
        _check_in_use(cluster, job, job.wanted)
        _expect(not job.is_cancelled, f"job {job.id}, which is cancelled, not to be promised devices")
    if job.wanted_partner is not None:
        other = active.get(job.wanted_partner)
        if other is None:
            raise InvariantBroken(f"expected the future partner of job {job.id}, {job.wanted_partner}, to be active")
        _expect(
            bool(job.wanted) and other.wanted_partner == job.id and other.wanted == job.wanted,
            f"jobs {job.id} and {other.id}, a future pair, to be promised the same devices",
        )
    else:
        _expect(not job.wanted_fills, f"job {job.id}, which has no partner, not to be a filler")


def _check_final(job: Job) -> None:
    _expect(job.state.is_final, f"finished job {job.id} not to be {job.state.value}")
    _expect(job.finished_s is not None, f"job {job.id} to have an end time")
    holds = (job.devices, job.partner, job.wanted, job.wanted_partner)
    _expect(holds == ((), None, (), None), f"finished job {job.id} to hold and want nothing, not {holds}")


def _check_exist(cluster: Cluster, job: Job, devices: tuple[int, ...]) -> None:
    top = sum(cluster.devices_by_node)
    _expect(all(0 <= device < top for device in devices), f"job {job.id} to be on devices 0 to {top - 1}: {devices}")


def _check_in_use(cluster: Cluster, job: Job, devices: tuple[int, ...]) -> None:
    dead = [device for device in devices if cluster.node_of(device) in cluster.failed_nodes]
    _expect(not dead, f"job {job.id} not to be on failed devices {dead}")


def _check_given_once(how: str, given: Mapping[str, tuple[tuple[int, ...], str | None]]) -> None:
    owner: dict[int, str] = {}
    for job_id, (devices, partner) in given.items():
        for device in devices:
            other = owner.setdefault(device, job_id)
            _expect(other in (job_id, partner), f"device {device} not to be {how} by both {other} and {job_id}")


def _expect(condition: bool, what: str) -> None:
    if not condition:
        raise InvariantBroken(f"expected {what}; please report this with the event log")
