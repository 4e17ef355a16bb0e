"""The arbiter's events (past tense) and commands (imperative).

The caller numbers the members; times are seconds of one monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.crossover.order import TurnOrder
from weft.crossover.phases import Role


@dataclass(frozen=True, slots=True)
class Joined:
    at_s: float
    member: int
    job: str
    role: Role = Role.FAIR
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Asked:
    at_s: float
    member: int
    turn: int


@dataclass(frozen=True, slots=True)
class Released:
    """The holder of ``token`` no longer computes: its gap began, or it was asked back."""

    at_s: float
    member: int
    token: int
    next_turn: int = 0
    is_asked_back: bool = False


@dataclass(frozen=True, slots=True)
class Left:
    at_s: float
    member: int


@dataclass(frozen=True, slots=True)
class RoleChanged:
    at_s: float
    job: str
    role: Role


@dataclass(frozen=True, slots=True)
class Ordered:
    """The group's lead published an order; ``None`` if the lead was lost."""

    at_s: float
    order: TurnOrder | None


@dataclass(frozen=True, slots=True)
class Ticked:
    at_s: float


Event = Joined | Asked | Released | Left | RoleChanged | Ordered | Ticked


@dataclass(frozen=True, slots=True)
class Grant:
    """Give the device to this member, which waits for it."""

    member: int
    token: int


@dataclass(frozen=True, slots=True)
class Recall:
    """Another member waits: take the device from this one if it is idle, and report ``Released``."""

    member: int
    token: int


@dataclass(frozen=True, slots=True)
class Overrule:
    """Invalidate this member's token: it has lost the device, whatever it does."""

    member: int
    token: int


Command = Grant | Recall | Overrule
