"""Figures of replays (``weft sim --plot``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.sim.experiment import ReplayOutcome
from weft.sim.figure_style import INK, LIGHT, legend_below, policy_color, pyplot, save
from weft.sim.result import SimulationResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HOUR_S = 3600.0
MAX_GANTT_JOBS = 200
MAX_STACKED_JOBS = 200
MAX_MOMENTS = 4000


def plot_replays(path: Path, outcomes: Sequence[ReplayOutcome]) -> None:
    """Completion times under every policy; allocations over time under the first one."""
    plt = pyplot()
    figure = plt.figure(figsize=(12, 13), layout="constrained")
    grid = figure.add_gridspec(3, 2, height_ratios=(1.0, 1.0, 1.6))
    _distribution(figure.add_subplot(grid[0, 0]), outcomes)
    _means(figure.add_subplot(grid[0, 1]), outcomes)
    shown = outcomes[0].result
    _devices_over_time(figure.add_subplot(grid[1, :]), shown)
    _gantt(figure, figure.add_subplot(grid[2, :]), shown)
    scenario = outcomes[0].scenario
    figure.suptitle(f"{shown.workload}: {len(shown.jobs)} jobs on {scenario.num_gpus} GPUs", fontsize=14)
    save(figure, path)


def plot_sweep(path: Path, outcomes: Sequence[ReplayOutcome]) -> None:
    """Mean completion time by cluster size or load, one line per policy."""
    plt = pyplot()
    sizes = sorted({outcome.scenario.num_gpus for outcome in outcomes})
    loads = sorted({outcome.scenario.load for outcome in outcomes})
    over_gpus = len(sizes) > 1
    panels = loads if over_gpus else sizes
    figure, axes = plt.subplots(
        1, len(panels), figsize=(5.5 * len(panels) + 1.5, 5), layout="constrained", squeeze=False, sharey=True
    )
    for axis, panel in zip(axes[0], panels, strict=True):
        chosen = [o for o in outcomes if (o.scenario.load if over_gpus else o.scenario.num_gpus) == panel]
        _sweep_panel(axis, chosen, over_gpus=over_gpus)
        axis.set_title(f"load {panel:g}" if over_gpus else f"{panel:g} GPUs")
    axes[0][0].set_ylabel("mean completion time, hours")
    legend_below(figure, list(axes.flat), 5)
    figure.suptitle(f"{outcomes[0].result.workload}, {len(outcomes[0].result.jobs)} jobs")
    save(figure, path)


def _distribution(axis: Axes, outcomes: Sequence[ReplayOutcome]) -> None:
    for outcome in outcomes:
        times = sorted(outcome.result.completion_times_s)
        shares = [(position + 1) / len(times) for position in range(len(times))]
        hours = [time / HOUR_S for time in times]
        axis.step(hours, shares, where="post", label=outcome.result.policy, color=policy_color(outcome.result.policy))
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set_xlabel("completion time, hours")
    axis.set_ylabel("share of jobs done within")
    axis.set_ylim(0, 1.02)
    axis.grid(alpha=0.3)
    axis.set_title("completion times (colors as on the right)")


def _means(axis: Axes, outcomes: Sequence[ReplayOutcome]) -> None:
    names = [outcome.result.policy for outcome in outcomes]
    hours = [outcome.result.mean_jct_s / HOUR_S for outcome in outcomes]
    bars = axis.barh(names, hours, color=[policy_color(name) for name in names])
    axis.bar_label(bars, fmt="%.2f h", padding=3, fontsize=8)
    axis.axvline(outcomes[0].lower_bound_s / HOUR_S, color=INK, linestyle="--", label="lower bound")
    axis.set_ylim(max(4, len(names)) - 0.5, -0.5)
    axis.set_xlim(0, 1.15 * max(hours))
    axis.set_xlabel("mean completion time, hours")
    axis.legend(loc="upper right", bbox_to_anchor=(1.0, 1.12))
    axis.set_title("mean completion times")


def _devices_over_time(axis: Axes, result: SimulationResult) -> None:
    """Devices held by each job, stacked; a shared device counts half for each of its two jobs.

    In long logs, only the jobs with the most device time have their own color; the rest are one gray band.
    """
    import numpy as np

    moments = np.unique([t for span in result.spans for t in (span.start_s, span.end_s)])
    if len(moments) > MAX_MOMENTS:
        moments = np.linspace(moments[0], moments[-1], MAX_MOMENTS)
    largest = sorted(result.jobs, key=lambda job: -job.device_s)[:MAX_STACKED_JOBS]
    kept = {job.name for job in largest}
    row = {job.name: number + 1 for number, job in enumerate(j for j in result.jobs if j.name in kept)}
    change = np.zeros((len(row) + 1, len(moments) + 1))
    for span in result.spans:
        held = len(span.devices) * (0.5 if span.partner else 1.0)
        band = row.get(span.job, 0)
        change[band, np.searchsorted(moments, span.start_s)] += held
        change[band, np.searchsorted(moments, span.end_s)] -= held
    color = _palette()
    colors = [LIGHT, *(color(number) for number in range(len(row)))]
    stack = np.cumsum(change, axis=1)[:, :-1]
    axis.stackplot(moments / HOUR_S, stack, colors=colors, step="post", linewidth=0)
    axis.axhline(result.num_devices, color=INK, linewidth=1)
    axis.set_xlim(0, moments[-1] / HOUR_S)
    axis.set_ylim(0, 1.05 * result.num_devices)
    axis.set_xlabel("hours")
    axis.set_ylabel("GPUs, one color per job")
    axis.set_title(f"GPUs over time under {result.policy}")


def _gantt(figure: Figure, axis: Axes, result: SimulationResult) -> None:
    """One line per job: gray while it waits, darker the more workers it has, hatched while it shares them."""
    jobs = result.jobs[:MAX_GANTT_JOBS]
    line = {job.name: position for position, job in enumerate(jobs)}
    for job in jobs:
        wait = (job.submitted_s / HOUR_S, job.completion_s / HOUR_S)
        axis.broken_barh([wait], (line[job.name] - 0.4, 0.8), color=LIGHT)
    plt = pyplot()
    spans = [span for span in result.spans if span.job in line]
    norm = plt.matplotlib.colors.LogNorm(1, max(2, *(len(span.devices) for span in spans)))
    shades = plt.get_cmap("viridis_r")
    for span in spans:
        stay = (span.start_s / HOUR_S, (span.end_s - span.start_s) / HOUR_S)
        shade = shades(norm(len(span.devices)))
        look: dict[str, Any] = {"hatch": "////", "edgecolor": "white", "linewidth": 0} if span.partner else {}
        axis.broken_barh([stay], (line[span.job] - 0.4, 0.8), facecolor=shade, **look)
    bar = figure.colorbar(plt.cm.ScalarMappable(norm, shades), ax=axis, pad=0.01)
    ticks = [1 << power for power in range(int(norm.vmax).bit_length())]
    bar.set_ticks(ticks, labels=[str(tick) for tick in ticks], minor=False)
    bar.minorticks_off()
    bar.set_label("workers")
    if len(jobs) <= 40:
        axis.set_yticks(range(len(jobs)), [job.name for job in jobs], fontsize=8)
    else:
        axis.set_ylabel("jobs in order of submission")
    axis.set_ylim(len(jobs) - 0.5, -0.5)
    axis.set_xlim(0, max(job.finished_s for job in jobs) / HOUR_S)
    axis.set_xlabel("hours")
    rest = len(result.jobs) - len(jobs)
    title = f"jobs under {result.policy}, gray: waiting"
    if any(span.partner for span in spans):
        title += ", hatched: taking turns"
    axis.set_title(f"{title} ({rest} more not shown)" if rest else title)


def _sweep_panel(axis: Axes, outcomes: Sequence[ReplayOutcome], *, over_gpus: bool) -> None:
    def value(outcome: ReplayOutcome) -> float:
        return outcome.scenario.num_gpus if over_gpus else outcome.scenario.load

    for policy in dict.fromkeys(outcome.result.policy for outcome in outcomes):
        mine = sorted((o for o in outcomes if o.result.policy == policy), key=value)
        hours = [outcome.result.mean_jct_s / HOUR_S for outcome in mine]
        axis.plot([value(o) for o in mine], hours, marker="o", label=policy, color=policy_color(policy))
    bounds = {value(outcome): outcome.lower_bound_s / HOUR_S for outcome in outcomes}
    axis.plot(sorted(bounds), [bounds[x] for x in sorted(bounds)], "--", color=INK, label="lower bound")
    axis.set_xlabel("GPUs" if over_gpus else "load")
    axis.set_xscale("log", base=2)
    axis.set_xticks(sorted(bounds), [f"{x:g}" for x in sorted(bounds)])
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter("{x:g}")
    axis.tick_params(axis="y", which="minor", labelsize=7)
    axis.grid(alpha=0.3, which="both")


def _palette() -> Callable[[int], Any]:
    """Colors that differ between neighbors: steps of the golden angle around the color wheel."""
    hues = pyplot().get_cmap("hsv")
    return lambda number: (*(0.25 + 0.65 * part for part in hues(number * 0.381966 % 1.0)[:3]), 1.0)
