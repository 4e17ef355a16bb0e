"""Each receiver of several senders offers them a few milliseconds of the link, and changes no other sockets."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from weft.overlap.transport import receive_window
from weft.overlap.transport.receive_window import (
    hold_window,
    limit_window,
    release_window,
    tcp_connections,
    window_bytes,
)
from weft.perf.link import Link

GIGABIT = Link(alpha_s=0.2e-3, beta_s_per_byte=8e-9)


def buffer_of(connection: socket.socket) -> int:
    """Linux reserves the same amount again for its own bookkeeping."""
    return connection.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as near:
        far, _ = server.accept()
        with far:
            yield near, far


def test_only_the_named_connections_are_limited(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    others = buffer_of(far)
    limit_window([(near.fileno(), os.fstat(near.fileno()).st_ino)], 50_000)
    assert buffer_of(near) == 50_000
    assert buffer_of(far) == others
    near.sendall(b"still open")
    assert far.recv(100) == b"still open"


def test_a_window_is_held_small_until_it_is_released(pair: tuple[socket.socket, socket.socket]) -> None:
    near, _ = pair
    named = [(near.fileno(), os.fstat(near.fileno()).st_ino)]
    hold_window(named)
    assert buffer_of(near) == 64 << 10
    assert is_fixed(near)
    release_window(named)
    assert not is_fixed(near)


def is_fixed(connection: socket.socket) -> bool:
    """Whether its receive buffer keeps its size, whatever arrives."""
    return bool(connection.getsockopt(socket.SOL_SOCKET, 72) & 2)  # SO_BUF_LOCK, SOCK_RCVBUF_LOCK


def test_a_connection_with_a_long_round_trip_is_not_held(pair: tuple[socket.socket, socket.socket]) -> None:
    near, _ = pair
    before = buffer_of(near)
    with patch.object(receive_window, "_MAX_LOCAL_RTT_S", -1.0):
        hold_window([(near.fileno(), os.fstat(near.fileno()).st_ino)])
    assert buffer_of(near) == before


def test_new_connections_are_distinguished(pair: tuple[socket.socket, socket.socket]) -> None:
    before = tcp_connections()
    assert {number for number, _ in before} >= {end.fileno() for end in pair}
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as made:
        assert {number for number, _ in tcp_connections() - before} == {made.fileno()}, "a listening one is none"


def test_a_descriptor_reused_by_another_socket_is_left_alone(pair: tuple[socket.socket, socket.socket]) -> None:
    near, _ = pair
    before = buffer_of(near)
    limit_window([(near.fileno(), os.fstat(near.fileno()).st_ino + 1), (99_999, 1)], 50_000)
    assert buffer_of(near) == before


@pytest.mark.parametrize(("num_workers", "total"), [(3, 375_000), (4, 375_000), (6, 375_000), (1001, 1000 << 16)])
def test_all_senders_together_get_a_few_milliseconds_of_the_link(num_workers: int, total: int) -> None:
    window = window_bytes(num_workers, GIGABIT)
    assert window is not None
    assert (num_workers - 1) * window == total


@pytest.mark.parametrize(
    "link",
    [
        Link(alpha_s=0.0, beta_s_per_byte=0.0),
        Link(alpha_s=0.0, beta_s_per_byte=0.8e-9),  # 10 Gb/s
        Link(alpha_s=30e-3, beta_s_per_byte=80e-9),  # a long-distance line
    ],
)
def test_fast_and_long_links_are_left_to_tcp(link: Link) -> None:
    assert window_bytes(4, link) is None
