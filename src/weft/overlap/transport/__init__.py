"""How bytes move between workers: one interface, three carriers (gloo, NCCL, a fake on virtual time)."""

from weft.overlap.transport.base import Exchange, Transport
from weft.overlap.transport.choice import transport_for

__all__ = ["Exchange", "Transport", "transport_for"]
