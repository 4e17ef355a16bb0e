"""The figure of ``weft bench elastic``."""

from __future__ import annotations

from pathlib import Path

from benchmarks.figures import Document, head
from weft.sim.figure_style import INK, WIDTH_IN, mark_cut, policy_color, pyplot, save

HOUR_S = 3600.0
PUBLISHED_LABEL = {"optimus": "Optimus+Oracle", "tiresias": "Tiresias", "pollux": "Pollux"}


def draw(document: Document, path: Path) -> None:
    """Mean completion time of every policy per workload, the published ones hatched, the bound dashed."""
    plt = pyplot()
    rows = document["rows"]
    workloads = sorted({row["workload"] for row in rows})
    num_columns = min(2, len(workloads))
    num_lines = -(-len(workloads) // num_columns)
    size = (WIDTH_IN, 3.1 * num_lines + 1.0)
    figure, axes = plt.subplots(num_lines, num_columns, figsize=size, layout="constrained", squeeze=False, sharey=True)
    for axis, workload in zip(axes.flat, workloads, strict=False):
        bars = []
        own = [row for row in rows if row["workload"] == workload]
        order = list(dict.fromkeys(row["policy"] for row in own))
        for row in sorted(own, key=lambda row: order.index(row["policy"])):
            name = f"{row['policy']} + crossover" if row["crossover"] else row["policy"]
            bars.append((name, row["mean_jct_s"] / HOUR_S, row["policy"], "xxx" if row["crossover"] else ""))
        for policy, means in document["published_mean_jct_s"].items():
            if workload in means:
                label = f"published {PUBLISHED_LABEL[policy]}"
                bars.append((label, means[workload] / HOUR_S, policy, "////"))
        # One bar may be many times as long as the others: it is cut, and its number says how long it is.
        limit = 1.25 * sorted(hours for _, hours, _, _ in bars)[-2] if len(bars) > 1 else 1.25 * bars[0][1]
        for place, (_, hours, policy, hatch) in enumerate(bars):
            color = policy_color(policy)
            look = {"color": "white", "edgecolor": color, "hatch": hatch} if hatch else {"color": color}
            axis.barh(place, min(hours, limit), height=0.72, **look)
            if hours > limit:
                mark_cut(axis, place, limit)
            axis.text(min(hours, limit), place, f" {hours:.2f}", va="center", fontsize=8)
        for crossover, style in ((False, "--"), (True, ":")):
            found = [row for row in rows if row["workload"] == workload and row["crossover"] == crossover]
            if found:
                label = "lower bound" + (", crossover" if crossover else "")
                axis.axvline(found[0]["lower_bound_s"] / HOUR_S, color=INK, linestyle=style, linewidth=1, label=label)
        axis.set_yticks(range(len(bars)), [name for name, _, _, _ in bars])
        axis.set_xlim(0, 1.12 * limit)
        axis.set_title(workload)
    for axis in axes[-1]:
        axis.set_xlabel("mean completion time, hours")
    for axis in list(axes.flat)[len(workloads) :]:
        axis.set_visible(False)
    axes[0][0].invert_yaxis()
    head(figure, "Mean completion time by policy, simulated; hatched: published, or with crossover", document)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    save(figure, path)
