"""Perfetto silently leaves out bars of a trace that is not quite valid: none of ours may be."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from weft.core.chrome_trace import Span, chrome_trace, spans_of

times_s = st.floats(-2.0, 2.0)
spans = st.lists(
    st.builds(
        Span,
        st.sampled_from(["worker 0", "worker 1"]),
        st.sampled_from(["compute", "communication"]),
        st.sampled_from(["forward", "wait"]),
        times_s,
        st.floats(0.0, 2.0),
    ),
    max_size=30,
)


def bars(document: dict[str, Any]) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Start and end of the bars of each row, in nanoseconds."""
    rows = defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            start_ns = round(event["ts"] * 1e3)
            rows[event["pid"], event["tid"]].append((start_ns, start_ns + round(event["dur"] * 1e3)))
    return rows


@given(spans)
def test_no_bar_starts_before_zero_or_overlaps_one_it_does_not_lie_in(given: list[Span]) -> None:
    for row in bars(chrome_trace(given)).values():
        for start_ns, end_ns in row:
            assert 0 <= start_ns <= end_ns
            assert not any(start_ns < other < end_ns < other_end for other, other_end in row)


@given(spans)
def test_a_trace_that_is_read_again_has_the_same_spans(given: list[Span]) -> None:
    read = spans_of(chrome_trace(given))
    shift_s = min([0.0, *(span.start_s for span in given)])
    assert [(one.process, one.track, one.name) for one in read] == [(one.process, one.track, one.name) for one in given]
    for one, before in zip(read, given, strict=True):
        assert abs(one.start_s - (before.start_s - shift_s)) < 2e-9
        assert abs(one.end_s - (before.end_s - shift_s)) < 2e-9


def test_bars_that_touch_share_a_row() -> None:
    touching = [Span("w", "t", "forward", 0.0102397184, 0.0009369761), Span("w", "t", "backward", 0.0111766945, 0.002)]
    assert len(bars(chrome_trace(touching))) == 1
