"""Replays on several kinds of devices, and what `weft sim` says about kinds it cannot use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from weft.cli.sim import sim
from weft.core.cluster import Cluster
from weft.core.speed import StepTime
from weft.elastic import POLICIES, policy_named
from weft.errors import UsageError
from weft.sim.bounds import lower_bound
from weft.sim.device_kinds import KindProfile, cluster_of_kinds, kind_factors, kind_groups, with_kinds
from weft.sim.readers import read_workload
from weft.sim.replay import simulate
from weft.sim.replay_options import SimulationOptions
from weft.sim.result import SimulationResult
from weft.sim.synthetic import synthetic_workload
from weft.sim.workload import TableProfile, Workload

OPTIONS = SimulationOptions()
QUEUE = "name,submitted_s,steps,step_times_s\na,0,1000,1:1.0 2:0.6\nb,0,1000,1:1.0 2:0.6\n"


def mixed(workload: Workload, text: str, factors: str) -> tuple[Workload, Cluster]:
    cluster = cluster_of_kinds(kind_groups(text, 4))
    return with_kinds(workload, cluster, kind_factors(factors, cluster.kind_names)), cluster


def outcome(result: SimulationResult) -> object:
    return result.jobs, result.spans


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("crossover", [False, True])
def test_naming_the_one_kind_of_a_cluster_changes_nothing(name: str, crossover: bool) -> None:
    workload = synthetic_workload("synthetic:extreme:25", num_devices=16)
    plain = Cluster((4, 4, 4, 4))
    options = replace(OPTIONS, crossover=crossover)
    before = simulate(workload, plain, policy_named(name), options)
    named = simulate(workload, replace(plain, kinds=("T4",) * 4), policy_named(name), options)
    assert outcome(named) == outcome(before)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("crossover", [False, True])
def test_every_job_ends_and_none_beats_the_bound(name: str, crossover: bool) -> None:
    made = synthetic_workload("synthetic:extreme:25", num_devices=16)
    workload, cluster = mixed(made, "16xT4:4,8xA100:8", "A100=2.5")
    options = replace(OPTIONS, crossover=crossover, node_mtbf_s=20_000.0)
    result = simulate(workload, cluster, policy_named(name), options)
    assert len(result.jobs) == 25
    assert result.mean_jct_s >= lower_bound(workload, cluster, options).mean_jct_s
    for span in result.spans:
        assert len({cluster.kind_of([device]) for device in span.devices}) == 1


def test_speeds_are_explored_on_each_kind() -> None:
    made = synthetic_workload("synthetic:moderate:15", num_devices=16)
    workload, cluster = mixed(made, "8xT4:4,8xA100:8", "A100=3")
    options = replace(OPTIONS, explore=True, prediction_error=0.3)
    assert len(simulate(workload, cluster, policy_named("balanced"), options).jobs) == 15


def test_faster_devices_end_jobs_sooner() -> None:
    made = synthetic_workload("synthetic:extreme:20", num_devices=12)
    means = []
    for factor in ("A100=1", "A100=2", "A100=4"):
        workload, cluster = mixed(made, "8xT4:4,4xA100:4", factor)
        means.append(simulate(workload, cluster, policy_named("balanced"), OPTIONS).mean_jct_s)
    assert means == sorted(means, reverse=True)


def test_a_factor_speeds_up_compute_and_not_the_network(tmp_path: Path) -> None:
    path = tmp_path / "queue.csv"
    path.write_text("name,submitted_s,steps,step_times_s,exposed_s\na,0,10,1:1.0 2:0.8,2:0.3\n")
    workload, _ = mixed(read_workload(path, num_devices=4), "2xT4:2,2xA100:2", "A100=2.5")
    profile = workload.jobs[0].profile
    assert isinstance(profile, KindProfile)
    assert profile.by_kind["T4"].step_time((2,)) == StepTime(0.8, 0.3)
    assert profile.by_kind["A100"].step_time((2,)) == StepTime(0.5 / 2.5 + 0.3, 0.3)


def test_tables_of_a_kind_come_before_factors(tmp_path: Path) -> None:
    for kind, speed in (("T4", 2.0), ("A100", 6.0)):
        (tmp_path / "profiles" / kind).mkdir(parents=True)
        (tmp_path / "profiles" / kind / "resnet.csv").write_text(f"global_batch_size,1,2\n64,{speed},{1.5 * speed}\n")
    path = tmp_path / "queue.csv"
    path.write_text("name,submitted_s,steps,application,batch_size\na,0,600,resnet,64\n")
    cluster = cluster_of_kinds(kind_groups("2xT4:2,2xA100:2", 4))
    read = read_workload(path, num_devices=4, kinds=cluster.kind_names)
    workload = with_kinds(read, cluster, {"A100": 100.0})
    profile = workload.jobs[0].profile
    assert isinstance(profile, KindProfile)
    assert {kind: one.step_time((1,)).step_s for kind, one in profile.by_kind.items()} == {"T4": 1 / 2, "A100": 1 / 6}
    result = simulate(workload, cluster, policy_named("balanced"), OPTIONS)
    assert result.mean_jct_s == pytest.approx(30 + 600 / 9)
    (tmp_path / "profiles" / "A100" / "resnet.csv").rename(tmp_path / "profiles" / "A100" / "bert.csv")
    with pytest.raises(UsageError, match=r"there is no profile of application 'resnet'"):
        read_workload(path, num_devices=4, kinds=cluster.kind_names)


def test_a_cluster_of_one_kind_uses_the_tables_of_that_kind(tmp_path: Path) -> None:
    (tmp_path / "profiles" / "A100").mkdir(parents=True)
    for folder, speed in (("", 2.0), ("A100", 6.0)):
        (tmp_path / "profiles" / folder / "resnet.csv").write_text(f"global_batch_size,1\n64,{speed}\n")
    path = tmp_path / "queue.csv"
    path.write_text("name,submitted_s,steps,application,batch_size\na,0,600,resnet,64\n")
    workload = with_kinds(
        read_workload(path, num_devices=4, kinds=["A100"]), cluster_of_kinds(kind_groups("4xA100:4", 4)), {}
    )
    assert isinstance(workload.jobs[0].profile, TableProfile)
    assert workload.jobs[0].profile.step_time((1,)).step_s == 1 / 6


@pytest.mark.parametrize(
    ("cluster", "speed", "message"),
    [
        ("16T4:4", "", "--cluster 16T4:4: expected groups NxKIND:M"),
        ("16xT4:0", "", "--cluster 16xT4:0: expected groups"),
        ("0xT4:4", "", "--cluster 0xT4:4: expected groups"),
        ("2xT4:2,", "", "expected groups"),
        ("999999xT4:4", "", "at most 100000 devices"),
        ("2xT4:2,2xA100:2", "", "nothing says how fast jobs run on A100: give --kind-speed A100=FACTOR"),
        ("2xT4:2,2xA100:2,2xV100:2", "A100=2", "nothing says how fast jobs run on V100"),
        ("2xT4:2,2xA100:2", "A10=2", "there is no device kind in --cluster 'A10': did you mean 'A100'?"),
        ("2xT4:2,2xA100:2", "A100=0", "--kind-speed A100=0: expected a finite factor above 0"),
        ("2xT4:2,2xA100:2", "A100=-1", "--kind-speed A100=-1: expected a finite factor above 0"),
        ("2xT4:2,2xA100:2", "A100=nan", "--kind-speed A100=nan: expected a finite factor above 0"),
        ("2xT4:2,2xA100:2", "A100=inf", "expected a finite factor above 0"),
        ("2xT4:2,2xA100:2", "A100", "--kind-speed A100: expected KIND=FACTOR"),
        ("2xT4:2,2xA100:2", "A100=2,A100=3", "--kind-speed has A100 twice"),
        ("", "A100=2", "--kind-speed needs device kinds"),
    ],
)
def test_one_line_says_what_is_wrong_with_kinds(tmp_path: Path, cluster: str, speed: str, message: str) -> None:
    path = tmp_path / "queue.csv"
    path.write_text(QUEUE)
    with pytest.raises(UsageError) as caught:
        sim(str(path), cluster=cluster, kind_speed=speed)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_two_ways_to_give_the_number_of_devices_are_one_too_many(tmp_path: Path) -> None:
    path = tmp_path / "queue.csv"
    path.write_text(QUEUE)
    with pytest.raises(UsageError, match="--cluster and --gpus"):
        sim(str(path), cluster="2xT4:2", gpus="32")


def test_a_job_too_large_for_every_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "queue.csv"
    path.write_text("name,submitted_s,steps,step_times_s\nbig,0,10,3:1.0\n")
    with pytest.raises(UsageError, match="job big needs at least 3 devices of one kind, this cluster has at most 2"):
        sim(str(path), cluster="2xT4:2,2xA100:2", kind_speed="A100=2")
