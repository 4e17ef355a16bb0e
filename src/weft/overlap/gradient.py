"""``p.grad`` between backward and step: a gradient that is sharded over all workers.

Once a parameter's gradient is in its bucket, no worker has the full averaged gradient: each will have only the sum of
its own shard.  ``p.grad`` is then a :class:`ShardedGradient`: it has the shape and dtype of the parameter, uses no
memory, and supports what people do with gradients between ``backward()`` and ``step()``, correctly over all workers:

    torch.nn.utils.clip_grad_norm_      norms are summed over workers; each scales its own shard
    torch.amp.GradScaler                all workers see an infinite value on any of them
    element-wise changes in place       each worker changes its own shard (gradient_changes.py)
    another backward() without zeroing  the new gradients are added to the old ones
    p.grad = tensor, p.grad = None      noticed before the gradient is used (norms.py)

Anything else raises an error, because one worker's shard would be a wrong answer.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from weft.errors import OverlapError
from weft.overlap.gradient_changes import ELEMENT_WISE, FOREACH, LIKE, ForeignGradient, Listed, portable

aten = torch.ops.aten


class GradientKeeper(Protocol):
    """What a sharded gradient delegates (norms.py)."""

    def gradient_norm(self, number: int, order: float) -> torch.Tensor: ...
    def change_gradient(self, number: int, name: str, others: Sequence[Any], options: dict[str, Any]) -> None: ...
    def unscale_gradients(self, numbers: Sequence[int], found_inf: torch.Tensor, inverse: torch.Tensor) -> None: ...
    def zero_gradients(self, numbers: Sequence[int]) -> None: ...
    def refuse_gradient_use(self, number: int, what: str) -> OverlapError: ...


class ShardedGradient(torch.Tensor):
    """Represents the averaged gradient of one parameter; see the module's docstring."""

    number: int
    _keeper: weakref.ref[GradientKeeper]
    added: torch.Tensor | None

    @staticmethod
    def __new__(cls, parameter: torch.Tensor, number: int, keeper: GradientKeeper) -> ShardedGradient:
        made: ShardedGradient = torch.Tensor._make_wrapper_subclass(
            cls,
            parameter.shape,
            strides=parameter.stride(),
            dtype=parameter.dtype,
            device=parameter.device,
            requires_grad=False,
        )
        made.number = number
        # Weak, since C++ holds p.grad: the garbage collector could not see the cycle.
        made._keeper = weakref.ref(keeper)
        made.added = None
        return made

    @property
    def keeper(self) -> GradientKeeper:
        keeper = self._keeper()
        if keeper is None:
            raise OverlapError("this gradient belonged to a model that is no longer overlapped: call zero_grad()")
        return keeper

    def take_added(self) -> torch.Tensor | None:
        """The local gradient that another backward has added, if any."""
        added, self.added = self.added, None
        return added

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"ShardedGradient(parameter {self.number}, shape {tuple(self.shape)}, in shards on all workers)"

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        act = _ACTIONS.get(func)
        if act is not None:
            return act(*args, **options)
        packet = func.overloadpacket
        if packet in FOREACH:
            return _change_all(func, *args, **options)
        if packet in ELEMENT_WISE and isinstance(args[0], cls):
            return _change(args[0], func, args[1:], options)
        first = next(value for value in _flatten((*args, *options.values())) if isinstance(value, cls))
        if packet in LIKE:
            empty = torch.empty_strided(first.shape, first.stride(), dtype=first.dtype, device=first.device)
            return func(empty, *args[1:], **options)
        raise first.keeper.refuse_gradient_use(first.number, str(func))

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise self.keeper.refuse_gradient_use(self.number, "a read")

    # These bypass __torch_dispatch__ and would access memory that does not exist.
    __array__ = __deepcopy__ = __dlpack__ = __reduce_ex__ = _refuse
    data_ptr = item = numpy = storage = tolist = untyped_storage = _refuse


def _flatten(values: Sequence[Any]) -> list[Any]:
    found = []
    for value in values:
        found.extend(_flatten(value) if isinstance(value, list | tuple) else [value])
    return found


