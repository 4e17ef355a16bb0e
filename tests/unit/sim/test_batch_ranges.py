"""Jobs whose batch size may change: compared with Pollux, which changes it too, only if progress is counted right."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.sim.test_pollux_files import PLACEMENTS, VALIDATION

from weft.core.cluster import Cluster
from weft.elastic import policy_named
from weft.errors import InputError
from weft.sim.bounds import lower_bound
from weft.sim.readers import read_workload
from weft.sim.replay import simulate
from weft.sim.replay_options import SimulationOptions

OPTIONS = SimulationOptions(decision_interval_s=0.0, restart_s=0.0)
HEADER = "name,time,application,num_replicas,batch_size\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    net = tmp_path / "profiles" / "net"
    net.mkdir(parents=True)
    (net / "placements.csv").write_text(PLACEMENTS)
    for batch, text in VALIDATION.items():
        (net / f"validation-{batch}.csv").write_text(text)
    (tmp_path / "workloads").mkdir()
    return tmp_path


def mean_s(folder: Path, jobs: str, *, gpus: int, adapt: bool, policy: str = "fifo") -> float:
    path = folder / "workloads" / "queue.csv"
    path.write_text(HEADER + jobs)
    workload = read_workload(path, num_devices=gpus, adapt_batch=adapt)
    cluster = Cluster((gpus,))
    found = simulate(workload, cluster, policy_named(policy), OPTIONS).mean_jct_s
    assert found >= lower_bound(workload, cluster, OPTIONS).mean_jct_s * (1 - 1e-9)
    return found


def test_with_one_measured_batch_size_nothing_changes(folder: Path) -> None:
    (folder / "profiles" / "net" / "validation-32.csv").unlink()
    jobs = "a,0,net,1,8\nb,5,net,2,8\n"
    fixed = mean_s(folder, jobs, gpus=2, adapt=False)
    assert mean_s(folder, jobs, gpus=2, adapt=True) == pytest.approx(fixed)


def test_every_epoch_is_trained_with_its_best_batch_size(folder: Path) -> None:
    """The first epoch gains 16/7 at 32, where a step takes 4 passes; the second gains nothing from larger batches."""
    first_s = min(100 * 2.0, 100 / (4 / 1.75) * 7.2)  # at 8: two passes of 4; at 32: four passes of 8
    assert first_s == pytest.approx(200.0)
    assert mean_s(folder, "a,0,net,1,8\n", gpus=1, adapt=True) == pytest.approx(200.0 + 200.0)
    # two devices: at 8 a step takes 1.1 s; at 32 two passes, 1.9 + 1.8 s for 16/7 of progress
    first_s = min(100 * 1.1, 100 / (4 / 1.75) * 3.7)
    assert mean_s(folder, "a,0,net,2,8\n", gpus=2, adapt=True) == pytest.approx(first_s + 100 * 1.1)


def test_a_job_may_grow_beyond_what_its_own_batch_size_allows(folder: Path) -> None:
    fixed = mean_s(folder, "a,0,net,2,8\n", gpus=4, adapt=False, policy="balanced")
    assert mean_s(folder, "a,0,net,2,8\n", gpus=4, adapt=True, policy="balanced") <= fixed


def test_a_workload_without_a_model_of_progress_is_refused(folder: Path) -> None:
    (folder / "profiles" / "table.csv").write_text("global_batch_size,1,2\n8,1.0,1.8\n")
    path = folder / "workloads" / "own.csv"
    path.write_text("name,submitted_s,application,batch_size,steps\na,0,table,8,10\n")
    with pytest.raises(InputError, match="--adapt-batch needs to know"):
        read_workload(path, num_devices=2, adapt_batch=True)
