"""axe-core, the accessibility checker: fetched once with npm into the user's cache, never part of the repository."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

from tests.browser import Browser

_VERSION = "4.14.0"
_SHA512 = "9WTZxEjsZ7b13TH8JPmbV2z8CHbl80/2hm3XPEG4JgNdQLK81IBRXmSxHfMAOkSqQeRxT/0dwNDz2GOm3zzpcQ=="
_NPM_S = 60.0
_RUN = """
axe.run(document, { resultTypes: ["violations"] }).then(({ violations }) => JSON.stringify(
  violations.filter(({ impact }) => impact === "serious" || impact === "critical").map(({ id, impact, nodes }) => {
    const told = nodes.slice(0, 5).map(({ html, failureSummary }) => `${html.slice(0, 200)} ${failureSummary}`);
    return { id, impact, nodes: told };
  }),
))
"""


def axe_source() -> str | None:
    """Its code; None where it cannot be fetched."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weft-tests"
    archive = folder / f"axe-core-{_VERSION}.tgz"
    if not archive.exists():
        npm = shutil.which("npm")
        if npm is None:
            return None
        folder.mkdir(parents=True, exist_ok=True)
        command = [npm, "pack", f"axe-core@{_VERSION}", "--silent"]
        try:
            subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=_NPM_S)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            return None
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    assert digest == _SHA512, f"{archive} is not axe-core {_VERSION}: delete it"
    with tarfile.open(archive) as files:
        member = files.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode()


def serious_findings(tab: Browser, source: str) -> Any:
    """What axe-core finds serious or critical on the page as it is now, as JSON."""
    if not tab.run("'axe' in window"):
        tab.run(f"{source};0")
    return tab.run(_RUN)
