"""Instant launches on a slow device: weft measures the device, not the host."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from recorded_nccl import Record, recorded
from torch import nn

from training import Run, adamw, batch_generator, with_weft
from weft.overlap.layout import Lane
from weft.overlap.step_times import StepTimes
from weft.overlap.tuning import measured_profile
from weft.perf.step_profile import StepProfile
from workers import on_workers

# Virtual seconds, far longer than any real launch.
_MATMUL_S = 100
_COLLECTIVE_S = 1000
_COLLECTIVES = ("reduce-scatter", "all-gather")


class Stack(nn.Module):
    """Three matrices: three products in forward, five in backward, since no gradient of the input is needed."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(8, 8, bias=False) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)

    def loss(self, step: int) -> torch.Tensor:
        return self(torch.randn(4, 8, generator=batch_generator(step))).square().mean()


@contextmanager
def slow_device(**options: Any) -> Iterator[tuple[Record, Run]]:
    with recorded() as record:
        seconds = {"mm": _MATMUL_S, "addmm": _MATMUL_S} | dict.fromkeys(_COLLECTIVES, _COLLECTIVE_S)
        record.recorder.takes_ns = lambda what: seconds.get(what, 0) * 10**9
        yield record, with_weft(record.made(Stack), adamw, **options)
    record.check()


@on_workers(2)
def test_the_report_shows_what_the_device_takes_not_what_the_host_takes_to_queue_it() -> None:
    with slow_device(bucket_bytes=1 << 20) as (_, run):
        run.train(5)
        assert run.handle is not None
        report = run.handle.report()
    assert report.forward_s == pytest.approx(3 * _MATMUL_S)
    assert report.backward_s == pytest.approx(5 * _MATMUL_S)
    assert report.update_s == pytest.approx(0)
    # One bucket: its reduction is launched when backward ends, its gather when step() ends, and both are waited for.
    assert report.exposed_s == pytest.approx(2 * _COLLECTIVE_S)
    assert report.step_s == pytest.approx(8 * _MATMUL_S + 2 * _COLLECTIVE_S)


@on_workers(2)
def test_a_trace_shows_when_the_device_did_what() -> None:
    with slow_device(bucket_bytes=1 << 20) as (_, run), tempfile.TemporaryDirectory() as folder:
        run.train(2)
        assert run.handle is not None
        with run.handle.trace(Path(folder, "trace.json")):
            run.train(2, first=2)
        found = json.loads(Path(folder, "trace.json").read_text())["traceEvents"]
    spans = [(e["name"], e["args"]["step"], e["dur"] * 1e-6) for e in found if e["ph"] == "X"]
    for step in (2, 3):  # all of them: the last one is waited for
        assert ("backward", step, pytest.approx(5 * _MATMUL_S)) in spans
        assert ("wait reduce-scatter 0", step, pytest.approx(_COLLECTIVE_S)) in spans
        assert ("wait all-gather 0", step, pytest.approx(_COLLECTIVE_S)) in spans
        # The first layer reads its weight, and so waits, inside forward.
        assert ("forward", step, pytest.approx(3 * _MATMUL_S + _COLLECTIVE_S)) in spans


@on_workers(2)
def test_the_first_plan_is_made_from_the_times_of_the_device() -> None:
    seen = []

    def spied(lane: Lane, steps: Sequence[StepTimes], num_elements: int, num_workers: int) -> StepProfile:
        seen.extend(step.number for step in steps)
        return measured_profile(lane, steps, num_elements, num_workers)

    with mock.patch("weft.overlap.tuning.measured_profile", spied), slow_device(tune=True) as (_, run):
        run.train(5)
        assert run.handle is not None
        profile = run.handle.parts[0].tuner.profile
    assert profile is not None
    assert seen == [1, 2, 3, 4]  # all but the first, and none is missing because the device is behind
    assert profile.forward_s == pytest.approx(3 * _MATMUL_S)
    assert profile.backward_s == pytest.approx(5 * _MATMUL_S)
    # Last layer first.  A layer's autograd node computes both products before either gradient is visible.
    assert [p.ready_s / _MATMUL_S for p in profile.parameters] == pytest.approx([2, 4, 5])
    assert [p.read_s / _MATMUL_S for p in profile.parameters] == pytest.approx([2, 1, 0])


@on_workers(2)
def test_timing_never_makes_the_host_wait_between_steps() -> None:
    def waits(record: Record) -> int:
        ours = [s for s in record.recorder.host_waits if any(frame.name == "tell" for frame in s)]
        return len(ours)

    with slow_device(bucket_bytes=1 << 20) as (record, run):
        run.train(3)
        assert run.handle is not None
        run.handle.report()
        assert waits(record) == 0
        with tempfile.TemporaryDirectory() as folder, run.handle.trace(Path(folder, "trace.json")):
            run.train(1, first=3)
            assert waits(record) == 0
        assert waits(record) > 0  # only at its end, to be complete
