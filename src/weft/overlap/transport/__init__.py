"""How bytes move between workers: one interface, two implementations (gloo and NCCL)."""

from weft.overlap.transport.base import Exchange, Transport
from weft.overlap.transport.choice import transport_for

__all__ = ["Exchange", "Transport", "transport_for"]
