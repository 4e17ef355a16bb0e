"""``weft nodes``: nodes, their devices, and the jobs on them."""

from __future__ import annotations

from weft.cli import render
from weft.cli.verb import Json, connect


def nodes(as_json: Json = False) -> None:
    """List nodes and devices with the jobs on them. A device shared by two jobs lists both."""
    rows = connect().nodes()
    if as_json:
        render.print_json({"nodes": rows})
        return
    cells = [
        (row["name"], "up" if row["up"] else "down", str(device["device"]), " + ".join(device["jobs"]) or "free")
        for row in rows
        for device in row["devices"]
    ]
    styles = ["" if row[-1] == "free" else "green" for row in cells]
    render.print_columns(cells, ("NODE", "STATE", "DEVICE", "JOB"), styles)
