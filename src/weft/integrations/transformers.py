"""Hugging Face ``Trainer``: ``class MyTrainer(OverlapMixin, Trainer): pass``.

By default, the Trainer clips gradients to a norm of 1.0: set ``overlap_options = {"exact_clipping": True}`` for
the bits of DDP, at a cost that docs/overlap.md states.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch.distributed as dist
from transformers import TrainerCallback

from weft.errors import UsageError
from weft.integrations.accelerate import attach
from weft.integrations.trainer_batches import TrainerBatches
from weft.overlap.handle import handle_of


class OverlapMixin:
    """Put before ``transformers.Trainer`` in the bases of a class.

    >>> class MyTrainer(OverlapMixin, Trainer):                                 # doctest: +SKIP
    ...     overlap_options = {"exact_clipping": True}
    """

    overlap_options: Mapping[str, Any] = MappingProxyType({})
    """Options of :func:`weft.overlap`."""
    batches: TrainerBatches | None = None
    """Batches of a session, in place of ``train_dataset``; see docs/trainers.md."""

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()  # type: ignore[misc]
        accelerator = self.accelerator  # type: ignore[attr-defined]
        accelerator.prepare_model = functools.partial(accelerator.prepare_model, evaluation_mode=True)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Called once the model and the optimizer are where they stay: overlap begins here."""
        own: Any = self
        if dist.is_initialized() and handle_of(own.model) is None:
            attach(own.model, _unwrapped(optimizer or own.optimizer), **self.overlap_options)
        scheduler = super().create_scheduler(num_training_steps, optimizer)  # type: ignore[misc]
        if self.batches is not None:
            self.batches.begin(model=own.model, optimizer=_unwrapped(own.optimizer), scheduler=scheduler)
            own.state.global_step = self.batches.run.step  # steps of earlier attempts count, in logs too
            own.state.max_steps = self.batches.num_steps or own.state.max_steps
        return scheduler

    def get_train_dataloader(self) -> Any:
        if self.batches is None:
            return super().get_train_dataloader()  # type: ignore[misc]
        own: Any = self
        if own.args.gradient_accumulation_steps != 1:
            raise UsageError(
                f"gradient_accumulation_steps is {own.args.gradient_accumulation_steps}, but the Trainer fetches all "
                "batches of an accumulation before it trains on them, so a checkpoint could count samples that were "
                "not used: set it to 1 in a session and choose the global batch in run.loader"
            )
        if not any(isinstance(callback, _CountSteps) for callback in own.callback_handler.callbacks):
            own.add_callback(_CountSteps(self.batches))
        return self.batches


class _CountSteps(TrainerCallback):  # type: ignore[misc]
    def __init__(self, batches: TrainerBatches) -> None:
        self._batches = batches

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        batches = self._batches
        batches.step_done()
        if batches.data.num_samples is not None:
            state.epoch = batches.epoch + batches.num_done_in_epoch / len(batches)
        control.should_training_stop = control.should_training_stop or batches.over
        return control


def _unwrapped(optimizer: Any) -> Any:
    return getattr(optimizer, "optimizer", optimizer)
