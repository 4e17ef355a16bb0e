"""A job without torch that takes each sample once: resumes from its last saved state, and writes its ledger at the end.

    python ledger_job.py NUM_SAMPLES STEP_S FOLDER

``FOLDER`` gets a diary of starts and of devices found in use, and ``ledger-JOB.json``: how often each sample counts.
With ``WEFT_LEASE`` the job takes turns on its device; without ``WEFT_CHANNEL`` it is a job of `weft run`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

num_samples, step_s, folder = int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])
job_id, attempt = os.environ["WEFT_JOB_ID"], int(os.environ["WEFT_ATTEMPT"])
controller = os.environ.get("WEFT_CHANNEL")
shares = "WEFT_LEASE" in os.environ
saved = Path(os.environ["WEFT_CHECKPOINT_DIR"]) / "ledger.json"
SAVE_EVERY = 5
CLAIMED_STEPS = 50_000
"""How long a job that shares says it will take: for a short one pairing would not pay."""


def note(line: str) -> None:
    with (folder / "diary").open("a") as file:
        file.write(f"{line}\n")


def save(counts: list[int], step: int) -> None:
    # A full disk: the state of before stays, and the samples since then are taken again after a restart.
    with contextlib.suppress(OSError):
        aside = saved.with_suffix(".aside")
        aside.write_text(json.dumps([counts, step]))
        aside.replace(saved)


note(f"start {job_id} {attempt} {os.environ['RANK']}")
(core,) = os.sched_getaffinity(0)
# `weft run` gives out no devices: there only two attempts of one job must not run at once.
device_name = f"core{core}" if controller else job_id.partition(".")[0]
device = os.open(folder / f"{device_name}.device", os.O_RDWR | os.O_CREAT)
try:
    fcntl.flock(device, (fcntl.LOCK_SH if shares and controller else fcntl.LOCK_EX) | fcntl.LOCK_NB)
except BlockingIOError:
    note(f"conflict {job_id} {attempt} {device_name}")
stop = False


def asked(number: int, frame: object) -> None:
    global stop
    stop = True


signal.signal(signal.SIGTERM, asked)
counts, step = json.loads(saved.read_text()) if saved.exists() else ([0] * num_samples, 0)
channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
channel.bind("")
if shares:
    from weft.crossover.lease_client import gate_from_environment

    gate = gate_from_environment(os.environ)
while step < num_samples and not stop:
    if shares:
        gate.acquire()
        time.sleep(step_s / 3)
        gate.release()
        time.sleep(step_s * 2 / 3)
    else:
        time.sleep(step_s)
    counts[step] += 1
    step += 1
    report = {"kind": "step", "job_id": job_id, "attempt": attempt, "rank": 0, "world_size": 1, "step": step}
    report |= {"total_steps": num_samples, "step_s": step_s, "can_resume": True}
    if shares:
        report |= {"total_steps": CLAIMED_STEPS, "exposed_s": step_s * 2 / 3, "takes_turns": True}
    if controller:
        with contextlib.suppress(OSError):  # the controller may be away
            channel.sendto(json.dumps(report).encode(), controller)
        with contextlib.suppress(OSError, ValueError):
            stop = stop or bool(json.loads(channel.recv(4096)).get("stop"))
    if step % SAVE_EVERY == 0:
        save(counts, step)
save(counts, step)
if step < num_samples:
    sys.exit(75)
(folder / f"ledger-{job_id.partition('.')[0]}.json").write_text(json.dumps(counts))
note(f"done {job_id} {attempt}")
