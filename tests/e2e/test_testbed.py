"""The testbed on real namespaces: links carry the configured rate, and nothing is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from benchmarks import crossover, crossover_scenarios
from benchmarks.crossover_results import LONE
from benchmarks.crossover_results import open_record as open_crossover
from benchmarks.overlap import run_scenarios
from benchmarks.overlap_scenarios import tiny_run
from benchmarks.testbed import HostFailed, Testbed, list_namespaces, missing_reason, sweep
from benchmarks.testbed_plan import owner_of
from tests.hang_limit import HANG_S
from tests.link_probe import measure

from weft.errors import MissingToolError

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(missing_reason() is not None, reason=str(missing_reason())),
]


def namespaces_of(pid: int) -> list[str]:
    owners = {name: owner_of(name) for name in list_namespaces()}
    return [name for name, owner in owners.items() if owner is not None and owner.pid == pid]


def is_running(pid: int) -> bool:
    """A zombie counts as dead: its new parent has not reaped it yet."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


StartOwner = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def start_owner() -> Iterator[StartOwner]:
    """Starts processes with a testbed and kills those still running when the test ends."""
    with contextlib.ExitStack() as owners:

        def start(body: str) -> subprocess.Popen[str]:
            owner = owners.enter_context(_owner(body))
            owners.callback(owner.kill)  # called first: leaving a Popen waits for its end
            assert owner.stdout is not None
            assert owner.stdout.readline() == "up\n"
            return owner

        yield start


