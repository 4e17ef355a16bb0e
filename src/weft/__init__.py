"""weft: no device and no link sits idle.

    import weft
    handle = weft.overlap(model, optimizer)      # under torchrun; the training loop stays as it is
    with weft.session() as run: ...              # stop anywhere, go on with any number of workers

The names below are loaded on first use: the command line imports ``weft`` a hundred times for every time
somebody trains, and must not pay for torch.
"""

from typing import TYPE_CHECKING, Any

from weft.version import __version__

if TYPE_CHECKING:
    from weft.overlap.attach import overlap as overlap
    from weft.worker import session as session

__all__ = ["__version__", "overlap", "session"]


def __getattr__(name: str) -> Any:
    if name == "overlap":
        import importlib

        # The folder and the function share a name; the module is callable, see weft/overlap/__init__.py.
        return importlib.import_module("weft.overlap")
    if name == "session":
        from weft.worker import session

        return session
    raise AttributeError(f"module 'weft' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
