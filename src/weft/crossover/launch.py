"""Start the lease server of this host, or find the one that runs (skeleton: names are final, the body follows)."""

from __future__ import annotations

from pathlib import Path


def ensure_server(home: Path) -> Path:
    """The socket of the lease server below ``home``; started if none answers.  Goes into WEFT_LEASE."""
    return home / "lease.sock"
