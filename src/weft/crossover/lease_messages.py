"""The protocol between client and lease server: packets over a Unix socket.

A client's first packet is a JSON object: ``join`` (it becomes a member; the answer is ``welcome`` with the shared page
attached), ``role`` (change how a job shares), ``lead`` (ask for the address of the lead of the group whose rank 0 has
this device), or ``status``.  After that, a member sends :class:`TurnMessage` packets, and the server sends bells: one
byte that means "look at your page".
"""

from __future__ import annotations

import enum
import json
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from weft.core.plain_json import parse_object, real, text
from weft.crossover.phases import Role
from weft.errors import LeaseError

MAX_PACKET_BYTES: Final = 1 << 16
MAX_SOCKET_PATH_BYTES: Final = 107
MAX_TEXT: Final = 512
MAX_WEIGHT: Final = 1e6
ROLES: Final = [role.value for role in Role]  # not a set: the value looked up may be unhashable
BELL: Final = b"!"
_TURN_MESSAGE = struct.Struct("<BQQ")


def check_path(path: Path) -> None:
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        raise LeaseError(
            f"the path {path} is too long for a Unix socket ({MAX_SOCKET_PATH_BYTES} bytes): use a shorter WEFT_HOME"
        )


class LeaseVerb(enum.IntEnum):
    ASK = 1
    """I want the device."""
    RELEASE = 2
    """My gap began."""
    YIELD = 3
    """I was asked back: I release the device and want it again."""


@dataclass(frozen=True, slots=True)
class TurnMessage:
    verb: LeaseVerb
    token: int
    turn: int

    def packed(self) -> bytes:
        return _TURN_MESSAGE.pack(self.verb, self.token, self.turn)


@dataclass(frozen=True, slots=True)
class Join:
    job: str
    device: str
    role: Role = Role.FAIR
    weight: float = 1.0
    is_first: bool = False
    """Whether this is rank 0 of its job: its host leads the group."""
    lead: str = ""
    key: str = ""

    def packed(self) -> bytes:
        fields = {name: getattr(self, name) for name in self.__slots__}
        return packed({"kind": "join", **fields, "role": self.role.value})


def packed(message: dict[str, Any]) -> bytes:
    """A JSON packet."""
    return json.dumps(message, separators=(",", ":")).encode()


def unpacked(packet: bytes) -> TurnMessage | dict[str, Any] | None:
    """Parse a packet; ``None`` if it is invalid."""
    if len(packet) == _TURN_MESSAGE.size and packet[0] <= max(LeaseVerb):
        verb, token, turn = _TURN_MESSAGE.unpack(packet)
        return TurnMessage(LeaseVerb(verb), token, turn) if verb else None
    return parse_object(packet)


def join_from(message: dict[str, Any]) -> Join | None:
    """Parse a ``join`` message; ``None`` if it is invalid."""
    role, weight = role_from(message)
    if message.get("kind") != "join" or role is None:
        return None
    job, device, lead, key = (text(message.get(name, ""), MAX_TEXT) for name in ("job", "device", "lead", "key"))
    if not job or not device or lead is None or key is None:
        return None
    return Join(job, device, role, weight, is_first=bool(message.get("is_first")), lead=lead, key=key)


def lead_from(message: dict[str, Any]) -> tuple[str, str] | None:
    """Device and host of a ``lead`` message; ``None`` if it is invalid."""
    device, host = (text(message.get(name), MAX_TEXT) for name in ("device", "host"))
    return (device, host) if device and host else None


def role_from(message: dict[str, Any]) -> tuple[Role | None, float]:
    """Role and weight in a message; the role is ``None`` if either is invalid."""
    weight = real(message.get("weight", 1.0))
    name = message.get("role", Role.FAIR.value)
    if weight is None or not 1 / MAX_WEIGHT <= weight <= MAX_WEIGHT or name not in ROLES:
        return None, 1.0
    return Role(name), weight
