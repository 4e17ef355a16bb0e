"""A controller killed between journaling and acting orders all of it again, and nothing else."""

from __future__ import annotations

from scenario import Scenario

from weft.control.pending_actions import actions_outstanding, attempts_never_begun
from weft.control.state import JobState
from weft.core.actions import Decide, KillWorkers, StartWorkers, StopWorkers
from weft.core.events import CancelRequested, Fate


def test_every_order_without_a_known_outcome_is_repeated() -> None:
    one = Scenario("runs", "moves", "cancelled", "killed", "waits", "done")
    one.assign(runs=(0,), moves=(1,), cancelled=(2,), killed=(3,), done=(4,))
    one.exit("done", Fate.COMPLETED)
    one.assign(runs=(0,), moves=(5, 6), cancelled=(2,), killed=(3,))
    for name in ("cancelled", "killed", "killed"):
        one.feed(CancelRequested(one.now_s, name))
    assert actions_outstanding(one.state) == (
        StartWorkers("runs", 1, (0,)),
        StopWorkers("moves", 1),
        StopWorkers("cancelled", 1),
        KillWorkers("killed", 1),
        Decide(),
    )


def test_a_controller_without_jobs_has_nothing_to_do() -> None:
    one = Scenario("a")
    one.feed(CancelRequested(one.now_s, "a"))
    assert actions_outstanding(one.state) == ()


def test_an_attempt_cancelled_before_it_reached_the_engine_does_not_hang() -> None:
    one = Scenario("a", "b", "c")
    one.assign(a=(0,), b=(1,), c=(2,))
    one.assign(a=(4,), b=(5,), c=(2,))
    (exited,) = attempts_never_begun(one.state, {("b", 1), ("c", 1)}, one.now_s)
    assert one.feed(exited) == (StartWorkers("a", 2, (4,)),)
    assert one.where("b") is JobState.STOPPING
