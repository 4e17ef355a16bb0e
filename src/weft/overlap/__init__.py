"""Layer 1: a job's communication under its own backward and next forward.

Read the files in the order in which a gradient walks through them:

    attach.py       checks the model and the optimizer, builds the rest, returns the handle
    layout.py       where each parameter lies in the flat memory, how it is cut into buckets (pure)
    flat.py         the flat memory itself
    rounds.py       backward: a gradient goes into its bucket, a complete bucket leaves
    bucket.py       one bucket's memory and its phase
    transport/      the collectives: gloo, NCCL, and a fake one on virtual time
    sharded.py      step and forward: update the own shard, gather, wait where a parameter is read (the default)
    replicated.py   the same for optimizers that are not element by element: gather gradients, update everywhere
    update.py       the optimizer's arithmetic on this worker's shard
    gradient.py     what ``p.grad`` is between backward and step; norms.py does its arithmetic
    reading.py      a parameter that is read before its gather has finished waits for it
    state.py        optimizer state as runs that can move; state_service.py brings those of the others
    tuning.py       fusion tuned while training; link_probe.py measures the link
    timing.py       what report.py and ``trace()`` show
    handle.py       what the user holds

The folder and the function share a name: ``weft.overlap(model, optimizer)`` calls the module.
"""

import sys
from types import ModuleType
from typing import Any

from weft.overlap.attach import overlap
from weft.overlap.handle import Overlap

__all__ = ["Overlap", "overlap"]


class _CallableModule(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Overlap:
        return overlap(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
