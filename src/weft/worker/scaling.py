"""Learning rates that follow the batch size: with ``batch_size_per_worker=``, or with a ``batch_rule=``.

The former uses the linear scaling rule common in large-batch training: P workers, P times the batch, P times the
learning rate; the latter uses the rule that the script names.  The new rates are reached over some warm-up steps.
Learning rates live in several places (parameter groups, and a scheduler's base values); all are multiplied by the same
factor, so any scheduler keeps working.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from weft.worker.shards import distinct

_GROUP_RATES = ("lr", "initial_lr", "max_lr", "min_lr")
_SCHEDULER_RATES = ("base_lrs", "min_lrs", "max_lrs", "_last_lr")


def factor_at(step: int, since_step: int, start: float, target: float, warmup_steps: int) -> float:
    """The factor in effect at ``step``, on the way from ``start`` to ``target``.

    >>> [factor_at(step, 0, 1.0, 4.0, 3) for step in range(5)]
    [1.0, 2.0, 3.0, 4.0, 4.0]
    """
    if step - since_step >= warmup_steps:
        return target
    return start + (target - start) * (step - since_step) / warmup_steps


class RateScaling:
    """Multiplies every learning rate that the script has set.

    The current ``factor`` is saved in checkpoints, since the learning rates there are scaled.
    """

    def __init__(self, target: float, warmup_steps: int) -> None:
        self.factor = 1.0
        self._target = target
        self._warmup_steps = warmup_steps
        self._since_step = 0
        self._start = 1.0

    def state_dict(self) -> dict[str, Any]:
        return {"factor": self.factor, "target": self._target, "since_step": self._since_step, "start": self._start}

    def load_state_dict(self, state: dict[str, Any], step: int) -> None:
        """Resume; a different number of workers starts another warm-up from the saved factor."""
        self.factor = state["factor"]
        if state["target"] == self._target:
            self._since_step, self._start = state["since_step"], state["start"]
        else:
            self._since_step, self._start = step, self.factor

    def before_step(self, step: int, optimizers: Iterable[torch.optim.Optimizer], schedulers: Iterable[Any]) -> None:
        wanted = factor_at(step, self._since_step, self._start, self._target, self._warmup_steps)
        if wanted == self.factor:
            return
        ratio = wanted / self.factor
        self.factor = wanted
        for optimizer in distinct(optimizers):
            for group in optimizer.param_groups:
                for key in _GROUP_RATES:
                    if group.get(key) is not None:
                        group[key] = group[key] * ratio
        for scheduler in distinct(_with_inner(schedulers)):
            for name in _SCHEDULER_RATES:
                rates = getattr(scheduler, name, None)
                if isinstance(rates, list):
                    setattr(scheduler, name, [rate * ratio for rate in rates])


def _with_inner(schedulers: Iterable[Any]) -> Iterator[Any]:
    """The schedulers and those inside them, such as in a ChainedScheduler or a SequentialLR."""
    for scheduler in schedulers:
        yield scheduler
        yield from _with_inner(getattr(scheduler, "_schedulers", ()))
