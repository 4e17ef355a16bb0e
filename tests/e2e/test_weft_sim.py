"""``weft sim`` as a user runs it: a real process, its output, its exit code, its files."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.hang_limit import HANG_S

from weft.core.chrome_trace import spans_of
from weft.elastic import POLICIES

EXAMPLES = Path(__file__).parents[2] / "examples"
FIELDS = [
    "policy",
    "mean_jct_s",
    "p50_jct_s",
    "p99_jct_s",
    "makespan_s",
    "utilization",
    "restarts_per_job",
    "lower_bound_s",
    "lower_bound_by",
    "decision_ms",
    "jobs_per_s",
]
QUEUE = "name,submitted_s,workers,steps,step_times_s\na,0,2,100,1:2 2:1\nb,10,1,50,1:2 2:1\n"


def weft(*args: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "weft", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100"},
        check=False,
    )


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    path = tmp_path / "queue.csv"
    path.write_text(QUEUE)
    return path


def test_json_has_the_documented_fields_and_is_alone_on_stdout(queue: Path) -> None:
    done = weft("sim", queue, "--gpus", "4", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    rows = json.loads(done.stdout)["rows"]
    assert [row["policy"] for row in rows] == list(POLICIES)
    for row in rows:
        assert list(row) == FIELDS
        assert 0 < row["lower_bound_s"] <= row["mean_jct_s"]
        assert 0 < row["utilization"] <= 1


def test_the_table_shows_the_chosen_policies_without_color_codes_in_a_pipe(queue: Path) -> None:
    done = weft("sim", queue, "--gpus", "4", "--policy", "fifo,balanced")
    assert done.returncode == 0
    assert "fifo" in done.stdout
    assert "balanced" in done.stdout
    assert "tiresias" not in done.stdout
    assert "\x1b" not in done.stdout + done.stderr


def test_the_same_command_gives_the_same_numbers(queue: Path) -> None:
    def numbers() -> list[dict[str, float]]:
        out = weft("sim", "synthetic:extreme:40", "--seed", "7", "--crossover", "--json").stdout
        rows = json.loads(out)["rows"]
        return [{name: row[name] for name in FIELDS if name not in ("decision_ms", "jobs_per_s")} for row in rows]

    assert numbers() == numbers()


def test_a_sweep_says_which_cluster_and_load_a_row_is_for(queue: Path) -> None:
    done = weft("sim", queue, "--gpus", "1,2", "--load", "0.5,2", "--policy", "srtf", "--json")
    rows = json.loads(done.stdout)["rows"]
    assert [(row["load"], row["gpus"]) for row in rows] == [(0.5, 1), (0.5, 2), (2.0, 1), (2.0, 2)]
    assert "more than 1 GPUs, reduced to 1: a" in done.stderr


def test_pictures_and_timelines_are_complete_and_leave_no_temporary_files(queue: Path, tmp_path: Path) -> None:
    picture, sweep, trace = tmp_path / "one.png", tmp_path / "sweep.png", tmp_path / "trace.json"
    first = weft("sim", queue, "--gpus", "4", "--policy", "balanced,fifo", "--plot", picture, "--trace", trace)
    second = weft("sim", queue, "--gpus", "2,4", "--policy", "balanced,fifo", "--plot", sweep)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert f"wrote {picture}" in first.stderr
    for path in (picture, sweep):
        assert path.read_bytes().startswith(b"\x89PNG")
    spans = spans_of(json.loads(trace.read_text()))
    assert {span.name for span in spans} == {"a", "b"}
    assert {span.process for span in spans} == {"balanced: node 0", "fifo: node 0"}
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "one.png",
        "queue.csv",
        "sweep.png",
        "trace.json",
    ]


def test_no_device_holds_two_jobs_at_once_on_the_timeline(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    queue = EXAMPLES / "queue.csv"
    done = weft("sim", queue, "--gpus", "8", "--policy", "balanced", "--trace", trace)
    assert done.returncode == 0, done.stderr
    by_row: dict[str, list[tuple[float, float]]] = {}
    for span in spans_of(json.loads(trace.read_text())):
        by_row.setdefault(span.track, []).append((span.start_s, span.end_s))
    assert len(by_row) == 8
    for stays in by_row.values():
        stays.sort()
        assert all(end <= start + 1e-6 for (_, end), (start, _) in itertools.pairwise(stays))


def test_explain_gives_reasons_in_sentences(queue: Path) -> None:
    done = weft("sim", queue, "--gpus", "4", "--policy", "balanced", "--explain", "b", "--json")
    lines = json.loads(done.stdout)["explanations"]
    assert lines
    assert all(line["policy"] == "balanced" and line["sentence"] for line in lines)
    assert lines[-1]["workers"] >= 1
    spoken = weft("sim", queue, "--gpus", "4", "--policy", "balanced", "--explain", "b")
    assert lines[0]["sentence"] in spoken.stdout


def test_simulator_options_change_the_result(queue: Path) -> None:
    def mean(*extra: str) -> float:
        out = weft("sim", "synthetic:moderate:30", "--policy", "balanced", "--json", *extra).stdout
        return float(json.loads(out)["rows"][0]["mean_jct_s"])

    plain = mean()
    assert mean("--restart-s", "300") > plain
    assert mean("--node-mtbf-s", "7200") > plain
    assert mean("--prediction-error", "0.5") != plain
    assert mean("--explore") != plain
    assert mean("--seed", "1") != plain


@pytest.mark.parametrize("name", ["queue.csv", "queue.yaml"])
def test_the_examples_run(name: str) -> None:
    done = weft("sim", EXAMPLES / name, "--gpus", "8", "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["rows"]) == len(POLICIES)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--policy", "balancd"], "there is no policy 'balancd': did you mean 'balanced'?"),
        (["--gpus", "none"], "--gpus none: expected whole numbers above 0"),
        (["--gpus", "1"], "queue.csv:2: job a wants 2 GPUs, this cluster has 1"),
        (["--load", "nan"], "--load nan: expected numbers above 0"),
        (["--load", "1e-300"], "at a load of 1e-300, the last job would be submitted after"),
        (
            ["--restart-s", "-1"],
            "--restart-s: -1 is out of range: expected a number of at least 0 and at most 1000000000",
        ),
        (["--decision-s", "-1"], "--decision-s: -1 is out of range"),
        (["--explain", "aa"], "there is no such job"),
        (["--profiles", "nowhere"], "nowhere: no such profiles folder"),
        (["--trace", "t.json", "--gpus", "2,4"], "--trace shows one cluster"),
        (["--plot", "out.gif"], "out.gif: --plot: expected a file name ending in .png"),
        (["--plot", "missing/out.png"], "missing/out.png: --plot: the folder does not exist"),
        (["--handover-s", "0.1"], "--handover-s needs --crossover"),
        (["--node-repair-s", "60"], "--node-repair-s needs --node-mtbf-s"),
        (["--explore", "--speeds", "known"], "use only one of --explore and --speeds"),
        (["--cluster", "4xT4:4", "--gpus", "64"], "--cluster and --gpus both set the number of devices"),
        (["--cluster", "4xT4:4", "--gpus-per-node", "2"], "every group in --cluster has one"),
        (["--no-such-option"], "there is no option '--no-such-option'"),
    ],
)
def test_a_wrong_command_ends_with_code_2_and_leaves_nothing_behind(
    queue: Path, args: list[str], expected: str
) -> None:
    done = weft("sim", queue.name, *args, cwd=queue.parent)
    assert done.returncode == 2
    assert expected in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert [path.name for path in queue.parent.iterdir()] == ["queue.csv"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "queue.csv:1: the file is empty"),
        (QUEUE.replace("submitted_s", "submitted"), "queue.csv:1: the column 'submitted_s' is missing"),
        (QUEUE + "b,20,1,50,1:2\n", "queue.csv:4: the name 'b' is already used on line 3"),
        (QUEUE + "c,nan,1,50,1:2\n", "queue.csv:4: submitted_s is 'nan'"),
        (QUEUE + "c,20,4,50,1:2\n", "queue.csv:4: workers is 4, a size the job's profile lacks"),
    ],
)
def test_a_wrong_file_ends_with_code_2_and_leaves_no_picture(queue: Path, text: str, expected: str) -> None:
    queue.write_text(text)
    done = weft("sim", queue.name, "--plot", "out.png", "--trace", "t.json", cwd=queue.parent)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"weft: {expected}")
    assert [path.name for path in queue.parent.iterdir()] == ["queue.csv"]


def test_help_loads_neither_numpy_nor_torch() -> None:
    script = (
        "import sys; from weft.cli import main\n"
        "try: main(['sim', '--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'numpy', 'scipy', 'torch', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=HANG_S, check=True)
    assert done.stdout.rstrip().endswith("[]")
