"""Layer 1: a job's communication under its own backward and next forward.

Read the files in the order in which a gradient walks through them:

    attach.py               checks the model and the optimizer, builds the rest, returns the handle
    layout.py               where each parameter lies in the flat memory, how it is cut into buckets (pure)
    flat.py                 the flat memory itself
    passes.py               a forward begins, a backward ends: what hooks of the model call, for all parts
    round.py                backward: a gradient goes into its bucket, a complete bucket leaves
    bucket.py               one bucket's memory and its phase
    transport/              the collectives: gloo and NCCL
    schedule_interface.py   what both schedules offer
    sharded.py              step: update the own shard and gather it (the default schedule)
    eager_pacing.py         which bucket is updated and gathered already during backward
    gathers.py              forward: wait for a gather where one of its parameters is read
    replicated.py           the same for optimizers that are not element by element: gather gradients, update everywhere
    update.py               the optimizer's arithmetic on this worker's shard
    gradient.py             what ``p.grad`` is between backward and step; norms.py does its arithmetic
    reading.py              a parameter that is read before its gather has finished waits for it
    compiled.py             a compiled module waits for its own parameters before its compiled code runs
    state_runs.py           optimizer state as runs that can move; state_service.py brings those of the others
    sharded_state.py        the optimizer's state in shards; state_view.py shows it as ``optimizer.state``
    tuning.py               fusion tuned while training; link_probe.py measures the link
    timing.py               what report.py and ``trace()`` show
    part.py                 one optimizer with its schedule, tuner and state
    uneven_inputs.py        workers with different numbers of batches
    handle.py               what the user holds

The folder and the function share a name: ``weft.overlap(model, optimizer)`` calls the module.
"""

import sys
from types import ModuleType
from typing import Any

from weft.overlap.attach import overlap
from weft.overlap.handle import Overlap

__all__ = ["Overlap", "overlap"]


class _CallableOverlap(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Overlap:
        return overlap(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableOverlap
