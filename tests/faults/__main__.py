"""Seeded schedules of faults against real controllers, several at once, each in a process and a home of its own.

python -m tests.faults --seed 7                     # replay the schedule of seed 7
python -m tests.faults --num 500 --parallel 3       # 500 schedules, one line each, a table of faults by kind at the end
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[2]
SESSION_EVERY = 5
"""Every fifth schedule has a real session: there torch is imported each time the controller is started."""
LIMIT_S = 900
_PR_SET_PDEATHSIG = 1
LOADED = (
    "tests.faults.schedule",
    "weft.daemon.api.app",
    "weft.engines.local",
    "weft.cli.run",
    "weft.elastic.registry",
    "weft.perf.exploration",
    "anyio._backends._asyncio",
    "concurrent.futures.thread",
    "pydantic.v1",
    "uvicorn.lifespan.off",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.auto",
)
"""What controllers and runs would import: forks of this process have it."""


@dataclass
class Soak:
    """Schedules that are running, and the results of those that have ended."""

    kinds: Sequence[str]
    num_faults: int
    session: bool | None
    results: Path | None
    faults: Counter[str] = field(default_factory=Counter)
    num_ok: int = 0
    num_violations: int = 0
    _running: dict[int, tuple[int, Path, float]] = field(default_factory=dict)

    def run(self, seeds: Sequence[int], num_at_once: int) -> None:
        done = self._done_before()
        waiting = [seed for seed in seeds if seed not in done]
        try:
            while waiting or self._running:
                while waiting and len(self._running) < num_at_once:
                    self._start(waiting.pop(0))
                self._take(*os.wait())
        finally:
            for pid in self._running:
                os.kill(pid, signal.SIGTERM)
            for pid, (_, folder, _) in self._running.items():
                os.waitpid(pid, 0)
                shutil.rmtree(folder, ignore_errors=True)

    def _start(self, seed: int) -> None:
        folder = Path(tempfile.mkdtemp(prefix=f"weft-faults-{seed}-"))
        pid = os.fork()
        if pid == 0:
            self._become_schedule(seed, folder)
        self._running[pid] = seed, folder, time.monotonic()

    def _become_schedule(self, seed: int, folder: Path) -> None:
        """The child's side: never returns."""
        try:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            signal.signal(signal.SIGTERM, _give_up)
            signal.signal(signal.SIGALRM, _give_up)
            signal.alarm(LIMIT_S)
            from tests.faults.schedule import run_schedule

            session = seed % SESSION_EVERY == 0 if self.session is None else self.session
            outcome: dict[str, Any] = {"seed": seed, "session": session, "violation": ""}
            try:
                outcome["kinds"] = run_schedule(
                    seed, folder, num_faults=self.num_faults, session=session, chosen=self.kinds
                )
            except BaseException as error:
                traceback.print_exc(file=(folder / "traceback.txt").open("w"))
                outcome["violation"] = str(error) or repr(error)
            (folder / "outcome.json").write_text(json.dumps(outcome))
        finally:
            os._exit(0)

    def _take(self, pid: int, status: int) -> None:
        seed, folder, began_s = self._running.pop(pid)
        try:
            outcome = json.loads((folder / "outcome.json").read_text())
        except OSError:
            outcome = {"seed": seed, "violation": f"seed {seed}: the schedule's process ended with status {status}"}
        outcome["took_s"] = round(time.monotonic() - began_s, 1)
        self._count(outcome)
        if outcome["violation"]:
            print(f"VIOLATION {outcome['violation']}\nits folder: {folder}", flush=True)
        else:
            sort = " with a session" if outcome["session"] else ""
            print(f"seed {seed}{sort}: {', '.join(outcome['kinds'])}: ok, {outcome['took_s']} s", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
        if self.results is not None:
            with self.results.open("a") as file:
                file.write(json.dumps(outcome) + "\n")

    def _count(self, outcome: dict[str, Any]) -> None:
        self.num_violations += bool(outcome["violation"])
        self.num_ok += not outcome["violation"]
        self.faults.update(outcome.get("kinds", ()))

    def _done_before(self) -> set[int]:
        """Seeds that went well in an earlier run with the same file; they count, too."""
        if self.results is None or not self.results.exists():
            return set()
        before = [json.loads(line) for line in self.results.read_text().splitlines()]
        well = {outcome["seed"]: outcome for outcome in before if not outcome["violation"]}
        for outcome in well.values():
            self._count(outcome)
        print(f"{len(well)} schedules are done already, by {self.results}", flush=True)
        return set(well)


class GivenUp(BaseException):
    """A schedule is to end now; not an Exception, so that nothing takes it for a fault it expects."""


def _give_up(signum: int, frame: FrameType | None) -> None:
    raise GivenUp("asked to end" if signum == signal.SIGTERM else f"not over after {LIMIT_S} s")


def _load() -> None:
    """Import what the processes of all schedules need, without a thread: they are forks."""
    os.environ.update(PYTHONPATH=f"{ROOT / 'src'}:{ROOT}", OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    for name in LOADED:
        importlib.import_module(name)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=1000, help="of the first schedule")
    parser.add_argument("--num", type=int, default=1, help="how many schedules, one seed after the other")
    parser.add_argument("--parallel", type=int, default=1, help="how many at once")
    parser.add_argument("--faults", type=int, default=6, help="faults of each schedule")
    parser.add_argument("--kinds", default="", help="these faults, with commas between them, instead of random ones")
    parser.add_argument("--session", action=argparse.BooleanOptionalAction, help="default: with every fifth seed")
    parser.add_argument("--results", type=Path, help="a line of JSON for each schedule; those there are not run again")
    options = parser.parse_args()
    _load()
    signal.signal(signal.SIGTERM, _give_up)
    began_s = time.monotonic()
    kinds = [kind for kind in options.kinds.split(",") if kind]
    soak = Soak(kinds, options.faults, options.session, options.results)
    try:
        soak.run(range(options.seed, options.seed + options.num), options.parallel)
    except (KeyboardInterrupt, GivenUp):
        print("interrupted; with the same --results it resumes")
        return 130
    print(f"{soak.num_ok + soak.num_violations} schedules, {soak.num_violations} violations", end="")
    print(f", {time.monotonic() - began_s:.0f} s")
    from tests.faults.kinds import KINDS

    for kind in KINDS:
        print(f"{kind:20} {soak.faults[kind]}")
    return 1 if soak.num_violations else 0


if __name__ == "__main__":
    sys.exit(main())
