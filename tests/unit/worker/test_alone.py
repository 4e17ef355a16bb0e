"""``weft.session()`` in one process: reports, the progress bar, and input that cannot be right."""

from __future__ import annotations

import errno
import io
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

import weft
import weft.worker.reports
from weft.core.step_report import Progress, StepReport
from weft.errors import CheckpointError, InputError, UsageError
from weft.worker.channel import Channel
from weft.worker.reports import ProgressBar

REPORT = StepReport("", 0, 0, 1, Progress(5, 10, step_s=0.01), samples_per_s=100.0)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WEFT_CHECKPOINT_DIR", str(tmp_path / "checkpoints"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(weft.worker.reports, "_REPORT_EVERY_S", 0.0)


def train(
    *,
    width: int = 4,
    dataset: Any = None,
    max_steps: int = 50,
    each_step: Callable[[Any], None] = lambda run: None,
) -> int:
    """A whole small run; how many steps it made in the end."""
    with weft.session() as run:
        model = torch.nn.Linear(1, width)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        data = run.loader(torch.arange(20.0).view(20, 1) if dataset is None else dataset, batch_size=4)
        run.resume(model=model, optimizer=optimizer, data=data)
        for x in run.steps(data, max_steps=max_steps):
            optimizer.zero_grad()
            loss = model(x.float().view(-1, 1)).square().mean()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
            each_step(run)
        return run.step


def controller(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listening.bind(str(path))
    return listening


# ---- reports


def test_training_does_not_wait_for_a_missing_controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CHANNEL", str(tmp_path / "nobody"))
    assert train() == 50


def test_training_does_not_wait_for_a_controller_that_never_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CHANNEL", str(tmp_path / "channel"))
    sent: list[bool] = []
    send = Channel.send

    def recorded_send(self: Channel, message: dict[str, Any]) -> bool:
        sent.append(send(self, message))
        return sent[-1]

    monkeypatch.setattr(Channel, "send", recorded_send)
    with controller(tmp_path / "channel") as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        assert train(max_steps=600) == 600
    assert not all(sent), "the socket took everything: the test has shown nothing"


def test_training_continues_when_the_controller_exits_and_is_reported_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CHANNEL", str(tmp_path / "channel"))
    monkeypatch.setenv("WEFT_JOB_ID", "job-7")
    listening = controller(tmp_path / "channel")
    heard: list[dict[str, Any]] = []

    def leave_after_20(run: Any) -> None:
        if run.step == 20:
            heard.append(json.loads(listening.recv(1 << 16)))
            listening.close()
            os.unlink(tmp_path / "channel")

    assert train(each_step=leave_after_20) == 50
    assert (heard[0]["kind"], heard[0]["job_id"], heard[0]["step"]) == ("step", "job-7", 1)
    assert {"step_s", "exposed_s", "samples_per_s", "total_steps", "metrics"} <= heard[0].keys()
    assert heard[0]["metrics"].keys() == {"loss"}


def test_a_finished_run_reports_its_last_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CHANNEL", str(tmp_path / "channel"))
    monkeypatch.setattr(weft.worker.reports, "_REPORT_EVERY_S", 1e9)
    with controller(tmp_path / "channel") as listening:
        train(max_steps=7)
        listening.setblocking(False)
        report = json.loads(listening.recv(1 << 16))
    assert (report["step"], report["total_steps"]) == (7, 7)


@pytest.mark.parametrize("registers", [True, False])
def test_reports_say_whether_the_run_could_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registers: bool
) -> None:
    monkeypatch.setenv("WEFT_CHANNEL", str(tmp_path / "channel"))
    with controller(tmp_path / "channel") as listening, weft.session() as run:
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        data = run.loader(torch.arange(4.0).view(4, 1), batch_size=4)
        if registers:
            run.resume(model=model, optimizer=optimizer, data=data)
        for x in run.steps(data, max_steps=1):
            model(x).sum().backward()
            optimizer.step()
        assert json.loads(listening.recv(1 << 16))["can_resume"] is registers


def test_a_metric_that_is_not_a_number_is_refused_even_without_a_controller() -> None:
    with weft.session() as run, pytest.raises(UsageError, match=r"run\.log\(phase=\.\.\.\) was given a str"):
        run.log(phase="train")
    with weft.session() as run, pytest.raises(UsageError, match="tensor of 2 elements"):
        run.log(loss=torch.zeros(2))


