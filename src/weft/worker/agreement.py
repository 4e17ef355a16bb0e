"""All workers stop, or save, after the same step, without a collective in every step.

A worker's wishes (stop; on rank 0 also a periodic checkpoint) must reach all workers before any of them acts.

[Note: two ways]  An overlapped model sends a vote with its gradients: after the same ``step()`` all workers know, at no
cost, that one of them has a wish, and only then exchange what it is.  Without overlap, wishes are combined in a tiny
all-reduce every k steps, launched after one step and read after the next, so no worker waits for it.  All workers must
use the same k, so it travels in the same message.  k is chosen so that the all-reduces take at most 0.25 % of the time,
but k steps never take more than about a second: a stop request must not wait long, however slow the steps are.

[Note: whole updates]  A script that accumulates gradients over several batches may stop or be saved only right after an
optimizer step: checkpoints do not contain gradients, and the batches they came from count as done.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from weft.overlap.handle import Overlap
from weft.worker.peers import Peers
from weft.worker.weighting import UpdateCount

_COST_FRACTION = 0.0025
# A request is seen after at most this many steps and about this long.
_MAX_TURN_STEPS = 1000
_MAX_TURN_S = 1.0
_REMEMBERED = 32
# A script that never steps its optimizer must be stoppable too.
_MAX_HELD_STEPS = 1000


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a worker wants, or what all of them have agreed on."""

    stop: bool = False
    checkpoint: bool = False

    def __bool__(self) -> bool:
        return self.stop or self.checkpoint

    def __or__(self, other: Wishes) -> Wishes:
        return Wishes(self.stop or other.stop, self.checkpoint or other.checkpoint)


NOTHING = Wishes()


class Agreement(Protocol):
    """Called around every step, by every worker."""

    def before_step(self, wishes: Wishes) -> None:
        """The last chance for a wish to travel with this step's gradients."""

    def after_step(self, wishes: Wishes) -> Wishes:
        """What to do now: the same on all workers."""

    def close(self) -> None:
        """No collective is in flight on return."""


class Alone:
    """One worker agrees with itself."""

    def before_step(self, wishes: Wishes) -> None: ...

    def after_step(self, wishes: Wishes) -> Wishes:
        return wishes

    def close(self) -> None: ...


class ByVotes:
    """Votes travel with the gradients of an overlapped model."""

    def __init__(self, handle: Overlap, peers: Peers) -> None:
        self._schedule = handle.schedule
        self._peers = peers
        self._num_steps = self._schedule.num_steps

    def before_step(self, wishes: Wishes) -> None:
        self._schedule.round.vote = bool(wishes)

    def after_step(self, wishes: Wishes) -> Wishes:
        # Votes arrive only with a completed step(); the middle of an accumulation is no place to stop either.
        if self._schedule.num_steps == self._num_steps:
            return NOTHING
        self._num_steps = self._schedule.num_steps
        if not self._schedule.round.num_votes:
            return NOTHING
        message = torch.tensor([float(wishes.stop), float(wishes.checkpoint)])
        stop, checkpoint = self._peers.maximum(message).tolist()
        return Wishes(bool(stop), bool(checkpoint))

    def close(self) -> None:
        self._schedule.round.vote = False


class ByTurns:
    """A small all-reduce every k steps."""

    def __init__(self, peers: Peers, now: Callable[[], float] = time.perf_counter) -> None:
        self._peers = peers
        self._now = now
        self._steps_to_go = 1
        self._in_flight: tuple[torch.Tensor, Any] | None = None
        self._costs_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._steps_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._launch_s = 0.0
        self._last_s: float | None = None

    def before_step(self, wishes: Wishes) -> None: ...

    def after_step(self, wishes: Wishes) -> Wishes:
        began_s = self._now()
        if self._last_s is not None:
            self._steps_s.append(began_s - self._last_s)
        agreed = NOTHING
        if self._in_flight is not None:
            message, work = self._in_flight
            self._in_flight = None
            work.wait()
            self._costs_s.append(self._launch_s + self._now() - began_s)
            stop, checkpoint, turn = message.tolist()
            agreed = Wishes(bool(stop), bool(checkpoint))
            self._steps_to_go = int(turn)
        self._steps_to_go -= 1
        if self._steps_to_go <= 0 and not agreed.stop:
            message = torch.tensor([float(wishes.stop), float(wishes.checkpoint), float(self._turn_steps())])
            self._in_flight = (message, self._peers.maximum_later(message))
            self._launch_s = self._now() - began_s
        self._last_s = self._now()
        return agreed

    def close(self) -> None:
        if self._in_flight is not None:
            self._in_flight[1].wait()
            self._in_flight = None

    def _turn_steps(self) -> int:
        if not self._costs_s or not self._steps_s:
            return 1
        # The mean cost: rare expensive all-reduces count too.
        return turn_steps(
            statistics.fmean(self._costs_s), statistics.median(self._steps_s), statistics.fmean(self._steps_s)
        )


def turn_steps(cost_s: float, step_s: float, mean_step_s: float) -> int:
    """Steps between two all-reduces of ``cost_s`` each, so that they take a small enough part of the time.

    >>> turn_steps(cost_s=100e-6, step_s=10e-3, mean_step_s=10e-3)
    4
    >>> turn_steps(cost_s=100e-3, step_s=0.5, mean_step_s=0.5)
    2
    """
    if step_s <= 0.0 or mean_step_s <= 0.0:
        return _MAX_TURN_STEPS
    affordable = math.ceil(cost_s / (_COST_FRACTION * step_s))
    soon_enough = math.floor(_MAX_TURN_S / mean_step_s)
    return max(min(affordable, soon_enough, _MAX_TURN_STEPS), 1)


class AtUpdates:
    """Delays what was agreed on until the next optimizer step; see [Note: whole updates]."""

    def __init__(self, inner: Agreement, updates: UpdateCount) -> None:
        self._inner = inner
        self._updates = updates
        self._num_updates = updates.num_updates
        self._held = NOTHING
        self._num_held_steps = 0

    def before_step(self, wishes: Wishes) -> None:
        self._inner.before_step(wishes)

    def after_step(self, wishes: Wishes) -> Wishes:
        self._held = self._held | self._inner.after_step(wishes)
        stepped = self._updates.num_updates != self._num_updates or not self._updates.counts
        self._num_updates = self._updates.num_updates
        if not self._held:
            return NOTHING
        self._num_held_steps += 1
        if not stepped and self._num_held_steps < _MAX_HELD_STEPS:
            return NOTHING
        held, self._held, self._num_held_steps = self._held, NOTHING, 0
        return held

    def close(self) -> None:
        self._inner.close()


def choose_agreement(peers: Peers, handle: Overlap | None, updates: UpdateCount) -> Agreement:
    inner: Agreement
    if peers.world_size == 1:
        inner = Alone()
    # An ordered transport does not count votes: reading them would make the host wait for the GPU.
    elif handle is not None and not handle.schedule.transport.ordered:
        inner = ByVotes(handle, peers)
    else:
        inner = ByTurns(peers)
    return AtUpdates(inner, updates)
