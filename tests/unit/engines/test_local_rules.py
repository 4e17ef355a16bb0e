"""The pure parts of the local engine: what a command means, where files go, what an outcome means."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.events import Fate
from weft.engines.first_failure import Failure, WorkerFate
from weft.engines.gang import GangOutcome
from weft.engines.local.command import needs_fresh_interpreter, script_of_command
from weft.engines.local.folders import Folders
from weft.engines.local.keeper import KILL, STOP, judge
from weft.engines.local.records import Order, Status, read, write, write_once
from weft.engines.worker_launch import Script
from weft.errors import EngineError, InputError


@pytest.fixture
def cwd(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text("")
    return str(tmp_path)


@pytest.mark.parametrize("python", ["python", "python3", sys.executable])
def test_python_means_the_interpreter_of_weft_and_can_be_forked(cwd: str, python: str) -> None:
    assert script_of_command([python, "train.py", "--lr", "$(reboot)"], cwd) == Script(
        "train.py", ("--lr", "$(reboot)"), cwd=cwd
    )
    assert script_of_command([python, "-u", "-m", "json.tool"], cwd) == Script("json.tool", is_module=True, cwd=cwd)


@pytest.mark.parametrize("argv", [["bash", "train.sh"], ["/opt/python/bin/python", "train.py"], ["./train.py"]])
def test_any_other_program_is_started_unchanged(cwd: str, argv: list[str]) -> None:
    assert script_of_command(argv, cwd) == Script(argv[0], tuple(argv[1:]), cwd=cwd, is_command=True)


@pytest.mark.parametrize("options", [["-c", "print(1)"], ["-O", "train.py"], ["-X", "dev", "train.py"]])
def test_options_of_the_interpreter_are_left_to_it(cwd: str, options: list[str]) -> None:
    assert script_of_command(["python", *options], cwd) == Script(
        sys.executable, tuple(options), cwd=cwd, is_command=True
    )


def test_a_missing_script_or_folder_is_named(cwd: str) -> None:
    with pytest.raises(InputError, match=r"other\.py: no such file"):
        script_of_command(["python", "other.py"], cwd)
    with pytest.raises(InputError, match="no such working directory"):
        script_of_command(["python", "train.py"], cwd + "/gone")
    with pytest.raises(InputError, match="no command"):
        script_of_command([], cwd)


def test_settings_read_only_at_interpreter_startup_are_detected() -> None:
    inherited = {"PATH": "/bin", "PYTHONPATH": "lib", "PYTHONUNBUFFERED": "1"}
    assert not needs_fresh_interpreter({**inherited, "LR": "0.1", "RANK": "3"}, inherited)
    assert not needs_fresh_interpreter({"PATH": "/bin", "PYTHONPATH": "lib"}, inherited)
    assert needs_fresh_interpreter({**inherited, "PYTHONHASHSEED": "0"}, inherited)
    assert needs_fresh_interpreter({**inherited, "LD_PRELOAD": "libjemalloc.so"}, inherited)
    assert needs_fresh_interpreter({"PATH": "/bin"}, inherited)


@settings(deadline=None, max_examples=50)
@given(st.text(min_size=1, max_size=15), st.integers(1, 10**6))
def test_every_id_maps_to_one_file_name_and_back(job_id: str, attempt: int) -> None:
    folders = Folders(Path("/home/weft"))
    order = folders.order(job_id, attempt)
    assert order.parent == folders.orders
    assert "/" not in order.name
    place = folders.attempt(job_id, attempt).path
    assert place.parents[2] == folders.home / "jobs"
    assert ".." not in place.parts


def test_an_id_too_long_for_a_file_is_refused() -> None:
    with pytest.raises(EngineError, match="1 to 200 characters"):
        Folders(Path("/home")).order("x" * 300, 1)


def failed(error: str) -> GangOutcome:
    failure = Failure(1, 0.0, WorkerFate.EXITED, 1, error)
    return GangOutcome(1, (failure,), report=(f"worker 1 failed first: {failure}",), last_words="Killed by a ghost")


@pytest.mark.parametrize(
    ("outcome", "asked", "fate", "words"),
    [
        (GangOutcome(0), None, Fate.COMPLETED, ""),
        (GangOutcome(0), STOP, Fate.COMPLETED, ""),
        (GangOutcome(75, stopped=True), None, Fate.STOPPED, "after a checkpoint"),
        (GangOutcome(75, stopped=True), STOP, Fate.STOPPED, "after a checkpoint"),
        (GangOutcome(143, stopped=True), STOP, Fate.STOPPED, "without a checkpoint"),
        (GangOutcome(130, stopped=True), STOP, Fate.STOPPED, "without a checkpoint"),
        (GangOutcome(143, stopped=True), None, Fate.FAILED, "without having been asked"),
        (GangOutcome(143, stopped=True), KILL, Fate.STOPPED, "killed"),
        (failed("ValueError: bad"), None, Fate.FAILED, "ValueError: bad"),
        (failed("ValueError: bad"), STOP, Fate.FAILED, "ValueError: bad"),
        (failed(""), None, Fate.FAILED, "last line of its stderr: Killed by a ghost"),
    ],
)
def test_an_outcome_matches_the_controllers_view(
    outcome: GangOutcome, asked: int | None, fate: Fate, words: str
) -> None:
    found, code, reason = judge(outcome, asked=asked)
    assert (found, code) == (fate, outcome.exit_code)
    assert words in reason
    assert bool(reason) == bool(words)


def test_records_survive_a_round_trip(tmp_path: Path) -> None:
    order = Order("job", 2, ("python", "\udc80"), "/", {"A": "b\nc"}, ((0,), (1, 3)), fresh=True, grace_s=1.5)
    write(tmp_path / "order", order.to_json())
    found = read(tmp_path / "order")
    assert found is not None
    assert Order.from_json(found) == order
    status = Status(1.0, (10, 11)).ended(2.0, Fate.LOST, 137, "gone")
    write(tmp_path / "order", status.to_json())
    found = read(tmp_path / "order")
    assert found is not None
    assert Status.from_json(found) == status
    assert [file.name for file in tmp_path.iterdir()] == ["order"]


def test_only_one_of_two_claims_succeeds(tmp_path: Path) -> None:
    assert write_once(tmp_path / "claim", {"pid": 1})
    assert not write_once(tmp_path / "claim", {"pid": 2})
    assert read(tmp_path / "claim") == {"pid": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["claim"]


@pytest.mark.parametrize("cwd", ["/" + "x" * 300, "/\0", "/proc/self/mem"])
def test_an_unusable_working_directory_is_the_jobs_error_and_not_retried(cwd: str) -> None:
    with pytest.raises(InputError, match=r"folder|--cwd"):
        script_of_command(["true"], cwd)


def test_a_folder_owned_by_another_user_is_refused_with_a_reason(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to become somebody else")
    tmp_path.chmod(0o700)
    child = os.fork()
    if child == 0:  # never comes back into the test
        code = 1
        try:
            os.setuid(65534)
            script_of_command(["true"], str(tmp_path))
        except InputError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
