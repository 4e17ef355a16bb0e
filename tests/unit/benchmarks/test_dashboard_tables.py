"""The dashboard's benchmark without a browser: what can be measured is still shown."""

from __future__ import annotations

from benchmarks.dashboard import tables

STREAM = {"num_jobs": 2000, "num_readers": 8, "alone": 0.0095, "per_reader": 0.0034}
TIMELINE = {
    "bars": 10_000,
    "devices": 64,
    "frame_median_ms": 20.0,
    "frames_per_s": 50.0,
    "frame_p95_ms": 33.0,
    "main_thread_ms_per_frame": 9.0,
}


def test_without_a_browser_only_readers_of_the_stream_are_shown() -> None:
    shown = tables({"stream": STREAM})
    assert "| a reader of `/v1/stream`, 2000 jobs | 0.34 % of a core | 1.00 % of a core |" in shown
    assert "frame" not in shown


def test_with_a_browser_all_three_costs_are_shown() -> None:
    shown = tables({"stream": STREAM | {"per_browser": 0.005}, "timeline": TIMELINE})
    assert "0.50 % of a core" in shown
    assert "| a frame of the timeline, 10000 bars | 20.0 ms (50.0 frames/s) | 33.3 ms (30 frames/s) |" in shown
