"""Speed tables and the Philly log: other people's measurements, read as they meant them."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.errors import InputError
from weft.sim.readers import read_workload
from weft.sim.readers.application_profiles import ApplicationFolder, read_speed_table
from weft.sim.readers.assembly import fit_requests

PHILLY = """timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:55,66.0,1,66.0,11cb48
2017-10-09 07:00:55,100,4,400,6214e9
"""


def test_a_speed_table_gives_step_times_by_batch_size(tmp_path: Path) -> None:
    path = tmp_path / "vgg.csv"
    path.write_text("global_batch_size,1,2,4\n64,2.0,4.0,\n128,1.0,2.0,2.5\n")
    table = read_speed_table(path)
    assert table.profile(64).sizes == (1, 2)
    assert table.profile(128).step_time((2, 2)).step_s == pytest.approx(0.4)


@pytest.mark.parametrize("cell", ["", "0", "0.0", "nan", "NaN"])
def test_a_size_that_was_not_run_does_not_cost_the_whole_table(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "yolo.csv"
    path.write_text(f"global_batch_size,1,2,4\n64,2.0,{cell},5.0\n")
    assert read_speed_table(path).profile(64).sizes == (1, 4)


ELASTICFLOW = "job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration\n"


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "vgg.csv").write_text("global_batch_size,1,2,4\n64,2.0,4.0,nan\n")
    return tmp_path


def test_an_elasticflow_trace_is_read_with_its_speed_tables(tables: Path) -> None:
    trace = tables / "trace.csv"
    trace.write_text(ELASTICFLOW + "7,1000,500,vgg,2000,64,2,125\n8,1060,90,vgg,2000,64,8,40\n")
    first, second = read_workload(trace, num_devices=8).jobs
    assert (first.spec.id, first.spec.submitted_s, first.total_steps) == ("vgg-7", 0.0, 500)
    assert (second.spec.submitted_s, second.spec.requested_workers) == (60.0, 2)
    assert second.spec.allowed_sizes(8) == (1, 2)


def test_an_elasticflow_trace_without_iterations_is_read_by_its_durations(tables: Path) -> None:
    trace = tables / "trace.csv"
    trace.write_text("job_id,model_name,batch_size,submit_time,duration,num_gpu\n0,vgg,64,5,100,2\n")
    (job,) = read_workload(trace, num_devices=8).jobs
    assert job.total_steps * job.profile.step_time((2,)).step_s == pytest.approx(100)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("0,5,10,vgg,1,64,1,-4", r"trace\.csv:2: duration is -4: expected a number above 0"),
        ("0,5,10,vgg,1,65,1,4", r"trace\.csv:2: vgg has no profile at batch size 65"),
        ("0,5,10,vg,1,64,1,4", r"trace\.csv:2: there is no profile of application 'vg'"),
        ("0,nan,10,vgg,1,64,1,4", r"trace\.csv:2: submit_time is 'nan'"),
    ],
)
def test_a_wrong_line_of_an_elasticflow_trace_is_named(tables: Path, row: str, expected: str) -> None:
    trace = tables / "trace.csv"
    trace.write_text(f"{ELASTICFLOW}{row}\n")
    with pytest.raises(InputError, match=expected):
        read_workload(trace, num_devices=8)


def test_a_queue_may_name_speed_tables(tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "vgg.csv").write_text("global_batch_size,1,2\n64,2.0,4.0\n")
    queue = tmp_path / "queue.csv"
    queue.write_text("name,submitted_s,application,batch_size,steps\na,0,vgg,64,10\n")
    (job,) = read_workload(queue, num_devices=4).jobs
    assert job.total_steps * job.profile.step_time((2,)).step_s == pytest.approx(2.5)
    queue.write_text("name,submitted_s,application,batch_size,steps\na,0,vgg,65,10\n")
    with pytest.raises(InputError, match=r"queue\.csv:2: vgg has no profile at batch size 65: .* 64"):
        read_workload(queue, num_devices=4)
    queue.write_text("name,submitted_s,application,batch_size\na,0,vgg,64\n")
    with pytest.raises(InputError, match=r"queue\.csv:2: steps is missing"):
        read_workload(queue, num_devices=4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("global_batch_size,one\n64,1\n", ":1: the column 'one' is not a number of devices"),
        ("1,2\n64,1\n", ":1: the column 'global_batch_size' is missing"),
        ("global_batch_size,1\n64,-1\n", ":2: 1 is -1: expected a number above 0"),
        ("global_batch_size,1\n64,1\n64,1\n", ":3: global_batch_size 64 occurs twice"),
        ("global_batch_size,1\n64,\n", ":2: no speed in this row"),
        ("global_batch_size,1\n64,inf\n", ":2: 1 is 'inf': expected a number above 0, and finite"),
        ("global_batch_size,1\n", ": no speeds"),
    ],
)
def test_a_broken_speed_table_is_named_with_its_line(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "vgg.csv"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_speed_table(path)
    assert str(caught.value).startswith(f"{path}{expected}")


def test_an_empty_profile_folder_is_reported(tmp_path: Path) -> None:
    queue = tmp_path / "queue.csv"
    queue.write_text("name,submitted_s,application,batch_size,steps\na,0,vgg,64,10\n")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="has no profiles"):
        read_workload(queue, num_devices=4, profiles=tmp_path / "empty")
    with pytest.raises(InputError, match="no such profiles folder"):
        ApplicationFolder(tmp_path / "missing")


def test_philly_jobs_keep_their_times_and_may_be_resized(tmp_path: Path) -> None:
    path = tmp_path / "philly.csv"
    path.write_text(PHILLY)
    first, second = read_workload(path, num_devices=8).jobs
    assert (first.spec.submitted_s, second.spec.submitted_s) == (0.0, 60.0)
    assert (first.spec.requested_workers, first.spec.user) == (4, "6214e9")
    assert first.spec.allowed_sizes(64) == (1, 2, 4, 8)
    assert first.total_steps * first.profile.step_time((4,)).step_s == pytest.approx(100)


def test_a_broken_philly_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "philly.csv"
    path.write_text(PHILLY + "yesterday,5,1,5,x\n")
    with pytest.raises(InputError, match=r"philly\.csv:4: timestamp is 'yesterday': expected a time like"):
        read_workload(path, num_devices=8)
    path.write_text(PHILLY.replace("num_gpus", "gpus"))
    with pytest.raises(InputError, match=r"philly\.csv:1: the column"):
        read_workload(path, num_devices=8)


def test_on_a_smaller_cluster_of_a_sweep_requests_are_cut_and_named(tmp_path: Path) -> None:
    path = tmp_path / "philly.csv"
    path.write_text(PHILLY)
    workload = read_workload(path, num_devices=8)
    cut, names = fit_requests(workload, 2)
    assert names == [workload.jobs[0].spec.id]
    assert [job.spec.requested_workers for job in cut.jobs] == [2, 1]
    assert fit_requests(workload, 4) == (workload, [])
