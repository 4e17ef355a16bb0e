"""Reading a parameter waits for its gather.

[Note: reads are the trigger]  After ``step()``, the parameters are in flight.  Forward hooks do not cover all readers:
MultiheadAttention reads ``out_proj`` without calling it, tied weights are read by another module, users write
``F.linear(x, emb.weight)``, keep lists of parameters for an average, save or copy the model.  So the wait is in the
parameter itself.  While its gather is in flight, its class is a subclass whose ``__torch_function__`` waits first; then
the class is restored.  Every operation that Python passes to torch goes through it: operators, ``.data``,
``.detach()``, ``state_dict``, ``deepcopy``, pickling, ``.to()``, ``load_state_dict``.  Queries that do not read the
values (shape, dtype, ``.grad`` ...) do not wait; everything not known to be such a query does.

[Note: writes wait for sends]  When a gather has arrived, our own shard may still be in flight to other workers, so a
write to the parameter must also wait for our sends.  Computing with it need not: otherwise a worker with slow compute,
which finds the others' shards in place, would lose the time that its own sends take.  So a parameter that was only used
for computing stays guarded until its sends have finished, at a write or the next backward.  Only functions known
neither to write to a parameter nor to return an alias of it count as computing; everything else counts as a write.

Code that bypasses torch (a numpy view, a TorchScript module) bypasses this, too: see ``Overlap.flush`` and the hook for
script modules in ``attach.py``.  Compiled modules wait in ``compiled.py``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

_PROPERTIES = (
    *("dtype", "device", "layout", "shape", "ndim", "itemsize", "name", "output_nr"),
    *("grad", "grad_fn", "requires_grad", "retains_grad", "is_leaf"),
    *("is_cpu", "is_cuda", "is_meta", "is_mkldnn", "is_mps", "is_nested", "is_quantized", "is_sparse", "is_xpu"),
)
_METHODS = (
    *("size", "dim", "ndimension", "numel", "nelement", "stride", "element_size", "get_device", "__len__", "__hash__"),
    *("is_floating_point", "is_complex", "is_contiguous", "is_same_size"),
    *("register_hook", "register_post_accumulate_grad_hook"),
)


def _queries() -> frozenset[Any]:
    """The torch functions that do not read a tensor's values."""
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
        *(F.linear, F.bilinear, F.embedding, F.embedding_bag, F.multi_head_attention_forward),
        *(F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d),
        *(F.layer_norm, F.rms_norm, F.group_norm, F.batch_norm, F.instance_norm),
        *(torch.rnn_tanh, torch.rnn_relu, torch.lstm, torch.gru),
        *(torch.mm, torch.bmm, torch.addmm, torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__),
        *(torch.add, torch.Tensor.add, torch.Tensor.__add__, torch.Tensor.__radd__),
        *(torch.mul, torch.Tensor.mul, torch.Tensor.__mul__, torch.Tensor.__rmul__),
    }
)
# Options that make a function of the list above write: to the result, and to embeddings that are renormalized.
_WRITING_OPTIONS = ("out", "max_norm")

_QUERIES = _queries()
_BEFORE_USE = "_weft_before_use"


class Readers:
    """Guards parameters and releases them.

    ``on_use`` is called before a use, with the parameter's number and whether it may be written to.  It must wait until
    the values have arrived (and, for a write, until they have been sent), and returns True if the parameter must be
    guarded again after this use.
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
        """Releases the parameter; True if it must be guarded again after this use."""
        number = self._number.get(id(parameter))
        if number is None:  # a copy that has the class, too: its values are its own
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
        if func in _QUERIES:
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

    def released(act: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def method(self: torch.Tensor, argument: Any) -> Any:
            guard = type(self)
            again = before_use(self, True)
            try:
                return act(self, argument)
            finally:
                if again:
                    self.__class__ = guard

        return method

    namespace = {
        "__torch_function__": classmethod(torch_function),
        "__deepcopy__": released(copy.deepcopy),
        "__reduce_ex__": released(lambda parameter, protocol: parameter.__reduce_ex__(protocol)),
        "__module__": plain.__module__,
        _BEFORE_USE: staticmethod(before_use),
    }
    return type(plain)(plain.__name__, (plain,), namespace)


def _only_computes(func: Any, kwargs: dict[str, Any]) -> bool:
    # Some kernels used without gradients (attention in evaluation) refuse guarded parameters.
    if func not in _COMPUTING or not torch.is_grad_enabled():
        return False
    return all(kwargs.get(option) is None for option in _WRITING_OPTIONS)


def is_guarded(parameter: torch.Tensor) -> bool:
    """Whether using this parameter may wait."""
    return hasattr(type(parameter), _BEFORE_USE)


def use_all(values: Iterable[Any], writes: bool, again: list[tuple[torch.Tensor, type]]) -> None:
    """Wait for all parameters among ``values``; those to be guarded again afterwards go into ``again``."""
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
