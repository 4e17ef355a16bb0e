"""What an open dashboard costs the controller: CPU time with and without readers of `/v1/stream`.

    python -m benchmarks.dashboard_stream [--jobs 2000] [--readers 8] [--seconds 20]

A separate controller with that many jobs, of which one is changed every second, so that there is something to send.
CPU time is the controller process's own; it does not depend on how busy the machine is.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import psutil

from weft.client import Client
from weft.core.job import Launch
from weft.core.submission import Submission
from weft.demo.contest import temporary_controller

NUM_CLIENTS = 16


class Reader(threading.Thread):
    """An open dashboard; counts the changes it was sent."""

    def __init__(self, client: Client) -> None:
        super().__init__(daemon=True)
        self._client = client
        self.num_changes = 0

    def run(self) -> None:
        for _ in self._client.stream():
            self.num_changes += 1


def cpu_share(client: Client, changed: str, seconds: float) -> float:
    """Of one core, while one job is changed every second."""
    process = psutil.Process(client.health()["pid"])
    before, began_s = process.cpu_times(), time.monotonic()
    for number in range(int(seconds)):
        client.change(changed, weight=1.0 + number % 2)
        time.sleep(max(began_s + number + 1 - time.monotonic(), 0.0))
    after, took_s = process.cpu_times(), time.monotonic() - began_s
    return (after.user + after.system - before.user - before.system) / took_s


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="what an open dashboard costs")
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--readers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args(argv)
    with temporary_controller("balanced", num_devices=2) as client:
        job = Submission(Launch(("sleep", "3600"), "/"))
        with ThreadPoolExecutor(NUM_CLIENTS) as pool:
            ids = list(pool.map(lambda _: client.submit(job), range(options.jobs)))
        time.sleep(5.0)  # the decisions about them
        alone = cpu_share(client, ids[-1], options.seconds)
        readers = [Reader(client) for _ in range(options.readers)]
        for reader in readers:
            reader.start()
        while not all(reader.num_changes for reader in readers):
            time.sleep(0.1)
        watched = cpu_share(client, ids[-1], options.seconds)
        print(
            json.dumps(
                {
                    "jobs": options.jobs,
                    "readers": options.readers,
                    "without_readers": round(alone, 4),
                    "with_readers": round(watched, 4),
                    "per_reader": round((watched - alone) / options.readers, 4),
                    "changes_per_reader": sum(reader.num_changes for reader in readers) / len(readers),
                }
            )
        )


if __name__ == "__main__":
    main()
