"""Layer 1: a job's communication under its own backward and next forward.

Read the files in the order in which a gradient walks through them:

    attach.py       checks the model and the optimizer, builds the rest, returns the handle
    layout.py       where each parameter lies in the flat memory, how it is cut into buckets (pure)
    schedule.py     the life of a step: gradient -> bucket -> reduce -> update -> gather -> next forward
    bucket.py       one bucket's memory and its phase
    transport/      the collectives: gloo, NCCL, and a fake one on virtual time
    update.py       the optimizer on this worker's shard, or on everything
    gradient.py     what ``p.grad`` is between backward and step
    reading.py      a parameter that is read before its gather has finished waits for it
    state.py        ordinary optimizer state dicts, moved between numbers of workers and plans
    tuning.py       fusion tuned while training
    timing.py       what ``report()`` and ``trace()`` show
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
