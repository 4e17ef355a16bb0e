"""``weft bench queue``: plays one queue with several contenders on a Ray cluster of shaped hosts.

Data flow: queue -> controller on host 0 -> workers on all hosts -> spans and counters -> row -> files.
"""

from __future__ import annotations

import itertools
import json
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import queue_plot
from benchmarks.figures import draw_if_possible
from benchmarks.queue_models import LINK_BITS_PER_S, MODELS
from benchmarks.queue_plan import (
    CONTENDERS,
    DEVICES_PER_HOST,
    HOLD_S,
    QUEUE,
    QueueContender,
    QueueJob,
    StartCosts,
    predicted_step,
)
from benchmarks.queue_results import NAME, keep, summary_table
from benchmarks.queue_rows import Counters, SpanRecorder, key_of, make_row, summaries
from benchmarks.ray_hosts import RayHosts
from benchmarks.record import Row, RowRecord, results_folder
from benchmarks.start_cost import LEAST_S, restart_cost_s, start_cost_s
from benchmarks.testbed import HostFailed, Testbed
from weft.cli import render
from weft.client import Client
from weft.core.job import Launch
from weft.core.submission import Submission
from weft.demo.contest import play_arrivals
from weft.errors import ControllerError, UsageError

HOSTS = (2, 4)
ROUNDS = 3
MINUTES_PER_PLAY = {2: 2.5, 4: 1.6}
QUICK_STEPS = 0.25
# The two ends of the comparison: all that the headline needs.
QUICK_CONTENDERS = ("fifo_ddp", "elastic_overlap_crossover")
# Starts, probes, and Ray take as long as in a full one.
QUICK_MINUTES_PER_PLAY = 1.2
# Enough steps to include the first ones after a start, which are slower.
PROBES = tuple(QueueJob(f"probe-{model}", model, 0.0, num_steps=4, asked_workers=2) for model in MODELS)

# Long enough to be measured and stopped before its end.
RESTARTED_PROBE_S = 4.0

Play = tuple[int, int, str]
"""Number of hosts, round, and contender."""


def queue(
    command: str,
    *,
    quick: bool,
    as_json: bool,
    hosts: list[int] | None = None,
    rounds: int | None = None,
    contenders: list[str] | None = None,
    out: Path | None = None,
    minutes: float | None = None,
    fresh: bool = False,
) -> None:
    """Play the queue with every contender that this code has not played yet."""
    for name in contenders or ():
        if name not in CONTENDERS:
            raise UsageError(f"there is no contender {name!r}: expected one of {', '.join(CONTENDERS)}")
    wanted = planned(quick, hosts=hosts, rounds=rounds, contenders=contenders)
    record = RowRecord.open(results_folder(out, quick=quick), NAME, command)
    left = [play for play in wanted if fresh or quick or record.measured(key_of(*play)) is None]
    jobs = quick_queue() if quick else QUEUE
    end_s = time.monotonic() + 60 * minutes if minutes is not None else float("inf")
    with render.progress("weft bench queue") as report:
        _play_all(
            left,
            jobs,
            record,
            lambda play: is_late(play, end_s - time.monotonic(), quick=quick),
            lambda what, done: report(what, len(wanted) - len(left) + done, len(wanted)),
        )
    keys = {key_of(*play) for play in wanted}
    rows = [row for row in record.rows if row["key"] in keys]
    if record.rows:
        draw_if_possible(queue_plot.draw, record.document(), record.path("png"))
    if as_json:
        render.print_json({"rows": rows})
    else:
        for num_hosts in sorted({row["hosts"] for row in rows}):
            print(f"{num_hosts} hosts", *summary_table(summaries(rows, num_hosts)), "", sep="\n")
        print(f"written to {record.path('json')} (and .md, .png)")
    record.conclude(keys, resumes=not quick)


def plays(hosts: Sequence[int], rounds: int, contenders: Sequence[str]) -> list[Play]:
    """Every contender once a round; another one begins each round, so that none always runs on a fresh cluster."""
    found = []
    for number in range(1, rounds + 1):
        turn = (number - 1) % len(contenders)
        for num_hosts in hosts:
            found += [(num_hosts, number, contender) for contender in (*contenders[turn:], *contenders[:turn])]
    return found


def planned(
    quick: bool,
    *,
    hosts: Sequence[int] | None = None,
    rounds: int | None = None,
    contenders: Sequence[str] | None = None,
) -> list[Play]:
    """What a run plays, where nothing else was asked for."""
    usual = (HOSTS[:1], 1, QUICK_CONTENDERS) if quick else (HOSTS, ROUNDS, tuple(CONTENDERS))
    return plays(hosts or usual[0], rounds or usual[1], contenders or usual[2])


def keys(quick: bool) -> dict[str, float]:
    """The rows of a run, with the minutes each takes."""
    return {key_of(*play): minutes_of(play, quick=quick) for play in planned(quick)}


def minutes_of(play: Play, *, quick: bool) -> float:
    """About how long a play takes."""
    return QUICK_MINUTES_PER_PLAY if quick else MINUTES_PER_PLAY.get(play[0], max(MINUTES_PER_PLAY.values()))


