"""``scripts/bench all``: every benchmark in its own process, showing the time left.

A benchmark that fails is reported at the end, and the others still run.  Results of this very code are kept.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.parts import PARTS, Part, Todo
from benchmarks.record import commit, results_folder
from weft.cli.render import duration
from weft.errors import UsageError, WeftError

PARENT = Path(__file__).resolve().parents[1]
MIN_MINUTES = 1.0


def run_all(*, quick: bool, only: str, minutes: float | None, fresh: bool, dry_run: bool, out: Path | None) -> None:
    """Run what is left of the chosen benchmarks."""
    folder = results_folder(out, quick=quick)
    parts = chosen(only)
    todo = {part.name: _todo(part, folder, quick=quick, fresh=fresh) for part in parts}
    limits = share_out(parts, todo, minutes)
    say(f"{'quick run' if quick else 'full run'}, commit {commit() or 'unknown'}, results in {folder}")
    for line in plan_lines(parts, todo, limits):
        say(line)
    if dry_run:
        return
    failed = []
    left = [part for part in parts if todo[part.name].num_left]
    while left:
        part = left.pop(0)
        began_s = time.monotonic()
        say(f"{part.name}: started")
        arguments = arguments_of(part, quick=quick, minutes=limits[part.name], fresh=fresh, out=out)
        if _run([sys.executable, "-m", *part.words, *arguments]) != 0:
            failed.append(part.name)
        took, rest = time.monotonic() - began_s, 60 * sum(limits[other.name] for other in left)
        outcome = "FAILED" if part.name in failed else "done"
        say(f"{part.name}: {outcome} in {duration(took)}, about {duration(rest)} left")
    if failed:
        raise WeftError(
            f"{', '.join(failed)} failed (see above): run the same command again to measure what is missing"
        )


def chosen(only: str) -> list[Part]:
    """The benchmarks of a list such as ``overlap,elastic``."""
    names = [name for name in only.split(",") if name] or [part.name for part in PARTS.values() if not part.by_request]
    for name in names:
        if name not in PARTS:
            raise UsageError(f"there is no benchmark {name!r}: expected one of {', '.join(PARTS)}")
    return [PARTS[name] for name in names]


def share_out(parts: Sequence[Part], todo: Mapping[str, Todo], minutes: float | None) -> dict[str, float]:
    """Minutes for each part; with a budget, all that can be shortened are shortened by the same factor."""
    wanted = {part.name: todo[part.name].minutes for part in parts}
    if minutes is None or sum(wanted.values()) <= minutes:
        return wanted
    fixed = sum(wanted[part.name] for part in parts if not can_be_shortened(part))
    share = max(0.0, (minutes - fixed) / max(sum(wanted.values()) - fixed, 1e-9))
    return {
        part.name: max(min(MIN_MINUTES, wanted[part.name]), share * wanted[part.name])
        if can_be_shortened(part)
        else wanted[part.name]
        for part in parts
    }


def can_be_shortened(part: Part) -> bool:
    return part.keys is not None or part.has_rounds


def arguments_of(part: Part, *, quick: bool, minutes: float, fresh: bool, out: Path | None) -> list[str]:
    """A benchmark's arguments: fewer rounds if it has less time than it needs."""
    words = ["--quick"] if quick and not part.by_request else []
    if out is not None:
        words += ["--out", str(out)]
    if part.keys is not None:
        words += ["--minutes", f"{minutes:.1f}", *(["--fresh"] if fresh else [])]
    elif part.has_rounds and not quick and minutes < part.minutes:
        words += ["--rounds", str(max(1, round(FULL_ROUNDS * minutes / part.minutes)))]
    return words


FULL_ROUNDS = 5


def plan_lines(parts: Sequence[Part], todo: Mapping[str, Todo], limits: Mapping[str, float]) -> list[str]:
    """The plan, part by part."""
    lines = []
    for part in parts:
        state = todo[part.name]
        if not state.num_left:
            what = "measured already"
        else:
            what = f"about {duration(60 * limits[part.name])}"
            what += f", {state.num_left} of {state.num_rows} rows left" if part.keys is not None else ""
            if limits[part.name] < state.minutes:
                what += f" (fewer rounds: {duration(60 * state.minutes)} without the budget)"
        lines.append(f"  {part.name:<17} {what:<34} {part.about}")
    return [*lines, f"  {'all':<17} about {duration(60 * sum(limits.values()))}"]


def _todo(part: Part, folder: Path, *, quick: bool, fresh: bool) -> Todo:
    found = part.todo(folder, quick=quick)
    if not fresh and not (quick and part.keys is not None):
        return found
    return Todo(found.num_rows, found.num_rows, part.quick_minutes if quick else part.minutes)


def _run(command: Sequence[str]) -> int:
    paths = [str(PARENT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, check=False).returncode


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
