"""Whatever is typed, the answer is a sentence and a documented exit code, never a traceback."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.hang_limit import HANG_S

from fake_controller import FakeController, served
from hostile import BUDGETS, HOSTILE_NUMBERS, HOSTILE_TEXTS, hostile_json, looking
from weft.cli import VERBS, load, main
from weft.cli.completion import subcommands
from weft.cli.verb import Group
from weft.control.state import JobState
from weft.errors import UsageError

EXIT_CODES = set(range(8))
PARSED_ONLY = {"up", "demo", "doctor", "top", "repair", "bench", "run", "purge"}
"""They start processes or take long once their options are right."""
# What a process can be given: no NUL, and of what is not text only bytes that are not UTF-8.
WORDS = [word for word in HOSTILE_TEXTS if "\0" not in word and word != "\ud800"]
WORDS += ["\udcff", "a\udc80b", "--", "-", "--x", "=", "-1", "1e400", "inf", "1:999999999999", "/nowhere", "."]
words = st.one_of(
    st.sampled_from(WORDS),
    st.sampled_from(HOSTILE_NUMBERS).map(str),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12),
)


@pytest.fixture
def ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Jobs of a controller in memory, behind the real socket; all finished, so that no command waits for them."""
    controller = FakeController()
    monkeypatch.setenv("WEFT_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    job = controller.add(state=JobState.COMPLETED, attempt=1, finished_s=9.0)
    hostile = controller.add(state=JobState.FAILED, attempt=2, name="\x1b[2J\u202e", reason="\n\x07", finished_s=9.0)
    controller.output[job.id, 1, "out"] = b"\xff\x1b[2Jhello\n"
    (tmp_path / "job.yaml").write_text("command: [python, train.py]\n")
    with served(controller, tmp_path / "home"):
        yield [job.id, hostile.id]


def command_lines(verb: str, ids: list[str], files: list[str]) -> st.SearchStrategy[list[str]]:
    command = load(verb)
    verbs = command.verbs.values() if isinstance(command, Group) else [command]
    flags = {flag for one in verbs for flag in one.flags()}
    options = st.sampled_from(sorted(flags - {"--follow", "--watch", "--help"}) or ["--x"])
    some = st.one_of(
        st.tuples(options, words),
        st.tuples(st.builds("{}={}".format, options, words)),
        st.tuples(options),
        st.tuples(words),
        st.tuples(st.sampled_from([*ids, *files, *subcommands(verb)] or ["x"])),
    )
    return st.lists(some, max_size=5).map(lambda parts: [word for part in parts for word in part])


def outcome(verb: str, args: list[str]) -> tuple[int, str]:
    """Exit code and messages, printed as to a pipe; anything but a proper end is raised."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8")
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace")
    code: Any = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            if verb in PARSED_ONLY:
                _parse(verb, args)
            else:
                main([verb, *args])
        except SystemExit as end:
            code = end.code or 0
        except UsageError as error:
            code = 2
            print(f"weft: {error}", file=sys.stderr)
        out.flush()
    err.flush()
    return code, err.buffer.getvalue().decode()  # type: ignore[attr-defined]


def _parse(verb: str, args: list[str]) -> None:
    command = load(verb)
    if isinstance(command, Group):
        for one in command.verbs.values():
            with contextlib.suppress(UsageError):
                one.parse(args, verb)
    else:
        command.parse(args, verb)


@BUDGETS
@pytest.mark.parametrize("verb", sorted(VERBS))
def test_no_command_line_ends_in_a_traceback(verb: str, ids: list[str], num_examples: int) -> None:
    @looking(num_examples // 3)
    @given(args=command_lines(verb, ids, ["job.yaml"]))
    def fuzz(args: list[str]) -> None:
        code, messages = outcome(verb, args)
        assert code in EXIT_CODES, messages
        assert "Traceback" not in messages
        if code in (1, 2):
            assert messages.startswith("weft: "), messages

    fuzz()


@BUDGETS
def test_no_job_file_ends_in_a_traceback(ids: list[str], tmp_path: Path, num_examples: int) -> None:
    good = {
        "command": "[python, train.py]",
        "name": "a",
        "workers": "1:4",
        "sizes": "[1, 2]",
        "priority": "3",
        "weight": "1.5",
        "total_steps": "100",
        "environment": "{A: b}",
        "max_restarts": "1",
        "may_share": "yes",
    }
    texts = st.one_of(
        st.sampled_from([*HOSTILE_TEXTS, *map(str, HOSTILE_NUMBERS), "!!python/object:os.system x", "&a *a", "[", "{"]),
        st.text(max_size=20),
    )
    changes = st.dictionaries(st.sampled_from([*good, "x"]), texts, max_size=3)
    files = st.one_of(
        changes.map(lambda new: "".join(f"{key}: {value}\n" for key, value in {**good, **new}.items())),
        st.text(max_size=50),
    ).map(lambda text: text.encode(errors="surrogatepass"))

    @looking(num_examples)
    @given(data=st.one_of(files, hostile_json))
    def fuzz(data: bytes) -> None:
        (tmp_path / "hostile.yaml").write_bytes(data)
        code, messages = outcome("submit", ["hostile.yaml"])
        assert code in (0, 2), messages
        if code:
            assert messages.startswith("weft: "), messages
            assert messages.count("\n") == 1, messages

    fuzz()


@pytest.mark.parametrize(
    ("args", "code", "expected"),
    [
        (["submit", "--priority", "9" * 400, "--", "true"], 2, "--priority: "),
        (["submit", "--priority", "9" * 5000, "--", "true"], 2, "is not a whole number"),
        (["submit", "--weight", "9" * 400, "--", "true"], 2, "--weight: "),
        (["logs", "x", "--attempt", "9" * 400], 2, "/--attempt: "),
        (["explain", "\udcff"], 2, "there is no job"),
        (["cancel", "\udcff"], 2, "there is no job"),
        (["wait", "\udcff"], 2, "there is no job"),
        (["logs", "\udcff"], 2, "there is no job"),
        (["submit", "--name", "\udcff", "--", "true"], 2, "is not valid Unicode"),
        (["submit", "\udcff.yaml"], 2, "no such file"),
        (["zz\udcff"], 2, "there is no command"),
        (["bench", "zzz"], 2, "zzz"),
        (["sim", "synthetic:none:2", "--gpus=--"], 2, "--gpus: expected a value"),
        (["submit", "--env=--", "--", "true"], 2, "--env: expected a value"),
        (["run", "--workers", "9" * 400, "x.py"], 2, "workers"),
        (["run", "--grace-s", "1e299", "x.py"], 2, "out of range"),
        (["status", "--watch", "--interval-s", "1e299"], 2, "out of range"),
        (["down", "--timeout-s", "1e299"], 2, "out of range"),
    ],
)
def test_a_typo_is_reported_in_one_line(
    args: list[str], code: int, expected: str, ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "PARSED_ONLY", set())
    ended, messages = outcome(args[0], args[1:])
    assert ended == code
    assert expected in messages
    assert messages.startswith("weft: ")
    assert messages.count("\n") == 1
    assert len(messages) < 600


@pytest.mark.parametrize(
    ("text", "line"),
    [("command: [a\x07]\n", 1), ("command: [a]\nname: \x1b[2J\n", 2), ("\x00", 1), ("command: [\x80]\n", 1)],
)
def test_a_control_character_in_a_job_file_is_named_with_its_line(
    text: str, line: int, ids: list[str], tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(text)
    code, messages = outcome("submit", ["job.yaml"])
    assert code == 2
    assert messages.startswith(f"weft: job.yaml:{line}: the character U+00")
    assert messages.count("\n") == 1


def weft(*args: str, prefix: tuple[str, ...] = (), **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*prefix, sys.executable, "-m", "weft", *args],
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=HANG_S,
        env=os.environ | environment,
    )


def test_up_on_a_full_disk_says_so(tmp_path: Path) -> None:
    # No file may grow, as on a full disk.
    answer = weft("up", "--port", "0", prefix=("prlimit", "--fsize=0"), WEFT_HOME=str(tmp_path / "home"))
    assert answer.returncode == 1
    assert answer.stderr.startswith("weft: ")
    assert "Traceback" not in answer.stderr
    assert "free some disk space" in answer.stderr


def test_a_home_whose_name_is_not_valid_utf8_can_be_used(tmp_path: Path) -> None:
    home = os.fsdecode(os.fsencode(tmp_path) + b"/h\xff")
    answer = weft("status", WEFT_HOME=home)
    assert answer.returncode == 4
    assert "Traceback" not in answer.stderr
