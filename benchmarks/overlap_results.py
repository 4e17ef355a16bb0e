"""The results of ``weft bench overlap`` as Markdown tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.intervals import interval_note, ratio_range
from benchmarks.overlap_rows import (
    PEERS,
    best_of,
    best_peer,
    error_of,
    predicted_names,
    prediction_errors,
    share_of,
    speedup,
    variant,
)
from benchmarks.overlap_scenarios import CONTENDERS, MODELS
from benchmarks.record import Row, RowRecord, headline, markdown_table, sources

NAME = "overlap"
# The rows of popular models; they are not those of the models that are trained here.
PROFILES_NAME = "overlap_profiles"
SHARED_COLUMNS = ("alone", "ddp", "ddp_best", "ddp_plan", "weft", "bound")
DEFINITIONS = (
    "Milliseconds per step: the median over rounds, in which all contenders take turns in the same worker processes; "
    "the slowest worker counts. **network/compute**: time to move all gradients both ways with nothing else running, "
    "over `alone`, both measured in the rounds of the row. **alone**: a worker by itself: forward, backward, and the "
    "whole update, no communication. **bound**: the least that a schedule with a barrier between backward and gather "
    "(DeAR's) can take: max(backward + update/P, R) + max(forward, G), where R and G are the reduce-scatter and the "
    "all-gather at line rate ((H - 1) / H of the bytes on each of H hosts' links) and P is the number of workers. "
    "P workers share the update, so the bound is below `alone` where the link is fast, by at most update x (1 - 1/P). "
    "**eager bound**: the least without that barrier: max(forward + backward + update/P + r1 + g1, b + R + G + f), "
    "where r1 and g1 move the first layer, and b and f are the last layer's backward and forward. "
    "Ratios: how many times as fast weft is, the geometric mean over rounds, with its 95 % confidence interval (paired "
    "t on the logarithms). Where a system has several variants, the table quotes the fastest."
)

SHARED = (
    "20 MB in 16 equal layers, compute 1200 ms (16 workers: half of both). **on a link**: bytes that the busiest host "
    "sent per step, as counted by its interface, over the size of the model; two levels need 2 (H - 1) / H of it. "
    "**connections**: of one worker; DDP uses those of the process group and its store, and weft opens more."
)
BELOW_ALONE = (
    "A bound can be below `alone`: a worker alone makes the whole update, but P workers share it, which saves up to "
    "update x (1 - 1/P):"
)
MEMORY = (
    " **memory**: of one worker, its model included; shared memory is divided among those who share it. It is measured "
    "for the largest layout only."
)


PREDICTED = (
    "Measured / predicted milliseconds (error). The model is given the row's step alone (forward, backward, update) "
    "and its latency from one worker to the next, both measured in the row, and the rate that the links were set to. "
    "DDP's and DeAR's default buckets are scaled like the layers. **cores busy**: the share of this machine's cores "
    "that all workers used in a step of weft; the model assumes that every worker has a core of its own."
)


def open_record(folder: Path, command: str, name: str = NAME) -> RowRecord:
    return RowRecord.open(folder, name, command)


def keep(record: RowRecord) -> None:
    """Write what there is, in reading order."""
    record.rows.sort(key=reading_order)
    record.save(markdown(record.document()))


def reading_order(row: Row) -> tuple[bool, int, int, int, float]:
    model = MODELS.index(row["model"]) if row["model"] in MODELS else len(MODELS)
    return row["emulated_compute"], model, row["workers_per_host"], row["hosts"], row["ratio_wanted"]


def real_rows(rows: Sequence[Row]) -> list[Row]:
    """Those of models that were really trained."""
    return [row for row in rows if not row["emulated_compute"]]


def markdown(document: dict[str, Any]) -> str:
    """The whole page."""
    rows: list[Row] = document["rows"]
    real, emulated = real_rows(rows), [row for row in rows if row["emulated_compute"]]
    lines = ["# Overlap benchmark", "", headline(document), *sources(rows), "", DEFINITIONS]
    if real:
        lines += ["", "## Each peer at its best", "", *best_table(real)]
        lines += ["", "## Every contender", "", *_times(real)]
        lines += ["", "## How many times as fast is weft?", "", *_ratios(real)]
    shared = [row for row in emulated if row["part"] == "hosts"]
    if shared:
        lines += ["", "## Several workers per host, emulated compute", "", _shared_words(shared), ""]
        lines += _shared_table(shared)
    profiled = [row for row in emulated if row not in shared]
    if profiled:
        lines += ["", "## Popular models, emulated compute", "", *_times(profiled), "", *_ratios(profiled)]
    predicted = [row for row in profiled if row.get("predicted_ms")]
    if predicted:
        cores = int(document["machine"]["cores"])
        lines += ["", "## Predicted by `weft predict`'s model", "", PREDICTED, "", *_predictions(predicted, cores), ""]
        lines += [f"- {line}" for line in prediction_errors(predicted)]
    lines += ["", "## Bytes and memory per worker, in MB", "", *_bytes(rows)]
    if document.get("failures"):
        lines += ["", "Not measured:", "", *(f"- {failure.splitlines()[0]}" for failure in document["failures"])]
    return "\n".join(lines) + "\n"


def best_table(rows: Sequence[Row]) -> list[str]:
    """One column per system."""
    heads = [*_HEADS, "alone", *(f"{peer}, best" for peer in PEERS), "weft", "weft eager", "bound"]
    heads += ["weft vs default DDP", "weft vs best DDP", "weft vs best other", "same losses as DDP", "measured"]
    body = []
    for row in rows:
        cells = [*_name(row), _number(row["alone_ms"])]
        for peer in PEERS:
            name = best_of(row, peer)
            cells.append("-" if name is None else f"{_number(row[f'{name}_ms'])} ({variant(row, name)})")
        cells += [_number(row[f"{name}_ms"]) for name in ("weft", "weft_eager", "bound")]
        for name in ("ddp", best_of(row, "DDP"), best_peer(row)):
            cells.append("-" if name is None else _text(speedup(row, name, "weft")))
        body.append([*cells, _equal(row), row["date"]])
    return [*markdown_table(heads, body), *below_alone(rows, ("bound",)), *_interval_note(rows)]


def below_alone(rows: Sequence[Row], bounds: Sequence[str]) -> list[str]:
    """Lines below a table that explain its rows whose bound is below the step alone; none if there are none."""
    found = []
    for row in rows:
        for bound in bounds:
            below_ms = row["alone_ms"] - (row.get(f"{bound}_ms") or row["alone_ms"])
            if below_ms > 0:
                at_most_ms = row["update_ms"] * (1 - 1 / (row["hosts"] * row["workers_per_host"]))
                label, hosts, ratio, _ = _name(row)
                where = f"{label}, {hosts}{' hosts' * hosts.isdigit()}, network/compute {ratio}"
                by = f"{below_ms:.1f} ms below `alone`, of at most {at_most_ms:.1f} ms"
                found.append(f"- {where}: {bound.replace('_', ' ')} {by}")
    return ["", BELOW_ALONE, "", *found] if found else []


def _interval_note(rows: Sequence[Row]) -> list[str]:
    return interval_note(speedup(row, name, "weft") for row in rows for name in row["round_ms"])


_HEADS = ("model", "hosts", "network/compute", "rounds")


def _times(rows: Sequence[Row]) -> list[str]:
    names = [*CONTENDERS, "bound", "eager_bound"]
    shown = [name for name in names if any(row.get(f"{name}_ms") for row in rows)]
    heads = [*_HEADS, *(name.replace("_", " ") for name in shown)]
    table = markdown_table(heads, [[*_name(row), *(_number(row.get(f"{name}_ms")) for name in shown)] for row in rows])
    return [*table, *below_alone(rows, ("bound", "eager_bound"))]


def _ratios(rows: Sequence[Row]) -> list[str]:
    rivals = [name for peer in PEERS.values() for name in peer if any(row["round_ms"].get(name) for row in rows)]
    heads = [*_HEADS, *(f"vs {rival.replace('_', ' ')}" for rival in rivals), "eager vs weft", "weft of bound"]
    body = []
    for row in rows:
        cells = [*_name(row), *(_text(speedup(row, rival, "weft")) for rival in rivals)]
        body.append([*cells, _text(speedup(row, "weft", "weft_eager")), _percent(share_of(row, "bound", "weft"))])
    return [*markdown_table(heads, body), *_interval_note(rows)]


def _shared_words(rows: Sequence[Row]) -> str:
    return SHARED + (MEMORY if any(row.get("settled_bytes") for row in rows) else "")


def _shared_table(rows: Sequence[Row]) -> list[str]:
    """What sharing a link costs each contender, and what two levels leave on it."""
    names = [name for name in SHARED_COLUMNS if any(row.get(f"{name}_ms") for row in rows)]
    heads = ["hosts", "link, Mb/s", "rounds", *(name.replace("_", " ") for name in names)]
    heads += ["weft vs best DDP", "DDP on a link", "weft on a link", "least"]
    heads += ["connections, DDP", "connections, weft adds", "memory, DDP", "memory, weft"]
    body = []
    for row in rows:
        best = best_of(row, "DDP")
        cells = [_name(row)[1], f"{row['rate_mbit_per_s']:.0f}", str(row["rounds"])]
        cells += [_number(row.get(f"{name}_ms")) for name in names]
        cells.append("-" if best is None else f"{_text(speedup(row, best, 'weft'))}, {variant(row, best)}")
        for name in ("ddp", "weft"):
            sent = row["wire_bytes_per_step"].get(name)
            cells.append("-" if sent is None else f"{sent / row['gradient_bytes']:.2f}")
        cells.append(f"{2 * (1 - 1 / row['hosts']):.2f}")
        cells += [_text(row.get("group_connections")), _text(row["connections"].get("weft"))]
        for name in ("ddp", "weft"):
            memory = row.get("settled_bytes", {}).get(name)
            cells.append("-" if memory is None else f"{memory / 1e6:.0f} MB")
        body.append(cells)
    return [*markdown_table(heads, body), *below_alone(rows, ("bound",)), *_interval_note(rows)]


def brief_rows(rows: Sequence[Row]) -> list[Row]:
    """Real models where the network takes about as long as compute."""
    return [row for row in real_rows(rows) if row["ratio_wanted"] == 1.0]


def brief_models(document: Mapping[str, Any]) -> list[str]:
    """One row per model and network, with intervals."""
    heads = [*_HEADS, "alone", "DDP, default", *(f"{peer}, best" for peer in PEERS), "weft", "bound"]
    body = []
    for row in brief_rows(document["rows"]):
        shown = ["alone", "ddp", *(best_of(row, peer) for peer in PEERS), "weft", "bound"]
        cells = [*_name(row), *(_number(row.get(f"{name}_ms")) for name in shown)]
        best = best_peer(row)
        body.append([*cells, _text(speedup(row, "ddp", "weft")), _text(best and speedup(row, best, "weft"))])
    rows = brief_rows(document["rows"])
    table = markdown_table([*heads, "weft vs default DDP", "weft vs best other"], body)
    return [*table, *below_alone(rows, ("bound",)), *_interval_note(rows)]


def brief_hosts(document: Mapping[str, Any]) -> list[str]:
    """Several workers per host."""
    return _shared_table([row for row in document["rows"] if row["part"] == "hosts"])


def brief_profiles(document: Mapping[str, Any]) -> list[str]:
    """Popular models: ranges over the models, by layout of the workers."""
    heads = ["hosts", "models", "rounds", *(f"weft vs {peer}, best" for peer in PEERS), "weft of bound"]
    names = predicted_names(document["rows"])
    heads += [f"predicted {name.replace('_', ' ')}" for name in names]
    layouts: dict[str, list[Row]] = {}
    for row in document["rows"]:
        layouts.setdefault(_name(row)[1], []).append(row)
    body = []
    for layout, rows in layouts.items():
        cells = [layout, str(len(rows)), value_range([row["rounds"] for row in rows], "{:.0f}")]
        for peer in PEERS:
            best = [(row, name) for row in rows if (name := best_of(row, peer)) is not None]
            cells.append(ratio_range(found for row, name in best if (found := speedup(row, name, "weft")) is not None))
        cells.append(value_range([100 * (share_of(row, "bound", "weft") or 0.0) for row in rows], "{:.0f}", " %"))
        for name in names:
            errors = [100 * error for row in rows if (error := error_of(row, name)) is not None]
            cells.append(value_range(errors, "{:+.0f}", " %"))
        body.append(cells)
    return [*markdown_table(heads, body), *_interval_note(document["rows"])]


def value_range(values: Sequence[float], form: str, unit: str = "") -> str:
    """The least and the largest of them.

    >>> value_range([1.1, 1.23], "{:.1f}", "x")
    '1.1 to 1.2x'
    """
    if not values:
        return "-"
    low, high = form.format(min(values)), form.format(max(values))
    return f"{low}{unit}" if low == high else f"{low} to {high}{unit}"


def _predictions(rows: Sequence[Row], num_cores: int) -> list[str]:
    """Measured and predicted milliseconds of each contender, and how far off that is."""
    names = predicted_names(rows)
    heads = [*_HEADS, "latency, us", "alone", *(name.replace("_", " ") for name in names), "cores busy, weft"]
    body = []
    for row in rows:
        cells = [*_name(row), _number(row.get("latency_us")), _number(row["alone_ms"])]
        for name in names:
            error = error_of(row, name)
            said = "" if error is None else f" / {row['predicted_ms'][name]:.0f} ({100 * error:+.0f} %)"
            cells.append(_number(row.get(f"{name}_ms")) + said)
        core_ms = row.get("core_ms", {}).get("weft")
        cores = min(num_cores, row["hosts"])
        body.append([*cells, _percent(None if core_ms is None else core_ms / row["weft_ms"] / cores)])
    return markdown_table(heads, body)


def _bytes(rows: Sequence[Row]) -> list[str]:
    heads = ["model", "hosts", "network/compute"]
    heads += [
        f"{what}, {who}" for what in ("sent per step", "optimizer state", "peak memory") for who in ("DDP", "weft")
    ]
    body = []
    for row in rows:
        cells = _name(row)[:3]
        for key in ("wire_bytes_per_step", "state_bytes", "peak_bytes"):
            found = (row.get(key, {}).get(name) for name in ("ddp", "weft"))
            cells += ["-" if value is None else f"{value / 1e6:.1f}" for value in found]
        body.append(cells)
    return markdown_table(heads, body)


def _name(row: Row) -> list[str]:
    label = f"{row['model']} (emulated compute)" if row["emulated_compute"] else str(row["model"])
    hosts = str(row["hosts"])
    if row["workers_per_host"] > 1:
        hosts += f" x {row['workers_per_host']} workers"
    return [label, hosts, f"{row['network_over_compute']:.2f}", str(row["rounds"])]


def _equal(row: Row) -> str:
    return {True: "yes", False: "no", None: "-"}[row.get("loss_equal")]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _text(value: object | None) -> str:
    return "-" if value is None else str(value)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"
