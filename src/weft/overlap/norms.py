"""Arithmetic on gradients that lie in shards: norms over all workers, scaling of the own shard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from weft.errors import OverlapError

if TYPE_CHECKING:
    from weft.overlap.sharded import ShardedSchedule


class GradientArithmetic:
    """What :class:`~weft.overlap.gradient.ShardedGradient` can do, in terms of buckets."""

    def __init__(self, schedule: ShardedSchedule) -> None:
        self._schedule = schedule
        self._norms: dict[float, torch.Tensor] = {}

    def forget(self) -> None:
        """The gradients have changed."""
        self._norms.clear()

    def gradient_norm(self, number: int, order: float) -> torch.Tensor:
        """Of one parameter's averaged gradient.  The first call computes all parameters' norms at once."""
        if order not in self._norms:
            self._norms[order] = self._all_norms(order)
        return self._norms[order][number].to(self._schedule.parameters[number].dtype)

    def total_norm(self, order: float) -> torch.Tensor:
        """Of all gradients together: one scalar all-reduce."""
        runs = self._runs(None, "clip_grad_norm_")
        device = self._schedule.parameters[0].device
        parts = [_power_sum(run, order) for run in runs] or [torch.zeros((), dtype=torch.float64, device=device)]
        local = torch.stack(parts)
        if order == float("inf"):
            return self._schedule.transport.all_reduce(local.max().reshape(1), maximum=True)[0]
        total = self._schedule.transport.all_reduce(local.sum().reshape(1))[0]
        return total if order == 0 else total ** (1.0 / order)

    def full_gradient(self, number: int) -> torch.Tensor:
        """The averaged gradient of one parameter, whole: everybody contributes its shard."""
        parameter = self._schedule.parameters[number]
        self._schedule.reduce_all()
        whole = torch.zeros(parameter.numel(), dtype=parameter.dtype, device=parameter.device)
        for bucket in self._schedule.buckets:
            for piece in bucket.own:
                if piece.parameter == number:
                    whole[piece.start : piece.start + piece.length] = bucket.own_gradient_run(piece)
        self._schedule.transport.all_reduce(whole)
        return whole.as_strided(parameter.shape, parameter.stride())

    def scale_gradients(self, numbers: Sequence[int] | None, factor: Any) -> None:
        """Multiply our shard of these parameters' gradients (all when ``None``)."""
        self.forget()
        for run in self._runs(numbers, "scaling gradients"):
            run.mul_(factor)

    def zero_gradients(self, numbers: Sequence[int]) -> None:
        self.forget()
        self._schedule.reduce_all()
        for run in self._own_runs(numbers):
            run.zero_()

    def unscale_gradients(self, numbers: Sequence[int], found_inf: torch.Tensor, inverse_scale: torch.Tensor) -> None:
        """For GradScaler: an infinite value in any worker's shard skips the step on all of them."""
        self.forget()
        runs = self._runs(numbers, "GradScaler")
        if runs:
            torch._amp_foreach_non_finite_check_and_unscale_(runs, found_inf, inverse_scale)
        self._schedule.transport.all_reduce(found_inf, maximum=True)

    def refuse_gradient_use(self, number: int, what: str) -> OverlapError:
        name = self._schedule.names[number]
        return OverlapError(
            f"{what} on the gradient of {name}: with weft.overlap the averaged gradient lies in shards on all workers, "
            "and p.grad answers only norms, scaling, clipping and GradScaler; use handle.full_gradient(p) on every "
            "worker, or look at local gradients with a tensor hook; call detach() before converting or moving a model"
        )

    def _runs(self, numbers: Sequence[int] | None, what: str) -> list[torch.Tensor]:
        if self._schedule.eager and self._schedule.overlapped:
            raise OverlapError(
                f"{what} needs all gradients before any update, but eager=True updates parameters during backward: "
                "use weft.overlap(model, optimizer, eager=False)"
            )
        self._schedule.reduce_all()
        return self._own_runs(numbers)

    def _own_runs(self, numbers: Sequence[int] | None) -> list[torch.Tensor]:
        wanted = None if numbers is None else set(numbers)
        return [
            bucket.own_gradient_run(piece)
            for bucket in self._schedule.buckets
            if bucket.exchange.reduced is not None
            for piece in bucket.own
            if wanted is None or piece.parameter in wanted
        ]

    def _all_norms(self, order: float) -> torch.Tensor:
        schedule = self._schedule
        sums = torch.zeros(len(schedule.parameters), dtype=torch.float64, device=schedule.parameters[0].device)
        self._runs(None, "a norm of gradients")
        for bucket in schedule.buckets:
            for piece in bucket.own:
                part = _power_sum(bucket.own_gradient_run(piece), order)
                before = sums[piece.parameter]
                sums[piece.parameter] = torch.maximum(before, part) if order == float("inf") else before + part
        schedule.transport.all_reduce(sums, maximum=order == float("inf"))
        return sums if order in (0, float("inf")) else sums ** (1.0 / order)


def _power_sum(run: torch.Tensor, order: float) -> torch.Tensor:
    """What must be added (or maximised) over slices to get a norm, in double precision."""
    norm: torch.Tensor = torch.linalg.vector_norm(run, order).double()
    return norm if order in (0, float("inf")) else torch.pow(norm, order)
