"""What the user holds: ``handle = weft.overlap(model, optimizer)``."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from weft.core.chrome_trace import write_chrome_trace
from weft.errors import OverlapError
from weft.overlap import checks
from weft.overlap.buffers import BufferSync
from weft.overlap.open_connections import Connections
from weft.overlap.part import Part
from weft.overlap.passes import Passes, Removable
from weft.overlap.report import Report, make_report
from weft.overlap.schedule_interface import Schedule
from weft.overlap.transport.groups import make_group
from weft.overlap.uneven_inputs import Joining

# By the identity of the model.  The model's hooks keep the handle alive, so an entry lives as long as its model.
_HANDLES: weakref.WeakValueDictionary[int, Overlap] = weakref.WeakValueDictionary()


def handle_of(model: nn.Module) -> Overlap | None:
    """The handle of an overlapped model, for code that has only the model."""
    return _HANDLES.get(id(model))


class Overlap:
    """Controls an overlapped model and reports on it.  Returned by :func:`weft.overlap`."""

    def __init__(
        self,
        model: nn.Module,
        parts: Sequence[Part],
        passes: Passes,
        buffers: BufferSync,
        group: dist.ProcessGroup,
        connections: Connections,
    ) -> None:
        self.model = model
        self.parts = parts
        self.passes = passes
        self.hooks: list[Removable] = []
        self._buffers = buffers
        self._group = group
        self._connections = connections
        connections.belong_to(self, [part.schedule.round.memory_of_exchanges.exchanges for part in parts])
        self._joining: Joining | None = None
        _HANDLES[id(model)] = self

    @property
    def _main(self) -> Part:
        """The part that is tuned and reported on: attach.py puts the one with the most to send first."""
        return self.parts[0]

    @property
    def schedule(self) -> Schedule:
        return self._main.schedule

    # ---- for the training loop

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside only accumulate gradients; the first one outside averages the sum.

        >>> with handle.no_sync():                  # doctest: +SKIP
        ...     loss_fn(model(x1), y1).backward()
        >>> loss_fn(model(x2), y2).backward()       # doctest: +SKIP
        """
        rounds = [part.schedule.round for part in self.parts]
        before = [round.sync for round in rounds]
        for round in rounds:
            round.sync = False
        try:
            yield
        finally:
            for round, sync in zip(rounds, before, strict=True):
                round.sync = sync

    @contextmanager
    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Iterator[None]:
        """Lets workers have different numbers of batches, like DDP's ``join``.  Collective.

        A worker that has no more batches takes part in the others' steps until all are done.

        Args:
            divide_by_initial_world_size: average over all workers; ``False``: over those that still have batches.
            enable: ``False`` makes this do nothing.
            throw_on_early_termination: raise on every worker as soon as one has no more batches.

        >>> with handle.join():                     # doctest: +SKIP
        ...     for x, y in batches_of_this_worker:
        ...         ...
        """
        if not enable or dist.get_world_size(self._group) == 1:
            yield
            return
        connections = self._connections
        if connections.join_group is None:
            connections.join_group = make_group(self._group, "gloo")
        self._buffers.forget()
        self._joining = self.passes.meetings = Joining(
            connections.join_group,
            self.parts,
            self.passes,
            self._buffers,
            self.after_step,
            divide_by_initial_world_size,
            throw_on_early_termination,
        )
        try:
            with self._joining.watched():
                yield
                self._joining.mirror(self.model)
        finally:
            self._joining = self.passes.meetings = None

    def join_hook(self, **_: Any) -> Any:
        """Called by ``torch.distributed.algorithms.join.Join``."""
        raise OverlapError(
            "torch.distributed.algorithms.join.Join cannot be used with weft.overlap: use `with handle.join():`, which "
            "takes the arguments of DDP's join"
        )

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Like ``torch.nn.utils.clip_grad_norm_`` over all parameters, with one scalar all-reduce.

        With ``exact_clipping``, it calls that function, with an all-reduce of one number per parameter.
        """
        ours = {id(parameter) for part in self.parts for parameter in part.schedule.parameters}
        parameters = [parameter for parameter in self.model.parameters() if id(parameter) in ours]
        if len(self.parts) > 1:
            return nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)
        return self.schedule.clip(parameters, max_norm, norm_type)

    def full_gradient(self, parameter: nn.Parameter) -> torch.Tensor:
        """The full averaged gradient of one parameter.  Collective: call it on every worker."""
        for part in self.parts:
            for number, own in enumerate(part.schedule.parameters):
                if own is parameter:
                    return part.schedule.full_gradient(number)
        raise OverlapError(
            "full_gradient was given something that is not a trainable parameter of the overlapped model: pass one of "
            "model.parameters() that requires a gradient"
        )

    def flush(self) -> None:
        """Wait until every parameter has its newest value.

        Needed only before code that bypasses torch reads the memory, for example through an old numpy view.
        """
        for part in self.parts:
            part.schedule.flush()

    def detach(self) -> None:
        """Turn model and optimizers back into ordinary ones.  Collective: call it on every worker."""
        for part in self.parts:
            part.schedule.drain()
        self._buffers.finish()
        for part in self.parts:
            part.give_back()
        self.remove_hooks()
        for part in self.parts:
            checks.give_back(part.schedule.parameters)
        self._connections.close(self._group)

    def remove_hooks(self) -> None:
        for hook in (*self.hooks, *self.passes.hooks):
            hook.remove()
        self.hooks.clear()
        self.passes.hooks.clear()
        _HANDLES.pop(id(self.model), None)

    # ---- measurements

    def report(self) -> Report:
        """Where the time of the last steps went, and how far it is from the bound."""
        return make_report(self._main.schedule, self._main.tuner)

    @contextmanager
    def trace(self, path: str | Path) -> Iterator[None]:
        """Record the steps inside as a Chrome trace (``weft trace`` and Perfetto read it)."""
        clock = self.schedule.clock
        clock.start_trace()
        try:
            yield
        finally:
            write_chrome_trace(path, clock.end_trace())

    # ---- called by the optimizers' hooks

    def before_step(self, part: Part, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.passes.watch.check()
        return part.before_step(args, kwargs)

    def after_step(self, part: Part) -> None:
        part.after_step()
        if self._joining:
            self._joining.stepped(part)
        if part.schedule.round.objected:
            self._buffers.agree()
            part.schedule.round.objected = False
        if self.passes.unheard:  # a compiled function calls the submodules: we may not notice the next forward either
            self._buffers.finish()
        part.tuner.after_step()
