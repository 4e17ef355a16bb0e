"""A pool to start workers in, and a way to run a short script in it."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from weft.engines.gang import Gang, GangOutcome, GangPatience
from weft.engines.output import Console
from weft.engines.pool_client import PoolClient
from weft.engines.rendezvous import ReservedPort
from weft.engines.worker_launch import Devices, Script, gang

IMPATIENT = GangPatience(grace_s=60.0, hang_s=0.3, settle_s=0.2, suspect_s=0.5, kill_s=1.0)


class Recorded(Console):
    """A console that records output, and calls ``on_line`` so that a test can react to it."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        super().__init__()
        self.stdout: list[str] = []
        self.stderr: list[str] = []
        self._on_line = on_line

    def out(self, data: bytes) -> None:
        for line in data.decode().splitlines():
            self.stdout.append(line)
            self._on_line(line)

    def err(self, data: bytes) -> None:
        self.stderr += data.decode().splitlines()


class Stops:
    """Stop requests made by the test itself."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK)

    def ask(self, signum: int) -> None:
        os.write(self._write, bytes([signum]))

    def fileno(self) -> int:
        return self._read

    def take(self) -> list[int]:
        return list(os.read(self._read, 100))

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


@dataclass
class Bench:
    """Runs scripts in one pool."""

    pool: PoolClient
    folder: Path
    stops: Stops = field(default_factory=Stops)
    console: Recorded = field(default_factory=lambda: Recorded(lambda line: None))

    def run(
        self,
        source: str,
        *args: str,
        workers: int = 2,
        on_line: Callable[[str], None] = lambda line: None,
        environment: dict[str, str] | None = None,
        cwd: Path | None = None,
        patience: GangPatience = IMPATIENT,
        log_dir: Path | None = None,
    ) -> GangOutcome:
        file = self.folder / "train.py"
        file.write_text(textwrap.dedent(source))
        self.console = Recorded(on_line)
        script = Script(str(file), args, cwd=str(cwd or self.folder))
        with ReservedPort() as port:
            members = gang(
                script,
                num_workers=workers,
                devices=Devices.of_this_machine({}),
                port=port.port,
                environment={**os.environ, **(environment or {})},
            )
            return Gang(self.pool, members, self.console, patience=patience, log_dir=log_dir).run(self.stops)


@pytest.fixture(scope="module")
def bare_pool() -> Iterator[PoolClient]:
    pool = PoolClient.launch(warm=False, environment=os.environ)
    yield pool
    pool.close()


@pytest.fixture
def bench(bare_pool: PoolClient, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(bare_pool, tmp_path)
    yield bench
    bench.stops.close()
