"""Lightning: ``Trainer(strategy="weft")`` in place of ``strategy="ddp"``.

Importing this module registers the strategy.  ``training_step`` usually calls submodules, not the module itself;
``weft.overlap`` handles that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry

import weft
from weft.integrations.trainer_batches import TrainerBatches
from weft.overlap.handle import Overlap

_DDP_STRATEGY_OPTIONS = (
    "accelerator",
    "parallel_devices",
    "cluster_environment",
    "checkpoint_io",
    "precision_plugin",
    "process_group_backend",
    "timeout",
)


class WeftStrategy(DDPStrategy):  # type: ignore[misc]
    """Lightning's DDP strategy with ``weft.overlap`` in place of DDP; takes its options.

    >>> trainer = Trainer(strategy=WeftStrategy(exact_clipping=True), max_epochs=3)      # doctest: +SKIP
    """

    strategy_name = "weft"

    def __init__(self, **options: Any) -> None:
        super().__init__(**{name: options.pop(name) for name in _DDP_STRATEGY_OPTIONS if name in options})
        self._overlap_options = options
        self._handle: Overlap | None = None

    def configure_ddp(self) -> None:
        """There is nothing to wrap."""

    def setup(self, trainer: Trainer) -> None:
        super().setup(trainer)
        if self.optimizers and self.lightning_module is not None:
            self._handle = weft.overlap(self.lightning_module, self.optimizers, **self._overlap_options)

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        if self._handle is None:
            yield
            return
        with self._handle.no_sync():
            yield

    def teardown(self) -> None:
        if self._handle is not None:
            self._handle.detach()
            self._handle = None
        super().teardown()

    def on_exception(self, exception: BaseException) -> None:
        """``detach()`` needs every worker, and the others may not have failed."""
        self._handle = None


class SessionCallback(Callback):  # type: ignore[misc]
    """Lets a session stop, save, and resume a Lightning training; its batches take the place of the training loader.

    >>> batches = TrainerBatches(run, data, epochs=10)                                   # doctest: +SKIP
    >>> Trainer(strategy="weft", max_epochs=10, callbacks=[SessionCallback(batches)]).fit(module, batches)
    """

    def __init__(self, batches: TrainerBatches) -> None:
        self._batches = batches
        self._num_unseen = 0
        """Batches of this epoch that earlier attempts used, until Lightning has counted them."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Keep the session's handler of SIGTERM: Lightning's ends the training with exit code 0, as if it were done."""
        trainer._signal_connector.register_signal_handlers = lambda: None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        objects: dict[str, Any] = {"model": pl_module}
        for number, optimizer in enumerate(trainer.optimizers):
            objects[f"optimizer{number or ''}"] = optimizer
        for number, config in enumerate(trainer.lr_scheduler_configs):
            objects[f"scheduler{number or ''}"] = config.scheduler
        self._batches.begin(**objects)
        _advance(trainer.fit_loop.epoch_progress.current, self._batches.epoch)
        self._num_unseen = self._batches.num_done_in_epoch
        num_steps = self._batches.epoch * -(-len(self._batches) // trainer.accumulate_grad_batches)
        num_steps += self._num_unseen // trainer.accumulate_grad_batches
        loop = trainer.fit_loop.epoch_loop
        _advance(loop.automatic_optimization.optim_progress.optimizer.step.total, num_steps)
        loop._batches_that_stepped = num_steps  # what loggers call the step

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        """Lightning ends an epoch (schedulers, validation) when it has counted all batches: count earlier attempts'."""
        _advance(trainer.fit_loop.epoch_loop.batch_progress.current, self._num_unseen)
        self._num_unseen = 0

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self._batches.step_done()
        if self._batches.over:
            trainer.should_stop = True
            # Lightning validates before it stops, but the next attempt does that at the end of this epoch.
            trainer.fit_loop.epoch_loop._skip_next_val = (
                self._batches.run.stopped and self._batches.num_done_in_epoch > 0
            )


def _advance(progress: Any, by: int) -> None:
    for name in ("ready", "started", "processed", "completed"):
        if hasattr(progress, name):
            setattr(progress, name, getattr(progress, name) + by)


StrategyRegistry.register("weft", WeftStrategy, description="weft.overlap in place of DistributedDataParallel")
