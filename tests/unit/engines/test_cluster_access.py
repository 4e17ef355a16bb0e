"""One message for each way in which a Ray cluster cannot be used; each says what to do."""

from __future__ import annotations

import asyncio
import re
import socket
from typing import Any

import pytest

pytest.importorskip("ray")
from weft.engines.ray import cluster_access
from weft.engines.ray.cluster_access import ClusterRefused, connect

MISMATCH = """Version mismatch: The cluster was started with:
    Ray: 2.56.0
    Python: 3.11.7
This process on Ray Client was started with:
    Ray: 2.60.0
    Python: 3.11.7
"""


class NoHead:
    """What is found when Ray's head is asked directly: nothing, unless a test says otherwise."""

    says: Exception = ConnectionError("nobody there")

    def __init__(self, address: str) -> None:
        raise self.says


@pytest.fixture(autouse=True)
def head(monkeypatch: pytest.MonkeyPatch) -> type[NoHead]:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    own = type("OwnHead", (NoHead,), {})
    monkeypatch.setattr("ray._raylet.GcsClient", own)
    monkeypatch.setattr("ray._private.services.canonicalize_bootstrap_address", lambda address: address)
    return own


def refusal_of(address: str, *, insecure: bool = False) -> str:
    with pytest.raises(ClusterRefused) as refused:
        connect(address, "weft-test", insecure=insecure)
    return str(refused.value)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ConnectionError("no address"), "no Ray cluster is running on this machine: start one with `ray start --head`"),
        (
            RuntimeError("Unauthenticated: wrong token"),
            "rejected our token: RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH must",
        ),
        (
            RuntimeError(MISMATCH),
            "runs Ray 2.56.0 and Python 3.11.7, this environment has Ray 2.60.0 and Python 3.11.7",
        ),
        (RuntimeError("no raylet here"), "run `ray start --address=HOST:PORT` on this machine first"),
    ],
)
def test_an_error_from_ray_becomes_advice(monkeypatch: pytest.MonkeyPatch, error: Exception, told: str) -> None:
    def fail(**_: Any) -> None:
        raise error

    monkeypatch.setattr(cluster_access.ray, "init", fail)
    assert told in refusal_of("auto")


def test_a_wrong_token_is_distinguished_from_a_missing_cluster(
    monkeypatch: pytest.MonkeyPatch, head: type[NoHead]
) -> None:
    """Ray fails to connect in both cases, with the same words; only its head knows."""

    def fail(**_: Any) -> None:
        raise ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379")

    monkeypatch.setattr(cluster_access.ray, "init", fail)
    monkeypatch.setattr(head, "says", cluster_access.ray.exceptions.AuthenticationError("InvalidAuthToken"))
    assert "the Ray cluster on this machine rejected our token: RAY_AUTH_TOKEN" in refusal_of("auto")


def test_an_invalid_address_gets_an_example() -> None:
    assert "expected HOST:PORT, such as 10.0.0.1:6379, or auto" in refusal_of("head")


def test_a_port_without_a_listener_is_named() -> None:
    with socket.socket() as held:  # bound, not listening: refused, and nobody else gets it
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        assert re.match(f"nothing responds at {address} .*ray start --head.*firewall", refusal_of(address))


def test_without_a_token_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE")
    said = refusal_of("auto")
    assert "anyone who can reach its ports can run code as you" in said
    assert "--insecure-ray" in said


def test_an_actor_whose_removal_ray_has_not_heard_of_yet_is_removed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """``ray.kill`` returns before its request is sent; a process that exits right after it takes the request along."""
    left = ["job 1", "job 2"]
    lost = ["job 2"]

    def kill(name: str, *, no_restart: bool) -> None:
        assert no_restart
        (lost if name in lost else left).remove(name)

    monkeypatch.setattr(cluster_access, "list_named_actors", lambda: list(left))
    monkeypatch.setattr(cluster_access, "actor_named", lambda name: name)
    monkeypatch.setattr(cluster_access.ray, "kill", kill)
    asyncio.run(cluster_access.remove_all())
    assert left == []
