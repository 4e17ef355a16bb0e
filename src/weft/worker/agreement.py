"""All workers do the same after the same step, without a collective in every step.

What one of them wishes (stop; or, rank 0 alone, a checkpoint because it is time) has to be known to all before any of
them acts on it.

[Note: two ways]  An overlapped model carries a vote with its gradients: that somebody wishes something is known to all
workers after the same ``step()``, for nothing, and only then they ask each other what it is.  Without it, wishes are
summed up in a tiny all-reduce every k steps, launched after one step and looked at after the next, so that nobody waits
for it.  All workers must use the same k: it travels in the same message.  k is chosen so that the all-reduces cost at
most 0.25 % of the steps, half of what we allow ourselves; but k steps never take more than about a second, so that a
stop is seen soon however slow the steps are.

[Note: whole updates]  A script that accumulates gradients over several batches may only stop, or be saved, where the
optimizer has just been stepped: gradients are in no checkpoint, and the batches they came from count as done.
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
from weft.worker.updates import UpdateCount

_COST_FRACTION = 0.0025
# However cheap the steps are, a request is seen after this many.
_MAX_TURN_STEPS = 1000
# However dear the all-reduces seem, a request is seen after about this long (and not before the next step).
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
    """Called after every step, by every worker."""

    def after_step(self, wishes: Wishes) -> Wishes:
        """What all workers do now: the same on all of them."""
        ...

    def before_step(self, wishes: Wishes) -> None:
        """The last moment at which a wish can still travel with this step."""
        ...

    def close(self) -> None:
        """Nothing is under way on return."""
        ...


class Alone:
    """One worker agrees with itself."""

    def before_step(self, wishes: Wishes) -> None:
        """Nobody to tell."""

    def after_step(self, wishes: Wishes) -> Wishes:
        return wishes

    def close(self) -> None:
        """Nothing to wait for."""


class ByVotes:
    """Votes travel with the gradients of an overlapped model."""

    def __init__(self, handle: Overlap, peers: Peers) -> None:
        self._schedule = handle.schedule
        self._peers = peers
        self._num_steps = self._schedule.num_steps

    def before_step(self, wishes: Wishes) -> None:
        self._schedule.round.vote = bool(wishes)

    def after_step(self, wishes: Wishes) -> Wishes:
        # Only a completed step() has brought everybody's votes; half of an accumulation is no place to stop either.
        if self._schedule.num_steps == self._num_steps:
            return NOTHING
        self._num_steps = self._schedule.num_steps
        if not self._schedule.round.num_votes:
            return NOTHING
        return _ask(self._peers, wishes)

    def close(self) -> None:
        self._schedule.round.vote = False


class ByTurns:
    """A small all-reduce every k steps."""

    def __init__(self, peers: Peers, now: Callable[[], float] = time.perf_counter) -> None:
        self._peers = peers
        self._now = now
        self._steps_to_go = 1
        self._under_way: tuple[torch.Tensor, Any] | None = None
        self._costs_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._steps_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._launch_s = 0.0
        self._last_s: float | None = None

    def before_step(self, wishes: Wishes) -> None:
        """Wishes travel after the step."""

    def after_step(self, wishes: Wishes) -> Wishes:
        began_s = self._now()
        if self._last_s is not None:
            self._steps_s.append(began_s - self._last_s)
        agreed = NOTHING
        if self._under_way is not None:
            message, work = self._under_way
            self._under_way = None
            work.wait()
            self._costs_s.append(self._launch_s + self._now() - began_s)
            stop, checkpoint, turn = message.tolist()
            agreed = Wishes(bool(stop), bool(checkpoint))
            self._steps_to_go = int(turn)
        self._steps_to_go -= 1
        if self._steps_to_go <= 0 and not agreed.stop:
            message = torch.tensor([float(wishes.stop), float(wishes.checkpoint), float(self._turn_steps())])
            self._under_way = (message, self._peers.maximum_later(message))
            self._launch_s = self._now() - began_s
        self._last_s = self._now()
        return agreed

    def close(self) -> None:
        if self._under_way is not None:
            self._under_way[1].wait()
            self._under_way = None

    def _turn_steps(self) -> int:
        if not self._costs_s or not self._steps_s:
            return 1
        usual_s, mean_s = statistics.median(self._steps_s), statistics.fmean(self._steps_s)
        # The mean: what is rare and dear costs too.
        return turn_steps(statistics.fmean(self._costs_s), usual_s, mean_s)


def turn_steps(cost_s: float, step_s: float, mean_step_s: float | None = None) -> int:
    """Steps between two all-reduces of ``cost_s`` each, so that they take a small enough part of the time.

    >>> turn_steps(cost_s=100e-6, step_s=10e-3)
    4
    >>> turn_steps(cost_s=100e-3, step_s=0.5)
    2
    """
    mean_step_s = step_s if mean_step_s is None else mean_step_s
    if step_s <= 0.0 or mean_step_s <= 0.0:
        return _MAX_TURN_STEPS
    affordable = math.ceil(cost_s / (_COST_FRACTION * step_s))
    soon_enough = math.floor(_MAX_TURN_S / mean_step_s)
    return max(min(affordable, soon_enough, _MAX_TURN_STEPS), 1)


class AtUpdates:
    """Holds back what was agreed on until the optimizer has been stepped; see [Note: whole updates]."""

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
    return AtUpdates(_agreement(peers, handle), updates)


def _agreement(peers: Peers, handle: Overlap | None) -> Agreement:
    if peers.world_size == 1:
        return Alone()
    # Where looking at the votes would make the host wait for the GPU they are not counted.
    if handle is not None and not handle.schedule.transport.ordered:
        return ByVotes(handle, peers)
    return ByTurns(peers)


def _ask(peers: Peers, wishes: Wishes) -> Wishes:
    stop, checkpoint = peers.maximum(torch.tensor([float(wishes.stop), float(wishes.checkpoint)])).tolist()
    return Wishes(bool(stop), bool(checkpoint))
