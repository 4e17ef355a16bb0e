"""The controller as `weft up` starts it: a process with two listeners."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from tests.crash.driven_controller import JOB, ROOT
from tests.hang_limit import HANG_S

from weft.client import Client
from weft.core.job import Launch
from weft.core.submission import Submission
from weft.daemon.home import Home


class Server:
    """One `weft up --foreground`; ``max_files``: its limit on file descriptors, soft and hard."""

    def __init__(self, folder: Path, *options: str, max_files: int | None = None) -> None:
        self.folder, self.home = folder, Home(folder / "home")
        self.log_file = folder / "server.log"
        self.log = self.log_file.open("ab")
        self.process = subprocess.Popen(
            [
                *([] if max_files is None else ["prlimit", f"--nofile={max_files}:{max_files}"]),
                *(sys.executable, "-m", "weft", "up", "--foreground"),
                *("--port", "0", "--devices", "2", "--cold", *options),
            ],
            stdout=self.log,
            stderr=self.log,
            cwd="/",
            env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "WEFT_HOME": str(self.home.root)},
        )
        deadline_s = time.monotonic() + HANG_S
        while (record := self.home.read_record()) is None or record.pid != self.process.pid:
            assert self.process.poll() is None, self.log_file.read_text()
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        self.record = record
        self.client = Client(self.home.root)

    def submit(self, num_steps: int) -> str:
        argv = (sys.executable, str(JOB), str(num_steps), "0.02", str(self.folder / "diary"))
        return self.client.submit(Submission(Launch(argv, str(self.folder)), name="counts"))

    def num_files(self) -> int:
        """How many file descriptors it has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def allow_files(self, soft: int) -> None:
        """Change its limit on file descriptors while it runs."""
        _, hard = resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, (soft, hard))

    def end(self) -> int:
        code = self.process.wait(HANG_S)
        self.log.close()
        return code
