"""How long from "stop" until training continues: warm pool, cold start, the whole command again, torchrun.

    python -m benchmarks.restart [--rounds 5] [--quick] [--out FOLDER]

Two workers train a small model. Each round stops every contender's job with SIGTERM while it trains, starts it again as
soon as all its processes are gone, and takes the time until every worker has made its first step. The contenders
take turns in every round, so that other load on the machine affects all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Document, finish, head
from benchmarks.intervals import paired_ratio
from benchmarks.program import counted, parse, say
from weft.core.worker_environment import CHECKPOINT_DIR, STOPPED_EXIT_CODE
from weft.engines import process_tree
from weft.engines.gang import Gang
from weft.engines.output import Console
from weft.engines.pool_client import PoolClient
from weft.engines.rendezvous import Rendezvous, ReservedPort
from weft.engines.worker_launch import Devices, Script, gang
from weft.errors import WeftError
from weft.sim.figure_style import RESTART, WIDTH_IN, pyplot, save

NUM_WORKERS = 2
WORKER = Path(__file__).with_name("restart_worker.py")
# Each part ends when the last worker has done it.
PARTS = ("stop", "save", "exit", "launch", "import", "process group", "load", "first step")
WORDS = {
    "warm": "weft, workers forked from a warm pool",
    "cold": "weft, a fresh interpreter per worker",
    "weft run": "`weft run` stopped and typed again",
    "torchrun": "torchrun stopped and started again",
}


@dataclass(frozen=True)
class JobRun:
    """One run of the job: when it was asked to stop, when it was gone, and what its workers recorded."""

    asked_s: float
    gone_s: float
    marks: tuple[Mapping[str, float], ...]

    def last(self, name: str) -> float:
        return max(marks[name] for marks in self.marks)


Runner = Callable[[Path, Mapping[str, str]], JobRun]


class StopWhenRunning(Console):
    """Asks the gang to stop once all workers have said that they are training; the gang selects on ``fileno``."""

    def __init__(self) -> None:
        super().__init__()
        self._asked, self._ask = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._num_running = 0
        self.asked_s = 0.0

    def out(self, data: bytes) -> None:
        self._num_running += data.count(b"running")
        if self._num_running == NUM_WORKERS and not self.asked_s:
            self.asked_s = time.monotonic()
            os.write(self._ask, bytes([signal.SIGTERM]))

    def err(self, data: bytes) -> None:
        """Output of workers and weft is not measured."""

    def fileno(self) -> int:
        return self._asked

    def take(self) -> list[int]:
        return list(os.read(self._asked, 16))

    def close(self) -> None:
        os.close(self._asked)
        os.close(self._ask)


def in_pool(pool: PoolClient, *, warm: bool) -> Runner:
    devices = Devices.of_this_machine()

    def run(marks: Path, environment: Mapping[str, str]) -> JobRun:
        console = StopWhenRunning()
        with Rendezvous(pool) if warm else ReservedPort() as place:
            workers = gang(
                Script(str(WORKER), (str(marks),)),
                num_workers=NUM_WORKERS,
                devices=devices,
                port=place.port,
                environment={**environment, **place.environment},
            )
            started = Gang(pool, workers, console)
            place.serve(environment, devices.cores)
            outcome = started.run(console)
        gone_s = time.monotonic()
        console.close()
        if outcome.exit_code != STOPPED_EXIT_CODE:
            raise WeftError(f"the job did not stop as asked: {' '.join(outcome.report)}")
        return JobRun(console.asked_s, gone_s, _read(marks))

    return run


def as_command(*command: str) -> Runner:
    def run(marks: Path, environment: Mapping[str, str]) -> JobRun:
        with subprocess.Popen(
            [*command, str(WORKER), str(marks)],
            env=dict(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:
            if process.stdout is None:
                raise WeftError("the job has no output to wait for")
            num_running = 0
            while num_running < NUM_WORKERS:
                line = process.stdout.readline()
                if not line:
                    raise WeftError(f"{command[0]} ended before its workers trained")
                num_running += line.count(b"running")  # two workers may share a line
            asked_s = time.monotonic()
            process.send_signal(signal.SIGTERM)
            process.wait()
        return JobRun(asked_s, time.monotonic(), _read(marks))

    return run


def _read(marks: Path) -> tuple[Mapping[str, float], ...]:
    files = [marks.with_name(f"{marks.name}.{rank}") for rank in range(NUM_WORKERS)]
    return tuple(json.loads(file.read_text()) for file in files)


def parts_s(before: JobRun, after: JobRun) -> dict[str, float]:
    """The time from the stop request of one run to the first step of the next, part by part."""
    borders = [
        before.asked_s,
        before.last("step"),
        before.last("saved"),
        before.gone_s,
        *(after.last(name) for name in ("script", "imported", "joined", "loaded", "first_step")),
    ]
    parts = {part: borders[number + 1] - borders[number] for number, part in enumerate(PARTS)}
    return {**parts, "total": borders[-1] - borders[0]}


def measure(num_rounds: int, folder: Path) -> dict[str, list[dict[str, float]]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    warm = PoolClient.launch(warm=True, environment=environment)
    cold = PoolClient.launch(warm=False, environment=environment)
    while not (warm.ready and cold.ready):
        (cold if warm.ready else warm).receive()
    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={NUM_WORKERS}")
    contenders = {
        "warm": in_pool(warm, warm=True),
        "cold": in_pool(cold, warm=False),
        "weft run": as_command(sys.executable, "-m", "weft", "run", "--workers", str(NUM_WORKERS)),
        "torchrun": as_command(sys.executable, *torchrun),
    }
    times: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    try:
        for number in range(num_rounds):
            for name, run in contenders.items():
                own = {**environment, CHECKPOINT_DIR: str(folder / f"{name}-{number}")}
                lives = [run(folder / "marks", own) for _ in range(2)]
                times[name].append(parts_s(*lives))
                say(f"round {number + 1} of {num_rounds}, {name}: {times[name][-1]['total']:.2f} s")
    finally:
        process_tree.sweep()  # also what torchrun may have left
    return times


def tables(document: Document) -> str:
    """Medians in milliseconds. The parts of a row are medians too and need not add up to its total."""
    times: Mapping[str, list[dict[str, float]]] = document["times_s"]
    lines = [f"Two workers, small model; milliseconds, medians of {counted(document['rounds'], 'round')}.", ""]
    lines += [f"| contender | {' | '.join(PARTS)} | total | slowest round |", f"|---|{'---:|' * (len(PARTS) + 2)}"]
    for name, rounds in times.items():
        cells = [f"{1e3 * statistics.median(row[part] for row in rounds):.0f}" for part in (*PARTS, "total")]
        slowest = max(row["total"] for row in rounds)
        lines.append(f"| {WORDS[name]} | {' | '.join(cells)} | {1e3 * slowest:.0f} |")
    ratio = paired_ratio(*([row["total"] for row in times[name]] for name in ("torchrun", "warm")))
    lines += ["", f"torchrun / warm{', 95 % confidence interval' * ratio.has_interval}: {ratio}"]
    return "\n".join(lines)


def draw(document: Document, path: Path) -> None:
    """Mean seconds of each part, so that the parts of a bar add up to the mean total."""
    plt = pyplot()
    times: Mapping[str, list[dict[str, float]]] = document["times_s"]
    figure, axis = plt.subplots(figsize=(WIDTH_IN, 0.5 * len(times) + 1.9), layout="constrained")
    names = list(times)[::-1]
    left_s = [0.0] * len(names)
    for part, color in zip(PARTS, RESTART, strict=True):
        widths_s = [statistics.fmean(row[part] for row in times[name]) for name in names]
        axis.barh(range(len(names)), widths_s, height=0.62, left=left_s, color=color, label=part)
        left_s = [left + width for left, width in zip(left_s, widths_s, strict=True)]
    for number, total_s in enumerate(left_s):
        axis.text(total_s, number, f" {total_s:.2f} s", va="center", fontsize=8.5)
    axis.set_yticks(range(len(names)), [WORDS[name].replace("`", "") for name in names])
    axis.set_xlabel("seconds from the stop request to the first step again")
    axis.margins(x=0.1)
    head(figure, f"A restart, two workers, mean of {counted(document['rounds'], 'round')}", document)
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=len(PARTS), columnspacing=1.2)
    save(figure, path)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options, out = parse(parser, argv, quick="one round", rounds=5)
    num_rounds = options.rounds
    process_tree.adopt_orphans()
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    with tempfile.TemporaryDirectory() as folder:
        times = measure(num_rounds, Path(folder))
    command = f"python -m benchmarks.restart --rounds {num_rounds}"
    finish("restart", command, {"rounds": num_rounds, "times_s": times}, tables, draw, out)


if __name__ == "__main__":
    main()
