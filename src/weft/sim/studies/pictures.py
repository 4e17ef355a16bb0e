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
        # One bar may be many times the others: it is cut at the edge, its number says how long it is.
        limit = 1.3 * sorted(mean_s for _, mean_s, _, _ in bars)[-2] / HOUR_S
        for name, mean_s, colour, hatch in bars:
            hours = mean_s / HOUR_S
            axis.barh(name, min(hours, limit), color=colour, hatch=hatch, edgecolor="white")
            inside = hours > 0.85 * limit
            place = min(hours, limit) * (0.98 if inside else 1.0) + (0 if inside else 0.01 * limit)
            ink, side = ("white", "right") if inside else (INK, "left")
            axis.text(place, name, f"{hours:.2f}", color=ink, ha=side, va="center", fontsize=8)
        for crossover, style in ((False, "--"), (True, ":")):
            if (workload, crossover) in bounds:
                label = "lower bound" + (", crossover" if crossover else "")
                axis.axvline(bounds[workload, crossover], color=INK, linestyle=style, label=label)
        axis.set_xlim(0, limit)
        axis.set_xlabel("mean completion time, hours")
        axis.set_title(workload)
    axes[0][0].invert_yaxis()
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=9)
    save(figure, path)
