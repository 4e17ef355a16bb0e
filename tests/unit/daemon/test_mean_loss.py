"""The loss that status and the dashboard show is the job's, not that of one worker's part of the batch."""

from __future__ import annotations

from weft.core.step_report import Progress, StepReport
from weft.daemon.newest_reports import MeanLosses


def said(rank: int, loss: float | None, attempt: int = 1) -> StepReport:
    return StepReport("a", attempt, rank, 2, Progress(10, step_s=0.1, loss=loss))


def test_the_loss_is_the_mean_over_workers() -> None:
    losses = MeanLosses()
    assert losses.averaged(said(0, 1.0)).progress.loss == 1.0
    losses.averaged(said(1, 3.0))
    assert losses.averaged(said(0, 2.0)).progress.loss == 2.5
    assert losses.averaged(said(0, None)).progress.loss is None


def test_a_new_attempt_does_not_average_with_the_last_one() -> None:
    losses = MeanLosses()
    for rank in (0, 1):
        losses.averaged(said(rank, 9.0))
    assert losses.averaged(said(0, 1.0, attempt=2)).progress.loss == 1.0
    losses.forget("a")
    assert losses.averaged(said(1, 5.0, attempt=2)).progress.loss == 5.0


def test_an_impossible_rank_is_not_counted() -> None:
    losses = MeanLosses()
    losses.averaged(said(7, 100.0))
    assert losses.averaged(said(0, 1.0)).progress.loss == 1.0
