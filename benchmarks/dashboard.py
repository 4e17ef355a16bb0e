"""What the dashboard costs: the controller's CPU time per open dashboard, and frames per second of the timeline.

    python -m benchmarks.dashboard [--quick] [--out FOLDER]

The timeline, and the dashboard in a browser, need a checkout and Chromium; without them only readers of the stream are
measured.  Without a GPU, Chromium draws in software, which is the slowest case.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks import dashboard_stream, timeline_frames
from benchmarks.figures import Document, draw_costs, finish
from benchmarks.program import parse, say
from benchmarks.record import markdown_table

NUM_JOBS, NUM_READERS = 2000, 8
NUM_ROUNDS, MEASURED_S = 2, 15.0
NUM_BARS, NUM_BAR_DEVICES, NUM_FRAMES = 10_000, 64, 300
MAX_CORE = 0.01
"""Of a core, per open dashboard."""
MAX_FRAME_MS = 1000 / 30


def has_browser() -> bool:
    """Whether this is a checkout, with a browser on this machine."""
    try:
        from tests.browser import find_chromium
    except ImportError:
        return False
    return find_chromium() is not None


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="what the dashboard costs")
    options, folder = parse(parser, argv, quick="fewer jobs, bars, and rounds")
    with_browser = has_browser()
    if not with_browser:
        say("no Chromium, or not a checkout: only readers of the stream are measured")
    size = (200, 4, 1, 3.0) if options.quick else (NUM_JOBS, NUM_READERS, NUM_ROUNDS, MEASURED_S)
    stream = dashboard_stream.measure(*size, with_browser=with_browser)
    say(json.dumps(stream))
    document: dict[str, object] = {"stream": stream}
    if with_browser:
        bars = (1000, 8, 30) if options.quick else (NUM_BARS, NUM_BAR_DEVICES, NUM_FRAMES)
        document["timeline"] = timeline_frames.measure(*bars)
    finish("dashboard", "python -m benchmarks.dashboard", document, tables, draw, folder)


def tables(document: Document) -> str:
    """Both measurements, next to what is allowed."""
    stream, timeline = document["stream"], document.get("timeline")
    rows: list[Sequence[object]] = [
        [f"a reader of `/v1/stream`, {stream['num_jobs']} jobs", _core(stream["per_reader"]), _core(MAX_CORE)]
    ]
    if "per_browser" in stream:
        rows.append(
            [f"the dashboard in a browser, {stream['num_jobs']} jobs", _core(stream["per_browser"]), _core(MAX_CORE)]
        )
    if timeline:
        frame = f"{timeline['frame_median_ms']} ms ({timeline['frames_per_s']} frames/s)"
        rows.append(
            [f"a frame of the timeline, {timeline['bars']} bars", frame, f"{MAX_FRAME_MS:.1f} ms (30 frames/s)"]
        )
    lines = markdown_table(["cost of", "measured", "allowed"], rows)
    lines += ["", f"Without readers, the controller used {_core(stream['alone'])}. One job was changed every second."]
    if timeline:
        lines += [
            f"95 % of the frames took at most {timeline['frame_p95_ms']} ms. The page's main thread used "
            f"{timeline['main_thread_ms_per_frame']} ms per frame, on {timeline['devices']} rows.",
        ]
    return "\n".join(lines)


def _core(share: float) -> str:
    return f"{100 * share:.2f} % of a core"


def draw(document: Document, path: Path) -> None:
    """Each cost as a share of what is allowed."""
    stream, timeline = document["stream"], document.get("timeline")
    costs = [("a reader of the stream", stream["per_reader"], MAX_CORE, _core(stream["per_reader"]))]
    if "per_browser" in stream:
        costs.append(("the dashboard in a browser", stream["per_browser"], MAX_CORE, _core(stream["per_browser"])))
    if timeline:
        frame_ms = timeline["frame_median_ms"]
        costs.append(("a frame of the timeline", frame_ms, MAX_FRAME_MS, f"{frame_ms} ms"))
    title = f"The dashboard with {stream['num_jobs']} jobs"
    draw_costs(title + (f" and {timeline['bars']} bars" if timeline else ""), costs, document, path)


if __name__ == "__main__":
    main()
