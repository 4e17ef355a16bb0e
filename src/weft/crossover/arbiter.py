"""Decides which job has the device.  Events in, commands out; no clock, no sockets, no threads.

The holder keeps the lease in a gap while no job waits: it is lent.  So the arbiter does not know whether a holder
computes.  While a job waits, it issues ``Recall``; the caller then looks, and answers with ``Released`` if the holder
is idle.

[Note: fencing]
Every grant has a token, higher than all before it.  Messages with an older token, from a holder that was overruled,
change nothing.  At most one token is valid at any time.

[Note: when a holder is asked back]
Two equal jobs must not interrupt each other: each computes until it waits for the network, and that makes them
alternate.  Interrupted halfway, they would compute in slices and then both communicate at the same time, and nothing
would be gained.  But a job with short turns must not wait for every turn of one with long turns.  So a holder is asked
back when it is ahead of a waiting job, in time over weight, by more than 1.5 of that job's usual turns: never between
equals, soon between unequals.  A holder that never communicates is eventually ahead of every other job; for a waiting
job whose turns are not known yet, the soft limit applies.  Once asked back, it has until the hard limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.crossover.lease_events import (
    Asked,
    Command,
    Event,
    Grant,
    Joined,
    Left,
    Ordered,
    Overrule,
    Recall,
    Released,
    RoleChanged,
    Ticked,
)
from weft.crossover.order import Forecaster, Turn, TurnOrder, rotation
from weft.crossover.phases import Role, TurnLimits, smoothed

COURTESY_TURNS = 0.1


@dataclass(slots=True)
class Member:
    """A worker that shares the device."""

    key: int
    job: str
    role: Role = Role.FAIR
    weight: float = 1.0
    turn: int = 0
    """The number of its current or next turn."""
    drift: int = 0
    """Its turn number at the group's lead minus its own."""
    asked_s: float | None = None
    """Since when it has waited; ``None`` if it does not."""
    released_s: float | None = None
    """When its current gap began; ``None`` outside a gap."""
    virtual_s: float = 0.0
    """Time it had the device, over its weight: the lowest is next."""
    turn_held_s: float = 0.0
    """Time it has computed in this turn, in pieces if it was asked back."""
    usual_turn_s: float | None = None
    usual_gap_s: float | None = None
    num_served: int = 0
    """Turns taken or forfeited; used only by lockstep."""
    is_promoted: bool = False
    """A filler that waited too long ranks with a primary for the rest of this turn."""
    served_as: int = 0
    """Number of its last grant among all grants: the lowest was served longest ago."""

    @property
    def group_turn(self) -> int:
        """Its turn number as all hosts count it."""
        return self.turn + self.drift

    def align(self, lead_turn: int | None) -> None:
        """Correct the drift; see [Note: turns have names] in ``order``."""
        if lead_turn is not None and abs(lead_turn - self.group_turn) > 1:
            self.drift = lead_turn - self.turn

    @property
    def is_waiting(self) -> bool:
        return self.asked_s is not None

    def rank(self, now_s: float, limits: TurnLimits) -> int:
        """Higher goes first, regardless of fairness."""
        if self.role is Role.PRIMARY or self.is_promoted or self.starves(now_s, limits):
            return 2
        return 0 if self.role is Role.FILLER else 1

    def starves(self, now_s: float, limits: TurnLimits) -> bool:
        """Whether it has waited so long that its workers on other hosts may time out."""
        return self.asked_s is not None and now_s >= self.asked_s + limits.filler_patience_s

    def ask(self, now_s: float, turn: int, floor_s: float) -> None:
        """Wait for the device.  Unused time is credited for at most one usual turn (``floor_s``: the others' time)."""
        if self.released_s is not None:
            self.usual_gap_s = smoothed(self.usual_gap_s, now_s - self.released_s)
            self.released_s = None
        self.asked_s = now_s
        self.turn = turn
        self.virtual_s = max(self.virtual_s, floor_s - (self.usual_turn_s or 0.0) / self.weight)

    def charge(self, held_s: float) -> None:
        self.virtual_s += held_s / self.weight
        self.turn_held_s += held_s

    def end_turn(self, now_s: float, next_turn: int) -> None:
        """It released the device by itself, so a gap begins."""
        self.usual_turn_s = smoothed(self.usual_turn_s, self.turn_held_s)
        self.turn_held_s = 0.0
        self.num_served += 1
        self.is_promoted = False
        self.released_s = now_s
        self.turn = next_turn


