"""Live pairs: only where they can help, only where they fit, and only as long as they gain something."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.unit.daemon.test_scheduling import World

from weft.core.cluster import Cluster
from weft.core.speed import StepTime
from weft.core.step_report import Progress, StepReport
from weft.daemon.knowledge import Knowledge
from weft.daemon.pairs import APART_S, WINDOW_S, Pairs
from weft.daemon.scheduling import Scheduler

GIB = 2**30


class SharingWorld(World):
    """Jobs of one worker on two devices, which wait for their network half of the time."""

    def __init__(self, num_devices: int = 2, free_bytes: int | None = None, **options: object) -> None:
        super().__init__(num_devices, **{"hold_s": 0.0, "crossover": True, "handover_s": 0.001, **options})
        self.scheduler = Scheduler(self.scheduler.options, lambda: free_bytes)

    def tell(
        self,
        name: str,
        step_s: float = 1.0,
        num: int = 6,
        exposed_s: float | None = None,
        takes_turns: bool = True,
        memory_bytes: int = GIB,
    ) -> None:
        """The job makes a step per report."""
        job = self.state.jobs[name]
        step = self.knowledge.reports.progress(job).step
        exposed_s = 0.6 * step_s if exposed_s is None else exposed_s
        for number in range(1, num + 1):
            progress = Progress(step + number, 10_000, step_s, exposed_s)
            report = StepReport(name, job.attempt, 0, len(job.devices), progress)
            report = replace(report, memory_bytes=memory_bytes, takes_turns=takes_turns)
            self.knowledge.reported(job, report, self.now_s)

    def three_jobs(self, *, may_share: bool = True, **told: object) -> None:
        """Two jobs that run and have reported, and one just submitted."""
        for name in "ab":
            self.submit(name, max_workers=1, total_steps=10_000, may_share=may_share)
        self.decide()
        for name in "ab":
            self.tell(name, **told)  # type: ignore[arg-type]
        self.now_s += 100.0
        self.submit("c", max_workers=1, total_steps=10_000, may_share=may_share)

    def pairs(self) -> set[frozenset[str]]:
        active = self.state.jobs.active.values()
        return {frozenset((job.id, job.partner)) for job in active if job.partner is not None}

    def why(self, name: str) -> str:
        decided = self.scheduler.decide(self.state, self.knowledge, self.now_s)
        return self.scheduler.explain(decided, self.state.jobs[name], self.state, self.knowledge) or ""


def test_two_jobs_move_together_so_that_the_third_need_not_wait() -> None:
    world = SharingWorld()
    world.three_jobs()
    world.decide()
    assert world.pairs() == {frozenset("ab")}
    assert world.workers("c") == 1
    for name in "ab":
        world.tell(name)
    assert "x the work of running one after the other" in world.why("a")


@pytest.mark.parametrize("told", [{"exposed_s": 0.0}, {"takes_turns": False}], ids=["never waits", "takes no turns"])
def test_no_pair_without_waits_that_were_measured(told: dict[str, object]) -> None:
    world = SharingWorld()
    world.three_jobs(**told)  # type: ignore[arg-type]
    world.decide()
    assert world.pairs() == set()
    assert "does not share: " in world.why("a")


def test_no_jobs_share_while_there_are_enough_devices() -> None:
    world = SharingWorld(num_devices=3)
    world.three_jobs()
    world.decide()
    assert world.pairs() == set()
    assert "shares" not in world.why("a")


def test_jobs_whose_owner_opted_out_never_share() -> None:
    world = SharingWorld()
    world.three_jobs(may_share=False)
    world.decide()
    assert world.pairs() == set()
    assert "its owner does not allow it to share" in world.why("a")


def test_with_sharing_off_the_waiting_job_says_so() -> None:
    world = SharingWorld(crossover=False, why_unshared="devices are not shared: it was switched off")
    world.three_jobs()
    world.decide()
    assert world.pairs() == set()
    assert "devices are not shared: it was switched off" in world.why("c")


@pytest.mark.parametrize(("free_gib", "is_paired"), [(2.0, True), (0.5, False)])
def test_no_pair_is_formed_without_enough_memory(free_gib: float, is_paired: bool) -> None:
    world = SharingWorld(free_bytes=int(free_gib * GIB))
    world.three_jobs()
    world.decide()
    assert bool(world.pairs()) is is_paired
    if not is_paired:
        assert "1.0 GiB more memory, but only 0.5 GiB are free" in world.why("a")


def test_steps_made_in_a_pair_do_not_count_as_speed_alone() -> None:
    world = SharingWorld()
    world.three_jobs()
    world.decide()
    job = world.state.jobs["a"]
    before = world.knowledge.alone("a", job.devices)
    world.tell("a", step_s=7.0, num=40)
    assert world.knowledge.alone("a", job.devices) == before


def share_badly(world: SharingWorld, seconds_per_step: float) -> None:
    """Both jobs of the pair report for a while, one step at a time."""
    for _ in range(40):
        world.now_s += seconds_per_step
        for name in "ab":
            world.tell(name, step_s=seconds_per_step, num=1)


def test_a_pair_that_gains_nothing_is_split_and_not_formed_again_for_a_while() -> None:
    world = SharingWorld()
    world.three_jobs()
    world.decide()
    share_badly(world, seconds_per_step=2.0)  # each half as fast as alone: running one after the other is just as good
    world.decide()
    assert world.pairs() == set()
    assert "does not share with b for another " in world.why("a")
    for name in "abc":
        if world.workers(name):
            world.tell(name)
    world.now_s += APART_S / 2
    world.decide()
    assert frozenset("ab") not in world.pairs()


def test_a_pair_that_performs_as_expected_is_kept() -> None:
    world = SharingWorld()
    world.three_jobs()
    world.decide()
    share_badly(world, seconds_per_step=1.1)
    world.decide()
    assert world.pairs() == {frozenset("ab")}
    assert "1.82x was measured" in world.why("a")


def reports(pairs: Pairs, step_s: float, now_s: float, attempt: int = 1, num: int = 40) -> float:
    alone = {"a": StepTime(1.0, 0.5), "b": StepTime(1.0, 0.5)}
    for step in range(num):
        now_s += step_s
        for job, other in (("a", "b"), ("b", "a")):
            report = StepReport(job, attempt, 0, 1, Progress(step, step_s=step_s))
            pairs.reported(job, other, report, now_s, alone, 0.001)
    return now_s


def test_a_pair_is_not_judged_by_its_first_reports() -> None:
    pairs = Pairs()
    reports(pairs, 5.0, 0.0, num=4)
    assert pairs.measured("a", "b") is None
    assert WINDOW_S < 4 * 5.0, "this test shows nothing any more"


def test_a_speed_measured_on_a_busy_machine_is_not_counted_as_a_gain() -> None:
    pairs = Pairs()
    reports(pairs, 0.5, 0.0, num=80)
    done = pairs.measured("a", "b")
    assert done is not None
    assert done.gain == pytest.approx(2.0)


def test_a_few_reports_are_not_enough_to_pair_jobs() -> None:
    world = SharingWorld()
    world.three_jobs(num=4)
    world.decide()
    assert world.pairs() == set()
    told = [world.knowledge.can_share(world.state.jobs["a"])]
    world.tell("a", num=4)
    told.append(world.knowledge.can_share(world.state.jobs["a"]))
    assert told == [False, True]


def test_a_pair_that_fails_again_stays_apart_longer_even_after_a_controller_restart() -> None:
    pairs = Pairs()
    now_s = reports(pairs, 2.0, 0.0)
    assert pairs.apart(now_s) == {frozenset("ab")}
    again_s = now_s + APART_S + 1.0
    assert pairs.apart(again_s) == frozenset()
    pairs.over([])
    now_s = reports(pairs, 2.0, again_s, attempt=2, num=16)
    knowledge = Knowledge(Cluster.uniform(1, 2), restart_prior_s=1.0)
    knowledge.pairs = pairs
    saved = json.loads(json.dumps(knowledge.document()))
    later = Knowledge(Cluster.uniform(1, 2), restart_prior_s=1.0)
    later.restore(saved, ["a", "b"])
    assert later.pairs.apart(now_s + 1.5 * APART_S) == {frozenset("ab")}
    later.pairs.forget("a")
    assert later.pairs.apart(now_s) == frozenset()


def test_a_policy_that_never_pairs_says_nothing_about_sharing() -> None:
    world = SharingWorld(policy="fifo")
    world.three_jobs()
    world.decide()
    assert world.pairs() == set()
    assert "shares" not in world.why("c")
