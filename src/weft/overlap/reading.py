"""A parameter that is read before its gather has finished waits for it.

[Note: reads are the trigger]  After ``step()`` the parameters are on their way.  Forward hooks do not know
who reads them: MultiheadAttention reads ``out_proj`` without calling it, tied weights are read by another
module, users write ``F.linear(x, emb.weight)``, keep lists of parameters for an average, save or copy the
model.  So the wait sits in the parameter itself.  While its gather is under way its class is a subclass
whose ``__torch_function__`` waits first; then the class is the old one again and nothing is left behind.
Every operation that Python hands to torch passes there: operators, ``.data``, ``.detach()``, ``state_dict``,
``deepcopy``, pickling, ``.to()``, ``load_state_dict``.  Questions that do not touch the values (shape, dtype,
``.grad`` ...) are answered without waiting; whatever is not known to be such a question waits.

[Note: writes wait for sends]  When a gather has arrived our own shard may still be on its way to the others, so whoever
writes to the parameter must wait for our sends too.  Computing with it need not: a worker whose compute is slower than
the others' finds their shards in place and would otherwise lose the time its own need.  So a parameter that was only
computed with stays on guard until its sends are waited for, by a write or by the next backward.  Only functions known
neither to write to a parameter nor to return an alias of it count as computing; everything else counts as a write.

Code that accesses the memory without torch (a numpy view, a TorchScript module) bypasses this: see ``Overlap.flush``
and the hook for script modules in ``attach.py``.  Compiled modules wait in ``compiled.py``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

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


_COMPUTING = frozenset(
    {
        F.linear,
        F.bilinear,
        F.conv1d,
        F.conv2d,
        F.conv3d,
        F.conv_transpose1d,
        F.conv_transpose2d,
        F.conv_transpose3d,
        F.embedding,
        F.embedding_bag,
        F.layer_norm,
        F.rms_norm,
        F.group_norm,
        F.batch_norm,
        F.instance_norm,
        F.multi_head_attention_forward,
        torch.rnn_tanh,
        torch.rnn_relu,
        torch.lstm,
        torch.gru,
        torch.mm,
        torch.bmm,
        torch.addmm,
        torch.matmul,
        torch.Tensor.matmul,
        torch.Tensor.__matmul__,
        torch.add,
        torch.Tensor.add,
        torch.Tensor.__add__,
        torch.Tensor.__radd__,
        torch.mul,
        torch.Tensor.mul,
        torch.Tensor.__mul__,
        torch.Tensor.__rmul__,
    }
)
# Where a function of the list above writes after all: the result's place, and embeddings that are renormalized.
_WRITING_OPTIONS = ("out", "max_norm")

_QUESTIONS = _questions()
_BEFORE_USE = "_weft_before_use"


class Readers:
    """Puts parameters on guard and takes them off again.

    ``on_use`` gets a parameter's number, and whether it may be written to, before it is used.  It must see to it that
    the values are there (and, for a write, that nothing is sent from them any more), and returns True if the parameter
    is to be on guard again after this use.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], on_use: Callable[[int, bool], bool]) -> None:
        self._parameters = parameters
        self._number = {id(parameter): number for number, parameter in enumerate(parameters)}
        self._plain = [type(parameter) for parameter in parameters]
        self._on_use = on_use
        self._guards = {plain: _guard_class(plain, self._before_use) for plain in set(self._plain)}

    def guard(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._parameters[number].__class__ = self._guards[self._plain[number]]

    def release(self, number: int) -> None:
        self._parameters[number].__class__ = self._plain[number]

    def _before_use(self, parameter: torch.Tensor, writes: bool) -> bool:
        """Leaves the parameter off guard; True if :meth:`guard` is due after this use."""
        number = self._number.get(id(parameter))
        if number is None:  # a copy that took the class along: its values are its own
            parameter.__class__ = type(parameter).__mro__[1]
            return False
        again = self._on_use(number, writes)
        self.release(number)
        return again


def _guard_class(plain: type, before_use: Callable[[torch.Tensor, bool], bool]) -> type:
    def torch_function(
        cls: type, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _QUESTIONS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        again: list[tuple[torch.Tensor, type]] = []
        writes = not _only_computes(func, kwargs)
        try:
            use_all(args, writes, again)
            use_all(kwargs.values(), writes, again)
            return func(*args, **kwargs)
        finally:
            for parameter, guard in again:
                parameter.__class__ = guard

    def deep_copy(self: torch.Tensor, memo: dict[int, Any]) -> Any:
        guard = type(self)
        again = before_use(self, True)
        try:
            return copy.deepcopy(self, memo)
        finally:
            if again:
                self.__class__ = guard

    def reduce_ex(self: torch.Tensor, protocol: Any) -> Any:
        guard = type(self)
        again = before_use(self, True)
        try:
            return self.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]
        finally:
            if again:
                self.__class__ = guard

    namespace = {
        "__torch_function__": classmethod(torch_function),
        "__deepcopy__": deep_copy,
        "__reduce_ex__": reduce_ex,
        "__module__": plain.__module__,
        _BEFORE_USE: staticmethod(before_use),
    }
    return type(plain)(plain.__name__, (plain,), namespace)


def _only_computes(func: Any, kwargs: dict[str, Any]) -> bool:
    # Without gradients there are kernels that refuse guarded parameters (attention in evaluation): let those go.
    if func not in _COMPUTING or not torch.is_grad_enabled():
        return False
    return all(kwargs.get(option) is None for option in _WRITING_OPTIONS)


def on_guard(parameter: torch.Tensor) -> bool:
    """Whether using this parameter may wait."""
    return hasattr(type(parameter), _BEFORE_USE)


def use_all(values: Iterable[Any], writes: bool, again: list[tuple[torch.Tensor, type]]) -> None:
    """Wait for all parameters among ``values``; those to be put on guard again afterwards go into ``again``."""
    for value in values:
        if isinstance(value, torch.Tensor):
            guard = type(value)
            before_use = getattr(guard, _BEFORE_USE, None)
            if before_use is not None and before_use(value, writes):
                again.append((value, guard))
        elif isinstance(value, list | tuple):
            use_all(value, writes, again)
        elif isinstance(value, dict):
            use_all(value.values(), writes, again)
