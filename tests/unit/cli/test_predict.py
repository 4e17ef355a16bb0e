"""``weft predict``: one answer, or one line that says what was expected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from weft.cli import main
from weft.core.chrome_trace import Span, write_chrome_trace


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = 0
    try:
        main(["predict", *args])
    except SystemExit as end:
        code = int(end.code or 0)
    told = capsys.readouterr()
    return code, told.out, told.err


PAPER = ("--profile", "resnet50", "--workers", "64", "--link", "10gbit")


def test_the_papers_setting_is_answered_for_ddp_dear_and_weft(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *PAPER, "--workers-per-host", "4", "--json")
    answer = json.loads(out)
    assert code == 0
    assert answer["predicted"] is True
    assert answer["hosts"] == 16
    assert [row["contender"] for row in answer["rows"]] == ["alone", "ddp", "ddp_best", "dear", "weft", "weft_eager"]
    assert all(row["step_ms"] >= row["bound_ms"] * 0.999999 for row in answer["rows"])


def test_the_table_in_the_docs_is_what_the_command_answers(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "overlap.md").read_text(encoding="utf-8")
    table = [line for line in page.splitlines() if " | 10 Gb/s | " in line or " | 100 Gb/s | " in line]
    assert len(table) == 10
    for line in table:
        model, link, *_ = line.strip("| ").split(" | ")
        rate = link.replace(" Gb/s", "gbit")
        _, out, _ = run(
            capsys, *("--profile", model, "--workers", "64", "--workers-per-host", "4", "--link", rate, "--json")
        )
        found = {row["contender"]: row for row in json.loads(out)["rows"]}
        steps_ms = [found[name]["step_ms"] for name in ("alone", "ddp", "ddp_best", "dear", "weft")]
        ratios = [steps_ms[1] / steps_ms[4], steps_ms[2] / steps_ms[4]]
        cells = [model, link, *(f"{ms:.0f}" for ms in [*steps_ms, found["weft"]["bound_ms"]])]
        assert line == f"| {' | '.join([*cells, *(f'{ratio:.2f}x' for ratio in ratios)])} |"


def test_the_table_says_that_it_is_predicted(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *PAPER)
    assert code == 0
    assert "(predicted)" in out
    assert "weft" in out


def test_a_trace_of_ones_own_training_can_be_given(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    spans = [
        Span("worker 0", "compute", "forward", 0.0, 0.3),
        Span("worker 0", "compute", "backward", 0.3, 0.6),
        Span("worker 0", "compute", "update", 0.9, 0.1),
        Span("worker 0", "communication", "reduce-scatter 0", 0.6, 0.1, {"bucket_bytes": 4_000_000}),
    ]
    path = tmp_path / "trace.json"
    write_chrome_trace(path, spans)
    code, out, err = run(capsys, "--profile", str(path), "--workers", "8", "--link", "1gbit", "--json")
    assert code == 0, err
    assert json.loads(out)["parameters"] == 1_000_000


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (
            ("--profile", "resnet5", "--workers", "4", "--link", "1gbit"),
            "profile 'resnet5': did you mean 'resnet50'?\n",
        ),
        (("--profile", "resnet50", "--workers", "4", "--link", "fast"), "such as 10gbit"),
        (("--profile", "resnet50", "--workers", "4", "--link", "0gbit"), "such as 10gbit"),
        # Bytes: eight times as many bits.
        (("--profile", "resnet50", "--workers", "4", "--link", "10GB/s"), "such as 10gbit"),
        (("--profile", "resnet50", "--workers", "6", "--link", "1gbit", "--workers-per-host", "4"), "multiple"),
        (("--profile", "resnet50", "--workers", "0", "--link", "1gbit"), "--workers"),
        (("--profile", "resnet50", "--workers", "4", "--link", "1gbit", "--compute-ms", "-1"), "--compute-ms"),
        (("--workers", "4", "--link", "1gbit"), "--profile"),
    ],
)
def test_bad_input_gets_one_clear_line(capsys: pytest.CaptureFixture[str], args: tuple[str, ...], words: str) -> None:
    code, out, err = run(capsys, *args)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("content", ["", "not json", "[]", '{"traceEvents": []}', '{"traceEvents": [{"ph": "X"}]}'])
def test_a_file_that_is_not_a_trace_gives_a_one_line_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str
) -> None:
    path = tmp_path / "trace.json"
    path.write_text(content)
    code, _, err = run(capsys, "--profile", str(path), "--workers", "4", "--link", "1gbit")
    assert code == 2
    assert err.count("\n") == 1
    assert "trace" in err
