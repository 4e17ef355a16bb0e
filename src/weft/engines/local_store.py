"""Inside a worker: a script's own `init_process_group()` listens on the loopback address when all workers are local.

By default torch binds its store on every network interface, whatever MASTER_ADDR is, and has no setting for that.
So we replace the store's class in the one torch module that opens it, when that module is loaded.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from importlib.abc import Loader  # at run time, it would load modules that no worker needs

_MODULE = "torch.distributed.rendezvous"


def listen_locally() -> None:
    """Takes effect from now on, even if torch is loaded later."""
    if (loaded := sys.modules.get(_MODULE)) is not None:
        _replace_store(loaded)
    else:
        sys.meta_path.insert(0, _Finder())


def _replace_store(module: ModuleType) -> None:
    store = getattr(module, "TCPStore", None)
    if not isinstance(store, type):  # already replaced, or a torch that looks different: leave it alone
        return

    def local_store(*args: Any, **options: Any) -> Any:
        if options.get("is_master") and {"host_name", "port"} <= options.keys():
            from weft.worker.meeting import loopback_listener

            try:
                listener = loopback_listener(options["host_name"], options["port"])
            except OSError:  # already open and shared, or in use, which torch will report
                listener = None
            if listener is not None:
                options["master_listen_fd"] = listener
        return store(*args, **options)

    vars(module)["TCPStore"] = local_store


class _Finder:
    """Finds one module, once, where the other finders would, and wraps its loader."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = cast("Loader", _Loader(spec.loader))
        return spec


class _Loader:
    def __init__(self, own: Loader) -> None:
        self._own = own

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._own.exec_module(module)
        _replace_store(module)
