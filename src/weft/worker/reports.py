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
        self._metrics: dict[str, Any] = {}
        self._batch: tuple[int, int, NoiseScale] | None = None
        self._unsent: tuple[int, int | None, int, Overlap | None] | None = None
        self._begin_interval()

    def _begin_interval(self) -> None:
        """Rates and waits in a report are those since the last one."""
        self._since_s = self._stepped_s = time.perf_counter()
        self._num_steps = 0
        self._num_samples = 0
        self._network_wait_s = TURNS.network_wait_s
        self._turn_wait_s = TURNS.turn_wait_s

    def log(self, metrics: dict[str, Any]) -> None:
        # Reading a value from a GPU waits for it, so that happens only when a report is due.
        for name, value in metrics.items():
            self._metrics[name] = value.detach() if isinstance(value, torch.Tensor) else value

    def tell_batch(self, size: int, script_size: int, noise: NoiseScale) -> None:
        """From now on, reports say which batch size is in use, and how noisy the gradients are."""
        self._batch = size, script_size, noise

    def step_done(self, step: int, total_steps: int | None, epoch: int, share: Share, handle: Overlap | None) -> None:
        self._num_steps += 1
        self._num_samples += share.num_global
        self._unsent = (step, total_steps, epoch, handle)
        self._stepped_s = time.perf_counter()
        if self._stepped_s - self._since_s >= _REPORT_EVERY_S:
            self.flush()

    def flush(self) -> None:
        """Report the steps since the last report, if there are any: the last one of a run counts, too."""
        if self._unsent is None or (self._channel is None and self._bar is None):
            return
        (step, total_steps, epoch, handle), self._unsent = self._unsent, None
        # Until the last step: what a script does after it, such as saving, is not part of a step.
        elapsed_s = max(self._stepped_s - self._since_s, 1e-9)
        step_s, samples_per_s = elapsed_s / self._num_steps, self._num_samples / elapsed_s
        # An overlapped model measures its own waits; those of other models are measured only behind a gate.
        exposed_s = (TURNS.network_wait_s - self._network_wait_s) / self._num_steps
        turn_wait_s = (TURNS.turn_wait_s - self._turn_wait_s) / self._num_steps
        self._begin_interval()
        metrics = {name: float(value) for name, value in self._metrics.items()}
        phases = carried_s = None
        if handle is not None:
            carried_s = network_s(handle.schedule)
            if handle.schedule.clock.steps:
                last = handle.schedule.clock.steps[-1]
                exposed_s, phases = last.exposed_s, (last.forward_s, last.backward_s, last.update_s)
        report = StepReport(
            job_id=self._environment.job_id or "",
            attempt=self._environment.attempt,
            rank=self._peers.rank,
            world_size=self._peers.world_size,
            progress=Progress(step, total_steps, step_s, exposed_s, metrics.get("loss")),
            epoch=epoch,
            samples_per_s=samples_per_s,
            metrics=metrics,
            memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            takes_turns=TURNS.sharing,
            phases=phases,
            network_s=None if carried_s is None else sum(carried_s),
            turn_wait_s=turn_wait_s,
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
