"""``weft.overlap`` in the trainers people already use; each module needs its package.

    lightning.py        ``Trainer(strategy="weft")``, registered when the module is imported
    accelerate.py       ``prepare(accelerator, model, optimizer)`` in place of ``accelerator.prepare``
    transformers.py     ``class MyTrainer(OverlapMixin, Trainer)``
    trainer_batches.py  a session's batches in the form that trainers expect

The trainer keeps its own loop, its logging, and its checkpoints.  With a session it can also be stopped and resized by
the controller.  Importing this package imports none of the trainers.
"""

import sys

if "lightning.pytorch" in sys.modules:  # imported before weft.integrations: its users expect strategy="weft" to work
    import weft.integrations.lightning as _registers_the_strategy  # noqa: F401
