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

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        objects: dict[str, Any] = {"model": pl_module}
        for number, optimizer in enumerate(trainer.optimizers):
            objects[f"optimizer{number or ''}"] = optimizer
        for number, config in enumerate(trainer.lr_scheduler_configs):
            objects[f"scheduler{number or ''}"] = config.scheduler
        self._batches.begin(**objects)
        progress = trainer.fit_loop.epoch_progress.current
        progress.ready = progress.started = progress.processed = progress.completed = self._batches.epoch

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self._batches.step_done()
        if self._batches.over:
            trainer.should_stop = True


StrategyRegistry.register("weft", WeftStrategy, description="weft.overlap in place of DistributedDataParallel")
