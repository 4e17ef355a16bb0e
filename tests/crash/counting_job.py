"""A job without torch that counts: reports each step, saves when asked to stop, and resumes from there.

    python counting_job.py NUM_STEPS STEP_S DIARY [stubborn]

A stubborn one does not stop when asked.  ``DIARY`` gets one line for every start of a worker and one for every device
that was found in somebody else's use.
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

num_steps, step_s, diary = int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])
job_id, attempt = os.environ["WEFT_JOB_ID"], int(os.environ["WEFT_ATTEMPT"])
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
saved = Path(os.environ["WEFT_CHECKPOINT_DIR"]) / "step"


def note(line: str) -> None:
    with diary.open("a") as file:
        file.write(f"{line}\n")


note(f"start {job_id} {attempt} {rank} {world_size}")
(core,) = os.sched_getaffinity(0)
device = os.open(diary.with_name(f"core{core}"), os.O_RDWR | os.O_CREAT)
try:
    fcntl.flock(device, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    note(f"conflict {job_id} {attempt} core{core}")

stop = False
stubborn = sys.argv[4:] == ["stubborn"]


def asked(number: int, frame: object) -> None:
    global stop
    stop = True


signal.signal(signal.SIGTERM, asked)
step = int(saved.read_text()) if saved.exists() else 0
channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
channel.bind("")
while step < num_steps and not stop:
    time.sleep(step_s / world_size)
    step += 1
    report = {
        "kind": "step",
        "job_id": job_id,
        "attempt": attempt,
        "rank": rank,
        "world_size": world_size,
        "step": step,
        "total_steps": num_steps,
        "step_s": step_s / world_size,
    }
    with contextlib.suppress(OSError):  # the controller may be away
        channel.sendto(json.dumps(report).encode(), os.environ["WEFT_CHANNEL"])
    with contextlib.suppress(BlockingIOError):
        stop = stop or bool(json.loads(channel.recv(4096)).get("stop"))
    if rank == 0:
        diary.with_name(f"step-{job_id}").write_text(str(step))
    stop = stop and not stubborn
if rank == 0:
    aside = saved.with_suffix(".aside")
    aside.write_text(str(step))
    aside.replace(saved)
if step < num_steps:
    sys.exit(75)
note(f"done {job_id} {attempt} {rank}")
