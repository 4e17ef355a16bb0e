"""``scripts/bench all``: every benchmark in its own process, showing the time left.

A benchmark that fails is reported at the end, and the others still run.  Results of the current code are kept.

[Note: how the time is divided]  Each benchmark has a minimum time, in which it measures its most valuable rows with as
few rounds as possible.  In order of value, each gets its minimum while time lasts; the rest is divided in proportion to
what each could use.  Benchmarks that get no time are listed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.parts import PARTS, Part, Todo
from benchmarks.program import say
from benchmarks.record import commit, results_folder
from weft.cli.render import duration
from weft.errors import UsageError, WeftError

PARENT = Path(__file__).resolve().parents[1]
FULL_MINUTES = 90.0
QUICK_MINUTES = 5.0


def run_all(*, quick: bool, only: str, minutes: float | None, fresh: bool, dry_run: bool, out: Path | None) -> None:
    """Run what is left of the chosen benchmarks."""
    folder = results_folder(out, quick=quick)
    parts = [part for part in chosen(only) if part.has_quick or not quick]
    todo = {part.name: _todo(part, folder, quick=quick, fresh=fresh) for part in parts}
    limits = share_out(parts, todo, minutes or (QUICK_MINUTES if quick else FULL_MINUTES), quick=quick)
    say(f"{'quick run' if quick else 'full run'}, commit {commit() or 'unknown'}, results in {folder}")
    for line in plan_lines(parts, todo, limits):
        say(line)
    if dry_run:
        return
    failed = []
    left = [part for part in parts if limits[part.name] > 0]
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
    names = [name for name in only.split(",") if name] or list(PARTS)
    for name in names:
        if name not in PARTS:
            raise UsageError(f"there is no benchmark {name!r}: expected one of {', '.join(PARTS)}")
    return [PARTS[name] for name in names]


def share_out(
    parts: Sequence[Part], todo: Mapping[str, Todo], minutes: float, *, quick: bool = False
) -> dict[str, float]:
    """Minutes for each part; 0 for those with nothing left to measure, and for those that do not fit."""
    wanted = {part.name: todo[part.name].minutes for part in parts}
    if sum(wanted.values()) <= minutes:
        return wanted
    shares = dict.fromkeys(wanted, 0.0)
    spare = minutes
    for part in parts:
        least = min(wanted[part.name], part.least(quick=quick))
        if least <= spare + 1e-9:
            shares[part.name] = least
            spare -= least
    more = {name: wanted[name] - share for name, share in shares.items() if share > 0}
    for name, most in more.items():
        shares[name] += most * max(0.0, min(1.0, spare / max(sum(more.values()), 1e-9)))
    return shares


def arguments_of(part: Part, *, quick: bool, minutes: float, fresh: bool, out: Path | None) -> list[str]:
    """A benchmark's arguments: fewer rounds if it has less time than it needs."""
    words = ["--quick"] if quick else []
    if out is not None:
        words += ["--out", str(out)]
    if part.keys is not None:
        words += ["--minutes", f"{minutes:.1f}", *(["--fresh"] if fresh else [])]
    elif part.has_rounds and not quick and minutes < part.minutes:
        words += ["--rounds", str(max(1, int(FULL_ROUNDS * minutes / part.minutes + 1e-9)))]
    return words


FULL_ROUNDS = 5


def plan_lines(parts: Sequence[Part], todo: Mapping[str, Todo], limits: Mapping[str, float]) -> list[str]:
    """The plan, part by part."""
    lines = []
    for part in parts:
        state = todo[part.name]
        if not state.num_left:
            what = "already measured"
        else:
            what = f"about {duration(60 * limits[part.name])}" if limits[part.name] > 0 else "no time"
            what += f", {state.num_left} of {state.num_rows} rows left" if part.keys is not None else ""
            if limits[part.name] < state.minutes:
                what += f" (with enough time: {duration(60 * state.minutes)})"
        lines.append(f"  {part.name:<17} {what:<34} {part.about}")
    return [*lines, f"  {'all':<17} about {duration(60 * sum(limits.values()))}"]


def _todo(part: Part, folder: Path, *, quick: bool, fresh: bool) -> Todo:
    found = part.todo(folder, quick=quick)
    if not fresh and not (quick and part.keys is not None):
        return found
    return Todo(found.num_rows, found.num_rows, part.quick_minutes if quick else part.minutes)


def _run(command: Sequence[str]) -> int:
    paths = [str(PARENT), *filter(None, [os.environ.get("PYTHONPATH")])]
    child = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)})
    try:
        return child.wait()
    except KeyboardInterrupt:
        # Ctrl-C reaches the benchmark too.  `subprocess.run` would kill it while it removes its hosts and processes.
        child.wait()
        raise
