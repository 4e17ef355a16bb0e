"""RNN modules on GPUs: cuDNN wants all weights of a module in one piece of memory, weft has them in its own.

``flatten_parameters()`` moves the weights into a new buffer, where gathers would no longer reach them.  Many scripts
call it in every forward, so while a model is overlapped it does nothing.  cuDNN then copies the weights into one piece
in each forward, within the device's memory.  After detach() they are in one piece again.
"""

from __future__ import annotations

import logging
from functools import partial
from weakref import WeakSet

from torch import nn

logger = logging.getLogger("weft.overlap")

_KEPT: WeakSet[nn.RNNBase] = WeakSet()


class RnnWeights:
    """The RNN modules of a model, kept from moving their weights until :meth:`remove`."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = [m for m in model.modules() if isinstance(m, nn.RNNBase) and is_flattened(m)]
        for module in self._modules:
            _KEPT.add(module)
            module.__dict__["flatten_parameters"] = partial(_flatten_unless_kept, module)

    def warn(self) -> None:
        if self._modules:
            logger.warning(
                "the weights of %d RNN module(s) are in weft's memory now: cuDNN copies them into one piece in every "
                "forward, and flatten_parameters() does nothing until detach(); torch's own warning about it (\"not "
                'part of single contiguous chunk") can be ignored',
                len(self._modules),
            )

    def remove(self) -> None:
        """The weights are the module's own again."""
        for module in self._modules:
            _KEPT.discard(module)
            module.__dict__.pop("flatten_parameters", None)
            module.flatten_parameters()


def is_flattened(module: nn.RNNBase) -> bool:
    """Whether ``flatten_parameters()`` would move weights that weft trains."""
    return any(parameter.is_cuda and parameter.requires_grad for parameter in module.parameters())


def _flatten_unless_kept(module: nn.RNNBase) -> None:
    """In place of ``flatten_parameters()``.  A copy of the model takes it along and may do as it likes."""
    if module not in _KEPT:
        type(module).flatten_parameters(module)