def _owner(body: str) -> subprocess.Popen[str]:
    """A process with a testbed that prints ``up`` when it stands; ``body`` runs inside."""
    script = (
        "from benchmarks.testbed import Testbed\n"
        "with Testbed(2, 1e9) as bed:\n"
        "    print('up', flush=True)\n" + textwrap.indent(textwrap.dedent(body), "    ")
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src")))}
    return subprocess.Popen(
        (sys.executable, "-c", script), env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def shares_carried(bed: Testbed) -> list[float]:
    """Measured rate over set rate, until one of them is near 1: a busy machine sends less than its link carries."""
    shares: list[float] = []
    while len(shares) < 20 and not (shares and shares[-1] > 0.6):
        shares.append(measure(bed, seconds=0.5) / bed.rate_bits_per_s)
    return shares


def test_links_carry_the_configured_rate_even_after_a_change() -> None:
    with Testbed(2, 4e8) as bed:
        assert 0.6 < max(shares_carried(bed)) < 1.15
        bed.set_rate(1e8)
        assert 0.6 < max(shares_carried(bed)) < 1.3


def test_every_host_runs_the_command_with_its_own_rank_core_and_address() -> None:
    with Testbed(3, 1e9) as bed:
        outputs = bed.run(("sh", "-c", "echo $RANK/$WORLD_SIZE; taskset -cp $$; ip -o -4 addr show eth0"))
        for rank, output in enumerate(outputs):
            assert output.lines[0] == f"{rank}/3"
            assert output.lines[1].endswith(f" {bed.core_of(rank)}")
            assert bed.plan.address(rank) in output.lines[2]


def test_output_is_streamed_line_by_line() -> None:
    seen: list[tuple[int, str]] = []
    with Testbed(2, 1e9) as bed:
        bed.run(("sh", "-c", "echo one; echo two >&2"), on_line=lambda rank, line: seen.append((rank, line)))
    assert sorted(seen) == [(0, "one"), (0, "two"), (1, "one"), (1, "two")]


def test_the_listener_is_called_by_one_host_at_a_time() -> None:
    inside: list[int] = []
    together: list[tuple[int, ...]] = []

    def listen(rank: int, line: str) -> None:
        inside.append(rank)
        time.sleep(0.001)  # long enough for the other host's line to arrive
        together.append(tuple(inside))
        inside.pop()

    with Testbed(2, 1e9) as bed:
        bed.run(("seq", "0", "50"), on_line=listen)
    assert sorted(together) == 51 * [(0,)] + 51 * [(1,)]


def test_an_exception_in_the_listener_reaches_the_caller_without_a_hang() -> None:
    def listen(rank: int, line: str) -> None:
        raise LookupError(line)

    with Testbed(1, 1e9) as bed, pytest.raises(LookupError, match=r"^0$"):
        bed.run(("seq", "0", "100000"), on_line=listen)


def test_a_host_that_fails_stops_the_others_and_is_quoted() -> None:
    with Testbed(2, 1e9) as bed:
        with pytest.raises(HostFailed, match=r"worker 1.*exit code 7[\s\S]*no data") as caught:
            bed.run(("sh", "-c", "test $RANK = 0 && exec sleep 600; echo no data; exit 7"))
        assert "sleep" in str(caught.value)
        assert bed.run(("true",))[0].exit_code == 0


def test_a_host_that_never_ends_is_an_error_that_says_where_it_hangs() -> None:
    hang = "import time\ndef forever():\n    time.sleep(600)\nforever()"
    message, timeout_s = "", 0.5
    with Testbed(1, 1e9) as bed:
        while "in forever" not in message and timeout_s < HANG_S:  # a busy machine takes long to start Python
            with pytest.raises(HostFailed, match=r"worker 0.*still running after") as caught:
                bed.run((sys.executable, "-c", hang), timeout_s=timeout_s)
            message, timeout_s = str(caught.value), 4 * timeout_s
    assert "in forever" in message


def test_no_namespace_is_left_after_an_exception() -> None:
    def use() -> None:
        with Testbed(2, 1e9):
            raise ZeroDivisionError(len(namespaces_of(os.getpid())))

    with pytest.raises(ZeroDivisionError, match="3"):
        use()
    assert namespaces_of(os.getpid()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_no_namespace_is_left_after_the_owner_is_asked_to_stop(number: signal.Signals, start_owner: StartOwner) -> None:
    owner = start_owner("bed.run(('sh', '-c', 'sleep 600'))")
    owner.send_signal(number)
    owner.communicate(timeout=HANG_S)
    assert owner.returncode != 0
    assert namespaces_of(owner.pid) == []


def test_the_next_testbed_sweeps_what_a_killed_owner_left(start_owner: StartOwner) -> None:
    owner = start_owner(
        """
        bed.run(
            ("sh", "-c", "echo ready; exec sleep 600"), on_line=lambda rank, line: print(line, flush=True)
        )
        """
    )
    assert owner.stdout is not None
    assert [owner.stdout.readline() for _ in range(2)] == ["ready\n", "ready\n"]
    left = namespaces_of(owner.pid)
    assert len(left) == 3
    host = next(name for name in left if name.endswith("host0"))
    inside = subprocess.run(("ip", "netns", "pids", host), capture_output=True, text=True, check=True).stdout.split()
    assert inside
    owner.kill()
    owner.wait()
    with Testbed(1, 1e9):
        assert namespaces_of(owner.pid) == []
    assert not any(is_running(int(pid)) for pid in inside)


def test_a_sweep_keeps_live_testbeds_and_unrelated_namespaces() -> None:
    foreign = f"not-weft-{os.getpid()}"
    subprocess.run(("ip", "netns", "add", foreign), check=True)
    try:
        with Testbed(1, 1e9) as bed:
            assert not set(sweep()) & {foreign, *bed.plan.namespaces}
            assert {foreign, *bed.plan.namespaces} <= set(list_namespaces())
    finally:
        subprocess.run(("ip", "netns", "del", foreign), check=True)


def test_without_root_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(MissingToolError, match=r"need root.*sudo"):
        Testbed(2, 1e9)


def test_without_iproute2_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingToolError, match="install iproute2"):
        Testbed(2, 1e9)


def test_the_overlap_benchmark_writes_its_results(tmp_path: Path) -> None:
    seen: list[str] = []
    scenarios = tiny_run(("alone", "ddp", "dear"))
    results = run_scenarios(
        scenarios,
        command="a test",
        on_progress=lambda _, what: seen.append(what),
        folder=tmp_path,
        timeout_s=HANG_S,
    )
    assert results.failures == []
    (row,) = results.rows
    assert row["wire_bytes_per_step"]["ddp"] > row["gradient_bytes"] / 2
    assert row["wire_bytes_per_step"]["alone"] < row["gradient_bytes"] / 10
    assert sorted(path.name for path in tmp_path.iterdir()) == ["overlap.json", "overlap.md"]
    assert any("round 1" in what for what in seen)
    seen.clear()
    again = run_scenarios(scenarios, command="again", on_progress=lambda _, what: seen.append(what), folder=tmp_path)
    assert again.rows == json.loads(json.dumps(results.rows))
    assert seen == ["starting"]  # what this code has measured is not measured again
    assert namespaces_of(os.getpid()) == []


def test_the_crossover_benchmark_writes_its_results(tmp_path: Path) -> None:
    results = crossover.run_scenarios(
        crossover_scenarios.tiny_run(), command="a test", on_progress=lambda *_: None, folder=tmp_path
    )
    assert results.failures == []
    (row,), (lone,) = results.document()["rows"], results.document()[LONE]
    assert row["loss_equal"]
    assert set(row["loss_equal_by_cell"]) == {"alone", "lone", "in_phase", "random_phase", "crossover"}
    assert lone["loss_equal"]
    assert lone["low"] <= lone["overhead"] <= lone["high"]
    again = open_crossover(tmp_path, "again")
    assert [again.measured(key) is not None for key in ("equal plain 1", "lone overlap")] == [True, True]
    assert "sharing switched on" in results.path("md").read_text()
    assert namespaces_of(os.getpid()) == []