class Arbiter:
    """The lease of one device.

    >>> arbiter = Arbiter()
    >>> for event in (Joined(0.0, 1, "a"), Joined(0.0, 2, "b"), Asked(0.0, 1, turn=0)):
    ...     commands = arbiter.handle(event)
    >>> commands
    [Grant(member=1, token=1)]
    >>> arbiter.handle(Asked(0.1, 2, turn=0))
    [Recall(member=1, token=1)]
    >>> arbiter.handle(Released(0.3, 1, token=1, next_turn=1))
    [Grant(member=2, token=2)]
    """

    def __init__(self, limits: TurnLimits | None = None, *, is_lead: bool = False) -> None:
        self.limits = limits or TurnLimits()
        self.members: dict[int, Member] = {}
        self.holder: int | None = None
        self.token = 0
        """Of the last grant; valid only while there is a holder."""
        self.is_asked_back = False
        """Whether the holder should give the device back at its next border."""
        self.is_lead = is_lead
        self.forecaster = Forecaster()
        self.to_publish: TurnOrder | None = None
        """The newest order, until it is published."""
        self.num_overruled = 0
        self._order: TurnOrder | None = None
        self._is_orphan = False
        self._granted_s = 0.0
        self._charged_s = 0.0
        self._free_since_s = 0.0
        self._now_s = 0.0

    def handle(self, event: Event) -> list[Command]:
        """Commands to carry out now, in this order."""
        self._now_s = max(self._now_s, event.at_s)
        self._charge()
        match event:
            case Joined():
                self.members[event.member] = Member(event.member, event.job, event.role, event.weight)
                self._start_count(self.members[event.member])
            case Asked():
                self._ask(event)
            case Released():
                self._release(event)
            case Left():
                self._leave(event.member)
            case RoleChanged():
                for member in self.members.values():
                    if member.job == event.job:
                        member.role = event.role
            case Ordered():
                self._follow(event.order)
            case Ticked():
                pass
        return self._act()

    @property
    def is_follower(self) -> bool:
        """Whether it follows the order of a lead."""
        return self._order is not None

    def waiting(self) -> list[Member]:
        """Members that want the device, longest wait first."""
        waiting = [member for member in self.members.values() if member.asked_s is not None]
        return sorted(waiting, key=lambda member: (member.asked_s, member.key))

    def num_equals(self, member: Member) -> int:
        """How many others have or want the device and need not give way to this member."""
        rank = member.rank(self._now_s, self.limits)
        busy = [other for other in self._others(member) if other.is_waiting or other.key == self.holder]
        return sum(other.rank(self._now_s, self.limits) >= rank for other in busy)

    def wake_s(self) -> float | None:
        """When the next ``Ticked`` is due at the latest; ``None`` while no member waits."""
        if not any(member.is_waiting for member in self.members.values()):
            return None
        return self._now_s + (self.limits.tick_s if self.holder is not None else self.limits.courtesy_s / 5)

    def _ask(self, event: Asked) -> None:
        member = self.members.get(event.member)
        if member is None or member.is_waiting:
            return
        if self.holder == member.key:  # a recall failed, and it asks without having seen its token again
            self._end_hold(member, event.turn, is_asked_back=False)
        active = [other.virtual_s for other in self._others(member) if other.is_waiting or other.key == self.holder]
        floor = min(active) if active else max((other.virtual_s for other in self._others(member)), default=0.0)
        member.ask(self._now_s, event.turn, floor)

    def _release(self, event: Released) -> None:
        if self.holder == event.member and self.token == event.token:
            self._end_hold(self.members[event.member], event.next_turn, is_asked_back=event.is_asked_back)

    def _leave(self, key: int) -> None:
        self.members.pop(key, None)
        if self.holder == key:
            self._free()

    def _follow(self, order: TurnOrder | None) -> None:
        self._is_orphan = order is None and (self._is_orphan or self._order is not None)
        self._order = order
        if order is not None:
            for member in self.members.values():
                member.align(order.last_granted(member.job))

    def _end_hold(self, holder: Member, next_turn: int, *, is_asked_back: bool) -> None:
        if not is_asked_back:
            holder.end_turn(self._now_s, next_turn)
        self._free()

    def _free(self) -> None:
        self.holder = None
        self.is_asked_back = False
        self._free_since_s = self._now_s

    def _charge(self) -> None:
        if self.holder is not None:
            self.members[self.holder].charge(self._now_s - self._charged_s)
        self._charged_s = self._now_s

    def _start_count(self, newcomer: Member) -> None:
        newcomer.num_served = max((other.num_served for other in self._others(newcomer)), default=0)

    def _others(self, member: Member) -> list[Member]:
        return [other for other in self.members.values() if other.key != member.key]

    def _act(self) -> list[Command]:
        commands: list[Command] = []
        waiting = self.waiting()
        if self.holder is not None and waiting:
            commands += self._press(self.members[self.holder], waiting)
        if self.holder is None and waiting:
            chosen = self._choose(waiting)
            if chosen is not None:
                commands.append(self._grant(chosen))
                if len(waiting) > 1:  # it may have given up waiting for the server and be idle by now
                    commands.append(Recall(chosen.key, self.token))
        return commands

    def _press(self, holder: Member, waiting: Sequence[Member]) -> list[Command]:
        """Recall, ask back, or overrule the holder."""
        rank = holder.rank(self._now_s, self.limits)
        equals = [member for member in waiting if member.rank(self._now_s, self.limits) >= rank]
        if equals and self._since(equals) >= self.limits.hard_s:
            self.num_overruled += 1
            self._free()
            return [Overrule(holder.key, self.token)]
        if not self.is_asked_back and any(self._should_give_way(holder, member, rank) for member in equals):
            self.is_asked_back = True
        return [Recall(holder.key, self.token)]

    def _since(self, waiting: Sequence[Member]) -> float:
        first_s = min(self._pressing_since(member) for member in waiting)
        return self._now_s - max(self._granted_s, first_s)

    def _pressing_since(self, member: Member) -> float:
        asked_s = member.asked_s if member.asked_s is not None else self._now_s
        return asked_s + (self.limits.filler_patience_s if member.role is Role.FILLER else 0.0)

    def _should_give_way(self, holder: Member, waiting: Member, rank: int) -> bool:
        if waiting.rank(self._now_s, self.limits) > rank:
            return True
        held_s = self._since([waiting])
        if holder.role is not Role.LOCKSTEP and waiting.usual_turn_s is not None:
            lead_s = holder.virtual_s - waiting.virtual_s
            may_lead_s = self.limits.lead_turns * waiting.usual_turn_s / waiting.weight
            return held_s >= self.limits.min_piece_s and lead_s > may_lead_s
        return held_s >= max(self.limits.soft_s, 2 * (holder.usual_turn_s or 0.0))

    def _choose(self, waiting: Sequence[Member]) -> Member | None:
        """The next member; ``None`` to wait briefly for a late one."""
        top = max(member.rank(self._now_s, self.limits) for member in waiting)
        candidates = [member for member in waiting if member.rank(self._now_s, self.limits) == top]
        if self._now_s - (candidates[0].asked_s or 0.0) >= self.limits.hard_s:
            return candidates[0]
        next_turns = {member.job: member.group_turn for member in self.members.values()}
        if self._order is not None:
            return self._in_order(candidates, self._order.expected(next_turns), self._order)
        if self._is_orphan:
            return self._in_order(candidates, rotation(next_turns), None)
        if len(self.members) > 1 and all(member.role is Role.LOCKSTEP for member in self.members.values()):
            return self._in_step(candidates)
        return self._fairest(candidates)

    def _in_order(self, candidates: Sequence[Member], expected: str | None, order: TurnOrder | None) -> Member | None:
        for member in candidates:
            if member.job == expected:
                return member
        late = [member for member in self.members.values() if member.job == expected and not member.is_waiting]
        if any(self._now_s < self._courtesy_end_s(member, candidates[0]) for member in late):
            return None
        if order is not None:
            second = order.expected({member.job: member.group_turn for member in candidates})
            candidates = [member for member in candidates if member.job == second] or candidates
        return self._fairest(candidates)

    def _courtesy_end_s(self, late: Member, first: Member) -> float:
        """Until when ``first`` waits for ``late``: not at all if its gaps usually last much longer."""
        since_s = max(self._free_since_s, first.asked_s or 0.0)
        # Being out of step with the other hosts costs about a turn, so waiting for a tenth of one pays off.
        courtesy_s = max(self.limits.courtesy_s, COURTESY_TURNS * (late.usual_turn_s or 0.0))
        due_s = since_s
        if late.released_s is not None and late.usual_gap_s is not None:
            due_s = max(due_s, late.released_s + late.usual_gap_s)
        return since_s + courtesy_s if due_s <= since_s + courtesy_s else 0.0

    def _in_step(self, candidates: Sequence[Member]) -> Member | None:
        first = min(self.members.values(), key=lambda member: (member.num_served, member.job, member.key))
        if first in candidates:
            return first
        if self._now_s < self._free_since_s + self.limits.lockstep_courtesy_s:
            return None
        first.num_served += 1  # too late: it forfeits its turn
        return min(candidates, key=lambda member: (member.num_served, member.job, member.key))

    def _fairest(self, candidates: Sequence[Member]) -> Member:
        least = min(candidates, key=lambda member: member.virtual_s)
        # Differences well below a turn are noise: then serve the one served longest ago, as followers expect.
        slack_s = (least.usual_turn_s or 0.0) / 2 / least.weight
        close = [member for member in candidates if member.virtual_s <= least.virtual_s + slack_s]
        return min(close, key=lambda member: (member.served_as, member.asked_s, member.key))

    def _grant(self, member: Member) -> Grant:
        self.token += 1
        self.holder = member.key
        self.is_asked_back = False
        self._granted_s = self._now_s
        member.is_promoted |= member.starves(self._now_s, self.limits)
        member.asked_s = None
        member.served_as = self.token
        if self.is_lead and len(self.members) > 1:
            self._forecast(member)
        return Grant(member.key, self.token)

    def _forecast(self, granted: Member) -> None:
        by_age = sorted(self.members.values(), key=lambda member: (member.served_as, member.job))
        next_turns = {member.job: member.turn for member in by_age}
        next_turns[granted.job] = granted.turn + 1
        order = self.forecaster.granted(
            Turn(granted.job, granted.turn), list(dict.fromkeys(member.job for member in by_age)), next_turns
        )
        self.to_publish = order or self.to_publish
