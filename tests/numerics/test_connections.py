"""What training does to the connections between its workers, and to nobody else's."""

from __future__ import annotations

import contextlib
import os
import socket
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
    """Of all connections; those of earlier tests may close while we look."""
    found = {}
    for number, inode in tcp_connections():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
            found[number, inode] = connection.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2
    return found


@on_workers(3)
def test_where_two_send_to_one_they_share_a_small_window():
    assert _windows_after_training(LINK).count(WINDOW) == 2


@on_workers(2)
def test_between_two_workers_nothing_is_limited():
    assert WINDOW not in _windows_after_training(LINK)
