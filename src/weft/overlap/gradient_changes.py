"""Element-wise changes to a sharded gradient: each worker changes its own elements.

``p.grad.add_(wd * p)``, ``p.grad *= mask``, or ``clip_grad_value_`` give the same bits on a slice as on the whole
tensor, if every argument with a shape is sliced like the gradient.  That holds for operations whose result for an
element is rounded once, or is the same in a full vector register and in the remainder of a loop.  So ``exp_`` and the
like are refused, as are random operations and those that look at more than one element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from weft.overlap.flat import flat_view

aten = torch.ops.aten

ELEMENT_WISE = frozenset(
    {
        *(aten.abs_, aten.add_, aten.addcdiv_, aten.addcmul_, aten.ceil_, aten.clamp_, aten.clamp_max_),
        *(aten.clamp_min_, aten.copy_, aten.copysign_, aten.div_, aten.fill_, aten.floor_, aten.hardtanh_, aten.lerp_),
        *(aten.masked_fill_, aten.mul_, aten.nan_to_num_, aten.neg_, aten.reciprocal_, aten.relu_, aten.round_),
        *(aten.sgn_, aten.sign_, aten.sqrt_, aten.sub_, aten.threshold_, aten.trunc_, aten.zero_),
    }
)
FOREACH = frozenset(
    {
        *(aten._foreach_abs_, aten._foreach_add_, aten._foreach_addcdiv_, aten._foreach_addcmul_),
        *(aten._foreach_clamp_max_, aten._foreach_clamp_min_, aten._foreach_copy_, aten._foreach_div_),
        *(aten._foreach_lerp_, aten._foreach_maximum_, aten._foreach_minimum_, aten._foreach_mul_, aten._foreach_neg_),
        *(aten._foreach_reciprocal_, aten._foreach_sign_, aten._foreach_sqrt_, aten._foreach_sub_, aten._foreach_zero_),
    }
)
# New tensors with a gradient's shape and dtype, which do not depend on its values.
LIKE = frozenset({aten.empty_like, aten.full_like, aten.ones_like, aten.rand_like, aten.randn_like, aten.zeros_like})

# A slice of the parameter's elements in memory order, and this worker's gradient of them.
Change = Callable[[slice, torch.Tensor], object]


class ForeignGradient(TypeError):
    """An argument is another parameter's gradient, which is sliced differently."""


class Itself:
    """The gradient as an argument of a change to it."""


class Listed:
    """An argument that ``torch._foreach_`` functions take as a list with one value per tensor."""

    def __init__(self, value: Any) -> None:
        self.value = value


def portable(value: Any, gradient: torch.Tensor) -> Any:
    """An argument in a form that can be sent to a worker that mirrors the change."""
    if isinstance(value, Listed):
        return Listed(portable(value.value, gradient))
    if value is gradient:
        return Itself()
    if isinstance(value, type(gradient)):
        raise ForeignGradient
    return value.detach() if isinstance(value, torch.Tensor) else value


def named(name: str) -> Any:
    """The aten function with this name, for example ``aten.mul_.Tensor``."""
    _, packet, overload = name.split(".")
    return getattr(getattr(aten, packet), overload)


def changed_by(func: Any, gradient: torch.Tensor, others: Sequence[Any], options: dict[str, Any]) -> Change:
    """``func(gradient, *others, **options)``, with portable arguments, as a function of a slice."""
    cut = [_cut(value, gradient) for value in others]
    cut_options = {name: _cut(value, gradient) for name, value in options.items()}

    def change(part: slice, run: torch.Tensor) -> object:
        first = [run] if func.overloadpacket in FOREACH else run
        return func(first, *(c(part, run) for c in cut), **{name: c(part, run) for name, c in cut_options.items()})

    return change


def _cut(value: Any, gradient: torch.Tensor) -> Callable[[slice, torch.Tensor], Any]:
    """The argument's value for a slice."""
    if isinstance(value, Listed):
        inside = _cut(value.value, gradient)
        return lambda part, run: [inside(part, run)]
    if isinstance(value, Itself):
        return lambda part, run: run
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return lambda part, run: value
    line = flat_view(value.expand(gradient.shape), like=gradient)
    return lambda part, run: line[part]
