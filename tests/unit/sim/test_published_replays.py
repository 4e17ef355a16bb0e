"""The replay agrees with the published one, so that what it says about other policies can be believed."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from weft.core.cluster import Cluster
from weft.elastic import policy_named
from weft.sim.readers import read_workload
from weft.sim.readers.assembly import fit_requests
from weft.sim.replay import simulate
from weft.sim.replay_options import SimulationOptions

NAMES = tuple(f"workload-{number}" for number in (1, 2, 3, 4))


def published(data: Path, policy: str) -> dict[str, float]:
    means: dict[str, float] = json.loads((data / "pollux" / "published" / f"{policy}.json").read_text())["avgs"]
    return means


def mean_jct_s(data: Path, name: str, policy: str, *, num_nodes: int = 16, crossover: bool = False) -> float:
    workload = read_workload(data / "pollux" / "workloads" / f"{name}.csv", num_devices=64)
    workload, _ = fit_requests(workload, 4 * num_nodes)
    options = SimulationOptions(crossover=crossover, record=False)
    return simulate(workload, Cluster.uniform(num_nodes, 4), policy_named(policy), options).mean_jct_s


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("policy", ["optimus", "tiresias"])
def test_known_schedulers_reproduce_published_results(public_data: Path, policy: str, name: str) -> None:
    assert mean_jct_s(public_data, name, policy) == pytest.approx(published(public_data, policy)[name], rel=0.10)


def test_the_default_beats_the_published_schedulers_on_average(public_data: Path) -> None:
    ours = statistics.fmean(mean_jct_s(public_data, name, "balanced") for name in NAMES)
    for policy, ratio in (("tiresias", 0.75), ("optimus", 0.55), ("pollux", 1.0)):
        assert ours <= ratio * statistics.fmean(published(public_data, policy).values())


def test_fifo_takes_twice_as_long_as_doubling_on_average(public_data: Path) -> None:
    fifo, doubling = (
        statistics.fmean(mean_jct_s(public_data, name, policy) for name in NAMES) for policy in ("fifo", "doubling")
    )
    assert fifo >= 2 * doubling


@pytest.mark.parametrize("name", NAMES)
def test_sharing_devices_shortens_the_wait_where_jobs_outnumber_them(public_data: Path, name: str) -> None:
    alone = mean_jct_s(public_data, name, "balanced", num_nodes=4)
    assert mean_jct_s(public_data, name, "balanced", num_nodes=4, crossover=True) < alone
