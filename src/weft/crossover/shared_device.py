"""One shared device at the server: its arbiter, and the pages to which decisions are written."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from weft.crossover import lease_kernel
from weft.crossover.arbiter import Arbiter
from weft.crossover.lease_events import Event, Grant, Overrule, Recall, Released
from weft.crossover.phases import TurnLimits
from weft.crossover.shared_page import ASKED_BACK, IDLE, NUM_EQUALS, NUM_WAITING, PAUSED, STATE, TOKEN, TURN, Page


class DeviceMember(Protocol):
    """A client, as seen by its device."""

    page: Page

    def ring(self) -> None: ...


class SharedDevice:
    """Feeds events to the arbiter and carries out its commands."""

    def __init__(self, name: str, limits: TurnLimits) -> None:
        self.name = name
        self.arbiter = Arbiter(limits)
        self.members: dict[int, DeviceMember] = {}
        self.num_grants = 0
        self._pauses: dict[int, tuple[int, float]] = {}
        """The turn before which a member paused, and when that was first seen."""

    def tell(self, event: Event) -> None:
        """Handle an event and all events that follow from it."""
        events = deque([event])
        while events:
            happened = events.popleft()
            commands = self.arbiter.handle(happened)
            self._show()
            for command in commands:
                match command:
                    case Grant():
                        self._grant(command)
                    case Recall():
                        if self._take(command, happened.at_s):
                            next_turn = self.members[command.member].page.words[TURN]
                            events.append(Released(happened.at_s, command.member, command.token, next_turn))
                    case Overrule():
                        self.members[command.member].page.words[TOKEN] = 0

    def _show(self) -> None:
        """Update the pages, before any command: see [Note: two writers, no locks]."""
        num_waiting = len(self.arbiter.waiting())
        for key, member in self.members.items():
            state = self.arbiter.members.get(key)
            if state is None:
                continue
            words = member.page.words
            words[NUM_WAITING] = num_waiting - state.is_waiting
            words[NUM_EQUALS] = self.arbiter.num_equals(state)
            words[ASKED_BACK] = int(self.arbiter.is_asked_back and self.arbiter.holder == key)
            if self.arbiter.holder != key:
                words[TOKEN] = 0

    def _grant(self, grant: Grant) -> None:
        self.num_grants += 1
        member = self.members[grant.member]
        member.page.words[TOKEN] = grant.token
        member.ring()

    def _take(self, recall: Recall, now_s: float) -> bool:
        """Take a lent lease from a client that does not compute; returns whether it worked."""
        words = self.members[recall.member].page.words
        lease_kernel.barrier()
        state = words[STATE]
        if state == PAUSED:
            if not self._is_long_pause(recall.member, words[TURN], now_s):
                return False
        elif state != IDLE:
            return False  # at the end of its turn it will see that another member waits, and release
        words[TOKEN] = 0
        lease_kernel.barrier()
        if words[STATE] == state:
            return True
        words[TOKEN] = recall.token
        return False

    def _is_long_pause(self, member: int, turn: int, now_s: float) -> bool:
        """Whether a gap that was expected to be short has become long."""
        known_turn, since_s = self._pauses.get(member, (-1, 0.0))
        if known_turn != turn:
            self._pauses[member] = (turn, now_s)
            return False
        return now_s - since_s >= self.arbiter.limits.tick_s / 2
