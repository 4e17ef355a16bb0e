"""Updating parameters of which the host does not know whether any worker used them.

A parameter that no worker used in a step stays untouched.  Whether this worker used it, the host knows; whether another
one did comes with the reduced gradients, which on a GPU the host would have to wait for.  So it does not look: the
update is made, the device takes it back where the count is zero, and the host learns of it one step later, when it has
to put step counts and the like right.  Values are the same bits either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from weft.overlap.device import Device


class Guess:
    """One bucket's update of slices that may turn out to be unused."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        slices: Sequence[tuple[int, torch.Tensor]],
        counts: torch.Tensor,
        device: Device,
    ) -> None:
        """Before the update; each slice comes with its parameter's place in ``counts``."""
        self._state = optimizer.state
        self._slices = slices
        self._counts = counts
        self._device = device
        self._old_values = [run.detach().clone() for _, run in slices]
        self._old_states = [_copied(self._state.get(run)) for _, run in slices]

    def take_back(self) -> None:
        """After the update: where no worker used the parameter, the device puts the old elements back."""
        for (place, run), values, state in zip(self._slices, self._old_values, self._old_states, strict=True):
            used = self._counts[place] > 0
            run.copy_(torch.where(used, run, values))
            for key, old in (state or {}).items():
                if _has_elements(old):
                    self._state[run][key].copy_(torch.where(used, self._state[run][key], old))
        self._old_values = []
        self._copy = self._device.read_later(self._counts)

    def settle(self) -> None:
        """What the host keeps itself, once it knows.  Waits only for the reduction of a step ago."""
        counts = self._copy.values()
        for (place, run), state in zip(self._slices, self._old_states, strict=True):
            if counts[place] > 0:
                continue
            if state is None:
                self._state.pop(run, None)
            else:
                now = self._state[run]
                self._state[run] = {key: now[key] if _has_elements(old) else old for key, old in state.items()}


def _copied(state: dict[str, Any] | None) -> dict[str, Any] | None:
    if state is None:
        return None
    return {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in state.items()}


def _has_elements(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0
