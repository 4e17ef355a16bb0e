"""A worker's progress, a few times a second: reports to the controller and a progress bar on rank 0's terminal."""

from __future__ import annotations

import resource
import shutil
import time
from typing import Any, TextIO

import torch

from weft.core.step_report import BatchReport, Progress, StepReport
from weft.overlap.handle import Overlap
from weft.overlap.report import network_s
from weft.perf.gradient_noise import NoiseScale
from weft.process.turns import TURNS
from weft.worker.channel import Channel
from weft.worker.environment import WorkerEnvironment
from weft.worker.peers import Peers
from weft.worker.sampling import Share

_REPORT_EVERY_S = 0.2
_BAR_WIDTH = 24


class Meter:
    """Step time and samples per second since the last report."""

    def __init__(self) -> None:
        self._since_s = time.perf_counter()
        self._num_steps = 0
        self._num_samples = 0
        self._network_wait_s = TURNS.network_wait_s
        self._total_turn_wait_s = TURNS.turn_wait_s
        self._waited_s = 0.0
        self.turn_wait_s = 0.0
        """Seconds per step spent waiting for a turn, as of the last :meth:`take`."""
        self._metrics: dict[str, Any] = {}

    def log(self, metrics: dict[str, Any]) -> None:
        # Reading a value from a GPU waits for it, so that happens only when a report is due.
        for name, value in metrics.items():
            self._metrics[name] = value.detach() if isinstance(value, torch.Tensor) else value

    def step_done(self, num_samples: int) -> None:
        self._num_steps += 1
        self._num_samples += num_samples

    @property
    def due(self) -> bool:
        return self._num_steps > 0 and time.perf_counter() - self._since_s >= _REPORT_EVERY_S

    def take(self) -> tuple[float, float, dict[str, float]]:
        """Seconds per step, samples per second of all workers, and the newest metrics since the last call."""
        elapsed_s = max(time.perf_counter() - self._since_s, 1e-9)
        step_s = elapsed_s / self._num_steps if self._num_steps else 0.0
        self._waited_s = (TURNS.network_wait_s - self._network_wait_s) / max(self._num_steps, 1)
        self._network_wait_s = TURNS.network_wait_s
        self.turn_wait_s = (TURNS.turn_wait_s - self._total_turn_wait_s) / max(self._num_steps, 1)
        self._total_turn_wait_s = TURNS.turn_wait_s
        samples_per_s = self._num_samples / elapsed_s
        self._since_s, self._num_steps, self._num_samples = time.perf_counter(), 0, 0
        return step_s, samples_per_s, {name: float(value) for name, value in self._metrics.items()}

    def exposed_s(self, handle: Overlap | None) -> float:
        """Seconds per step spent waiting for the network, as of the last :meth:`take`; 0 if not measured.

        An overlapped model measures its own waits; those of other models are measured only behind a gate.
        """
        if handle is not None and handle.schedule.clock.steps:
            return handle.schedule.clock.steps[-1].exposed_s
        return self._waited_s


def phases_of(handle: Overlap | None) -> tuple[float, float, float] | None:
    """Forward, backward and update of the last step; ``None`` if nothing measures them."""
    if handle is None or not handle.schedule.clock.steps:
        return None
    last = handle.schedule.clock.steps[-1]
    return last.forward_s, last.backward_s, last.update_s


def network_of(handle: Overlap | None) -> float | None:
    """Seconds per step in which the link is busy; ``None`` if not measured."""
    found = None if handle is None else network_s(handle.schedule)
    return None if found is None else sum(found)


class ProgressBar:
    """Redraws one line of a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._drawn = False

    @classmethod
    def for_worker(cls, rank: int, stream: TextIO) -> ProgressBar | None:
        return cls(stream) if rank == 0 and stream.isatty() else None

    def show(self, report: StepReport) -> None:
        width = shutil.get_terminal_size().columns
        self._drawn = self._write("\r\x1b[K" + line_of(report)[: max(width - 1, 1)])

    def close(self) -> None:
        """Keep the last line."""
        if self._drawn:
            self._write("\n")
            self._drawn = False

    def _write(self, text: str) -> bool:
        """Whether the terminal still exists; training continues without it."""
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            return False
        return True


def line_of(report: StepReport) -> str:
    """The text of the progress bar.

    >>> line_of(StepReport("", 0, 0, 2, Progress(50, 100, 0.02), 3, 3200.0, {"loss": 0.5}))
    '[############............]  50% step 50/100 epoch 3 20.0 ms/step 3200 samples/s loss 0.5'
    """
    parts = []
    step, total_steps = report.progress.step, report.progress.total_steps
    if total_steps:
        done = min(step / total_steps, 1.0)
        filled = int(done * _BAR_WIDTH)
        parts.append(f"[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] {done:4.0%} step {step}/{total_steps}")
    else:
        parts.append(f"step {step}")
    parts.append(f"epoch {report.epoch}")
    parts.append(f"{report.progress.step_s * 1e3:.1f} ms/step {report.samples_per_s:.0f} samples/s")
    parts += [f"{name} {value:.4g}" for name, value in report.metrics.items()]
    return " ".join(parts)


class Reporter:
    """Sends reports and draws the progress bar, a few times a second; never waits."""

    def __init__(
        self, environment: WorkerEnvironment, peers: Peers, channel: Channel | None, bar: ProgressBar | None
    ) -> None:
        self.can_resume = False
        self._environment = environment
        self._peers = peers
        self._channel = channel
        self._bar = bar
        self._meter = Meter()
        self._batch: tuple[int, int, NoiseScale] | None = None
        self._unsent: tuple[int, int | None, int, Overlap | None] | None = None

    def log(self, metrics: dict[str, Any]) -> None:
        self._meter.log(metrics)

    def tell_batch(self, size: int, script_size: int, noise: NoiseScale) -> None:
        """From now on, reports say which batch size is in use, and how noisy the gradients are."""
        self._batch = size, script_size, noise

    def step_done(self, step: int, total_steps: int | None, epoch: int, share: Share, handle: Overlap | None) -> None:
        self._meter.step_done(share.num_global)
        self._unsent = (step, total_steps, epoch, handle)
        if self._meter.due:
            self.flush()

    def flush(self) -> None:
        """Report the steps since the last report, if there are any: the last one of a run counts, too."""
        if self._unsent is None or (self._channel is None and self._bar is None):
            return
        (step, total_steps, epoch, handle), self._unsent = self._unsent, None
        step_s, samples_per_s, metrics = self._meter.take()
        report = StepReport(
            job_id=self._environment.job_id or "",
            attempt=self._environment.attempt,
            rank=self._peers.rank,
            world_size=self._peers.world_size,
            progress=Progress(step, total_steps, step_s, self._meter.exposed_s(handle), metrics.get("loss")),
            epoch=epoch,
            samples_per_s=samples_per_s,
            metrics=metrics,
            memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            takes_turns=TURNS.sharing,
            phases=phases_of(handle),
            network_s=network_of(handle),
            turn_wait_s=self._meter.turn_wait_s,
            can_resume=self.can_resume,
            batch=self._batch and BatchReport(self._batch[0], self._batch[1], self._batch[2].samples),
        )
        if self._channel is not None:
            self._channel.send(report.message())
        if self._bar is not None:
            self._bar.show(report)

    def end_line(self) -> None:
        """Call this before printing anything else, so that the progress bar keeps its last line."""
        if self._bar is not None:
            self._bar.close()
