"""Each past fault of the CUDA path, reintroduced: the checker finds it, and finds nothing without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
from recorded_nccl import Record, recorded
from side_streams import Fork

from training import Run, Tangle, Tower, adamw, sgd, with_weft
from weft.overlap.bucket import exchange_shape
from weft.overlap.device import Arrival
from weft.overlap.layout import make_buckets, make_lane
from weft.overlap.round_streams import RoundStreams
from weft.overlap.sharded import ShardedSchedule
from weft.overlap.state_runs import export_runs
from weft.overlap.update import ShardUpdate
from workers import gathered, on_workers

Fault = Callable[[Record], Any]


def no_fault(record: Record) -> Any:
    return nullcontext()


# ---- a wait orders only the stream that is current


@contextmanager
def waits_count_once_for_all(record: Record) -> Iterator[None]:
    def order(arrival: Any) -> None:
        if not arrival._waiting:
            arrival._work.wait()
            arrival._waiting.add("somebody")

    with mock.patch.object(Arrival, "order", order):
        yield


def read_first_on_a_side_stream(record: Record, run: Run) -> None:
    """An average of the weights on a side stream, ordered behind step() as with any optimizer."""
    recorder = record.recorder
    for step in range(3):
        run.optimizer.zero_grad()
        run.backward(step)
        record.device.join("average")
        run.optimizer.step()
        with recorder.on("average"):
            recorder.order("average", recorder.clock_of("main"))
            torch.stack([p.detach().sum() for p in run.model.parameters()])


def read_later_on_a_side_stream(record: Record, run: Run) -> None:
    """The side stream is ordered behind step() before the main stream has read, and reads after it."""
    recorder = record.recorder
    for step in range(3):
        run.train(1, first=step)
        with recorder.on("average"):
            recorder.order("average", recorder.clock_of("main"))
        run.model.loss(step)
        with recorder.on("average"):
            torch.stack([p.detach().sum() for p in run.model.parameters()])
        record.device.join("average")


def norms_on_a_side_stream(record: Record, run: Run) -> None:
    """Gradients are looked at on a side stream before step()."""
    recorder = record.recorder
    for step in range(3):
        run.optimizer.zero_grad()
        run.backward(step)
        with recorder.on("norms"):
            recorder.order("norms", recorder.clock_of("main"))
            torch.stack([p.grad.norm() for p in run.model.parameters()])
        run.optimizer.step()
        record.device.join("norms")


# ---- gradients of one bucket come from several streams


@contextmanager
def a_launch_joins_nobody(record: Record) -> Iterator[None]:
    with mock.patch.object(RoundStreams, "launch", lambda streams, bucket: streams.enter()):
        yield


def trained(record: Record, run: Run) -> None:
    run.train(4)


# ---- memory and threads


@contextmanager
def nobody_keeps_memory(record: Record) -> Iterator[None]:
    def forget(device: Any, tensor: torch.Tensor) -> None:
        pass

    with mock.patch.object(type(record.device), "keep", forget):
        yield


def carried_between_streams(record: Record, run: Run) -> None:
    for step in range(3):
        run.optimizer.zero_grad()
        run.backward(2 * step)
        with record.recorder.on("second"):
            record.device.join("main")
            run.backward(2 * step + 1)
        record.device.join("second")
        run.optimizer.step()


@contextmanager
def state_is_copied_on_the_default_stream(record: Record) -> Iterator[None]:
    def state_aside(schedule: ShardedSchedule) -> Any:
        runs = export_runs(schedule.updates)
        for run in runs:
            record.device.to_host(run.values)
        return runs

    with mock.patch.object(ShardedSchedule, "state_aside", state_aside):
        yield


def saved_while_training_on_its_own_stream(record: Record, run: Run) -> None:
    record.recorder.order("train", record.recorder.clock_of("main"))
    with record.recorder.on("train"):
        for step in range(3):
            run.train(1, first=step)
            torch.distributed.barrier()  # a worker still in its step would answer by itself, on its own stream
            if torch.distributed.get_rank() == step % 2:
                run.optimizer.state_dict()


@contextmanager
def buffers_are_put_in_place_anywhere(record: Record) -> Iterator[None]:
    with (
        mock.patch.object(type(record.device), "on_stream", return_value=nullcontext()),
        mock.patch.object(type(record.device), "join"),
    ):
        yield


class Scaled(Tower):
    """Reads a buffer, and leaves it as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.scale


def evaluated_on_a_side_stream(record: Record, run: Run) -> None:
    recorder = record.recorder
    for step in range(3):
        run.optimizer.zero_grad()
        run.backward(step)
        recorder.order("main", recorder.clock_of("evaluation"))
        run.optimizer.step()
        recorder.order("evaluation", recorder.clock_of("main"))
        with recorder.on("evaluation"), torch.no_grad():
            run.model.loss(step)


CASES: list[tuple[Fault, Callable[[Record, Run], None], Any]] = [
    (waits_count_once_for_all, read_first_on_a_side_stream, Tower),
    (waits_count_once_for_all, read_later_on_a_side_stream, Tower),
    (waits_count_once_for_all, norms_on_a_side_stream, Tower),
    (a_launch_joins_nobody, trained, Fork),
    (nobody_keeps_memory, carried_between_streams, Tower),
    (state_is_copied_on_the_default_stream, saved_while_training_on_its_own_stream, Tower),
    (buffers_are_put_in_place_anywhere, evaluated_on_a_side_stream, Scaled),
]


@pytest.mark.parametrize("case", range(len(CASES)), ids=[f"{f.__name__}-{loop.__name__}" for f, loop, _ in CASES])
@on_workers(2)
def test_missing_synchronization_between_streams_is_found(case: int) -> None:
    fault, loop, make = CASES[case]
    for put_back in (no_fault, fault):
        with recorded() as record, put_back(record):
            model = record.made((lambda r=record: make(r.recorder)) if make is Fork else make)
            loop(record, with_weft(model, adamw))
        if put_back is no_fault:
            record.check()
        # It depends on the worker's own order: the fault shows on at least one of them.
        assert any(gathered(bool(record.hazards))) == (put_back is fault)


@pytest.mark.parametrize("fault", [False, True], ids=["late", "at once"])
@on_workers(2)
def test_the_host_never_waits_for_the_device_in_a_step(fault: bool) -> None:
    """Also where parameters were unused: how often they were used is read a step later."""

    def look(update: ShardUpdate) -> list[bool]:
        reduced = update.bucket.exchange.reduced
        assert reduced is not None
        return [count > 0 for count in update.bucket.counts().tolist()]

    def waits(record: Record) -> int:
        ours = [s for s in record.recorder.host_waits if any("/weft/overlap/" in frame.filename for frame in s)]
        late = [s for s in ours if any(frame.name == "settle" for frame in s)]
        return len(ours) - len(late)

    with recorded() as record, mock.patch.object(ShardUpdate, "_used", look) if fault else nullcontext():
        run = with_weft(record.made(Tangle), sgd)
        run.train(1)
        before = waits(record)
        run.train(4, first=1)
        assert (waits(record) > before) == fault
    assert fault or not record.hazards


def test_rows_begin_where_nccl_is_fastest() -> None:
    lane = make_lane([(0, 7), (1, 100), (2, 33)], num_workers=3, element_bytes=2)
    for plan in make_buckets([lane], [(48,)], 3, {0: 0, 1: 1, 2: 2}):
        assert exchange_shape(plan, torch.bfloat16).row * 2 % 16 == 0