def _by_keeper(
    gradients: Sequence[torch.Tensor],
) -> tuple[list[tuple[GradientKeeper, list[int]]], list[torch.Tensor]]:
    """The sharded ones by their keeper (each optimizer of a model has one), and the ordinary ones."""
    kept: dict[int, tuple[GradientKeeper, list[int]]] = {}
    plain: list[torch.Tensor] = []
    for gradient in gradients:
        if isinstance(gradient, ShardedGradient):
            kept.setdefault(id(gradient.keeper), (gradient.keeper, []))[1].append(gradient.number)
        else:
            plain.append(gradient)
    return list(kept.values()), plain


def _norm(
    gradient: ShardedGradient, order: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> torch.Tensor:
    if keepdim or dtype is not None or not (dim is None or len(dim) in (0, gradient.dim())):
        raise gradient.keeper.refuse_gradient_use(
            gradient.number, "a norm over some dimensions or in a different dtype"
        )
    return gradient.keeper.gradient_norm(gradient.number, float(2 if order is None else order))


def _norms(gradients: list[torch.Tensor], order: Any = 2, *, dtype: Any = None) -> list[torch.Tensor]:
    plain = _by_keeper(gradients)[1]
    others = iter(torch._foreach_norm(plain, order, dtype=dtype) if plain else [])
    return [_norm(g, order, dtype=dtype) if isinstance(g, ShardedGradient) else next(others) for g in gradients]


def _change(gradient: ShardedGradient, func: Any, others: Sequence[Any], options: dict[str, Any]) -> ShardedGradient:
    if _in_backward():
        raise gradient.keeper.refuse_gradient_use(gradient.number, f"{func} during backward()")
    try:
        sent = [portable(value, gradient) for value in others]
        sent_options = {name: portable(value, gradient) for name, value in options.items()}
    except ForeignGradient:
        raise gradient.keeper.refuse_gradient_use(gradient.number, f"{func} with another gradient") from None
    gradient.keeper.change_gradient(gradient.number, str(func), sent, sent_options)
    return gradient


def _change_all(func: Any, gradients: Sequence[torch.Tensor], *others: Any, **options: Any) -> None:
    for k, gradient in enumerate(gradients):
        if isinstance(gradient, ShardedGradient):
            own = [Listed(value[k]) if isinstance(value, list | tuple) else value for value in others]
            _change(gradient, func, own, options)
        else:  # of another optimizer, or assigned by hand
            func([gradient], *([v[k]] if isinstance(v, list | tuple) else v for v in others), **options)


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _unscale(gradients: list[torch.Tensor], found_inf: torch.Tensor, inverse: torch.Tensor) -> None:
    sharded, plain = _by_keeper(gradients)
    if plain:
        torch._amp_foreach_non_finite_check_and_unscale_(plain, found_inf, inverse)
    for keeper, numbers in sharded:
        keeper.unscale_gradients(numbers, found_inf, inverse)


def _zero(gradient: ShardedGradient) -> ShardedGradient:
    gradient.keeper.zero_gradients([gradient.number])
    return gradient


def _zero_all(gradients: list[torch.Tensor]) -> None:
    sharded, plain = _by_keeper(gradients)
    for keeper, numbers in sharded:
        keeper.zero_gradients(numbers)
    if plain:
        torch._foreach_zero_(plain)


def _add(gradient: ShardedGradient, local: Any, *, alpha: Any = 1) -> ShardedGradient:
    if not _in_backward():
        return _change(gradient, aten.add_.Tensor, [local], {"alpha": alpha})
    # Autograd accumulates another backward's gradient.
    if isinstance(local, ShardedGradient) or alpha != 1:
        raise gradient.keeper.refuse_gradient_use(gradient.number, "add_ during backward()")
    gradient.added = local if gradient.added is None else gradient.added + local
    return gradient


def _same(gradient: ShardedGradient, *_: Any, **__: Any) -> ShardedGradient:
    return gradient


_ACTIONS: dict[Any, Callable[..., Any]] = {
    aten.linalg_vector_norm.default: _norm,
    aten.norm.Scalar: _norm,
    aten._foreach_norm.Scalar: _norms,
    aten._amp_foreach_non_finite_check_and_unscale_.default: _unscale,
    aten.zero_.default: _zero,
    aten._foreach_zero_.default: _zero_all,
    aten.add_.Tensor: _add,
    aten.detach.default: _same,
    aten.detach_.default: _same,
    aten.alias.default: _same,
}
