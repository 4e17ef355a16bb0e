"""``with handle.join():`` lets workers have different numbers of batches, like DDP's ``join``.

A worker that has no more batches has *joined*: it mirrors what the *active* ones do until all have joined.  It sends
zeros for its gradients, and it still updates its shards, since no other worker has their state.  Only inside this
context do workers synchronize before each of these calls:

    forward     buffers come from the active worker with the highest rank, as with DDP
    round       a backward has ended
    call        a sharded ``step()`` with the options of the active workers, or norms, scaling, and other operations on
                sharded gradients
    stepped     a replicated ``step()``, in which nothing is exchanged

[Note: meeting]  One small all-reduce shows which workers are active and what they do.  While all are active, that is
all; otherwise the active worker with the highest rank sends the details to those that mirror them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from weft.errors import OverlapError
from weft.overlap.buffers import BufferSync
from weft.overlap.part import Part
from weft.overlap.passes import Passes
from weft.process.turns import TURNS

# What workers do when they meet, and how an error names it.
_KINDS = {
    "forward": "forward",
    "round": "backward",
    "call": "step() or an operation on gradients",
    "stepped": "step()",
}


class Joining:
    """One ``with handle.join()``, on this worker."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        parts: Sequence[Part],
        passes: Passes,
        buffers: BufferSync,
        after_step: Callable[[Part], None],
        divide_by_initial_world_size: bool,
        throw_on_early_termination: bool,
    ) -> None:
        self._group = group
        self._rank = dist.get_rank(group)
        self._num_workers = dist.get_world_size(group)
        self._parts = parts
        self._passes = passes
        # The original collective methods, by part and name.
        self._calls: dict[tuple[int, str], Callable[..., Any]] = {}
        self._buffers = buffers
        self._after_step = after_step
        self._divides_by_all = divide_by_initial_world_size
        self._throws = throw_on_early_termination
        self._active = list(range(self._num_workers))
        self._mirroring = False
        self._inside = False
        # As with DDP, also in the first forward.
        self._buffers_due = True

    # ---- on active workers

    def forward(self) -> None:
        self._meet("forward", self._buffers_due)
        if not self._divides_by_all:
            for part in self._parts:
                part.schedule.round.share = 1.0 / len(self._active)
        self._share_buffers(self._buffers_due)

    def round_closed(self) -> None:
        """All gradients of a backward have been sent."""
        self._buffers_due = True
        if not self._mirroring:
            self._meet("round", [list(part.schedule.carried) for part in self._parts])

    def stepped(self, part: Part) -> None:
        if not self._mirroring and not part.schedule.is_sharded:
            self._meet("stepped", self._parts.index(part))

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Updates and gradient arithmetic are announced inside."""
        shares = [part.schedule.round.share for part in self._parts]
        patched: list[tuple[Any, str]] = []
        for number, part in enumerate(self._parts):
            part.schedule.mirrored = True
            for owner, name in part.schedule.announced():
                original = self._calls[number, name] = getattr(owner, name)
                setattr(owner, name, self._announced(number, name, original))
                patched.append((owner, name))
        try:
            yield
        finally:
            for owner, name in patched:
                delattr(owner, name)
            for part, share in zip(self._parts, shares, strict=True):
                part.schedule.round.share = share
                part.schedule.mirrored = False

    def _announced(self, number: int, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def announced(*args: Any) -> Any:
            if self._inside:  # part of an announced call
                return original(*args)
            self._meet("call", (number, name, args))
            self._inside = True
            try:
                return original(*args)
            finally:
                self._inside = False

        return announced

    # ---- on joined workers

    def mirror(self, model: nn.Module) -> None:
        """Do what the active workers do until there are none, then copy the model of the last one."""
        self._mirroring = self._inside = True
        while True:
            kind, details = self._meet(None, None)
            if kind is None:
                break
            getattr(self, f"_mirror_{kind}")(details)
        self._share_buffers(True)
        self._share_replicated(model, self._active[-1])

    def _mirror_forward(self, buffers_due: bool) -> None:
        self._share_buffers(buffers_due)

    def _mirror_round(self, carried: list[list[int]]) -> None:
        for part, numbers in zip(self._parts, carried, strict=True):
            part.schedule.keep_gradients(numbers)
        self._passes.join_empty()

    def _mirror_call(self, call: tuple[int, str, tuple[Any, ...]]) -> None:
        number, name, args = call
        self._calls[number, name](*args)
        if name == "update":
            self._after_step(self._parts[number])

    def _mirror_stepped(self, number: int) -> None:
        self._after_step(self._parts[number])

    def _share_replicated(self, model: nn.Module, source: int) -> None:
        """Copy what only active workers have updated: parameters, as DDP does, and optimizer state."""
        sharded = {id(p) for part in self._parts if part.schedule.is_sharded for p in part.schedule.parameters}
        with torch.no_grad(), TURNS.yielded(later=True):
            for parameter in model.parameters():
                if id(parameter) not in sharded:
                    values = parameter.detach().to("cpu", copy=True).contiguous()
                    dist.broadcast(values, group_src=source, group=self._group)
                    parameter.copy_(values)
        for part in self._parts:
            if part.optimizer is not None and not part.schedule.is_sharded:
                state = self._broadcast(part.optimizer.state_dict() if self._rank == source else None, source)
                if self._rank != source:
                    part.optimizer.load_state_dict(state)

    # ---- both

    def _share_buffers(self, due: bool) -> None:
        self._buffers_due = False
        if due:
            with TURNS.yielded(later=True):
                self._buffers.share(self._group, self._active[-1])

    def _meet(self, kind: str | None, details: Any) -> tuple[str | None, Any]:
        """Find out which workers are active and what they do; (None, None) if none are."""
        flags = torch.zeros(self._num_workers + len(_KINDS), dtype=torch.int64)
        if kind is not None:
            flags[self._rank] = 1
            flags[self._num_workers + list(_KINDS).index(kind)] = 1
        with TURNS.yielded(later=True):
            dist.all_reduce(flags, group=self._group)
        counts = flags.tolist()
        active = [worker for worker in range(self._num_workers) if counts[worker]]
        kinds = [kind for kind, count in zip(_KINDS, counts[self._num_workers :], strict=True) if count]
        if len(kinds) > 1:
            raise OverlapError(
                f"inside handle.join(), some workers called {_KINDS[kinds[0]]} while others called {_KINDS[kinds[1]]}: "
                "workers that still have batches must call forward, backward, clipping, and step() in the same order"
            )
        if not active:
            return None, None
        self._active = active
        if len(active) < self._num_workers:
            if self._throws and kinds[0] == "forward":
                raise RuntimeError(
                    "a worker has no more batches, and throw_on_early_termination is set: handle.join() ends here on "
                    "all workers"
                )
            details = self._broadcast(details, active[-1])
        return kinds[0], details

    def _broadcast(self, value: Any, source: int) -> Any:
        box = [value]
        with TURNS.yielded(later=True):
            dist.broadcast_object_list(box, group_src=source, group=self._group)
        return box[0]
