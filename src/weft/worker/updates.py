"""How often the optimizers have been stepped: where an accumulation of gradients begins and ends."""

from __future__ import annotations

from collections.abc import Iterable

import torch


class UpdateCount:
    """Counts ``step()`` of some optimizers; the same on every worker, since all run the same script."""

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        self.num_updates = 0
        self._hooks = [optimizer.register_step_post_hook(self._stepped) for optimizer in optimizers]

    @property
    def counts(self) -> bool:
        """Whether there is anything to count; without an optimizer nothing can be said."""
        return bool(self._hooks)

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _stepped(self, *_: object) -> None:
        self.num_updates += 1
