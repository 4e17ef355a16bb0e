"""A parameter that is read before its gather has finished waits for it.

[Note: reads are the trigger]  After ``step()`` the parameters are on their way.  Forward hooks do not know
who reads them: MultiheadAttention reads ``out_proj`` without calling it, tied weights are read by another
module, users write ``F.linear(x, emb.weight)``, keep lists of parameters for an average, save or copy the
model.  So the wait sits in the parameter itself.  While its gather is under way its class is a subclass
whose ``__torch_function__`` waits first; then the class is the old one again and nothing is left behind.
Every operation that Python hands to torch passes there: operators, ``.data``, ``.detach()``, ``state_dict``,
``deepcopy``, pickling, ``.to()``, ``load_state_dict``.  Questions that do not touch the values (shape, dtype,
``.grad`` ...) are answered without waiting; whatever is not known to be such a question waits.

Code that holds the memory without torch (a numpy view, a TorchScript module) does not pass there: see
``Schedule.flush``, which ``Overlap.flush`` offers, and the hook for script modules in attach.py.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

_PROPERTIES = [
    "dtype",
    "device",
    "layout",
    "shape",
    "grad",
    "requires_grad",
    "is_leaf",
    "is_sparse",
    "is_cuda",
    "is_cpu",
    "is_meta",
    "is_quantized",
    "ndim",
    "itemsize",
    "grad_fn",
    "is_nested",
    "is_mps",
    "is_xpu",
    "is_mkldnn",
    "output_nr",
    "retains_grad",
    "name",
]
_METHODS = [
    "size",
    "dim",
    "numel",
    "nelement",
    "ndimension",
    "stride",
    "element_size",
    "is_floating_point",
    "is_complex",
    "is_contiguous",
    "is_same_size",
    "register_hook",
    "register_post_accumulate_grad_hook",
    "__hash__",
    "__len__",
    "get_device",
]


def _questions() -> frozenset[Any]:
    """The torch functions that do not look at a tensor's values."""
    found: set[Any] = {torch.is_floating_point, torch.is_complex, torch.is_same_size}
    for name in _PROPERTIES:
        attribute = getattr(torch.Tensor, name)
        for access in ("__get__", "__set__", "__delete__"):
            if hasattr(attribute, access):
                found.add(getattr(attribute, access))
    found.update(getattr(torch.Tensor, name) for name in _METHODS)
    return frozenset(found)


_QUESTIONS = _questions()
_BEFORE_READ = "_weft_before_read"


class Readers:
    """Puts parameters on guard and takes them off again.

    ``on_read`` gets a parameter's number before its values are used; it must see to it that they are there
    and call :meth:`release` for that parameter.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], on_read: Callable[[int], None]) -> None:
        self._parameters = parameters
        self._number = {id(parameter): number for number, parameter in enumerate(parameters)}
        self._plain = [type(parameter) for parameter in parameters]
        self._on_read = on_read
        self._guards = {plain: _guard_class(plain, self._before_read) for plain in set(self._plain)}

    def guard(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._parameters[number].__class__ = self._guards[self._plain[number]]

    def release(self, number: int) -> None:
        self._parameters[number].__class__ = self._plain[number]

    def _before_read(self, parameter: torch.Tensor) -> None:
        number = self._number.get(id(parameter))
        if number is None:  # a copy that took the class along: its values are its own
            parameter.__class__ = type(parameter).__mro__[1]
        else:
            self._on_read(number)


def _guard_class(plain: type, before_read: Callable[[torch.Tensor], None]) -> type:
    def torch_function(
        cls: type, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _QUESTIONS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        _read_all(args)
        _read_all(kwargs.values())
        return func(*args, **kwargs)

    def deep_copy(self: torch.Tensor, memo: dict[int, Any]) -> Any:
        before_read(self)
        return copy.deepcopy(self, memo)

    def reduce_ex(self: torch.Tensor, protocol: Any) -> Any:
        before_read(self)
        return self.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    namespace = {
        "__torch_function__": classmethod(torch_function),
        "__deepcopy__": deep_copy,
        "__reduce_ex__": reduce_ex,
        "__module__": plain.__module__,
        _BEFORE_READ: staticmethod(before_read),
    }
    return type(plain)(plain.__name__, (plain,), namespace)


def _read_all(values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, torch.Tensor):
            before_read = getattr(type(value), _BEFORE_READ, None)
            if before_read is not None:
                before_read(value)
        elif isinstance(value, list | tuple):
            _read_all(value)
        elif isinstance(value, dict):
            _read_all(value.values())
