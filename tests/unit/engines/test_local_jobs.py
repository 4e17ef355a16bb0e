"""Real jobs on the local engine: what they find when they start, and what is said when they fail."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.benches import LocalBench, said, until, wait_for

from weft.core.engine import StartOrder
from weft.core.events import Fate, WorkersExited
from weft.core.job import Launch
from weft.engines.local import LocalEngine
from weft.errors import EngineError


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBench]:
    made = LocalBench(tmp_path_factory.mktemp("home"), warm=False)
    yield made
    made.close()


def run(bench: LocalBench, job_id: str, launch: Launch, *, devices: tuple[int, ...] = (0, 1)) -> WorkersExited:
    bench.engine.start(StartOrder(job_id, 1, devices, launch, {"WEFT_CHECKPOINT_DIR": "/checkpoints"}))
    return wait_for(bench, job_id)


def test_a_worker_finds_its_place_and_has_a_core_to_itself(bench: LocalBench) -> None:
    source = """
names = ['RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'MASTER_ADDR', 'WEFT_JOB_ID', 'WEFT_ATTEMPT', 'WEFT_CHECKPOINT_DIR', 'LR']
import json
said(json.dumps([{name: os.environ[name] for name in names}, sorted(os.sched_getaffinity(0)), os.getcwd()]))
"""
    assert run(bench, "place", bench.python(source, LR="0.1"), devices=(3, 1)).fate is Fate.COMPLETED
    cores = sorted(os.sched_getaffinity(0))
    for rank, device in ((0, 3), (1, 1)):
        environment, pinned, cwd = json.loads(bench.output("place", 1, rank))
        assert environment == {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "WEFT_JOB_ID": "place",
            "WEFT_ATTEMPT": "1",
            "WEFT_CHECKPOINT_DIR": "/checkpoints",
            "LR": "0.1",
        }
        assert pinned == [cores[device % len(cores)]]
        assert cwd == str(bench.home)


def test_arguments_arrive_unchanged_and_without_a_shell(bench: LocalBench) -> None:
    hostile = ("$(touch pwned)", "a b", "'; touch pwned", "`x`", "new\nline", "\u202e")
    program = ("bash", "-c", 'printf "%s\\0" "$@"', "bash", *hostile)
    assert run(bench, "bash", Launch(program, str(bench.home)), devices=(0,)).fate is Fate.COMPLETED
    assert bench.output("bash", 1, 0).split("\0")[:-1] == list(hostile)
    assert not (bench.home / "pwned").exists()


def test_options_of_python_and_pythonpath_are_honored(bench: LocalBench) -> None:
    (bench.home / "lib").mkdir()
    (bench.home / "lib" / "only_here.py").write_text("FOUND = 'found'")
    launch = Launch(
        ("python", "-c", "import only_here; print(only_here.FOUND)"), str(bench.home), {"PYTHONPATH": "lib"}
    )
    assert run(bench, "options", launch, devices=(0,)).fate is Fate.COMPLETED
    assert bench.output("options", 1, 0) == "found\n"


@pytest.mark.parametrize(
    ("argv", "cwd", "words"),
    [
        (("python", "no_such.py"), ".", "no_such.py: no such file"),
        (("python", "-m", "no_such_module"), ".", "No module named"),
        (("no-such-program",), ".", "no-such-program cannot be started"),
        (("python", "x.py"), "gone", "no such working directory"),
    ],
)
def test_a_job_that_cannot_be_started_fails_with_a_reason(
    bench: LocalBench, argv: tuple[str, ...], cwd: str, words: str
) -> None:
    ended = run(bench, f"cannot-{argv[-1]}", Launch(argv, str(bench.home / cwd)))
    assert ended.fate is Fate.FAILED
    assert ended.exit_code != 0
    assert words in ended.reason


@pytest.mark.parametrize(
    ("name", "source", "code", "words"),
    [
        ("raises", "raise ValueError('bad sample')", 1, "worker 1 failed first, .*ValueError: bad sample"),
        ("killed", "os.kill(os.getpid(), signal.SIGKILL)", 137, "worker 1 .*SIGKILL.*memory"),
        ("hung", "os.kill(os.getpid(), signal.SIGSTOP)", 124, "worker 1 .*paused by a signal"),
        (
            "memory",
            "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28)); bytearray(1 << 30)",
            1,
            "worker 1 .*MemoryError",
        ),
    ],
)
def test_the_first_cause_of_a_failure_is_the_reason(
    bench: LocalBench, name: str, source: str, code: int, words: str
) -> None:
    launch = bench.python(f"if rank == '1':\n    {source}\nsignal.pause()", name=name)
    ended = run(bench, name, launch)
    assert (ended.fate, ended.exit_code) == (Fate.FAILED, code)
    assert re.search(words, ended.reason)


def test_the_last_output_line_of_a_failed_program_is_quoted(bench: LocalBench) -> None:
    ended = run(
        bench, "quoted", Launch(("bash", "-c", "echo no such dataset >&2; exit 3"), str(bench.home)), devices=(0,)
    )
    assert (ended.fate, ended.exit_code) == (Fate.FAILED, 3)
    assert ended.reason.endswith("last line of its stderr: no such dataset")


def test_a_save_that_takes_longer_than_the_grace_is_cut_short(tmp_path: Path) -> None:
    bench = LocalBench(tmp_path, warm=False, grace_s=0.5)
    try:
        launch = bench.python(
            "signal.signal(signal.SIGTERM, lambda *_: None)\nsaid('deaf')\nwhile True: signal.pause()"
        )
        bench.engine.start(StartOrder("deaf", 1, (0,), launch))
        said(bench, "deaf", "deaf")
        bench.engine.stop("deaf", 1)
        ended = wait_for(bench, "deaf")
        assert (ended.fate, ended.exit_code) == (Fate.STOPPED, 143)
    finally:
        bench.close()


def test_a_stopped_keeper_can_still_be_killed(bench: LocalBench) -> None:
    bench.engine.start(StartOrder("paused", 1, (0,), bench.launch("wait")))
    said(bench, "paused", "waiting")
    keeper = json.loads((bench.attempt_folder("paused", 1) / "claim.json").read_text())["pid"]
    os.kill(keeper, signal.SIGSTOP)
    bench.engine.kill("paused", 1)
    assert wait_for(bench, "paused").fate is Fate.STOPPED


def test_processes_left_by_a_job_end_with_it(bench: LocalBench) -> None:
    launch = bench.python("child = subprocess.Popen(['setsid', 'sleep', '1000'])\nsaid(child.pid)", name="leaves")
    assert run(bench, "leaves", launch, devices=(0,)).fate is Fate.COMPLETED
    assert not Path(f"/proc/{bench.output('leaves', 1, 0).strip()}").exists()


def test_environments_are_for_the_owner_alone(bench: LocalBench) -> None:
    bench.engine.start(StartOrder("secret", 1, (0,), bench.launch("wait"), {"API_KEY": "secret"}))
    [order] = (bench.home / "engine" / "orders").glob("secret@1.json")
    assert stat.S_IMODE(order.stat().st_mode) == 0o600
    assert stat.S_IMODE(order.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(bench.attempt_folder("secret", 1).stat().st_mode) == 0o700
    bench.engine.kill("secret", 1)
    wait_for(bench, "secret")
    bench.engine.forget("secret", 1)
    assert not order.exists()


def test_two_engines_on_one_home_are_refused_and_the_first_is_named(bench: LocalBench) -> None:
    with pytest.raises(EngineError, match=f"in use by process {os.getpid()}"):
        LocalEngine(bench.home)


@pytest.mark.parametrize("devices", [(), (4,), (-1,), (0, 99)])
def test_unknown_devices_are_refused(bench: LocalBench, devices: tuple[int, ...]) -> None:
    with pytest.raises(EngineError, match="expected one or more of 0 to 3"):
        bench.engine.start(StartOrder("nowhere", 1, devices, bench.launch("finish")))
    assert ("nowhere", 1) not in bench.engine.known()


def test_an_engine_needs_a_device(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="expected 1 to 10000"):
        LocalEngine(tmp_path, num_devices=0)


def test_the_default_is_one_device_per_core(tmp_path: Path) -> None:
    engine = LocalEngine(tmp_path, warm=False, environment={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert [node.num_devices for node in engine.nodes()] == [len(os.sched_getaffinity(0))]
    engine.close()


def test_twenty_jobs_at_once_all_end_and_leave_nothing(bench: LocalBench) -> None:
    jobs = [f"many-{number}" for number in range(20)]
    for number, job in enumerate(jobs):
        bench.engine.start(StartOrder(job, 1, (number % 4,), bench.launch("finish")))
    ended: list[str] = []

    def all_over() -> bool:
        ended.extend(event.job_id for event in bench.engine.poll() if isinstance(event, WorkersExited))
        return set(jobs) <= set(ended)

    until(all_over, bench)
    assert len(ended) == 20
    for job in jobs:
        bench.engine.forget(job, 1)
