"""The picture of ``weft bench elastic``."""

from __future__ import annotations

from pathlib import Path

from weft.sim.plots import HOUR_S, INK, pyplot, save
from weft.sim.studies.comparison import Comparison

PUBLISHED_LABEL = {"optimus": "Optimus+Oracle", "tiresias": "Tiresias", "pollux": "Pollux"}


def plot_comparison(path: Path, comparison: Comparison) -> None:
    """Mean completion time of every policy per workload, the published ones hatched, the bound dashed."""
    plt = pyplot()
    ours, shared = comparison.means(crossover=False), comparison.means(crossover=True)
    workloads = sorted(next(iter(ours.values())))
    bounds = {
        (outcome.result.workload, crossover): outcome.lower_bound_s / HOUR_S
        for outcome, crossover in comparison.outcomes
    }
    figure, axes = plt.subplots(
        1,
        len(workloads),
        figsize=(4.2 * len(workloads), 5.5),
        layout="constrained",
        sharey=True,
        squeeze=False,
    )
    for axis, workload in zip(axes[0], workloads, strict=True):
        bars = [(name, means[workload], f"C{i}", "") for i, (name, means) in enumerate(ours.items())]
        if workload in shared.get("balanced", {}):
            bars.insert(1, ("balanced + crossover", shared["balanced"][workload], "#174a7c", ""))
        for name, means in comparison.published.items():
            if workload in means:
                bars.append((f"published {PUBLISHED_LABEL[name]}", means[workload], "#cccccc", "//"))
        for name, mean_s, colour, hatch in bars:
            bar = axis.barh(name, mean_s / HOUR_S, color=colour, hatch=hatch, edgecolor="white")
            axis.bar_label(bar, fmt="%.2f", padding=3, fontsize=8)
        for crossover, style in ((False, "--"), (True, ":")):
            if (workload, crossover) in bounds:
                label = "lower bound" + (", crossover" if crossover else "")
                axis.axvline(bounds[workload, crossover], color=INK, linestyle=style, label=label)
        axis.set_xscale("log")
        axis.set_xlim(right=2.0 * max(mean_s for _, mean_s, _, _ in bars) / HOUR_S)
        axis.xaxis.set_major_formatter(plt.matplotlib.ticker.FormatStrFormatter("%g"))
        axis.set_xlabel("mean completion time, hours")
        axis.set_title(workload)
    axes[0][0].invert_yaxis()
    axes[0][0].legend(fontsize=8, loc="lower right")
    save(figure, path)
