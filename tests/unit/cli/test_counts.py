"""Numbers in commands: a few zeros too many give an error message, and one thing is not called "1 things"."""

from __future__ import annotations

import os
from typing import Any

import pytest
from tests.fake_controller import FakeController

from weft.cli import load
from weft.cli.checkup import checkup
from weft.core.cluster import MAX_DEVICES, Cluster
from weft.core.submission import MAX_WORKERS
from weft.daemon.home import Home
from weft.engines.local import LocalEngine
from weft.engines.worker_launch import Devices, checked_count, num_workers_of
from weft.errors import EngineError, UsageError

HUGE = ("100000000", "9" * 20, "9" * 5000)


@pytest.mark.parametrize("number", HUGE)
@pytest.mark.parametrize("argument", ["synthetic:none:2 --gpus {}", "synthetic:none:{} --gpus 4"])
def test_too_large_a_simulation_is_refused_before_it_is_built(argument: str, number: str) -> None:
    with pytest.raises(UsageError):
        load("sim")([*argument.format(number).split(), "--policy", "fifo"], "weft sim")


def test_a_controller_of_too_many_devices_is_refused(tmp_path: object) -> None:
    with pytest.raises(EngineError, match=f"1 to {MAX_WORKERS}"):
        LocalEngine(tmp_path, num_devices=100_000_000)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", HUGE)
def test_up_names_the_largest_number_of_devices(number: str) -> None:
    with pytest.raises(UsageError, match="devices"):
        load("up")(["--devices", number], "weft up")


def test_a_cluster_of_the_documented_size_can_be_made() -> None:
    assert Cluster.uniform(MAX_DEVICES // 8, 8).num_devices == MAX_DEVICES
    with pytest.raises(UsageError, match=f"at most {MAX_DEVICES}"):
        Cluster((MAX_DEVICES + 1,))


def test_one_of_something_is_not_called_many(
    weft: Any, home: Home, controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    purged = {"jobs": ["k3v9x2qa"], "freed_bytes": 0, "problems": []}
    monkeypatch.setattr(controller, "purge", lambda older_than_s, *, dry_run=False: purged)
    assert "1 job deleted" in weft("purge").err
    with pytest.raises(EngineError, match="this machine has 1 GPU: use at most that many"):
        checked_count(2, Devices((0, 1), num_gpus=1))
    with pytest.raises(UsageError, match=r"this machine has 1 device$"):
        num_workers_of("99999", Devices((0,)))
    monkeypatch.setattr("weft.cli.checkup._GPU_FILES", "no-such-device")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    (devices,) = [finding.text for finding in checkup(home) if finding.name == "devices"]
    assert devices == "no GPUs: a device is a core, 1 core"
