"""Every benchmark with its name, how it is started, how long it takes, and how its result is shown.

To add one: a module whose result is a JSON document, with a function that makes the page and one that draws the figure,
and an entry here; `scripts/bench all` and `scripts/bench redraw` do the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import crossover_scenarios, overlap_scenarios, profile_scenarios
from benchmarks.record import code_id, page, read_document

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """One benchmark; times are estimates for two cores of an AMD EPYC.

    With more time than ``least_minutes`` it makes more rounds or rows, up to ``minutes``; the short version likewise,
    from ``quick_least_minutes`` up to ``quick_minutes``.
    """

    name: str
    about: str
    minutes: float
    least_minutes: float
    quick_minutes: float
    words: tuple[str, ...]
    """What comes after ``python -m``."""
    page: Callable[[Document], str]
    draw: Callable[[Document, Path], None]
    keys: Callable[[bool], dict[str, float]] | None = None
    """Where rows are kept one by one: their names with the minutes each takes; the flag is for the quick run."""
    has_rounds: bool = False
    """Whether fewer rounds make it shorter."""
    has_quick: bool = True
    """Whether there is a short version."""
    quick_least_minutes: float | None = None
    """Where the short version can leave out rows."""

    def least(self, *, quick: bool) -> float:
        """Minutes for its most valuable rows, with as few rounds as possible."""
        if not quick:
            return self.least_minutes
        return self.quick_minutes if self.quick_least_minutes is None else self.quick_least_minutes

    def todo(self, folder: Path, *, quick: bool) -> Todo:
        """What the current code has not measured yet."""
        path = folder / f"{self.name}.json"
        document = read_document(path) if path.exists() else {}
        whole = self.quick_minutes if quick else self.minutes
        if self.keys is None:
            is_done = document.get("code") == code_id()
            return Todo(int(not is_done), 1, 0.0 if is_done else whole)
        rows = [*document.get("rows", []), *document.get("lone", [])]
        done = {row["key"] for row in rows if row.get("code") == code_id()}
        keys = self.keys(quick)
        left = {key: minutes for key, minutes in keys.items() if key not in done}
        return Todo(len(left), len(keys), min(whole, sum(left.values())))


@dataclass(frozen=True, slots=True)
class Todo:
    """Rows of a benchmark that are left."""

    num_left: int
    num_rows: int
    minutes: float


def _late(module: str, name: str, *args: Any) -> Any:
    """A benchmark's modules load torch, a controller, or matplotlib: only the one that is needed is imported."""
    return getattr(import_module(f"benchmarks.{module}"), name)(*args)


def _page(name: str, module: str, document: Document) -> str:
    return page(name, document, _late(module, "tables", document))


def _alone(
    name: str, about: str, minutes: float, least_minutes: float, quick_minutes: float, *, has_rounds: bool = False
) -> Part:
    """A benchmark made in one run by its own module."""
    words = (f"benchmarks.{name}",)
    show, draw = partial(_page, name, name), partial(_late, name, "draw")
    return Part(name, about, minutes, least_minutes, quick_minutes, words, show, draw, has_rounds=has_rounds)


def _keys(full_run: Callable[[], Any], quick_run: Callable[[], Any], quick: bool) -> dict[str, float]:
    return {scenario.key: scenario.least_s / 60 for scenario in (quick_run if quick else full_run)()}


# In order of value: those for which a limited run has no time are left out from the end.
PARTS = {
    part.name: part
    for part in (
        Part(
            "queue",
            "a queue of jobs on a Ray cluster, with each layer of weft added in turn",
            50.0,
            16.4,  # one round
            2.4,
            ("weft", "bench", "queue"),
            partial(_late, "queue_results", "markdown"),
            partial(_late, "queue_plot", "draw"),
            partial(_late, "queue_command", "keys"),
        ),
        Part(
            "overlap",
            "a training step with DDP, FSDP2, DeAR, and weft on a slow link",
            overlap_scenarios.FULL_MINUTES,
            20.3,  # without the MLP at other ratios
            3.5,
            ("weft", "bench", "overlap"),
            partial(_late, "overlap_results", "markdown"),
            partial(_late, "overlap_plot", "draw"),
            partial(_keys, overlap_scenarios.full_run, overlap_scenarios.quick_run),
            quick_least_minutes=1.3,  # one row
        ),
        Part(
            "overlap_profiles",
            "popular models with emulated compute, next to what weft predict says",
            profile_scenarios.FULL_MINUTES,
            27.5,
            27.5,
            ("weft", "bench", "overlap", "--profiles"),
            partial(_late, "overlap_results", "markdown"),
            partial(_late, "overlap_plot", "draw_profiles"),
            partial(_keys, profile_scenarios.profiles_run, profile_scenarios.profiles_run),
            has_quick=False,
        ),
        Part(
            "crossover",
            "two jobs on the same hosts, in every way they can share them",
            12.0,
            6.3,
            3.0,
            ("weft", "bench", "crossover"),
            partial(_late, "crossover_results", "markdown"),
            partial(_late, "crossover_plot", "draw"),
            partial(_keys, crossover_scenarios.full_run, crossover_scenarios.quick_run),
            quick_least_minutes=0.8,  # one row
        ),
        _alone("restart", "from a stop request to the first step again", 4, 1, 0.8, has_rounds=True),
        _alone(
            *("controller", "real jobs on a controller, elastic and fixed, next to the simulator", 11, 2.2, 3),
            has_rounds=True,
        ),
        _alone("session_costs", "what a session costs a training step", 5, 1, 1, has_rounds=True),
        _alone("controller_costs", "what the controller costs and how long it makes people wait", 1.6, 1.6, 1.6),
        Part(
            "elastic",
            "every policy on the public workloads, simulated",
            4.0,
            4.0,
            2.0,
            ("weft", "bench", "elastic"),
            partial(_page, "elastic", "elastic_command"),
            partial(_late, "elastic.pictures", "draw"),
        ),
        _alone("scale", "one controller on up to 1,000 simulated nodes, 8,000 workers, 10,000 jobs", 3, 3, 1),
        _alone(
            *(
                "ray_overhead",
                "starts and resizes on Ray next to the local engine; nodes that leave and join",
                3,
                3,
                2.5,
            )
        ),
        _alone("dashboard", "what an open dashboard costs, and frames per second of its timeline", 3, 3, 2),
        _alone("lease_handover", "what handing over a device costs", 0.5, 0.5, 0.5),
    )
}
