"""Arithmetic on sharded gradients: norms over all workers, and changes to this worker's shard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from weft.errors import OverlapError
from weft.overlap.bucket import Bucket
from weft.overlap.flat import flat_view
from weft.overlap.gradient_changes import changed_by, named
from weft.overlap.layout import Piece

if TYPE_CHECKING:
    from weft.overlap.sharded import ShardedSchedule

_LOCAL = {"collective_names", "forget", "take_assigned", "refuse_gradient_use"}


class GradientArithmetic:
    """Implements the operations of :class:`~weft.overlap.gradient.ShardedGradient` on buckets."""

    def __init__(self, schedule: ShardedSchedule) -> None:
        self._schedule = schedule
        self._norms: dict[float, torch.Tensor] = {}

    @classmethod
    def collective_names(cls) -> list[str]:
        """Methods that every worker has to call; the other public ones use only this worker's gradients."""
        return [name for name in vars(cls) if not name.startswith("_") and name not in _LOCAL]

    def forget(self) -> None:
        """The gradients have changed."""
        self._norms.clear()

    def gradient_norm(self, number: int, order: float) -> torch.Tensor:
        """Of one parameter's averaged gradient.  The first call computes the norms of all parameters."""
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
        """The full averaged gradient of one parameter: every worker contributes its shard."""
        parameter = self._schedule.parameters[number]
        self._schedule.reduce_all()
        self.take_assigned()
        whole = torch.zeros(parameter.numel(), dtype=parameter.dtype, device=parameter.device)
        for bucket in self._schedule.buckets:
            for piece in bucket.own:
                if piece.parameter == number:
                    whole[piece.start : piece.start + piece.length] = bucket.own_gradient_run(piece)
        self._schedule.transport.all_reduce(whole)
        return whole.as_strided(parameter.shape, parameter.stride())

    def scale_gradients(self, factor: Any) -> None:
        """Multiply our shard of all gradients."""
        self.forget()
        for run in self._runs(None, "scaling gradients"):
            run.mul_(factor)

    def change_gradient(self, number: int, name: str, others: Sequence[Any], options: dict[str, Any]) -> None:
        """Change our shard of one gradient.  If no worker has one, it stays absent, as with DDP."""
        self.forget()
        self._refuse_eager(name)
        self._refuse_local(number)
        self._schedule.reduce_all()
        change = changed_by(named(name), self._schedule.gradients[number], others, options)
        dtype = self._schedule.parameters[number].dtype
        for bucket, piece in self._own_pieces({number}):
            if bucket.used()[bucket.plan.parameters.index(number)]:
                run = bucket.own_gradient_run(piece)
                # The sum may be in a wider dtype than the parameter.
                part = run.to(dtype)
                change(slice(piece.start, piece.start + piece.length), part)
                run.copy_(part)

    def take_assigned(self) -> None:
        """Tensors assigned to ``p.grad`` after backward replace the sharded gradients."""
        schedule = self._schedule
        for number, (parameter, own) in enumerate(zip(schedule.parameters, schedule.gradients, strict=True)):
            assigned = parameter.grad
            if assigned is not None:
                self._refuse_local(number)
            if assigned is own:
                schedule.skip(number, False)
                continue
            if schedule.mirrored:
                raise OverlapError(
                    f"p.grad of {schedule.names[number]} was replaced or set to None inside handle.join(): workers "
                    "without batches cannot see that; change it in place (p.grad.copy_(values), p.grad.zero_()) instead"
                )
            self._refuse_eager(f"replacing the gradient of {schedule.names[number]}")
            self.forget()
            schedule.skip(number, assigned is None)
            if assigned is not None:
                schedule.reduce_all()  # so that nothing is added to it later
                self._assign(number, assigned)
                parameter.grad = own

    def _refuse_local(self, number: int) -> None:
        schedule = self._schedule
        if schedule.gradients[number].added is not None or number in schedule.round.unsynchronized:
            raise OverlapError(
                f"the gradient of {schedule.names[number]} has a part that was never averaged: a hook added to p.grad "
                "during backward(), or a backward() inside no_sync() was not followed by one outside; make hooks "
                "return a new gradient, and run the last backward() before using p.grad outside no_sync()"
            )

    def _assign(self, number: int, values: torch.Tensor) -> None:
        if values.layout is not torch.strided or hasattr(values, "keeper"):
            raise self.refuse_gradient_use(number, f"assigning a {type(values).__name__} ({values.layout})")
        line = flat_view(values, self._schedule.parameters[number])
        for bucket, piece in self._own_pieces({number}):
            bucket.own_gradient_run(piece).copy_(line[piece.start : piece.start + piece.length])
        for bucket in self._schedule.round.buckets_of[number]:
            bucket.mark_used(number)

    def zero_gradients(self, numbers: Sequence[int]) -> None:
        self.forget()
        if self._schedule.round.awaits_step:
            self._refuse_eager("zeroing gradients before step()")
        self._schedule.reduce_all()
        for bucket, piece in self._own_pieces(set(numbers)):
            bucket.own_gradient_run(piece).zero_()
        for number in numbers:
            self._schedule.gradients[number].take_added()
            self._schedule.round.unsynchronized.discard(number)

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
            f"{what} on the gradient of {name}: with weft.overlap, the averaged gradient is sharded over all workers, "
            "and p.grad supports only norms, clipping, GradScaler and element-wise changes in place, after backward(). "
            "Use handle.full_gradient(p) on every worker, assign a new tensor to p.grad, or read local gradients in a "
            "tensor hook; call detach() before converting or moving a model"
        )

    def _refuse_eager(self, what: str) -> None:
        if self._schedule.eager and self._schedule.overlapped:
            raise OverlapError(
                f"{what} needs all gradients before any update, but eager=True updates parameters during backward: "
                "use weft.overlap(model, optimizer, eager=False)"
            )

    def _runs(self, numbers: Sequence[int] | None, what: str) -> list[torch.Tensor]:
        self._refuse_eager(what)
        self._schedule.reduce_all()
        self.take_assigned()
        wanted = None if numbers is None else set(numbers)
        return [bucket.own_gradient_run(piece) for bucket, piece in self._own_pieces(wanted)]

    def _own_pieces(self, numbers: set[int] | None) -> list[tuple[Bucket, Piece]]:
        """Our pieces of these gradients (``None``: of all), except those set to None."""
        return [
            (bucket, piece)
            for bucket in self._buckets(numbers)
            if bucket.exchange.reduced is not None
            for piece in bucket.own
            if (numbers is None or piece.parameter in numbers) and piece.parameter not in bucket.skipped
        ]

    def _buckets(self, numbers: set[int] | None) -> Sequence[Bucket]:
        if numbers is not None and len(numbers) == 1:
            return self._schedule.round.buckets_of[next(iter(numbers))]
        return self._schedule.buckets

    def _all_norms(self, order: float) -> torch.Tensor:
        schedule = self._schedule
        sums = torch.zeros(len(schedule.parameters), dtype=torch.float64, device=schedule.parameters[0].device)
        self._runs(None, "a norm of gradients")
        if schedule.memory.whole:
            # The same call as DDP's on the same memory layout: the order of a kernel's sum depends on the whole tensor.
            for bucket, piece in self._own_pieces(None):
                parameter = schedule.parameters[piece.parameter]
                gradient = bucket.own_gradient_run(piece).as_strided(parameter.shape, parameter.stride())
                sums[piece.parameter] = torch.linalg.vector_norm(gradient, order)
            return schedule.transport.all_reduce(sums)  # each is one worker's norm plus zeros
        for bucket in schedule.buckets:
            for piece in bucket.own:
                part = _power_sum(bucket.own_gradient_run(piece), order)
                before = sums[piece.parameter]
                sums[piece.parameter] = torch.maximum(before, part) if order == float("inf") else before + part
        schedule.transport.all_reduce(sums, maximum=order == float("inf"))
        return sums if order in (0, float("inf")) else sums ** (1.0 / order)


def _power_sum(run: torch.Tensor, order: float) -> torch.Tensor:
    """A slice's term in the sum (or maximum) that gives the norm, in double precision."""
    norm: torch.Tensor = torch.linalg.vector_norm(run, order).double()
    return norm if order in (0, float("inf")) else torch.pow(norm, order)
