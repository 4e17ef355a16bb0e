"""What a user sees of the schedule: report, trace, memory."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensor

from training import Run, adamw, batch_generator, made, with_ddp, with_weft
from weft.overlap.gradient import ShardedGradient
from workers import call_on_workers, on_workers


class Wide(nn.Module):
    """Most of its memory is parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(200, 200) for _ in range(6)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)

    def loss(self, step: int) -> torch.Tensor:
        return self(torch.randn(2, 200, generator=batch_generator(step))).square().mean()


@pytest.mark.parametrize("eager", [False, True])
@on_workers(2)
def test_the_report_adds_up(eager: bool) -> None:
    run = with_weft(made(Wide), adamw, eager=eager, bucket_bytes=64 << 10)
    assert run.handle is not None
    assert str(run.handle.report()) == "weft.overlap: no step has been measured yet"
    run.train(8)
    report = run.handle.report()
    assert report.num_steps == 8
    assert report.num_buckets > 4
    assert min(report.forward_s, report.backward_s, report.update_s) > 0
    assert report.exposed_s >= 0  # a difference of measured times that must not go below 0
    assert report.bound_s > 0
    assert report.fraction_of_bound == pytest.approx(report.bound_s / report.step_s)
    assert not report.tuned or report.plan
    assert f"{report.step_s * 1e3:.1f} ms" in str(report)
    assert json.loads(json.dumps(report.as_dict()))["num_steps"] == 8


@on_workers(2)
def test_a_short_job_with_a_fixed_plan_does_not_pay_for_measuring_the_link() -> None:
    run = with_weft(made(Wide), adamw, bucket_bytes=64 << 10).train(31)
    assert run.handle is not None
    assert run.handle.report().link_latency_s == 0
    assert "link not measured" in str(run.handle.report())
    report = run.train(1).handle.report()
    # On a busy machine either of the two may be fitted as 0, never both.
    assert report.link_latency_s + report.link_bytes_per_s > 0
    assert "link not measured" not in str(report)


@on_workers(1)
def test_one_worker_does_not_pay_for_buckets_that_it_sends_to_nobody() -> None:
    run = with_weft(made(Wide), adamw, bucket_bytes=64 << 10).train(2)
    assert run.handle is not None
    assert run.handle.report().num_buckets == 1


def traced(folder: str) -> None:
    run = with_weft(made(Wide), adamw, bucket_bytes=64 << 10).train(3)
    assert run.handle is not None
    for name in ("first", "second"):
        with run.handle.trace(Path(folder, f"{name}-{torch.distributed.get_rank()}.json")):
            run.train(2, first=3)


def test_a_trace_shows_its_own_steps_on_separate_tracks_and_weft_trace_reads_it(tmp_path: Path) -> None:
    call_on_workers(2, traced, folder=str(tmp_path))
    events = json.loads((tmp_path / "second-1.json").read_text())
    events = events["traceEvents"] if isinstance(events, dict) else events
    spans = [event for event in events if event["ph"] == "X"]
    names = {event["args"]["name"] for event in events if event["ph"] == "M" and event["name"] == "thread_name"}
    assert {"compute", "communication"} <= names
    assert {span["args"]["step"] for span in spans} == {5, 6}
    assert {"forward", "backward", "update"} <= {span["name"] for span in spans}
    assert any(span["name"].startswith("reduce-scatter") for span in spans)
    assert any(span["name"].startswith("all-gather") for span in spans)
    assert all(span["dur"] > 0 for span in spans)
    told = subprocess.run(
        [sys.executable, "-m", "weft", "trace", str(tmp_path / "second-1.json")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "worker 1" in told.stdout


@on_workers(2)
def test_profiler_labels_say_what_weft_does() -> None:
    run = with_weft(made(Wide), adamw, bucket_bytes=64 << 10).train(2)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run.train(2, first=2)
    labels = {event.key for event in profile.key_averages()}
    assert any(label.startswith("weft: wait") for label in labels)
    assert any(label.startswith("weft: update bucket") for label in labels)


@on_workers(2)
def test_no_more_memory_than_ddp() -> None:
    """Bytes of all live storages at the peaks: after backward, and after step."""

    def most(run: Run) -> int:
        run.train(3)
        run.optimizer.zero_grad()
        run.backward(3)
        after_backward = living_bytes()
        run.optimizer.step()
        return max(after_backward, living_bytes())

    gc.collect()
    before = living_bytes()
    run: Any = with_ddp(made(Wide), adamw)
    ddp = most(run) - before
    del run
    gc.collect()
    before = living_bytes()
    weft = most(with_weft(made(Wide), adamw, bucket_bytes=64 << 10)) - before
    parameters = 4 * 6 * (200 * 200 + 200)
    assert ddp > 3 * parameters
    assert weft < ddp


def living_bytes() -> int:
    """Bytes that some storage covers, each once: a parameter's storage lies inside that of the flat memory.

    DDP's buckets live in C++ and are not counted: a comparison that favors DDP.
    """
    stretches = set()
    for thing in gc.get_objects():
        # By its type: asking some objects of torch.distributed for their class warns.  What torch.compile leaves
        # behind for good has no memory.
        if issubclass(type(thing), torch.Tensor) and not issubclass(type(thing), (ShardedGradient, FakeTensor)):
            storage = thing.untyped_storage()
            stretches.add((storage.data_ptr(), storage.data_ptr() + storage.nbytes()))
    covered, end = 0, 0
    for start, stop in sorted(stretches):
        covered += max(0, stop - max(start, end))
        end = max(end, stop)
    return covered


@on_workers(2)
def test_a_model_no_longer_in_use_is_freed() -> None:
    gc.collect()
    before = living_bytes()
    run: Any = with_weft(made(Wide), adamw).train(2)
    assert living_bytes() > before + 1_000_000
    del run
    gc.collect()
    assert living_bytes() < before + 100_000
