"""What is installed on a node, and whether it sees the home.  Sent to the node as code: weft may be missing there.

Imports nothing of weft, and nothing at module level that a bare Python lacks.
"""

from __future__ import annotations

from typing import Any


def installed(package: str) -> str:
    """The version of a package; "" if it is not installed."""
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def looked_at(folder: str, node_id: str, nonce: str) -> dict[str, Any]:
    """Runs on the node: returns versions and its authentication mode, and leaves a nonce in the shared folder."""
    import os

    versions = {package: installed(package) for package in ("weft", "torch")}
    trouble = ""
    try:
        with open(os.path.join(folder, f"node-{node_id}"), "w") as file:
            file.write(nonce)
    except OSError as error:
        trouble = error.strerror or str(error)
    return {**versions, "auth_mode": os.environ.get("RAY_AUTH_MODE", "disabled"), "trouble": trouble}


INSECURE = (
    "this Ray cluster runs without token authentication: anyone who can reach its ports can run code as you, on every "
    "node. Start every node with RAY_AUTH_MODE=token (`ray get-auth-token --generate` makes a token), or accept the "
    "risk with --insecure-ray"
)


def problem(
    node: str, found: dict[str, Any], ours: dict[str, str], folder: str, *, sees_folder: bool, insecure: bool
) -> str:
    """Why a node cannot be used, and what to do about it; empty if it can."""
    if found["auth_mode"] != "token" and not insecure:
        return INSECURE
    for package in ("weft", "torch"):
        have, expected = found[package], ours[package]
        if have != expected and (have or package == "weft" or expected):
            what = f"has {package} {have}" if have else f"has no {package}"
            return (
                f"node {node} {what}, the controller has {expected or 'none'}: install {package} {expected} into the "
                "Python that Ray runs in there, then restart Ray on it"
            )
    if not sees_folder:
        why = f" ({found['trouble']})" if found["trouble"] else ""
        return (
            f"node {node} does not see {folder}{why}: checkpoints must be in a folder that every node sees at the same "
            "path; set WEFT_HOME to one"
        )
    return ""
