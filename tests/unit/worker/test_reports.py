"""What a worker reports about its steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from weft.core.step_report import StepReport
from weft.worker import reports
from weft.worker.reports import Reporter
from weft.worker.sampling import Share


class Shown:
    """In place of the progress bar."""

    def __init__(self) -> None:
        self.reports: list[StepReport] = []

    def show(self, report: StepReport) -> None:
        self.reports.append(report)

    def close(self) -> None:
        pass


def test_saving_after_the_last_step_does_not_make_that_step_look_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(reports, "time", SimpleNamespace(perf_counter=lambda: now_s))
    shown = Shown()
    environment: Any = SimpleNamespace(job_id=None, attempt=1, pid=1)
    peers: Any = SimpleNamespace(rank=0, world_size=1)
    reporter = Reporter(environment, peers, None, cast(Any, shown))
    for step in range(1, 4):
        now_s += 0.01
        reporter.step_done(step, 3, 0, Share(0, 4, 4), None)
    now_s += 5.0  # the checkpoint at the end
    reporter.flush()
    (report,) = shown.reports
    assert report.progress.step_s == pytest.approx(0.01)
    assert report.samples_per_s == pytest.approx(400.0)
