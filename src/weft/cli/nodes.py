"""``weft nodes``: list nodes, their devices, and the jobs on them; take a node out of service or return it."""

from __future__ import annotations

from typing import Annotated

from weft.cli import render
from weft.cli.verb import Json, connect
from weft.core.command_line import Argument
from weft.errors import UsageError


def nodes(
    action: Annotated[str | None, Argument("ACTION", "drain or resume a node", choices=("drain", "resume"))] = None,
    node: Annotated[str | None, Argument("NODE", "name of the node, as listed")] = None,
    as_json: Json = False,
) -> None:
    """List nodes and devices with the jobs on them. A device shared by two jobs lists both.

    `weft nodes drain NODE` takes a node out of service: its jobs save a checkpoint and restart on other nodes, and no
    new ones are started there. Jobs that cannot resume stay until they end. `weft nodes resume NODE` undoes it.
    """
    if action is not None and node is None:
        raise UsageError(f"weft nodes {action} needs the name of a node: `weft nodes` lists them")
    client = connect()
    rows = client.nodes() if node is None else client.drain(node, resume=action == "resume")
    if as_json:
        render.print_json({"nodes": rows})
        return
    # A controller started before an upgrade sends no kinds.
    has_kinds = any(row.get("kind") for row in rows)
    cells = [
        (
            row["name"],
            row["status"],
            *([row.get("kind") or "-"] if has_kinds else []),
            device["name"],
            " + ".join(device["jobs"]) or "free",
        )
        for row in rows
        for device in row["devices"]
    ]
    header = ("NODE", "STATE", *(["KIND"] if has_kinds else []), "DEVICE", "JOB")
    width = render.terminal_width()
    widest = max((len(row[-1]) for row in cells), default=0)
    if width is not None and render.columns_width(cells, header) + widest > width:
        # The name of a device is that of its node and a number.
        cells = [(*row[:-2], row[-2].rpartition("/")[2], row[-1]) for row in cells]
    styles = ["" if row[-1] == "free" else "green" for row in cells]
    render.print_columns(cells, header, styles)
    for words in client.health().get("warnings", []):
        render.note(words)
