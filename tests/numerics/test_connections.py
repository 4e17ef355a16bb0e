"""What training does to the connections between its own workers, and to no others."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from unittest.mock import patch

import torch
from torch import nn

import weft
from weft.overlap.transport.receive_window import Connection, tcp_connections
from weft.perf.link import Link
from workers import on_workers

LINK = Link(alpha_s=0.2e-3, beta_s_per_byte=10e-9)  # 800 Mb/s
WINDOW = 150_000


def _windows_after_training(link: Link) -> list[int]:
    """Receive buffers of the connections made by weft.overlap, once it has measured this link."""
    before = _windows()
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weft.overlap(model, optimizer)
    own = _windows().keys() - before.keys()
    with patch("weft.overlap.tuning.measure_link", lambda transport, device: link):
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 64)).sum().backward()
            optimizer.step()
    after = _windows()
    assert [found for found in before if WINDOW == after.get(found) != before[found]] == [], "not ours"
    return [after[found] for found in own]


def _windows() -> dict[Connection, int]:
    """For all connections; those of earlier tests may close in the meantime."""
    found = {}
    for number, inode in tcp_connections():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
            found[number, inode] = connection.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2
    return found


@on_workers(3)
def test_two_senders_to_one_receiver_share_a_small_window():
    assert _windows_after_training(LINK).count(WINDOW) == 4, "one connection a way with each of two others"


@on_workers(3)
def test_windows_are_held_before_the_first_gradients_and_never_shrink():
    """What a sender was offered before may still come, and is dropped: it notices only 0.2 s later."""
    slow, fast = Link(alpha_s=0.2e-3, beta_s_per_byte=10e-6), Link(alpha_s=0.2e-3, beta_s_per_byte=0.1e-9)
    for link, held_after in ((LINK, 4), (slow, 4), (fast, 0)):
        before = _windows()
        model = nn.Linear(512, 512)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        weft.overlap(model, optimizer)
        own = _windows().keys() - before.keys()
        held: list[Connection] = [found for found in own if _is_held(found[0])]
        at_first = {found: _windows()[found] for found in held}
        assert len(held) == 4, "one connection a way with each of two others"
        with patch("weft.overlap.tuning.measure_link", lambda transport, device, link=link: link):
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.randn(4, 512)).sum().backward()
                optimizer.step()
        now = _windows()
        assert all(now[found] >= at_first[found] for found in held)
        assert sum(_is_held(number) for number, _ in held) == held_after


def _is_held(number: int) -> bool:
    """Whether the size of its receive buffer is fixed."""
    with socket.socket(fileno=os.dup(number)) as connection:
        return bool(connection.getsockopt(socket.SOL_SOCKET, 72) & 2)  # SO_BUF_LOCK, SOCK_RCVBUF_LOCK


@on_workers(2)
def test_two_workers_use_no_receive_window():
    assert WINDOW not in _windows_after_training(LINK)


@on_workers(2)
def test_no_connection_of_ours_stalls_under_bbr():
    before = tcp_connections()
    model = nn.Linear(64, 64)
    weft.overlap(model, torch.optim.SGD(model.parameters(), lr=0.1), tune=False)
    names = [_congestion_control(number) for number, _ in tcp_connections() - before]
    assert names.count("bbr") <= 1, f"only the state service's connection may use it: {names}"


def _congestion_control(number: int) -> str:
    with socket.socket(fileno=os.dup(number)) as connection:
        return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()


@on_workers(2)
def test_a_connection_carries_gradients_and_parameters_one_way():
    before = tcp_connections()
    model = nn.Linear(256, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = weft.overlap(model, optimizer, tune=False)
    own = tcp_connections() - before
    already = {number: _carried(number) for number, _ in own}
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(4, 256)).sum().backward()
        optimizer.step()
    handle.flush()
    some = 4 * 256 * 256  # half of the gradients and half of the parameters, of four bytes, in one step
    carried = [[now - then for now, then in zip(_carried(number), already[number], strict=True)] for number, _ in own]
    used = [ways for ways in carried if max(ways) > some]
    assert len(used) == 2, "one to send on, one to receive on; the state service's was not asked"
    assert all(min(ways) < some / 4 for ways in used), f"bytes sent and received by each connection: {carried}"


def _carried(number: int) -> tuple[int, int]:
    """Bytes sent, as far as they have been acknowledged, and bytes received."""
    with socket.socket(fileno=os.dup(number)) as connection:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
    acknowledged, received = struct.unpack_from("QQ", info, 120)
    return acknowledged, received
