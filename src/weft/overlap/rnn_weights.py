"""RNN modules on GPUs: cuDNN wants all weights of a module contiguous, but weft keeps them in its flat memory.

``flatten_parameters()`` moves the weights into a new buffer, where gathers would no longer reach them.  Many scripts
call it in every forward, so it does nothing while a model is overlapped.  cuDNN then makes a contiguous copy of the
weights in each forward, on the device.  After detach(), they are contiguous again.
"""

from __future__ import annotations

import logging
from functools import partial
from weakref import WeakSet

from torch import nn

_log = logging.getLogger("weft.overlap")

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
            _log.warning(
                "the weights of %d RNN module(s) are now in weft's memory: cuDNN makes a contiguous copy in every "
                "forward, and flatten_parameters() does nothing until detach(); torch's own warning about it (\"not "
                'part of single contiguous chunk") can be ignored',
                len(self._modules),
            )

    def remove(self) -> None:
        for module in self._modules:
            _KEPT.discard(module)
            module.__dict__.pop("flatten_parameters", None)
            module.flatten_parameters()


def is_flattened(module: nn.RNNBase) -> bool:
    """Whether ``flatten_parameters()`` would move weights that weft trains."""
    return any(parameter.is_cuda and parameter.requires_grad for parameter in module.parameters())


def _flatten_unless_kept(module: nn.RNNBase) -> None:
    """Replaces ``flatten_parameters()``.  Copies of the model have it, too, and may flatten."""
    if module not in _KEPT:
        type(module).flatten_parameters(module)
