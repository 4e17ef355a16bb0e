"""Connects to a Ray cluster, or says in one message what to do if that fails; its nodes, and our actors there."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import socket
import time
from typing import Any

import ray
from ray.util import list_named_actors

from weft.engines.ray.cluster_order import RayNode
from weft.engines.ray.node_check import INSECURE
from weft.engines.ray.node_names import NodeNames

_REACHED_WITHIN_S = 5.0
_VERSIONS = re.compile(r"Ray: (\S+)\s+Python: (\S+)")
"""In Ray's error message: the versions of the cluster first, then those of this process."""
_START_ONE = "start one with `ray start --head` and RAY_AUTH_MODE=token, or give --address HOST:PORT"


KIND_LABEL = "weft.kind"
"""A label of a node that names the kind of its devices."""
_ACCELERATOR = "accelerator_type:"
_AGENT = "node "
_CLOSES_WITHIN_S = 10.0
_LOOK_AGAIN_S = 0.1

_log = logging.getLogger(__name__)


class ClusterRefused(Exception):
    """The cluster cannot be used; the message says why and what to do."""


def connect(address: str, namespace: str, *, insecure: bool) -> None:
    """Make this process a driver of the cluster."""
    if os.environ.get("RAY_AUTH_MODE") != "token" and not insecure:
        raise ClusterRefused(f"RAY_AUTH_MODE is not set to token here, so weft assumes that {INSECURE}")
    if address != "auto":
        _reach(address)
    try:
        ray.init(
            address=address, namespace=namespace, log_to_driver=False, configure_logging=False, include_dashboard=False
        )
    except ConnectionError as error:
        _check_token(address)
        if address == "auto":
            raise ClusterRefused(f"no Ray cluster is running on this machine: {_START_ONE}") from error
        raise ClusterRefused(_not_a_node(address, error)) from error
    except Exception as error:
        words = str(error)
        if versions := _VERSIONS.findall(words):
            theirs, ours = (f"Ray {ray_version} and Python {python}" for ray_version, python in versions[:2])
            raise ClusterRefused(
                f"the Ray cluster at {address} runs {theirs}, this environment has {ours}: install the same versions "
                "here, or start the controller from the environment that the cluster runs in"
            ) from error
        if "auth" in words.lower() or "token" in words.lower():
            raise ClusterRefused(_rejected(address, words)) from error
        raise ClusterRefused(_not_a_node(address, error)) from error


def _check_token(address: str) -> None:
    """With a wrong token, Ray only says that it failed to connect; asked directly, its head says why."""
    from ray._private.services import canonicalize_bootstrap_address
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

    try:
        GcsClient(address=canonicalize_bootstrap_address(address))
    except ray.exceptions.AuthenticationError as error:
        raise ClusterRefused(_rejected(address, str(error))) from error
    except Exception:
        return  # Ray's first error says just as much


def _rejected(address: str, words: str) -> str:
    where = "on this machine" if address == "auto" else f"at {address}"
    return (
        f"the Ray cluster {where} rejected our token: RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH must give the token it was "
        f"started with ({_first_line(words)})"
    )


def _not_a_node(address: str, error: Exception) -> str:
    return (
        f"cannot join the Ray cluster at {address} ({_first_line(str(error))}): the controller must run on one of its "
        f"nodes; run `ray start --address={'HOST:PORT' if address == 'auto' else address}` on this machine first"
    )


def _reach(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ClusterRefused(f"--address {address}: expected HOST:PORT, such as 10.0.0.1:6379, or auto")
    try:
        socket.create_connection((host, int(port)), timeout=_REACHED_WITHIN_S).close()
    except OSError as error:
        raise ClusterRefused(
            f"nothing responds at {address} ({error.strerror or error}): is Ray running there (`ray start --head`), "
            "and does the firewall allow its ports? See docs/networking.md"
        ) from error


def alive_nodes(known: NodeNames) -> list[RayNode]:
    """Nodes that Ray believes to be alive, with their devices: GPUs, or cores where there are none."""
    found = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
    leaving = _leaving()
    names = known.names({node_id: _name(node) for node_id, node in found.items()}, time.monotonic())
    nodes = []
    for node_id, name in names.items():
        node = found[node_id]
        num_gpus = int(node["Resources"].get("GPU", 0))
        nodes.append(
            RayNode(
                node_id=node_id,
                name=name,
                address=node["NodeManagerAddress"],
                num_devices=num_gpus or int(node["Resources"].get("CPU", 0)),
                resource="GPU" if num_gpus else "CPU",
                leaves_because="Ray is draining it" if node_id in leaving else "",
                kind=_kind(node),
            )
        )
    return nodes


def _name(node: dict[str, Any]) -> str:
    """What `ray start --node-name` gave it, or else its address."""
    return str(node.get("NodeName") or node["NodeManagerAddress"]).replace("/", "-")


def _kind(node: dict[str, Any]) -> str:
    """What `ray start --labels weft.kind=NAME` says, or else the type of accelerator that Ray has found."""
    if label := (node.get("Labels") or {}).get(KIND_LABEL):
        return str(label)
    return next((name.removeprefix(_ACCELERATOR) for name in node["Resources"] if name.startswith(_ACCELERATOR)), "")


def _leaving() -> set[str]:
    """Nodes that Ray is draining, on request or because the cloud takes them away.  Ray Train uses the same call."""
    from ray._private.state import state

    try:
        return set(state.get_draining_nodes())
    except Exception:
        return set()


def actor_named(name: str) -> Any:
    """The actor, or None if there is none."""
    try:
        return ray.get_actor(name)
    except ValueError:
        return None


def agent_name(node_id: str) -> str:
    return f"{_AGENT}{node_id}"


async def remove_all() -> None:
    """Leave nothing of a controller on the cluster, not even actors that another bridge created.

    ``ray.kill`` returns before its request is sent, and a process that exits takes the request along: so this returns
    only when Ray no longer lists them.
    """
    while names := await asyncio.to_thread(list_named_actors):
        for error in await asyncio.gather(*map(remove, names), return_exceptions=True):
            if error is not None:
                _log.warning("an actor cannot be removed yet: %s", error)
        await asyncio.sleep(_LOOK_AGAIN_S)


async def remove(name: str) -> None:
    """Does nothing if it is gone already."""
    actor = await asyncio.to_thread(actor_named, name)
    if actor is None:
        return
    if name.startswith(_AGENT):
        with contextlib.suppress(Exception):  # one that is slow to close must not stay forever
            await asyncio.wait_for(actor.close.remote(), _CLOSES_WITHIN_S)
    ray.kill(actor, no_restart=True)


def last_line(error: Exception) -> str:
    """What an error on a node says, without the traceback that Ray puts before it."""
    lines = str(error).strip().splitlines()
    return lines[-1][:300] if lines else type(error).__name__


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:200]
