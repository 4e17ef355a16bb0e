"""How far off predicted step times are, which docs state."""

from __future__ import annotations

from benchmarks.elastic.fit_study import left_out_errors

from weft.perf.fitting import SpeedSample


def test_each_size_is_predicted_from_the_others_once() -> None:
    errors = list(left_out_errors([SpeedSample((w,), 1 / w + 0.1) for w in (1, 2, 4, 8)]))
    assert len(errors) == 4
    assert max(errors) < 0.2
