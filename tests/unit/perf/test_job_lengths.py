"""Jobs of unknown length: what finished jobs tell about them, and what their own age tells."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.perf.job_lengths import LengthEstimate, LengthHistory, attained_remaining_s, kin_of, least_assumed_s

LENGTHS = st.lists(st.floats(1.0, 1e6), min_size=1, max_size=40).map(sorted)


def test_a_kind_of_job_that_always_takes_an_hour_has_the_rest_of_the_hour_left() -> None:
    estimate = LengthEstimate.of([3600.0] * 50)
    assert estimate.remaining_s(0.0) == pytest.approx(3600.0, rel=0.05)
    assert estimate.remaining_s(3000.0) == pytest.approx(600.0, rel=0.2)


def test_a_job_that_outlives_all_before_it_counts_by_its_age() -> None:
    assert LengthEstimate.of([60.0, 70.0]).remaining_s(done_s=5000.0) == pytest.approx(5000.0)


def test_jobs_that_still_run_show_that_jobs_can_be_long() -> None:
    finished_s = [60.0, 70.0, 80.0]
    alone = LengthEstimate.of(finished_s)
    beside_long_ones = LengthEstimate.of(finished_s, running_s=[9000.0, 5000.0, 10_000.0])
    assert beside_long_ones.remaining_s(0.0) > 1.3 * alone.remaining_s(0.0)
    assert beside_long_ones.remaining_s(100.0) > 10_000 > alone.remaining_s(100.0)


def test_the_estimate_is_that_of_kaplan_and_meier() -> None:
    """By hand, with one more job that no length ends: 1 of 5 ends at 10 s, 1 of 3 at 20 s, 1 of 2 at 40 s."""
    estimate = LengthEstimate.of([10.0, 20.0, 40.0], running_s=[15.0])
    assert estimate.shares == pytest.approx([1 / 5, 4 / 5 / 3, 4 / 5 * 2 / 3 / 2])
    assert estimate.rest == pytest.approx(1 - sum(estimate.shares))


def test_a_job_that_was_cancelled_no_longer_counts_as_running() -> None:
    history = LengthHistory()
    for _ in range(5):
        history.finished(("/x",), 60.0)
    before_s = history.remaining_s(("/y",), 100.0, usual_s=60.0)
    history.progressed([(("/x",), 50_000.0)])
    assert history.remaining_s(("/y",), 100.0, usual_s=60.0) > before_s
    history.progressed([])
    assert history.remaining_s(("/y",), 100.0, usual_s=60.0) == before_s


def test_a_stranger_is_not_taken_for_shorter_than_a_job_of_unknown_length() -> None:
    history = LengthHistory()
    for _ in range(5):
        history.finished(("/x",), 5.0)
    assert history.remaining_s(("/y",), 0.0, usual_s=60.0) == 60.0


def test_the_kind_counts_once_it_has_been_seen_often_enough() -> None:
    history = LengthHistory()
    for _ in range(3):
        history.finished(("/bert",), 10_000.0)
    history.finished(("/ncf",), 50.0)
    assert history.remaining_s(("/bert",), 0.0, usual_s=60.0) == pytest.approx(10_000.0, rel=0.6)
    by_all = history.remaining_s(("/ncf",), 0.0, usual_s=60.0)
    for _ in range(5):
        history.finished(("/ncf",), 50.0)
    assert history.remaining_s(("/ncf",), 0.0, usual_s=60.0) < by_all


def test_the_first_job_of_a_kind_counts_at_once_but_not_alone() -> None:
    history = LengthHistory()
    for _ in range(20):
        history.finished(("/short",), 60.0)
    stranger_s = history.remaining_s(("/long",), 0.0, usual_s=60.0)
    found = []
    for _ in range(4):
        history.finished(("/long",), 10_000.0)
        found.append(history.remaining_s(("/long",), 0.0, usual_s=60.0))
    assert stranger_s < 100.0 < found[0] < 10_000.0
    assert found == sorted(found)


def test_a_job_without_relatives_is_expected_to_be_as_long_as_those_that_request_as_many_workers() -> None:
    history = LengthHistory()
    for _ in range(10):
        history.finished(kin_of(1), 600.0)
        history.finished(kin_of(32), 60_000.0)
    small_s, large_s = (history.remaining_s(kin_of(num, "ana/new"), 0.0, usual_s=60.0) for num in (1, 40))
    assert 600.0 <= small_s < 3000.0 < 30_000.0 < large_s


def test_a_restarted_controller_expects_the_same_lengths() -> None:
    before, after = LengthHistory(), LengthHistory()
    for number in range(6):
        before.finished(kin_of(1, "ana/bert"), 600.0 + number)
        before.finished(kin_of(8, "ana/gpt"), 60_000.0 + number)
    after.restore(before.document())
    for kin in (kin_of(1, "ana/bert"), kin_of(8, "ana/new"), kin_of(2, "ben/new")):
        assert after.remaining_s(kin, 10.0, usual_s=60.0) == pytest.approx(before.remaining_s(kin, 10.0, usual_s=60.0))


def test_a_job_of_unknown_length_is_not_stopped_for_less_than_its_restarts_cost() -> None:
    assert least_assumed_s(60.0, restart_s=0.3) == 60.0
    assert least_assumed_s(60.0, restart_s=120.0) == 1200.0


def test_without_history_age_decides() -> None:
    assert LengthHistory().remaining_s(("/x",), 500.0, usual_s=60.0) == attained_remaining_s(500.0, 60.0) == 500.0


@given(LENGTHS, st.lists(st.floats(1.0, 1e6), max_size=20), st.floats(0.0, 2e6))
def test_remaining_work_is_a_positive_number_between_the_extremes(
    lengths_s: list[float], running_s: list[float], done_s: float
) -> None:
    remaining_s = LengthEstimate.of(lengths_s, running_s).remaining_s(done_s)
    assert 0 < remaining_s <= 2 * max(*lengths_s, *running_s, done_s)


def test_a_long_history_keeps_its_shape() -> None:
    history = LengthHistory()
    for number in range(3000):
        history.finished(("/x",), 100.0 + number % 100)
    assert history.remaining_s(("/x",), 0.0, usual_s=60.0) == pytest.approx(150.0, rel=0.1)
