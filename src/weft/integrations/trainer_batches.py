"""A session's batches in the form that trainers expect: an iterable with a length, one pass per epoch.

``run.steps`` counts a step when the loop asks for the next batch.  Trainers may ask early, or not at all after the last
batch of an epoch, so here the trainer's own "step done" callback counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weft.errors import UsageError
from weft.worker.data import SessionLoader
from weft.worker.lifecycle import Session


class TrainerBatches:
    """Made by the script, iterated by the trainer."""

    def __init__(
        self, run: Session, data: SessionLoader, *, epochs: int | None = None, max_steps: int | None = None
    ) -> None:
        self.run = run
        self.data = data
        self.over = False
        """Whether the session has ended: all steps done, or asked to stop."""
        self._epochs = epochs
        self._max_steps = max_steps
        self._steps: Iterator[Any] | None = None
        self._next: Any = None
        self._handed_out = False

    @property
    def epoch(self) -> int:
        return self.data.epoch

    @property
    def num_done_in_epoch(self) -> int:
        """Batches of this epoch that are done, in earlier attempts too."""
        num_left = self.data.num_steps_left(self.epoch + 1)
        return 0 if num_left is None else len(self) - num_left

    @property
    def num_steps(self) -> int | None:
        """Steps of the whole run, those of earlier attempts included; None if unknown."""
        num_left = None if self._epochs is None else self.data.num_steps_left(self._epochs)
        ends = [self._max_steps, None if num_left is None else self.run.step + num_left]
        return min((end for end in ends if end is not None), default=None)

    def begin(self, **objects: Any) -> None:
        """Resume from the newest checkpoint, if there is one, and save these objects from now on."""
        self.run.resume(data=self.data, **objects)
        self._steps = self.run.steps(self.data, epochs=self._epochs, max_steps=self._max_steps)
        self._advance()

    def step_done(self) -> None:
        """The step on the last batch is complete, its update included."""
        if self._handed_out:
            self._advance()

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[Any]:
        if self._steps is None:
            raise UsageError(
                "the trainer asked for batches before its model and optimizer were set up: give it SessionCallback "
                "(Lightning) or OverlapMixin (transformers), which call begin(), or call begin() yourself"
            )
        epoch = self.epoch
        while not self.over and self.epoch == epoch:
            self._handed_out = True
            yield self._next
            self.step_done()

    def _advance(self) -> None:
        assert self._steps is not None
        self._handed_out = False
        try:
            self._next = next(self._steps)
        except StopIteration:
            self._next, self.over = None, True