def is_late(play: Play, left_s: float, *, quick: bool) -> bool:
    """Whether less than half of a play that starts now would be in time."""
    return 60 * minutes_of(play, quick=quick) / 2 > left_s


def quick_queue() -> list[QueueJob]:
    """The same jobs with fewer steps, arriving faster."""
    return [
        replace(job, num_steps=max(2, round(QUICK_STEPS * job.num_steps)), arrives_s=QUICK_STEPS * job.arrives_s)
        for job in QUEUE
    ]


def _play_all(
    left: Sequence[Play],
    jobs: Sequence[QueueJob],
    record: RowRecord,
    late: Callable[[Play], bool],
    on_progress: Callable[[str, int], None],
) -> None:
    """Until a play would be late; the first one never is."""
    done = 0
    for num_hosts, own in itertools.groupby(left, key=lambda play: play[0]):
        if done and late(left[done]):
            return
        folder = Path(tempfile.mkdtemp(prefix="weft-queue-"))
        on_progress(f"{num_hosts} hosts: starting Ray", done)
        try:
            with (
                Testbed(num_hosts, LINK_BITS_PER_S) as bed,
                RayHosts(bed, folder, devices_per_host=DEVICES_PER_HOST) as cluster,
            ):
                for play in own:
                    if done and late(play):
                        return
                    on_progress(key_of(*play), done)
                    try:
                        record.put(key_of(*play), _play(cluster, folder, play, jobs))
                    except (HostFailed, ControllerError) as failure:
                        record.failures.append(f"{key_of(*play)}: {failure}")
                    keep(record)
                    done += 1
                    on_progress(key_of(*play), done)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _play(cluster: RayHosts, folder: Path, play: Play, jobs: Sequence[QueueJob]) -> Row:
    num_hosts, number, name = play
    contender, num_devices = CONTENDERS[name], num_hosts * DEVICES_PER_HOST
    home, notes = (Path(tempfile.mkdtemp(prefix=f"{what}-", dir=folder)) for what in ("home", "notes"))

    def submissions(queued: Sequence[QueueJob]) -> list[tuple[float, Submission]]:
        return [(job.arrives_s, submission(job, contender, num_devices, notes)) for job in queued]

    with cluster.controller(contender.policy, home, hold_s=HOLD_S, shares=contender.shares) as client:
        fixed = replace(contender, is_elastic=False)  # elastic would give it one worker, which starts faster than two
        probes = {probe: [(0.0, submission(probe, fixed, num_devices, notes))] for probe in PROBES}
        play_arrivals(client, probes[PROBES[0]])  # the first job that a cluster starts takes longer
        start_s = {
            probe.model: _start_s(probe, contender.sync, play_arrivals(client, arrivals).mean_s)
            for probe, arrivals in probes.items()
        }
        # Stopping and resuming takes the time of a process, not of a model: one probe tells what it adds to a start.
        first = PROBES[0]
        more_s = _restart_s(client, first, fixed, notes) - start_s[first.model] if contender.is_elastic else 0.0
        costs = {model: StartCosts(cost_s, max(LEAST_S, cost_s + more_s)) for model, cost_s in start_s.items()}
        for note in notes.iterdir():
            note.unlink()
        recorder = SpanRecorder()
        before = cluster.sent_bytes()
        played = play_arrivals(client, submissions(jobs), recorder.look)
        sent = tuple(after - first for after, first in zip(cluster.sent_bytes(), before, strict=True))
    busy_s = sum(json.loads(note.read_text())["busy_s"] for note in notes.iterdir())
    return make_row(contender, jobs, num_hosts, number, played, recorder, Counters(busy_s, sent, costs))


def _start_s(probe: QueueJob, sync: str, took_s: float) -> float:
    """What a start costs: the probe's time beyond that of the steps that the simulator counts."""
    step = predicted_step(probe.model, sync, DEVICES_PER_HOST, probe.asked_workers, probe.asked_workers)
    return start_cost_s(took_s, probe.num_steps, step.step_s)


def _restart_s(client: Client, probe: QueueJob, fixed: QueueContender, notes: Path) -> float:
    """What a restart costs: as for a start, with a probe that is stopped once."""
    workers = probe.asked_workers
    step_s = predicted_step(probe.model, fixed.sync, DEVICES_PER_HOST, workers, workers).step_s
    longer = replace(probe, num_steps=math.ceil(RESTARTED_PROBE_S / step_s))
    return restart_cost_s(client, submission(longer, fixed, workers, notes), longer.num_steps, step_s)


def submission(job: QueueJob, contender: QueueContender, num_devices: int, notes: Path) -> Submission:
    """The job as its owner would submit it: fixed at the size asked for, or with a range."""
    words = ("--model", job.model, "--steps", str(job.num_steps), "--sync", contender.sync, "--notes", str(notes))
    least, most = contender.workers(job, num_devices)
    return Submission(
        Launch(("python", "-m", "benchmarks.queue_job", *words), "/"),
        name=job.name,
        min_workers=least,
        max_workers=most,
        total_steps=job.num_steps,
    )
