"""Draw overlap-timelines.png: one step under DDP, barrier (DeAR) and eager, as the recurrence predicts it.

Each way gets the buckets that are best for it.  Run from the root: python docs/img/draw_overlap_timelines.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from weft.core.chrome_trace import Span
from weft.perf.fusion import plan_cuts
from weft.perf.link import Link
from weft.perf.schedule import Timeline, simulate
from weft.perf.step_profile import Mode, ParameterTiming, StepProfile
from weft.sim.figure_style import PHASES, pyplot, save

NUM_LAYERS = 36
FORWARD_MS, BACKWARD_MS, HALF_MS = 100.0, 200.0, 140.0  # HALF: all reduce-scatters, or all all-gathers
SHOWN_MS = 830.0

LABELS = {"wait": "waiting for the network"}
TITLES = {
    Mode.DDP: "DDP: all-reduce under backward",
    Mode.BARRIER: "barrier (DeAR): reduce-scatter under backward, all-gather under the next forward",
    Mode.EAGER: "eager: all-gathers also fill the link's idle time in backward",
}


def step() -> tuple[StepProfile, Link]:
    """Equal layers, on a link that needs nearly as long as computing does."""
    layers = tuple(
        ParameterTiming(
            num_elements=1_000_000,
            ready_s=BACKWARD_MS / 1e3 * (i + 1) / NUM_LAYERS,
            read_s=FORWARD_MS / 1e3 * (NUM_LAYERS - 1 - i) / NUM_LAYERS,
        )
        for i in range(NUM_LAYERS)
    )
    profile = StepProfile(layers, FORWARD_MS / 1e3, BACKWARD_MS / 1e3, 3e-10, element_bytes=4)
    wire_bytes = profile.num_elements * profile.element_bytes / 2  # two workers
    return profile, Link(alpha_s=3e-4, beta_s_per_byte=HALF_MS / 1e3 / wire_bytes, launch_s=1e-4)


def from_first_forward(timeline: Timeline) -> list[Span]:
    """Several periods, shifted so that time 0 is the start of a forward, or of its first wait."""
    start_s = max(span.end_s for span in timeline.spans if span.args["step"] == 0 and span.name == "update")
    return [
        replace(span, start_s=span.start_s + k * timeline.step_s - start_s)
        for k in range(int(SHOWN_MS / 1e3 / timeline.step_s) + 2)
        for span in timeline.spans
    ]


def draw_span(axes: Axes, span: Span, row: int) -> None:
    kind, _, bucket = span.name.partition(" ")
    left, width = span.start_s * 1e3, span.duration_s * 1e3
    right = min(left + width, SHOWN_MS)
    left = max(left, 0.0)
    if right <= left:
        return
    waiting = kind == "wait"
    axes.barh(
        row,
        right - left,
        left=left,
        height=0.82,
        color=PHASES[kind],
        edgecolor="#c1121f" if waiting else "white",
        linewidth=0.6 if span.track == "communication" else 0.0,
        hatch="/////" if waiting else None,
    )
    if bucket and right - left > 6 * len(bucket):
        axes.text((left + right) / 2, row, bucket, ha="center", va="center", color="white", fontsize=7)


def draw_mode(axes: Axes, mode: Mode, timeline: Timeline, slowest_ms: float) -> None:
    for span in from_first_forward(timeline):
        draw_span(axes, span, 1 if span.track == "compute" else 0)
    step_ms = timeline.step_s * 1e3
    for k in range(int(SHOWN_MS / step_ms) + 1):
        axes.axvline(k * step_ms, color="#333333", linewidth=1.1, linestyle=(0, (4, 2)))
    gain = "" if mode == Mode.DDP else f", {slowest_ms / step_ms - 1:.0%} faster than DDP"
    axes.set_title(TITLES[mode], loc="left", fontsize=10, fontweight="bold")
    axes.set_title(f"{step_ms:.0f} ms per step{gain}", loc="right", fontsize=10)
    axes.set_yticks([1, 0], ["compute", "communication"])
    axes.set_ylim(-0.55, 1.55)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def legend(kinds: Sequence[str]) -> list[Patch]:
    return [
        Patch(
            facecolor=PHASES[kind],
            edgecolor="#c1121f" if kind == "wait" else "white",
            hatch="/////" if kind == "wait" else None,
            linewidth=0.0,
            label=LABELS.get(kind, kind),
        )
        for kind in kinds
    ]


def main() -> None:
    profile, link = step()
    timelines = {}
    for mode in TITLES:
        cuts = plan_cuts(profile, link, 2, mode, granularity=1)
        timelines[mode] = simulate(profile, cuts, link, 2, mode)
    slowest_ms = timelines[Mode.DDP].step_s * 1e3
    plt = pyplot()
    plt.rcParams["hatch.color"] = "#c1121f"
    plt.rcParams["hatch.linewidth"] = 0.7
    figure, rows = plt.subplots(len(TITLES), 1, figsize=(10.5, 5.6), sharex=True, layout="constrained")
    for axes, (mode, timeline) in zip(rows, timelines.items(), strict=True):
        draw_mode(axes, mode, timeline, slowest_ms)
    rows[-1].set_xlim(0, SHOWN_MS)
    rows[-1].set_xlabel("milliseconds; dashed lines: step() is done, the next forward may begin")
    figure.legend(handles=legend(list(PHASES)), loc="outside lower center", ncols=len(PHASES), frameon=False)
    save(figure, Path(__file__).with_name("overlap-timelines.png"))


if __name__ == "__main__":
    main()
