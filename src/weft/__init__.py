"""weft: no device and no link sits idle.

    import weft
    handle = weft.overlap(model, optimizer)      # under torchrun; the training loop stays as it is
    with weft.session() as run: ...              # stop anywhere, resume with any number of workers
    weft.crossover(model)                        # take turns on the device with another job (plain loops, DDP)

The names below are loaded on first use: the command line imports ``weft`` far more often than
training scripts do, and must not pay for torch.
"""

from typing import TYPE_CHECKING, Any

from weft.process.turns import TURNS
from weft.version import __version__

if TYPE_CHECKING:
    from weft.crossover.hooks import crossover as crossover
    from weft.overlap.attach import overlap as overlap
    from weft.worker import session as session
    from weft.worker.elastic_sampler import ElasticSampler as ElasticSampler

__all__ = ["ElasticSampler", "__version__", "crossover", "overlap", "session"]


def _find_gate() -> None:
    """Only a worker that was given a lease server pays for the lookup."""
    import os

    from weft.core.worker_environment import LEASE

    if LEASE in os.environ:
        from weft.crossover.hooks import install_gate

        install_gate()


def _hook_up(model: Any) -> None:
    from weft.crossover.hooks import crossover

    crossover(model)


TURNS.provide(_find_gate, _hook_up)


def __getattr__(name: str) -> Any:
    if name in ("overlap", "crossover"):
        import importlib

        # The folder and the function share a name; the module is callable, see weft/overlap/__init__.py.
        return importlib.import_module(f"weft.{name}")
    if name == "session":
        from weft.worker import session

        return session
    if name == "ElasticSampler":
        from weft.worker.elastic_sampler import ElasticSampler

        return ElasticSampler
    raise AttributeError(f"module 'weft' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
