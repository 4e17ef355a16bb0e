"""The published comparison stands on reading these files by the rules they were made by."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.errors import InputError
from weft.sim.readers import read_workload
from weft.sim.readers.pollux_profile import read_pollux_application
from weft.sim.readers.step_tables import canonical

PLACEMENTS = """placement,local_bsz,step_time,sync_time
1,4,1.0,0.0
1,8,1.8,0.0
2,4,1.1,0.1
2,8,1.9,0.1
11,4,1.3,0.3
11,8,2.1,0.3
"""
SCALABILITY = """num_nodes,num_replicas,local_bsz,step_time,sync_time
4,4,4,1.5,0.5
4,8,4,1.7,0.7
"""
# smallest batch 8; at 32 (scale 4) the first epoch gains (3 + 1) / (3 / 4 + 1), the second nothing
VALIDATION = {
    8: "progress,iteration,metric,grad_sqr,grad_var\n100,100,0,1,3\n200,200,0,1,0\n",
    32: "progress,iteration,metric,grad_sqr,grad_var\n110,48,0,1,3\n230,148,0,1,0\n",
}
WORKLOAD = "name,time,application,num_replicas,batch_size\nnet-0,30,net,2,16\n"


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    folder = tmp_path / "profiles" / "net"
    folder.mkdir(parents=True)
    (folder / "placements.csv").write_text(PLACEMENTS)
    (folder / "scalability.csv").write_text(SCALABILITY)
    for batch, text in VALIDATION.items():
        (folder / f"validation-{batch}.csv").write_text(text)
    return tmp_path / "profiles"


@pytest.fixture
def workload(tmp_path: Path, profiles: Path) -> Path:
    path = tmp_path / "workloads" / "one.csv"
    path.parent.mkdir()
    path.write_text(WORKLOAD)
    return path


def test_a_batch_that_does_not_fit_is_made_in_several_passes(profiles: Path) -> None:
    net = read_pollux_application(profiles / "net")
    # 32 on 2 devices: 16 each, 8 fit, so one pass without and one with synchronisation
    time = net.step_time((2,), 32)
    assert (time.step_s, time.exposed_s) == pytest.approx((1.9 + 1.8, 0.1))
    # a single device always accumulates once when the batch is above the smallest measured one
    assert net.step_time((1,), 8).step_s == pytest.approx(2.0)


def test_times_between_measured_points_lie_between_them(profiles: Path) -> None:
    table = read_pollux_application(profiles / "net").steps
    assert table.at((1, 1), 6).step_s == pytest.approx(1.7)
    assert table.at((1, 1), 99) == table.at((1, 1), 8)
    assert table.at((0, 1, 1, 0), 4) == table.at((1, 1), 4)
    # three nodes lie half way between two and four, at the same devices per node
    assert table.at((1, 1, 1), 4).step_s == pytest.approx((1.3 + 1.5) / 2)
    # five nodes were never measured: as on four; a node of four counts as two of two
    assert table.at((1, 1, 1, 1, 1), 4).step_s == pytest.approx(1.55)
    assert table.at((4,), 4) == table.at((2, 2), 4)


def test_a_ring_has_no_first_node() -> None:
    assert canonical((4, 0, 2, 1)) == canonical((2, 1, 4)) == (1, 4, 2)


def test_steps_follow_from_the_progress_curves(profiles: Path) -> None:
    net = read_pollux_application(profiles / "net")
    assert net.total_steps(8) == pytest.approx(200)
    assert net.total_steps(32) == pytest.approx(100 / (4 / 1.75) + 100)
    # 16 is a third of the way from 8 to 32; its noise is the same here, its scale 2
    assert net.total_steps(16) == pytest.approx(100 / (4 / 2.5) + 100)


def test_profiles_are_found_beside_the_workloads(workload: Path) -> None:
    (job,) = read_workload(workload, num_devices=4).jobs
    assert (job.spec.id, job.spec.submitted_s, job.spec.requested_workers) == ("net-0", 30.0, 2)
    assert job.spec.allowed_sizes(64) == (1, 2, 3, 4)


def test_more_replicas_than_an_application_can_use_are_read_as_the_most_it_can(workload: Path) -> None:
    workload.write_text(WORKLOAD.replace(",2,16", ",7,16"))
    (job,) = read_workload(workload, num_devices=64).jobs
    assert job.spec.requested_workers == job.profile.sizes[-1] == 4


def test_the_best_step_is_no_slower_than_any_placement(workload: Path) -> None:
    (job,) = read_workload(workload, num_devices=4).jobs
    best = job.profile.best_step_time(2)  # type: ignore[attr-defined]
    for shape in ((2,), (1, 1)):
        assert best.step_s <= job.profile.step_time(shape).step_s
        assert best.compute_s <= job.profile.step_time(shape).compute_s + 1e-12


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("net-1,30,nte,1,16", "one.csv:3: there is no profile of application 'nte': did you mean 'net'?"),
        ("net-1,30,net,1,64", "one.csv:3: net has no profile at batch size 64: expected 8 to 32"),
        ("net-1,-5,net,1,16", "one.csv:3: time is -5: expected a number of at least 0"),
        ("net-1,NaN,net,1,16", "one.csv:3: time is 'NaN'"),
        ("net-1,0,net,0,16", "one.csv:3: num_replicas is 0: expected a whole number of at least 1"),
        ("net-0,0,net,1,16", "one.csv:3: the name 'net-0' is already used on line 2"),
        ("net-1,0,net,4,32", "one.csv:3: job net-1 wants 4 GPUs, this cluster has 3"),
    ],
)
def test_a_wrong_row_is_named_with_its_line(workload: Path, row: str, expected: str) -> None:
    workload.write_text(WORKLOAD + row + "\n")
    with pytest.raises(InputError) as caught:
        read_workload(workload, num_devices=3)
    assert str(caught.value).startswith(str(workload.parent / expected))


def test_without_profiles_the_error_says_where_they_were_looked_for(workload: Path, profiles: Path) -> None:
    profiles.rename(profiles.with_name("elsewhere"))
    with pytest.raises(InputError, match=r"one\.csv:2: .* give --profiles DIR \(looked for "):
        read_workload(workload, num_devices=4)
    assert read_workload(workload, num_devices=4, profiles=profiles.with_name("elsewhere")).jobs


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        ("placements.csv", "11,4,1.3,0.3", "11,4,nan,0.3", "placements.csv:6: step_time is 'nan'"),
        ("placements.csv", "11,4,1.3,0.3", "1x,4,1.3,0.3", "placements.csv:6: placement is '1x'"),
        ("placements.csv", "11,4,1.3,0.3", "11,4,1.3,1.4", "placements.csv:6: sync_time 1.4 is more than"),
        ("placements.csv", "11,8,2.1,0.3", "11,4,2.1,0.3", "placements.csv:7: local_bsz 4 occurs twice"),
        ("scalability.csv", "4,8,4,1.7,0.7", "4,8,4,0,0", "scalability.csv:3: step_time is 0"),
        (
            "validation-8.csv",
            "200,200,0,1,0",
            "90,200,0,1,0",
            "validation-8.csv:3: progress 90.0 is not",
        ),
        ("validation-8.csv", "grad_var", "grad_vra", "validation-8.csv:1: the column 'grad_var' is missing"),
    ],
)
def test_a_broken_profile_is_named_with_its_line(
    workload: Path, profiles: Path, file: str, old: str, new: str, expected: str
) -> None:
    path = profiles / "net" / file
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(InputError) as caught:
        read_workload(workload, num_devices=4)
    assert str(caught.value).startswith(str(profiles / "net" / expected))
