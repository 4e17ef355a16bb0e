"""What an open dashboard costs the controller: its CPU time with and without readers, measured alternately.

A controller with many jobs, of which one is changed every second, so that there is something to send.  CPU time is the
controller process's own, so other work on the machine hardly changes it.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.controller_costs import cpu_s
from weft.client import Client
from weft.core.job import Launch
from weft.core.submission import Submission
from weft.demo.contest import temporary_controller

NUM_CLIENTS = 16
SETTLE_S = 5.0
"""For the decisions about the jobs, and for a dashboard that was just opened."""


class Reader(threading.Thread):
    """A reader of `/v1/stream`; counts the changes it was sent."""

    def __init__(self, client: Client) -> None:
        super().__init__(daemon=True)
        self._client = client
        self._ended = False
        self.num_changes = 0

    def run(self) -> None:
        for _ in self._client.stream():
            self.num_changes += 1
            if self._ended:
                return

    def end(self) -> None:
        """With the next change."""
        self._ended = True


@contextlib.contextmanager
def readers(client: Client, num: int) -> Iterator[None]:
    """That many readers, each of which has been sent the whole queue."""
    opened = [Reader(client) for _ in range(num)]
    for reader in opened:
        reader.start()
    while not all(reader.num_changes for reader in opened):
        time.sleep(0.1)
    yield
    for reader in opened:
        reader.end()


@contextlib.contextmanager
def browser_tab(client: Client) -> Iterator[None]:
    """The real dashboard, open in Chromium."""
    from tests.browser import browser
    from tests.page_site import Site

    record = client.home.read_record()
    assert record is not None
    with tempfile.TemporaryDirectory() as folder, browser(Path(folder)) as tab:
        site = Site(client.home, tab, f"{record.url}/")
        tab.view(1600, 1000)
        site.log_in()
        time.sleep(SETTLE_S)
        yield


def cpu_share(client: Client, changed: str, seconds: float) -> float:
    """Of one core, while one job is changed every second."""
    process = psutil.Process(client.health()["pid"])
    before_s, began_s = cpu_s(process), time.monotonic()
    for number in range(max(int(seconds), 1)):
        client.change(changed, weight=1.0 + number % 2)
        time.sleep(max(began_s + number + 1 - time.monotonic(), 0.0))
    return (cpu_s(process) - before_s) / (time.monotonic() - began_s)


def measure(num_jobs: int, num_readers: int, num_rounds: int, seconds: float, *, with_browser: bool) -> dict[str, Any]:
    """Medians over rounds, in each of which the controller is measured without and then with each kind of reader."""
    with temporary_controller("balanced", num_devices=2) as client:
        job = Submission(Launch(("sleep", "3600"), "/"))
        with ThreadPoolExecutor(NUM_CLIENTS) as pool:
            ids = list(pool.map(lambda _: client.submit(job), range(num_jobs)))
        time.sleep(SETTLE_S)
        kinds: dict[str, tuple[int, Callable[[], AbstractContextManager[None]]]] = {
            "reader": (num_readers, lambda: readers(client, num_readers))
        }
        if with_browser:
            kinds["browser"] = 1, lambda: browser_tab(client)
        alone: list[float] = []
        extra: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(num_rounds):
            for kind, (num, opened) in kinds.items():
                alone.append(cpu_share(client, ids[-1], seconds))
                with opened():
                    watched = cpu_share(client, ids[-1], seconds)
                extra[kind].append((watched - alone[-1]) / num)
                client.change(ids[-1], weight=3.0)  # lets the readers end
                time.sleep(SETTLE_S)
    return {
        "num_jobs": num_jobs,
        "num_readers": num_readers,
        "rounds": num_rounds,
        "seconds": seconds,
        "alone": round(statistics.median(alone), 4),
        **{f"per_{kind}": round(statistics.median(shares), 4) for kind, shares in extra.items()},
        **{f"per_{kind}_rounds": [round(share, 4) for share in shares] for kind, shares in extra.items()},
    }
