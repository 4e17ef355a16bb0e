"""A GPU is not shared where that would make both jobs slower."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from weft.crossover.gpu import PIPE_DIRECTORY, check_sharing, has_mps
from weft.errors import LeaseError


def pretend_mps(folder: Path, *, daemon: str = "nvidia-cuda-mps") -> tuple[dict[str, str], Path]:
    (folder / "pipes").mkdir()
    os.mkfifo(folder / "pipes" / "control")
    (folder / "proc" / "77").mkdir(parents=True)
    (folder / "proc" / "77" / "comm").write_text(daemon + "\n")
    return {PIPE_DIRECTORY: str(folder / "pipes")}, folder / "proc"


def test_nccl_without_mps_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(LeaseError, match="nvidia-cuda-mps-control -d"):
        check_sharing("cpu:gloo,cuda:nccl", {PIPE_DIRECTORY: str(tmp_path)}, tmp_path)


def test_gloo_needs_no_mps(tmp_path: Path) -> None:
    check_sharing("gloo", {PIPE_DIRECTORY: str(tmp_path)}, tmp_path)


def test_nccl_with_mps_is_allowed(tmp_path: Path) -> None:
    environment, proc = pretend_mps(tmp_path)
    check_sharing("nccl", environment, proc)


def test_a_pipe_left_by_a_dead_daemon_does_not_count_as_mps(tmp_path: Path) -> None:
    environment, proc = pretend_mps(tmp_path, daemon="bash")
    assert not has_mps(environment, proc)
