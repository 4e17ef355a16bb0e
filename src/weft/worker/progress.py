"""The progress bar: one line, on rank 0, on a terminal, and nowhere else."""

from __future__ import annotations

import shutil
from typing import TextIO

from weft.worker.reports import StepReport

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
        """Leave the last line standing."""
        if self._drawn:
            self._write("\n")
            self._drawn = False

    def _write(self, text: str) -> bool:
        """Whether the terminal is still there: training goes on without it."""
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            return False
        return True


def line_of(report: StepReport) -> str:
    """The bar in words.

    >>> line_of(StepReport(None, 0, 0, 2, 50, 100, 3, 0.02, 0.0, 3200.0, {"loss": 0.5}))
    '[############............]  50% step 50/100 epoch 3 20.0 ms/step 3200 samples/s loss 0.5'
    """
    parts = []
    if report.total_steps:
        done = min(report.step / report.total_steps, 1.0)
        filled = int(done * _BAR_WIDTH)
        parts.append(
            f"[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] {done:4.0%} step {report.step}/{report.total_steps}"
        )
    else:
        parts.append(f"step {report.step}")
    parts.append(f"epoch {report.epoch}")
    parts.append(f"{report.step_s * 1e3:.1f} ms/step {report.samples_per_s:.0f} samples/s")
    parts += [f"{name} {value:.4g}" for name, value in report.metrics.items()]
    return " ".join(parts)
