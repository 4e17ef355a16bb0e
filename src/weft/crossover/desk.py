"""Handles the messages of the lease server's peers, and manages devices, leads, and followers."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

from weft.crossover.group import Follower, Lead, listen_at
from weft.crossover.lease_events import Asked, Event, Joined, Left, Ordered, Released, RoleChanged, Ticked
from weft.crossover.lease_messages import (
    BELL,
    MAX_PACKET_BYTES,
    Join,
    LeaseVerb,
    TurnMessage,
    join_from,
    lead_from,
    packed,
    role_from,
    unpacked,
)
from weft.crossover.order import TurnOrder
from weft.crossover.phases import TurnLimits
from weft.crossover.shared_device import SharedDevice
from weft.crossover.shared_page import Page, make_page
from weft.errors import LeaseError

_log = logging.getLogger("weft.crossover")


class Peer:
    """One connection: a worker once it has joined, otherwise a process that asks for status or changes a role."""

    page: Page

    def __init__(self, connection: socket.socket, pidfd: int | None, pid: int) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.pidfd = pidfd
        self.pid = pid
        self.join: Join | None = None
        self.is_gone = False

    def welcome(self, join: Join, limits: dict[str, float]) -> None:
        """Make it a member and send it its page."""
        descriptor = make_page()
        try:
            self.page = Page(descriptor)
            self.join = join
            with self._must_get_through():
                socket.send_fds(self.connection, [packed({"kind": "welcome", **limits})], [descriptor])
        finally:
            os.close(descriptor)

    def ring(self) -> None:
        """Make it look at its page."""
        self.send(BELL)

    def send(self, packet: bytes) -> None:
        """Drops the peer if the packet does not get through: its socket buffers thousands of them."""
        with self._must_get_through():
            self.connection.send(packet)

    def packets(self) -> Iterator[bytes]:
        while not self.is_gone:
            try:
                packet = self.connection.recv(MAX_PACKET_BYTES)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if not packet:
                self.is_gone = True
                return
            yield packet

    def close(self) -> None:
        self.connection.close()
        if self.pidfd is not None:
            os.close(self.pidfd)
        if self.join is not None:
            self.page.close()

    @contextlib.contextmanager
    def _must_get_through(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self.is_gone = True


class Desk:
    """All shared devices of this host."""

    def __init__(
        self,
        limits: TurnLimits,
        watch: Callable[[socket.socket, int, Callable[[], None]], None],
        now: Callable[[], float],
    ) -> None:
        self._limits = limits
        self._watch = watch
        self._now = now
        self._keys = itertools.count(1)
        self._members: dict[Peer, tuple[int, SharedDevice]] = {}
        self._devices: dict[str, SharedDevice] = {}
        self._leads: dict[str, Lead] = {}
        self._followers: dict[str, Follower] = {}
        self._orders: dict[str, TurnOrder] = {}
        """The newest order of each group, for devices that join it later."""
        self._reserved: dict[str, tuple[str, socket.socket]] = {}
        """By device: where its group will be led, and the socket that holds that address until then."""

    def hear(self, peer: Peer, packet: bytes) -> bool:
        """Act on a packet; ``False`` if it is invalid and the peer should be dropped."""
        message = unpacked(packet)
        if isinstance(message, TurnMessage):
            return self._turn(peer, message)
        if message is None:
            return False
        join = join_from(message)
        if join is not None and peer.join is None:
            self._join(peer, join)
            return True
        if message.get("kind") == "lead":
            wanted = lead_from(message)
            if wanted is not None:
                peer.send(packed({"kind": "lead", "address": self._lead_address(*wanted)}))
            return wanted is not None
        if message.get("kind") == "role" and not self._change_role(message):
            return False
        if message.get("kind") not in ("role", "status"):
            return False
        peer.send(packed(self.status()))
        return True

    def leave(self, peer: Peer) -> None:
        if peer not in self._members:
            return
        key, device = self._members.pop(peer)
        del device.members[key]
        self._tell(device, Left(self._now(), key))
        if not device.members:
            del self._devices[device.name]
        self._disband()

    def tick(self) -> None:
        now_s = self._now()
        for device in list(self._devices.values()):
            wake_s = device.arbiter.wake_s()
            if wake_s is not None and wake_s <= now_s:
                self._tell(device, Ticked(now_s))
        for follower in self._followers.values():
            follower.tick(now_s)

    def wake_s(self) -> float | None:
        """When :meth:`tick` is due."""
        times = [device.arbiter.wake_s() for device in self._devices.values()]
        times += [follower.due_s for follower in self._followers.values()]
        return min((time_s for time_s in times if time_s is not None), default=None)

    def close(self) -> None:
        for lead in self._leads.values():
            lead.close()
        for follower in self._followers.values():
            follower.close()
        for _, listener in self._reserved.values():
            listener.close()

    def status(self) -> dict[str, Any]:
        return {
            "kind": "status",
            "pid": os.getpid(),
            "devices": {name: _status(device) for name, device in self._devices.items()},
        }

    def _join(self, peer: Peer, join: Join) -> None:
        device = self._devices.setdefault(join.device, SharedDevice(join.device, self._limits))
        key = next(self._keys)
        peer.welcome(join, {"hard_s": self._limits.hard_s, "handover_s": self._limits.handover_s})
        self._members[peer] = (key, device)
        device.members[key] = peer
        self._tell(device, Joined(self._now(), key, join.job, join.role, join.weight))
        if join.lead:
            self._enter_group(device, join)

    def _turn(self, peer: Peer, message: TurnMessage) -> bool:
        if peer not in self._members:
            return False
        key, device = self._members[peer]
        now_s = self._now()
        if message.verb is not LeaseVerb.ASK:
            self._tell(device, Released(now_s, key, message.token, message.turn, message.verb is LeaseVerb.YIELD))
        if message.verb is not LeaseVerb.RELEASE:
            self._tell(device, Asked(now_s, key, message.turn))
        return True

    def _change_role(self, message: dict[str, Any]) -> bool:
        role, _ = role_from(message)
        job = message.get("job")
        if role is None or not isinstance(job, str):
            return False
        for device in self._devices.values():
            self._tell(device, RoleChanged(self._now(), job, role))
        return True

    def _tell(self, device: SharedDevice, event: Event) -> None:
        device.tell(event)
        self._publish(device)

    def _publish(self, device: SharedDevice) -> None:
        order = device.arbiter.to_publish
        if order is None:
            return
        device.arbiter.to_publish = None
        for address in self._addresses(device):
            if address in self._leads:
                self._leads[address].publish(order)
                self._follow(address, order)

    def _lead_address(self, device: str, host: str) -> str:
        """Where the group whose rank 0 has this device is led, now or soon; "" if this host has no such address."""
        for peer, (_, at) in self._members.items():
            if at.name == device and peer.join is not None and peer.join.is_first and peer.join.lead:
                return peer.join.lead
        if device not in self._reserved:
            try:
                listener = listen_at(host)
            except (OSError, ValueError) as error:
                _log.warning("cannot lead a group at %s: %s", host, error)
                return ""
            shown = f"[{host}]" if ":" in host else host
            self._reserved[device] = f"{shown}:{listener.getsockname()[1]}", listener
        return self._reserved[device][0]

    def _listener_at(self, address: str) -> socket.socket | None:
        for device, (reserved, listener) in self._reserved.items():
            if reserved == address:
                del self._reserved[device]
                return listener
        return None

    def _enter_group(self, device: SharedDevice, join: Join) -> None:
        address = join.lead
        if join.is_first and address not in self._leads:
            try:
                self._leads[address] = Lead(address, join.key, self._watch, self._listener_at(address))
            except (LeaseError, OSError, ValueError) as error:
                _log.warning("cannot lead the group at %s: %s", address, error)
        if address in self._leads:
            device.arbiter.is_lead |= join.is_first
        elif address not in self._followers:
            try:
                self._followers[address] = Follower(
                    address, join.key, self._watch, lambda order: self._follow(address, order)
                )
            except LeaseError as error:
                _log.warning("%s", error)
        if address in self._orders and not device.arbiter.is_lead:
            self._tell(device, Ordered(self._now(), self._orders[address]))

    def _follow(self, address: str, order: TurnOrder | None) -> None:
        if order is None:
            self._orders.pop(address, None)
        else:
            self._orders[address] = order
        for device in list(self._devices.values()):
            if not device.arbiter.is_lead and address in self._addresses(device):
                self._tell(device, Ordered(self._now(), order))

    def _addresses(self, device: SharedDevice) -> set[str]:
        joins = [peer.join for peer, (_, at) in self._members.items() if at is device]
        return {join.lead for join in joins if join is not None and join.lead}

    def _disband(self) -> None:
        """Close the connections of groups whose workers are gone."""
        wanted = {peer.join.lead for peer in self._members if peer.join is not None}
        for address in self._leads.keys() - wanted:
            self._leads.pop(address).close()
        for address in self._followers.keys() - wanted:
            self._followers.pop(address).close()
        for address in self._orders.keys() - wanted:
            del self._orders[address]


def _status(device: SharedDevice) -> dict[str, Any]:
    arbiter = device.arbiter
    return {
        "holder": None if arbiter.holder is None else arbiter.members[arbiter.holder].job,
        "token": arbiter.token,
        "grants": device.num_grants,
        "overruled": arbiter.num_overruled,
        "leads": arbiter.is_lead,
        "follows": arbiter.is_follower,
        "jobs": [
            {
                "job": member.job,
                "role": member.role.value,
                "waiting": member.is_waiting,
                "turn": member.turn,
                "usual_turn_s": member.usual_turn_s,
                "usual_gap_s": member.usual_gap_s,
            }
            for member in arbiter.members.values()
        ],
    }
