"""What ``p.grad`` is between backward and step: a gradient that lies in shards on all workers.

After a parameter's gradient went into its bucket there is no full averaged gradient anywhere: each worker
will have the sum of its own shard only.  ``p.grad`` then is a :class:`ShardedGradient`: it has the shape and
dtype of the parameter, holds no memory, and knows the few things people do with gradients between
``backward()`` and ``step()``, done right over all workers:

    torch.nn.utils.clip_grad_norm_      norms are summed over workers, scaling is applied to the own shard
    torch.amp.GradScaler                one infinite value anywhere is seen everywhere
    another backward() without zeroing  the new gradients count on top of the old ones
    zero_grad(set_to_none=False)

Anything else is refused with a message, never answered with one worker's share of the truth.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from weft.errors import OverlapError

aten = torch.ops.aten


class GradientKeeper(Protocol):
    """What a sharded gradient asks the schedule to do."""

    def gradient_norm(self, number: int, order: float) -> torch.Tensor: ...

    def scale_gradients(self, numbers: Sequence[int], factor: Any) -> None: ...

    def unscale_gradients(
        self, numbers: Sequence[int], found_inf: torch.Tensor, inverse_scale: torch.Tensor
    ) -> None: ...

    def zero_gradients(self, numbers: Sequence[int]) -> None: ...

    def refuse_gradient_use(self, number: int, what: str) -> OverlapError: ...


class ShardedGradient(torch.Tensor):
    """Stands for the averaged gradient of one parameter; see the module's text."""

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
        # Weak, since C++ holds p.grad: the garbage collector could not see the circle back to the parameter.
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
        """The local gradient that a further backward has added, if any."""
        added, self.added = self.added, None
        return added

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"ShardedGradient(parameter {self.number}, shape {tuple(self.shape)}, in shards on all workers)"

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        act = _ACTIONS.get(func)
        if act is None:
            first = next(value for value in _flatten(args) if isinstance(value, cls))
            raise first.keeper.refuse_gradient_use(first.number, str(func))
        return act(*args, **(kwargs or {}))


def _flatten(values: Sequence[Any]) -> list[Any]:
    found = []
    for value in values:
        found.extend(_flatten(value) if isinstance(value, list | tuple) else [value])
    return found


def _numbers(gradients: Sequence[ShardedGradient]) -> list[int]:
    return [gradient.number for gradient in gradients]


def _norm(gradient: ShardedGradient, order: Any = 2, *_: Any, **__: Any) -> torch.Tensor:
    return gradient.keeper.gradient_norm(gradient.number, float(2 if order is None else order))


def _norms(gradients: list[ShardedGradient], order: Any = 2, *_: Any, **__: Any) -> list[torch.Tensor]:
    return [_norm(gradient, order) for gradient in gradients]


def _scale(gradient: ShardedGradient, factor: Any) -> ShardedGradient:
    gradient.keeper.scale_gradients([gradient.number], factor)
    return gradient


def _scale_all(gradients: list[ShardedGradient], factors: Any) -> None:
    if isinstance(factors, list | tuple):
        for gradient, factor in zip(gradients, factors, strict=True):
            _scale(gradient, factor)
    else:
        gradients[0].keeper.scale_gradients(_numbers(gradients), factors)


def _divide(gradient: ShardedGradient, divisor: Any) -> ShardedGradient:
    return _scale(gradient, 1.0 / divisor)


def _unscale(gradients: list[ShardedGradient], found_inf: torch.Tensor, inverse: torch.Tensor) -> None:
    gradients[0].keeper.unscale_gradients(_numbers(gradients), found_inf, inverse)


def _zero(gradient: ShardedGradient) -> ShardedGradient:
    gradient.keeper.zero_gradients([gradient.number])
    return gradient


def _zero_all(gradients: list[ShardedGradient]) -> None:
    gradients[0].keeper.zero_gradients(_numbers(gradients))


def _add(gradient: ShardedGradient, local: torch.Tensor, *, alpha: float = 1) -> ShardedGradient:
    # Only autograd does this: it accumulates a further backward's gradient where one is present.
    if isinstance(local, ShardedGradient) or alpha != 1:
        raise gradient.keeper.refuse_gradient_use(gradient.number, "add_")
    gradient.added = local if gradient.added is None else gradient.added + local
    return gradient


def _same(gradient: ShardedGradient, *_: Any, **__: Any) -> ShardedGradient:
    return gradient


_ACTIONS: dict[Any, Callable[..., Any]] = {
    aten.linalg_vector_norm.default: _norm,
    aten.norm.Scalar: _norm,
    aten._foreach_norm.Scalar: _norms,
    aten.mul_.Tensor: _scale,
    aten.mul_.Scalar: _scale,
    aten.div_.Tensor: _divide,
    aten.div_.Scalar: _divide,
    aten._foreach_mul_.Tensor: _scale_all,
    aten._foreach_mul_.Scalar: _scale_all,
    aten._foreach_mul_.ScalarList: _scale_all,
    aten._amp_foreach_non_finite_check_and_unscale_.default: _unscale,
    aten.zero_.default: _zero,
    aten._foreach_zero_.default: _zero_all,
    aten.add_.Tensor: _add,
    aten.detach.default: _same,
    aten.detach_.default: _same,
    aten.alias.default: _same,
}
