"""The systemd unit and the container file, as far as they can be checked without a service manager and an engine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.hang_limit import HANG_S

ROOT = Path(__file__).parents[2]
CONTAINER = (ROOT / "packaging" / "Containerfile").read_text()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_user_unit(tmp_path: Path) -> None:
    program = tmp_path / ".local" / "bin" / "weft"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    done = subprocess.run(
        ["systemd-analyze", "--user", "--man=no", "verify", str(ROOT / "packaging" / "weft.service")],
        env={**os.environ, "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_container_file_copies_what_the_wheel_is_built_from() -> None:
    copied = {word for line in re.findall(r"^COPY (.+) /src\S*$", CONTAINER, re.MULTILINE) for word in line.split()}
    assert all((ROOT / name).exists() for name in copied)
    assert {"pyproject.toml", "README.md", "LICENSE", "src", "benchmarks", "constraints.txt"} <= copied


def test_the_volume_is_declared_after_it_was_made_writable() -> None:
    """Docker's classic builder discards changes to a volume: its owner would be root, and nothing could be saved."""
    assert CONTAINER.index("chown weft /weft") < CONTAINER.index("VOLUME /weft") < CONTAINER.index("USER weft")
