"""The rendezvous port is ours from the moment it is chosen."""

import socket

from weft.engines.rendezvous import ReservedPort


def test_two_jobs_started_at_the_same_time_get_different_ports():
    ports = [ReservedPort() for _ in range(50)]
    assert len({port.port for port in ports}) == 50
    for port in ports:
        port.close()


def test_rank_0_can_listen_on_it_and_a_stranger_is_not_given_it():
    with ReservedPort() as port, socket.socket() as store, socket.socket() as stranger:
        stranger.bind(("", 0))
        assert stranger.getsockname()[1] != port.port
        store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        store.bind(("", port.port))
        store.listen()
        with socket.create_connection(("127.0.0.1", port.port)) as worker, store.accept()[0] as accepted:
            worker.sendall(b"hello")
            assert accepted.recv(5) == b"hello"
