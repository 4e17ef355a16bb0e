"""The same order of turns on all hosts, without a round trip.

[Note: turns have names]
Every worker counts its own turns, including those it took without asking the server.  All workers of a job run the same
script, so turn 17 of a job is the same computation everywhere, and "B's turn 4 comes before A's turn 18" means the same
on every host.

The counts of workers that wait different numbers of times (one of them waits for its data, say) drift apart.  Workers
of a synchronous job are never more than a turn apart, so a larger difference from the lead's count is drift, and a
follower corrects for it.

[Note: published ahead] The arbiter of rank 0's host is the lead.  It decides as if it were alone, and publishes its
recent decisions and a forecast: the job served longest ago comes next.  The other hosts follow.  A message is needed
only when the forecast was wrong or runs out; it goes one way, and no host waits for it: with an outdated order, a host
may choose differently, which only costs time.

[Note: lead lost]
Then the turn numbers alone decide: of n jobs, sorted by name, the one at position (sum of all turn numbers) mod n is
next.  Each turn moves the position by one, so all are served, and hosts that see the same turns agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft.core.plain_json import count

HORIZON = 8
"""Number of turns forecast; a new order is published when fewer than half of them are left."""
HISTORY = 8


@dataclass(frozen=True, slots=True)
class Turn:
    """One job's computation between two gaps, counted by the job itself."""

    job: str
    number: int


@dataclass(frozen=True, slots=True)
class TurnOrder:
    """The lead's recent decisions and its forecast."""

    turns: tuple[Turn, ...]
    num_past: int = 0
    """How many of the turns have been granted; the others are a forecast."""

    def last_granted(self, job: str) -> int | None:
        """The job's latest turn at the lead; ``None`` if it had none recently."""
        return max((turn.number for turn in self.turns[: self.num_past] if turn.job == job), default=None)

    def expected(self, next_turns: Mapping[str, int]) -> str | None:
        """The job whose turn comes first, given the number of each job's next turn here.

        >>> order = TurnOrder((Turn("a", 7), Turn("b", 3), Turn("a", 8)))
        >>> order.expected({"a": 8, "b": 3}), order.expected({"a": 8, "b": 4}), order.expected({"a": 9, "b": 4})
        ('b', 'a', None)
        """
        for turn in self.turns:
            if turn.number >= next_turns.get(turn.job, turn.number + 1):
                return turn.job
        return None


def rotation(next_turns: Mapping[str, int]) -> str:
    """The next job when there is no lead.

    >>> rotation({"a": 4, "b": 4}), rotation({"a": 5, "b": 4}), rotation({"a": 5, "b": 5})
    ('a', 'b', 'a')
    """
    jobs = sorted(next_turns)
    return jobs[sum(next_turns.values()) % len(jobs)]


def forecast(longest_ago_first: Sequence[str], next_turns: Mapping[str, int]) -> list[Turn]:
    """The next turns if jobs are served in rotation, the one served longest ago first.

    >>> [f"{turn.job}{turn.number}" for turn in forecast(["b", "a"], {"a": 8, "b": 4})][:4]
    ['b4', 'a8', 'b5', 'a9']
    """
    num = len(longest_ago_first)
    return [Turn(longest_ago_first[i % num], next_turns[longest_ago_first[i % num]] + i // num) for i in range(HORIZON)]


class Forecaster:
    """The lead's granted turns, and the order that follows from them."""

    def __init__(self) -> None:
        self._history: list[Turn] = []
        self._published: TurnOrder | None = None
        self._num_ahead = 0

    def granted(self, turn: Turn, longest_ago_first: Sequence[str], next_turns: Mapping[str, int]) -> TurnOrder | None:
        """The order to publish now that ``turn`` was granted; ``None`` if the last one is still right."""
        as_forecast = self._published is not None and self._is_next(self._published, turn)
        if self._history[-1:] != [turn]:  # a turn resumed after an interruption is the same turn
            self._history = [*self._history, turn][-HISTORY:]
        if as_forecast and self._num_ahead > HORIZON // 2:
            return None
        ahead = forecast(longest_ago_first, next_turns) if longest_ago_first else []
        self._num_ahead = len(ahead)
        self._published = TurnOrder((*self._history, *ahead), len(self._history))
        return self._published

    def _is_next(self, order: TurnOrder, turn: Turn) -> bool:
        place = len(order.turns) - self._num_ahead
        if self._num_ahead and order.turns[place] == turn:
            self._num_ahead -= 1
            return True
        return turn in order.turns[place - 1 : place]


def to_json(order: TurnOrder) -> dict[str, object]:
    return {"turns": [[turn.job, turn.number] for turn in order.turns], "past": order.num_past}


def from_json(message: object) -> TurnOrder | None:
    """Parse a message of the lead; ``None`` if it is invalid."""
    turns = message.get("turns") if isinstance(message, dict) else None
    num_past = count(message.get("past")) if isinstance(message, dict) else None
    if not isinstance(turns, list) or len(turns) > HISTORY + HORIZON or not all(_is_turn(turn) for turn in turns):
        return None
    if num_past is None or num_past > len(turns):
        return None
    return TurnOrder(tuple(Turn(job, number) for job, number in turns), num_past)


def _is_turn(turn: object) -> bool:
    return isinstance(turn, list) and len(turn) == 2 and isinstance(turn[0], str) and count(turn[1]) is not None
