"""A job file may come from anybody: it describes a job or is refused, and does nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from weft.core.job_file import KEYS, job_schema, parse_job, read_job_file
from weft.core.submission import Submission
from weft.errors import InputError

ROOT = Path(__file__).parents[2]
GOOD = "command: [python, train.py]\n"
HOSTILE = [
    '"',
    "'",
    "a'; echo foo",
    "$(touch x)",
    "`id`",
    "line\nbreak",
    "\u202egnp.exe",
    "\x1b[2J",
    "-rf",
    "é 名前",
    "#x",
]


def parsed(text: str) -> Submission:
    return parse_job(text, "job.yaml", folder=Path("/home/ana"))


def complaint(text: str) -> str:
    with pytest.raises(InputError) as caught:
        parsed(text)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_every_value_arrives_as_it_was_written() -> None:
    job = parsed(
        """\
name: resnet
command: [python, train.py, --lr, 0.10, --flag, no, 1e3, "", null, 0x10]
cwd: experiments
environment: {DEBUG: no, PORT: 0010}
workers: 1:4
sizes: [1, 2, 4]
requested_workers: 2
total_steps: 1000
weight: 2.5
priority: -3
max_restarts: 2
may_share: no
user: ana
"""
    )
    words = ("python", "train.py", "--lr", "0.10", "--flag", "no", "1e3", "", "null", "0x10")
    assert job.launch.argv == words
    assert job.launch.cwd == "/home/ana/experiments"
    assert job.launch.environment == {"DEBUG": "no", "PORT": "0010"}
    assert (job.min_workers, job.max_workers, job.requested_workers, job.sizes) == (1, 4, 2, (1, 2, 4))
    assert (job.name, job.user, job.weight, job.priority) == ("resnet", "ana", 2.5, -3)
    assert (job.total_steps, job.launch.max_restarts, job.may_share) == (1000, 2, False)


def test_missing_keys_get_sensible_defaults() -> None:
    job = parse_job(GOOD, "job.yaml", folder=Path("/x"), user="ana")
    assert (job.name, job.user, job.min_workers, job.max_workers) == ("train.py", "ana", 1, 1)
    assert job.launch.cwd == "/x"


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_are_shown_as_plain_text(text: str) -> None:
    job = parsed(json.dumps({"name": text, "command": ["python", text], "environment": {"X": text}}))
    assert job.name == text.strip()
    assert job.launch.argv == ("python", text)
    assert job.launch.environment["X"] == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "job.yaml:1: the file is empty: expected at least `command:`"),
        ("[]", "job.yaml:1: a job is a list: expected keys with values"),
        ("name: x\n", "job.yaml:1: the job has no 'command': add one such as [python, train.py]"),
        ("command: python train.py\n", "job.yaml:1: command is a line of text: expected a list of words"),
        ("command: []\n", "job.yaml: the job has no command"),
        ("command: [[a]]\n", "job.yaml:1: a word of command is a list: expected a single value"),
        (GOOD + "wokers: 2\n", "job.yaml:2: there is no key of a job called 'wokers': did you mean 'workers'?"),
        (GOOD + "command: [x]\n", "job.yaml:2: the key 'command' occurs twice in a job: remove one"),
        (GOOD + "environment: {A: 1, A: 2}\n", "job.yaml:2: the key 'A' occurs twice in environment"),
        (GOOD + "environment: {A B: 1}\n", "job.yaml: 'A B' is not a valid environment variable name"),
        (GOOD + "workers: many\n", "job.yaml:2: workers is 'many': expected a number such as 2, or a range"),
        (GOOD + "workers: 4:1\n", "job.yaml:2: workers is '4:1': expected 1 to 10000, the smaller number first"),
        (GOOD + "workers: 999999\n", "job.yaml:2: workers is '999999': expected 1 to 10000"),
        (GOOD + "weight: .inf\n", "job.yaml:2: weight is '.inf': expected a number such as 1.5"),
        (GOOD + "weight: 0\n", "job.yaml: weight is 0.0: expected a number from"),
        (GOOD + "total_steps: 1.5\n", "job.yaml:2: total_steps is '1.5': expected a whole number"),
        (GOOD + "may_share: perhaps\n", "job.yaml:2: may_share is 'perhaps': expected yes or no"),
        (GOOD + "priority: " + "9" * 5000, "job.yaml:2: priority is "),
        ("command: [python, &a x, *a]\n", "job.yaml:1: anchors and aliases are not allowed: write the values out"),
        ("a: &a [x]\nb: &b [*a, *a]\n", "job.yaml:1: anchors and aliases are not allowed"),
        ("<<: {command: [x]}\n", "job.yaml:1: there is no key of a job called '<<'"),
        ("command: " + "[" * 5000, "job.yaml:1: nested too deeply"),
        ("command: !!python/object/apply:os.system [id]\nname: [\n", "job.yaml:"),
        ("--- {command: [a]}\n--- {command: [b]}\n", "job.yaml:2: not valid YAML"),
        ("command: [a\n", "job.yaml:2: not valid YAML"),
        ("command: [a\x00]", "job.yaml:1: the character U+0000 is not allowed"),
        ("# " + "x" * 2_000_000, "job.yaml: larger than 1024 KiB: a job file has a few lines"),
        (GOOD + "? {a: b}\n: c\n", "job.yaml:2: a key of a job is a mapping: expected a single value"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(text: str, expected: str) -> None:
    assert complaint(text).startswith(expected)


def test_a_python_yaml_tag_creates_no_object_and_runs_nothing(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    job = parsed(f"command: !!python/object/apply:os.system ['touch {touched}']\n")
    assert job.launch.argv == (f"touch {touched}",)
    assert not touched.exists()


def test_a_yaml_bomb_is_rejected_at_its_first_anchor() -> None:
    # Expanded it would outlast this test's time limit, and everything else.
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 40)]
    assert complaint("\n".join(lines)).startswith("job.yaml:1: anchors and aliases are not allowed")


def test_missing_binary_and_endless_job_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read, no such file"):
        read_job_file(tmp_path / "none.yaml")
    with pytest.raises(InputError, match="cannot be read, is a directory"):
        read_job_file(tmp_path)
    (tmp_path / "picture.yaml").write_bytes(b"\x89PNG\xff")
    with pytest.raises(InputError, match="not a UTF-8 text file"):
        read_job_file(tmp_path / "picture.yaml")
    with pytest.raises(InputError, match="larger than 256 KiB"):
        read_job_file(Path("/dev/zero"))


def test_the_published_schema_is_the_one_the_reader_follows() -> None:
    published = json.loads((ROOT / "docs" / "job.schema.json").read_text())
    assert published == job_schema(), "run: weft submit --schema > docs/job.schema.json"
    assert set(published["properties"]) == set(KEYS)


def test_every_key_is_on_the_job_file_page() -> None:
    page = (ROOT / "docs" / "job-file.md").read_text()
    assert [key for key in KEYS if f"`{key}`" not in page] == []
