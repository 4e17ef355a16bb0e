"""Layer 1: a job's communication under its own backward and next forward.

Read the files in the order in which a gradient moves through them:

    attach.py               checks the model and the optimizer, builds the rest, returns the handle
    layout.py               where each parameter lies in the flat memory, and how it is cut into buckets (pure)
    flat.py                 the flat memory itself
    passes.py               start of a forward, end of a backward: called by the model's hooks, for all parts
    round.py                backward: a gradient goes into its bucket, and a complete bucket is launched
    bucket.py               one bucket's memory and its phase
    transport/              the collectives: gloo and NCCL
    schedule_interface.py   the common interface of both schedules
    sharded.py              step: update this worker's shard and gather it (the default schedule)
    eager_pacing.py         which bucket is updated and gathered during backward
    gathers.py              forward: wait for a gather when one of its parameters is read
    replicated.py           for optimizers that are not element-wise: gather gradients, update everywhere
    update.py               the optimizer's arithmetic on this worker's shard
    gradient.py             what ``p.grad`` is between backward and step; norms.py does its arithmetic
    reading.py              makes reading a parameter wait for its gather
    compiled.py             the same for compiled modules
    state_runs.py           optimizer state as runs that can move; state_service.py fetches those of other workers
    left_gradients.py       gradients in ``p.grad`` when a plan changes
    sharded_state.py        the sharded optimizer state; state_view.py shows it as ``optimizer.state``
    tuning.py               tunes fusion during training; link_probes.py measures the link
    timing.py               the times that report.py and ``trace()`` show
    part.py                 one optimizer with its schedule, tuner, and state
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