class Scalars:
    """As TensorBoard's SummaryWriter."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, float, int]] = []

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.seen.append((tag, scalar_value, global_step))


class Runs:
    """As a run of W&B."""

    def __init__(self) -> None:
        self.seen: list[tuple[dict[str, float], int]] = []

    def log(self, data: dict[str, float], *, step: int) -> None:
        self.seen.append((data, step))


def test_metrics_also_go_to_the_writer_of_the_script() -> None:
    scalars, runs = Scalars(), Runs()

    def each_step(run: Any) -> None:
        run.log(loss=torch.tensor(0.5, requires_grad=True), to=scalars)
        run.log(loss=0.25, to=runs)

    train(max_steps=2, each_step=each_step)
    assert scalars.seen == [("loss", 0.5, 0), ("loss", 0.5, 1)]
    assert runs.seen == [({"loss": 0.25}, 0), ({"loss": 0.25}, 1)]
    with weft.session() as run, pytest.raises(UsageError, match="was given a int: expected a TensorBoard"):
        run.log(loss=0.5, to=3)


# ---- the progress bar


@pytest.fixture
def terminal() -> Iterator[tuple[int, Any]]:
    ours, theirs = os.openpty()
    with open(theirs, "w") as stream:
        yield ours, stream
    os.close(ours)


def test_only_worker_0_draws_the_progress_bar_and_only_on_a_terminal(terminal: tuple[int, Any]) -> None:
    assert ProgressBar.for_worker(0, terminal[1]) is not None
    assert ProgressBar.for_worker(1, terminal[1]) is None
    assert ProgressBar.for_worker(0, io.StringIO()) is None


def test_a_run_on_a_terminal_draws_and_one_elsewhere_does_not(
    terminal: tuple[int, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train(max_steps=3)
    assert "samples/s" not in capsys.readouterr().err
    ours, stream = terminal
    monkeypatch.setattr(sys, "stderr", stream)
    train(max_steps=6)
    os.set_blocking(ours, False)
    assert b"step 6/6" in os.read(ours, 1 << 16)


class Gone(io.StringIO):
    """A terminal that has been closed."""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        raise OSError(errno.EIO, "Input/output error")


def test_a_terminal_that_is_closed_does_not_end_the_training() -> None:
    bar = ProgressBar.for_worker(0, Gone())
    assert bar is not None
    bar.show(REPORT)
    bar.close()


# ---- input that cannot be right


def checkpoints(path: Path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if ".lock" not in file.name)


def test_a_checkpoint_of_another_model_names_the_parameter_and_stays_as_it_was(tmp_path: Path) -> None:
    train(max_steps=5)
    before = checkpoints(tmp_path)
    with pytest.raises(CheckpointError, match=r"weight is float32\[4, 1\] in the checkpoint and float32\[5, 1\]"):
        train(width=5)
    assert checkpoints(tmp_path) == before
    assert train(max_steps=8) == 8


def test_a_checkpoint_of_a_newer_weft_is_refused_and_stays_as_it_was(tmp_path: Path) -> None:
    train(max_steps=5)
    manifest = tmp_path / "checkpoints" / "step-000000000005" / "manifest.json"
    text = json.dumps({**json.loads(manifest.read_text()), "format": 99})
    manifest.write_text(text)
    with pytest.raises(CheckpointError, match=r"format 99, and this version of weft reads up to \d+"):
        train()
    assert manifest.read_text() == text


def test_a_folder_that_cannot_be_written_is_refused_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("mine")
    monkeypatch.setenv("WEFT_CHECKPOINT_DIR", str(tmp_path / "file" / "below"))
    made: list[int] = []
    with pytest.raises(CheckpointError, match="cannot be written"):
        train(each_step=lambda run: made.append(run.step))
    assert made == []
    assert (tmp_path / "file").read_text() == "mine"


class Nothing(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(())


@pytest.mark.parametrize(("dataset", "says"), [([], "dataset is empty"), (Nothing(), "yielded nothing in epoch 0")])
def test_an_empty_dataset_is_an_error_instead_of_an_endless_loop(dataset: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        train(dataset=dataset)


def test_a_run_can_be_walked_epoch_by_epoch() -> None:
    with weft.session() as run:
        model = torch.nn.Linear(1, 1)
        data = run.loader(torch.arange(20.0).view(20, 1), batch_size=4)
        run.resume(model=model, data=data)
        for epoch in range(3):
            for _ in run.steps(data, epochs=epoch + 1):
                pass
            assert run.step == 5 * (epoch + 1)


# ---- validation


def test_a_script_validates_after_every_epoch_also_after_a_resume() -> None:
    validated: list[int] = []

    def each_step(run: Any) -> None:
        if run.ends_epoch:
            validated.append(run.epoch)

    train(max_steps=7, each_step=each_step)  # 5 steps per epoch
    train(max_steps=15, each_step=each_step)
    assert validated == [0, 1, 2]


def test_the_end_of_an_epoch_of_a_stream_is_refused_and_not_guessed() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(20))

    with pytest.raises(UsageError, match=r"validate every N steps"):
        train(dataset=Stream(), max_steps=2, each_step=lambda run: run.ends_epoch)


def test_sums_of_one_worker_are_its_own_values() -> None:
    sums: list[float] = []
    train(max_steps=1, each_step=lambda run: sums.extend(run.sum(3, torch.tensor(0.5))))
    assert sums == [3.0, 0.5]


@pytest.mark.parametrize(
    ("options", "ends", "expected"),
    [
        ({}, {"epochs": 1}, 'add batch_rule="linear", "sqrt", or "none" to run.loader'),
        ({"batch_rule": "linear"}, {"max_steps": 5}, "give run.steps epochs= instead"),
        ({"batch_rule": "cubic"}, {"epochs": 1}, "expected one of linear, sqrt, none"),
    ],
)
def test_a_range_of_batch_sizes_that_the_script_does_not_allow_is_refused_with_one_line(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], ends: dict[str, int], expected: str
) -> None:
    monkeypatch.setenv("WEFT_BATCH_RANGE", "2:8")
    with weft.session() as run, pytest.raises(UsageError, match=expected) as refused:
        run.steps(run.loader(torch.arange(20.0), batch_size=4, **options), **ends)
    assert "\n" not in str(refused.value)


def test_steps_left_count_at_the_batch_size_of_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_BATCH_RANGE", "2:10")
    for chosen, num_steps in ((2, 20), (10, 4), (16, 4)):
        monkeypatch.setenv("WEFT_BATCH_SIZE", str(chosen))
        with weft.session() as run:
            loader = run.loader(torch.arange(20.0), batch_size=4, batch_rule="none")
            assert loader.num_steps_left(epochs=2) == num_steps
            loader.epoch, loader.position = 1, 10
            assert loader.num_steps_left(epochs=2) == num_steps // 4
