"""The worker's half of elasticity: stop a training job anywhere, go on with any number of workers, lose nothing.

Read the files in the order of a run:

    environment.py  who started this worker, and as which of how many
    joining.py      the process group, the device, the threads;  meeting.py  where the workers find each other
    peers.py        the others, and what all must know;  watchdog.py  a worker that hangs
    run.py          ``weft.session()``: what the script holds as ``run``
    sampling.py     which sample goes to which worker in which step (pure);  data.py, stream.py  the loaders
    weighting.py    uneven splits;  scaling.py  a batch that grows with the workers
    stopping.py     being asked to stop;  agreement.py  all stop after the same step;  updates.py  after a whole one
    shards.py       who writes what;  writer.py  beside the training;  checkpoint.py  complete or absent;  manifest.py
    resuming.py     the newest good checkpoint, put back;  rng.py
    channel.py, reports.py, progress.py     telling how it goes, without ever waiting
"""

from __future__ import annotations

import os

from weft.worker.run import Session

__all__ = ["Session", "session"]


def session(
    *,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    checkpoint_every_s: float | None = None,
    keep_checkpoints: int = 3,
    seed: int = 0,
) -> Session:
    """A training run that can be stopped anywhere and go on with any number of workers.

    Args:
        checkpoint_dir: where checkpoints go; ``checkpoints/<script>`` when not given.  ``WEFT_CHECKPOINT_DIR``, set by
            whoever starts the job, wins.
        checkpoint_every_s: seconds between periodic checkpoints (600); 0 for none.  One is always written when the run
            is asked to stop and when it ends.
        keep_checkpoints: how many of the newest stay.
        seed: of the shuffling, and of torch, random and numpy at the start.

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
