"""A queue that is read wrongly answers a question nobody asked: files of our own format."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.errors import InputError
from weft.sim.readers import read_workload
from weft.sim.workload import Workload

HEADER = "name,submitted_s,workers,steps,step_times_s\n"
GOOD = "resnet,0,2,100,1:0.5 2:0.3 4:0.2\n"


def read(tmp_path: Path, text: str, *, name: str = "queue.csv", num_devices: int = 8) -> Workload:
    path = tmp_path / name
    path.write_text(text)
    return read_workload(path, num_devices=num_devices)


def complaint(tmp_path: Path, text: str, *, name: str = "queue.csv", num_devices: int = 8) -> str:
    with pytest.raises(InputError) as caught:
        read(tmp_path, text, name=name, num_devices=num_devices)
    assert caught.value.exit_code == 2
    return str(caught.value).removeprefix(str(tmp_path) + "/")


def test_measured_speeds_arrive_as_written(tmp_path: Path) -> None:
    text = "name,submitted_s,workers,steps,step_times_s,exposed_s,user,weight,priority,may_share\n"
    text += "resnet,5,2,100,1:0.5 2:0.3,2:0.1,ana,2.5,3,no\n"
    (job,) = read(tmp_path, text).jobs
    assert job.total_steps == 100
    assert job.profile.step_time((1, 1)).step_s == 0.3
    assert job.profile.step_time((2,)).exposed_s == 0.1
    spec = job.spec
    assert (spec.submitted_s, spec.requested_workers, spec.allowed_sizes(8)) == (5.0, 2, (1, 2))
    assert (spec.user, spec.weight, spec.priority, spec.may_share) == ("ana", 2.5, 3, False)


def test_jobs_are_sorted_by_submission_and_equal_kinds_share_a_profile(tmp_path: Path) -> None:
    text = HEADER + "late,9,1,10,1:0.5 2:0.3\nearly,1,1,10,1:0.5 2:0.3\n"
    jobs = read(tmp_path, text).jobs
    assert [job.spec.id for job in jobs] == ["early", "late"]
    assert jobs[0].profile is jobs[1].profile


def test_a_job_known_only_by_its_duration_keeps_its_size_by_default(tmp_path: Path) -> None:
    text = "name,submitted_s,workers,duration_s,max_workers\nrigid,0,4,600,\nelastic,0,2,600,8\n"
    rigid, elastic = read(tmp_path, text).jobs
    assert rigid.spec.allowed_sizes(8) == (4,)
    assert rigid.total_steps * rigid.profile.step_time((4,)).step_s == pytest.approx(600)
    assert elastic.spec.allowed_sizes(8) == (2, 4, 8)
    assert elastic.total_steps * elastic.profile.step_time((2,)).step_s == pytest.approx(600)


def test_comments_and_blank_lines_are_for_people(tmp_path: Path) -> None:
    assert len(read(tmp_path, HEADER + "# morning\n\n" + GOOD).jobs) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "queue.csv:1: the file is empty: expected a header line name,submitted_s"),
        ("name," + "x" * 200_000, "queue.csv:1: not a CSV header"),
        (HEADER, "queue.csv: no jobs: expected at least one line after the header"),
        (
            "name,workers\nresnet,2\n",
            "queue.csv:1: the column 'submitted_s' is missing",
        ),
        ("name,submitted_s,wokers\n", "queue.csv:1: there is no column 'wokers': did you mean 'workers'?"),
        ("name,submitted_s,name\n", "queue.csv:1: the column 'name' occurs twice"),
        (
            HEADER + GOOD + "bert,-1,1,5,1:0.5\n",
            "queue.csv:3: submitted_s is -1: expected a number of",
        ),
        (
            HEADER + "bert,soon,1,5,1:0.5\n",
            "queue.csv:2: submitted_s is 'soon': expected a number",
        ),
        (HEADER + "bert,nan,1,5,1:0.5\n", "queue.csv:2: submitted_s is 'nan': expected a number"),
        (HEADER + "bert,0,1,inf,1:0.5\n", "queue.csv:2: steps is 'inf': expected a number above 0"),
        (HEADER + "bert,0,1,0,1:0.5\n", "queue.csv:2: steps is 0: expected a number above 0"),
        (
            HEADER + "bert,0,1.5,5,1:0.5\n",
            "queue.csv:2: workers is 1.5: expected a whole number",
        ),
        (HEADER + "bert,0,1,5\n", "queue.csv:2: 4 fields: expected 5"),
        (HEADER + ",0,1,5,1:0.5\n", "queue.csv:2: name is empty: expected a name"),
        (HEADER + GOOD + GOOD, "queue.csv:3: the name 'resnet' is already used on line 2"),
        (HEADER + "bert,0,1,5,\n", "queue.csv:2: expected one of step_times_s, application, duration_s"),
        (HEADER + "bert,0,1,5,1:x\n", "queue.csv:2: step_times_s is 'x': expected a number of at least 0"),
        (HEADER + "bert,0,1,5,1:0\n", "queue.csv:2: step_times_s has a 0: expected numbers above 0"),
        (HEADER + "bert,0,1,5,0.5\n", "queue.csv:2: step_times_s has '0.5': expected WORKERS:SECONDS"),
        (HEADER + "bert,0,1,5,1:1 1:2\n", "queue.csv:2: step_times_s has 1 workers twice"),
        (HEADER + "bert,0,3,5,1:1 2:2\n", "queue.csv:2: workers is 3, a size the job's profile lacks"),
        (HEADER + "bert,0,16,5,16:1\n", "queue.csv:2: job bert wants 16 GPUs, this cluster has 8"),
        (HEADER + "bert,0,1,1e300,1:0.5\n", "queue.csv:2: job bert runs for 5e+299 s: expected at most 1e+09"),
        (
            "name,submitted_s,duration_s,workers,weight\na,0,10,1,1e308\n",
            "queue.csv:2: weight is 1e308: expected 1e-06 to 1e+06",
        ),
        (HEADER + "bert,1e300,1,5,1:0.5\n", "queue.csv:2: job bert is submitted after 1e+300 s: expected at most"),
        (
            "name,submitted_s,application,batch_size\na,0,bert,32\n",
            "queue.csv:2: job a uses",
        ),
        ("name,submitted_s,duration_s\na,0,32\n", "queue.csv:2: duration_s without workers"),
        ('name,submitted_s,user\na,0,"x\n', "queue.csv:2: not a CSV line"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, text: str, expected: str) -> None:
    assert complaint(tmp_path, text).startswith(expected)


def test_a_missing_or_binary_queue_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or directory: check the path"):
        read_workload(tmp_path / "nowhere.csv", num_devices=8)
    (tmp_path / "picture.csv").write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(InputError, match="not a text file"):
        read_workload(tmp_path / "picture.csv", num_devices=8)


YAML = """\
quotas: {ana: 6}
jobs:
  - name: resnet
    submitted_s: 0
    steps: 100
    step_times_s: {1: 0.5, 2: 0.3}
