"""The worker's half of elasticity: stop a training job at any step and resume with any number of workers.

Read the files in the order of a run:

    environment.py    rank, world size, and settings from environment variables
    joining.py        device, threads, process group;  meeting.py  how the workers find each other
    peers.py          small messages among all workers;  watchdog.py  finds hung workers
    lifecycle.py      ``weft.session()``: what the script holds as ``run``
    stepper.py        the training loop behind ``run.steps``
    sampling.py       which sample goes to which worker in which step (pure);  data.py, stream.py  the loaders
    weighting.py      uneven splits;  scaling.py  a batch that grows with the number of workers
    stopping.py       stop requests;  agreement.py  all workers stop after the same step
    checkpointing.py  when to save, what to save, and loading it again;  rng.py  random generators
    shards.py         which worker writes what;  writer.py  in the background;  checkpoint_folder.py  complete or absent
    channel.py        the connection to the controller;  reports.py  step reports and the progress bar
"""

from __future__ import annotations

import os

from weft.worker.data import SessionLoader
from weft.worker.lifecycle import Session

__all__ = ["Session", "SessionLoader", "session"]


def session(
    *,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    checkpoint_every_s: float | None = None,
    keep_checkpoints: int = 3,
    seed: int = 0,
) -> Session:
    """A training run that can be stopped at any step and resumed with any number of workers.

    Args:
        checkpoint_dir: default ``checkpoints/<script>``; the environment variable ``WEFT_CHECKPOINT_DIR`` overrides it.
        checkpoint_every_s: seconds between periodic checkpoints (600); 0 for none.  One is always written when the run
            is asked to stop and when it ends.
        keep_checkpoints: how many of the newest are kept.
        seed: for shuffling, and for torch, random and numpy at the start.

    >>> with weft.session() as run:                                 # doctest: +SKIP
    ...     data = run.loader(dataset, batch_size=256)
    ...     run.resume(model=model, optimizer=optimizer, data=data)
    ...     for x, y in run.steps(data, epochs=10):
    ...         ...
    """
    return Session(
        checkpoint_dir=checkpoint_dir,
        checkpoint_every_s=checkpoint_every_s,
        keep_checkpoints=keep_checkpoints,
        seed=seed,
    )
