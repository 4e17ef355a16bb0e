"""A state dict saved from a DistributedDataParallel model loads into the plain one."""

from __future__ import annotations

import logging
from typing import Any

from torch import nn

logger = logging.getLogger("weft.overlap")

_PREFIX = "module."


class PrefixStripper:
    """Takes ``module.`` off every key, where all have it and the model's own names do not; says so once."""

    def __init__(self) -> None:
        self._said = False

    def __call__(self, module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
        keys = list(state_dict)
        if prefix or not keys or not all(key.startswith(_PREFIX) for key in keys):
            return
        if any(key.startswith(_PREFIX) for key in module.state_dict(keep_vars=True)):
            return
        for key in keys:
            state_dict[key[len(_PREFIX) :]] = state_dict.pop(key)
        if not self._said:
            self._said = True
            logger.warning(
                "the state dict comes from a DistributedDataParallel model: %r was taken off its keys", _PREFIX
            )
