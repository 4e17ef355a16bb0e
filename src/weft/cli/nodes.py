"""``weft nodes``: the machines, their devices, and who has them."""

from __future__ import annotations

from weft.cli import render
from weft.cli.verb import Json, Verb, connect


def nodes(as_json: Json = False) -> None:
    """Nodes and devices: a device that two jobs share names both, a free one none."""
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


app = Verb(nodes)
