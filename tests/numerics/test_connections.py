"""What training does to the connections between its workers, and to nobody else's."""

from __future__ import annotations

import os
import socket

import torch
from torch import nn

import weft
from weft.overlap import tuning
from weft.overlap.transport.receive_window import Connection, tcp_connections
from weft.perf.link import Link
from workers import on_workers

LINK = Link(alpha_s=0.2e-3, beta_s_per_byte=10e-9)  # 800 Mb/s
WINDOW = 150_000


def _windows_after_training(link: Link) -> list[int]:
    """Receive buffers of the connections made by weft.overlap, once it has measured this link."""
    before = {found: _window(found) for found in tcp_connections()}
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weft.overlap(model, optimizer)
    own = tcp_connections() - before.keys()
    measured = tuning.measure_link
    tuning.measure_link = lambda transport, device: link
    try:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 64)).sum().backward()
            optimizer.step()
    finally:
        tuning.measure_link = measured
    assert [found for found in before if WINDOW == _window(found) != before[found]] == [], "not ours"
    return [_window(found) for found in own]


def _window(found: Connection) -> int:
    with socket.socket(fileno=os.dup(found[0])) as connection:
        return connection.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2


@on_workers(3)
def test_where_two_send_to_one_they_share_a_small_window():
    assert _windows_after_training(LINK).count(WINDOW) == 2


@on_workers(2)
def test_between_two_workers_nothing_is_limited():
    assert WINDOW not in _windows_after_training(LINK)
