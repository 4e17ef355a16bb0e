"""One worker at the arbiter: what it wants, what it had, and how long its turns and gaps usually are."""

from __future__ import annotations

from dataclasses import dataclass

from weft.crossover.phases import Role, TurnLimits, smoothed


@dataclass(slots=True)
class Member:
    """A worker that shares the device."""

    key: int
    job: str
    role: Role = Role.FAIR
    weight: float = 1.0
    turn: int = 0
    """The number of its present turn, or of its next one."""
    drift: int = 0
    """What to add to its count of turns for that of the lead of the group."""
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
    is_promoted: bool = False
    """A filler that waited too long: the rest of this turn it is the equal of a primary."""
    served_as: int = 0
    """Place among all grants of its last one: the least was served longest ago."""

    @property
    def group_turn(self) -> int:
        """Its turn as all hosts count it."""
        return self.turn + self.drift

    def align(self, lead_turn: int | None) -> None:
        """Compare counts with the lead; see [Note: turns have names] in ``order``."""
        if lead_turn is not None and abs(lead_turn - self.group_turn) > 1:
            self.drift = lead_turn - self.turn

    @property
    def is_waiting(self) -> bool:
        return self.asked_s is not None

    def rank(self, now_s: float, limits: TurnLimits) -> int:
        """Higher goes first, whatever fairness says."""
        if self.role is Role.PRIMARY or self.is_promoted or self.starves(now_s, limits):
            return 2
        return 0 if self.role is Role.FILLER else 1

    def starves(self, now_s: float, limits: TurnLimits) -> bool:
        """Whether others have gone first for so long that its peers on other hosts may give up on it."""
        return self.asked_s is not None and now_s >= self.asked_s + limits.filler_patience_s

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
        self.is_promoted = False
        self.released_s = now_s
        self.turn = next_turn
