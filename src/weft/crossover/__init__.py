"""Layer 2: two jobs on one device, one computing while the other waits for the network.

Read in this order: ``phases`` (turns and gaps), ``arbiter`` (which job is next; pure), ``order`` (the same order on all
hosts; pure), ``shared_page`` and ``lease_messages`` (what client and server exchange), ``server``, ``desk``,
``lease_client``, ``lease_launch``.  ``elastic/pairing.py`` decides which jobs share.  ``hooks``, ``hooks_ddp``, and
``hooks_collectives`` make a script's model take turns; only they need torch.

The folder and the function share a name: ``weft.crossover(model)`` calls the module.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.crossover.hooks import all_reduce as all_reduce
    from weft.crossover.hooks import waiting as waiting

__all__ = ["all_reduce", "waiting"]


class _CallableCrossover(ModuleType):
    """Imports torch only when called: the controller, which has no torch, imports this package too."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from weft.crossover.hooks import crossover

        return crossover(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in __all__:
            from weft.crossover import hooks

            return getattr(hooks, name)
        raise AttributeError(f"module 'weft.crossover' has no attribute {name!r}")


sys.modules[__name__].__class__ = _CallableCrossover
