"""One worker at the arbiter: what it wants, what it had, and how long its turns and gaps usually are."""

from __future__ import annotations

from dataclasses import dataclass

from weft.crossover.phases import Limits, Role, smoothed


@dataclass(slots=True)
class Member:
    """A worker that shares the device."""

    key: int
    job: str
    role: Role = Role.FAIR
    weight: float = 1.0
    turn: int = 0
    """The number of its present turn, or of its next one."""
    asked_s: float | None = None
    """Since when it waits; ``None`` when it does not."""
    released_s: float | None = None
    """When its last gap began; ``None`` outside a gap."""
    virtual_s: float = 0.0
    """Time it had the device, over its weight: the least is next."""
    turn_held_s: float = 0.0
    """Time it has computed in this turn, in pieces if it was asked back."""
    usual_turn_s: float | None = None
    usual_gap_s: float | None = None
    num_served: int = 0
    """Turns had or forfeited since it shares; only lockstep counts them."""
    served_as: int = 0
    """Place among all grants of its last one: the least was served longest ago."""

    @property
    def is_waiting(self) -> bool:
        return self.asked_s is not None

    def rank(self, now_s: float, limits: Limits) -> int:
        """Higher goes first, whatever fairness says."""
        if self.role is Role.PRIMARY:
            return 2
        starves = self.asked_s is not None and now_s >= self.asked_s + limits.filler_patience_s
        return 2 if starves else 0 if self.role is Role.FILLER else 1

    def ask(self, now_s: float, turn: int, floor_s: float) -> None:
        """It wants the device.  Time not used counts for one usual turn and no more (``floor_s``: the others)."""
        if self.released_s is not None:
            self.usual_gap_s = smoothed(self.usual_gap_s, now_s - self.released_s)
            self.released_s = None
        self.asked_s = now_s
        self.turn = turn
        self.virtual_s = max(self.virtual_s, floor_s - (self.usual_turn_s or 0.0) / self.weight)

    def charge(self, held_s: float) -> None:
        """It has had the device for so long."""
        self.virtual_s += held_s / self.weight
        self.turn_held_s += held_s

    def end_turn(self, now_s: float, next_turn: int) -> None:
        """It gave the device back of its own will: its gap begins."""
        self.usual_turn_s = smoothed(self.usual_turn_s, self.turn_held_s)
        self.turn_held_s = 0.0
        self.num_served += 1
        self.released_s = now_s
        self.turn = next_turn
