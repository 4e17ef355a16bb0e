"""``weft trace`` as users run it: files on disk, a real process, an exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.hang_limit import HANG_S

from weft.cli.trace import read_spans
from weft.core.chrome_trace import Span, write_chrome_trace
from weft.errors import InputError


def weft_trace(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "weft", "trace", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)


def steps(worker: int, num_steps: int = 3) -> list[Span]:
    process, spans = f"worker {worker}", []
    for step in range(num_steps):
        t = 0.4 * step
        for track, name, start_s, end_s in (
            ("compute", "forward", 0.0, 0.1),
            ("compute", "backward", 0.1, 0.3),
            ("compute", "wait", 0.3, 0.38),
            ("compute", "update", 0.38, 0.4),
            ("communication", "all-gather 0", 0.0, 0.08),
            ("communication", "reduce-scatter 0", 0.22, 0.38),
        ):
            spans.append(Span(process, track, name, t + start_s, end_s - start_s, {"step": step, "bytes": 1000}))
    return spans


@pytest.fixture
def traces(tmp_path: Path) -> list[Path]:
    files = [tmp_path / f"rank{worker}.json" for worker in range(2)]
    for worker, file in enumerate(files):
        write_chrome_trace(file, steps(worker))
    return files


def test_reader_sees_where_the_step_went(traces):
    shown = weft_trace(*traces)
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert lines[1].split() == ["worker", "0", "3", "400.0", "100.0", "200.0", "20.0", "240.0", "80.0", "67%"]
    assert lines[2].startswith("worker 1")
    computed = next(line for line in lines if line.lstrip().startswith("compute "))
    travelled = next(line for line in lines if line.lstrip().startswith("communication "))
    assert computed.split("|")[1] == "F" * 15 + "B" * 30 + "." * 12 + "U" * 3
    assert travelled.split("|")[1].split() == ["G" * 12, "R" * 24]


def test_workers_are_drawn_on_one_scale(tmp_path):
    slow = [
        Span(one.process, one.track, one.name, 2 * one.start_s, 2 * one.duration_s, one.args) for one in steps(worker=1)
    ]
    file = tmp_path / "both.json"
    write_chrome_trace(file, [*steps(worker=0), *slow])
    lines = weft_trace(file).stdout.splitlines()
    widths = [len(line.split("|")[1]) for line in lines if line.lstrip().startswith("compute ")]
    assert widths == [30, 60]
    assert "worker 1, its median step: 800.0 ms" in lines


def test_the_step_drawn_is_the_one_in_the_table_with_an_even_number_of_steps(tmp_path):
    spans, begin_s = [], 0.0
    for length_s in (0.9, 0.1, 0.5, 0.2):
        spans.append(Span("worker 0", "compute", "forward", begin_s, length_s / 2))
        spans.append(Span("worker 0", "compute", "update", begin_s + length_s / 2, length_s / 2))
        begin_s += length_s
    file = tmp_path / "trace.json"
    write_chrome_trace(file, spans)
    lines = weft_trace(file).stdout.splitlines()
    assert lines[1].split()[:5] == ["worker", "0", "4", "200.0", "100.0"]
    assert "worker 0, its median step: 200.0 ms" in lines


def test_scripts_get_json(traces):
    shown = weft_trace(traces[0], "--json")
    [row] = json.loads(shown.stdout)["workers"]
    assert row == {
        "worker": "worker 0",
        "steps": 3,
        "step_ms": 400.0,
        "forward_ms": 100.0,
        "backward_ms": 200.0,
        "update_ms": 20.0,
        "communication_ms": 240.0,
        "exposed_ms": 80.0,
        "hidden_share": 0.6667,
        "bytes_per_step": 2000,
    }


def test_files_of_all_workers_join_into_one(traces, tmp_path):
    joined = tmp_path / "joined.json"
    shown = weft_trace(*traces, "--json", "--out", joined)
    assert shown.returncode == 0, shown.stderr
    assert {span.process for span in read_spans(joined)} == {"worker 0", "worker 1"}
    assert len(read_spans(joined)) == sum(len(read_spans(file)) for file in traces)
    assert json.loads(weft_trace(joined, "--json").stdout) == json.loads(shown.stdout)


def test_two_runs_of_one_worker_stay_apart_when_joined(tmp_path):
    for run in ("before", "after"):
        write_chrome_trace(tmp_path / f"{run}.json", steps(0))
    shown = weft_trace(tmp_path / "before.json", tmp_path / "after.json", "--json")
    names = [row["worker"] for row in json.loads(shown.stdout)["workers"]]
    assert len(names) == 2
    assert any("before.json" in name for name in names)


def test_joining_traces_does_not_overwrite_its_inputs(traces):
    before = traces[0].read_text()
    shown = weft_trace(*traces, "--out", traces[0])
    assert shown.returncode == 2
    assert "also one of the input files" in shown.stderr
    assert traces[0].read_text() == before


def test_a_place_that_cannot_be_written_is_named(traces, tmp_path):
    shown = weft_trace(traces[0], "--out", tmp_path / "missing" / "joined.json")
    assert shown.returncode == 2
    assert "missing/joined.json: cannot be written" in shown.stderr


EVENT = {"ph": "X", "name": "forward", "pid": 0, "tid": 0, "ts": 0, "dur": 1}
NAMES = [
    {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "worker 0"}},
    {"ph": "M", "name": "thread_name", "pid": 0, "tid": 0, "args": {"name": "compute"}},
]
BAD = {
    "empty": ("", "is empty"),
    "blank": ("  \n", "is empty"),
    "not json": ("step 1 took 3 s", "is not JSON"),
    "cut off": ('{"traceEvents": [', "is not JSON"),
    "nested": ("[" * 100_000, "nested too deeply"),
    "a number": ("7", 'no "traceEvents"'),
    "a list": ("[]", 'no "traceEvents"'),
    "another document": ('{"rows": []}', 'no "traceEvents"'),
    "events are no list": ('{"traceEvents": 3}', 'no "traceEvents"'),
    "no events": ('{"traceEvents": []}', 'no span named "forward"'),
    "event is no object": ('{"traceEvents": [1]}', "without the usual fields"),
    "event without a process": (json.dumps({"traceEvents": [EVENT]}), "without the usual fields"),
    "time is text": (json.dumps({"traceEvents": [*NAMES, {**EVENT, "ts": "now"}]}), "usual fields"),
    "args are text": (
        json.dumps({"traceEvents": [*NAMES, {**EVENT, "args": "x"}]}),
        "args that are not an object",
    ),
    "name is a number": (json.dumps({"traceEvents": [*NAMES, {**EVENT, "name": 3}]}), "name is not a string"),
    "backwards in time": (json.dumps({"traceEvents": [*NAMES, {**EVENT, "dur": -1}]}), "no valid duration"),
    "endless": (json.dumps({"traceEvents": [*NAMES, {**EVENT, "dur": float("inf")}]}), "no valid duration"),
    "another program's": (
        json.dumps({"traceEvents": [*NAMES, {**EVENT, "name": "gemm"}]}),
        'named "forward"',
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_file_that_is_not_a_trace_is_named_with_what_was_expected(case, tmp_path):
    text, complaint = BAD[case]
    file = tmp_path / "t.json"
    file.write_text(text)
    with pytest.raises(InputError) as raised:
        read_spans(file)
    message = str(raised.value)
    assert message.startswith(str(file))
    assert complaint in message
    assert "expected a trace written by" in message


def test_a_binary_file_a_folder_and_no_file_at_all(tmp_path):
    (tmp_path / "t.bin").write_bytes(b"\xff\xfe\x00\x80")
    for name, complaint in (("t.bin", "is not text"), (".", "Is a directory"), ("none.json", "No such file")):
        with pytest.raises(InputError, match=complaint):
            read_spans(tmp_path / name)


def test_bad_input_ends_with_exit_code_2_and_one_line(tmp_path):
    shown = weft_trace(tmp_path / "none.json")
    assert shown.returncode == 2
    assert shown.stdout == ""
    assert shown.stderr.count("\n") == 1
    assert "none.json" in shown.stderr
    assert "Traceback" not in shown.stderr


def test_no_file_given_is_a_usage_error():
    assert weft_trace().returncode == 2
