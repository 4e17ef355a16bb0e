"""A controller of a test's own, and a browser that looks at its dashboard."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.browser import Browser, browser
from tests.hang_limit import HANG_S

from weft.client import Client
from weft.core.job import Launch
from weft.core.submission import Submission
from weft.daemon.home import Home

LIVE = "document.querySelector('#contact-text')?.textContent === 'live'"
# Complete: before its script runs, the form would be sent by the browser itself.
ASKS = "document.readyState === 'complete' && document.querySelector('#token')"


class Site:
    """Submits jobs, logs in, and looks."""

    def __init__(self, home: Home, tab: Browser, page: str) -> None:
        self.home, self.tab, self.page = home, tab, page
        self.client = Client(home.root)

    @property
    def port(self) -> int:
        return int(self.page.rstrip("/").rpartition(":")[2])

    def submit(self, name: str, code: str, **options: Any) -> str:
        """A job that runs this Python code."""
        launch = Launch((sys.executable, "-c", code), str(self.home.root))
        return self.client.submit(Submission(launch, name=name, **options))

    def train(self, name: str, steps: int, *, width: int = 64, **options: Any) -> str:
        """A real training job, which reports its steps."""
        words = ("-m", "weft.demo.train", "--steps", str(steps), "--width", str(width), "--seed", str(len(name)))
        launch = Launch((sys.executable, *words), str(self.home.root))
        return self.client.submit(Submission(launch, name=name, **options))

    def log_in(self, fragment: str = "") -> None:
        """By typing the token, unless this browser is still logged in."""
        # From elsewhere: between two fragments of one address nothing would be loaded.
        self.tab.go("about:blank")
        self.tab.go(self.page + fragment)
        if self.tab.wait_for(f"{ASKS} ? 'asks' : {LIVE} ? 'live' : ''") == "asks":
            self.type_token()

    def type_token(self, *, change: bool = False) -> None:
        """``change``: with permission to change jobs and nodes."""
        self.tab.wait_for(ASKS)
        if change:
            self.tab.click("#changes")
        self.tab.type_into("#token", self.home.token())
        self.tab.press("Enter")
        self.tab.wait_for(LIVE)

    def point_at(self, name: str) -> None:
        """At a job on the timeline, with the keyboard, as soon as it is there."""
        press = "document.querySelector('.gantt').dispatchEvent(new KeyboardEvent('keydown', {key: 'n'}))"
        self.tab.wait_for(f"({press}, document.querySelector('.tip p')?.textContent === {json.dumps(name)})")

    def show(self, fragment: str) -> None:
        """Another view of the dashboard that is open."""
        self.tab.run(f"void (location.hash = {json.dumps(fragment)})")


def weft(home: Home, *args: str) -> str:
    environment = {
        **os.environ,
        "WEFT_HOME": str(home.root),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "weft", *args]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=HANG_S, env=environment).stdout


def up(home: Home, port: int = 0, devices: int = 2) -> Any:
    options = ("--port", str(port), "--devices", str(devices), "--cold", "--grace-s", "2")
    return json.loads(weft(home, "up", *options, "--json"))


@contextlib.contextmanager
def open_site(root: Path, devices: int = 2) -> Iterator[Site]:
    home = Home(root / "home")
    try:
        page = up(home, devices=devices)["page"]
        with browser(root) as tab:
            yield Site(home, tab, page)
    finally:
        if home.holder():
            weft(home, "down", "--jobs")
        if left := home.holder():
            os.kill(left, signal.SIGKILL)