"""


def test_yaml_says_the_same_as_csv(tmp_path: Path) -> None:
    from_yaml = read(tmp_path, YAML, name="queue.yaml")
    from_csv = read(tmp_path, "name,submitted_s,steps,step_times_s\nresnet,0,100,1:0.5 2:0.3\n")
    assert from_yaml.jobs[0].spec == from_csv.jobs[0].spec
    assert from_yaml.jobs[0].profile.step_time((2,)) == from_csv.jobs[0].profile.step_time((2,))
    assert from_yaml.quotas == {"ana": 6}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "queue.yaml:1: the file is empty: expected `jobs:`"),
        ("jobs: 3\n", "queue.yaml:1: expected `jobs:` with a list of jobs"),
        ("jobs: []\n", "queue.yaml: no jobs"),
        (YAML.replace("steps: 100", "steps: -3"), "queue.yaml:5: steps is -3: expected a number above 0"),
        (YAML.replace("steps:", "step:"), "queue.yaml:5: there is no key of a job called 'step'"),
        (YAML.replace("steps: 100", "name: again"), "queue.yaml:5: the key 'name' occurs twice in a job"),
        (YAML.replace("name: resnet", "user: ana"), "queue.yaml:3: the job has no 'name': add it"),
        (YAML.replace("2: 0.3", "2: fast"), "queue.yaml:6: step_times_s is 'fast': expected a number"),
        (YAML.replace("ana: 6", "ana: many"), "queue.yaml:1: quota is 'many': expected a whole number"),
        (
            YAML.replace("steps: 100", "steps: [1, 2]"),
            "queue.yaml:5: steps is a list",
        ),
        ("jobs:\n  - &one {name: a}\n  - *one\n", "queue.yaml:2: anchors and aliases are not allowed"),
        ("jobs: " + "[" * 50 + "]" * 50, "queue.yaml:1: nested too deeply"),
        ("jobs: [}\n", "queue.yaml:1: not valid YAML"),
        ("!!python/object/apply:os.system ['true']\n", "queue.yaml:1: the file is a list"),
        ("# " + "x" * 2_000_000, "queue.yaml: larger than 1024 KiB"),
    ],
)
def test_a_mistake_in_yaml_is_named_with_its_line(tmp_path: Path, text: str, expected: str) -> None:
    assert complaint(tmp_path, text, name="queue.yaml").startswith(expected)
