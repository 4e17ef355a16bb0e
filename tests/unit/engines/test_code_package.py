"""A job's folder on its way to the nodes: all of its code, nothing else, and not too much of it."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from weft.engines.ray.code_package import MAX_CODE_BYTES, NodeCode, check_size, pack
from weft.engines.ray.job_folders import KEPT_S, sweep
from weft.errors import UsageError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "job"
    for name in ("train.py", "lib/model.py", ".git/objects", ".venv/torch.so", "lib/__pycache__/model.pyc"):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(name)
    (made / "train.py").chmod(0o755)
    (tmp_path / "secret").write_text("not part of the job")
    (made / "outside").symlink_to(tmp_path / "secret")
    (made / "inside.py").symlink_to("train.py")
    return made


def test_a_node_gets_the_code_and_no_caches_environments_or_files_from_elsewhere(folder: Path, tmp_path: Path) -> None:
    package = tmp_path / "home" / "code.zip"
    pack(folder, package)
    data = package.read_bytes()
    node = NodeCode(tmp_path / "node")
    assert not node.has("j")
    node.put("j", 0, data[:100], is_last=False)
    assert not node.has("j"), "complete or absent"
    node.put("j", 100, data[100:], is_last=True)
    there = node.folder("j")
    found = sorted(str(path.relative_to(there)) for path in there.rglob("*") if path.is_file())
    assert found == ["inside.py", "lib/model.py", "train.py"]
    assert os.access(there / "train.py", os.X_OK)
    assert not os.access(there / "lib/model.py", os.X_OK) or os.geteuid() == 0


def test_a_restarted_job_runs_the_code_it_was_started_with(folder: Path, tmp_path: Path) -> None:
    package = tmp_path / "code.zip"
    pack(folder, package)
    (folder / "train.py").write_text("changed")
    pack(folder, package)
    assert zipfile.ZipFile(package).read("train.py") == b"train.py"


def test_a_folder_that_is_too_large_is_refused_with_its_size_the_limit_and_its_largest_parts(folder: Path) -> None:
    for name, num_mib in (("images", 300), ("audio", 200), ("text", 100), ("notes", 1)):
        (folder / name).mkdir()
        with (folder / name / "all").open("wb") as file:
            file.truncate(num_mib << 20)
    with pytest.raises(UsageError) as refused:
        check_size(folder)
    said = str(refused.value)
    assert "has 601 MiB" in said
    assert f"at most {MAX_CODE_BYTES >> 20} MiB" in said
    assert "images (300 MiB), audio (200 MiB), text (100 MiB)" in said
    assert "--cwd" in said
    assert "--code shared" in said
    (folder / "images" / "all").unlink()
    check_size(folder)


def test_code_is_deleted_where_its_job_no_longer_runs(folder: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "code.zip")
    node = NodeCode(tmp_path / "node")
    node.put("j", 0, (tmp_path / "code.zip").read_bytes(), is_last=True)
    os.utime(node.folder("j"), (0, os.stat(node.folder("j")).st_mtime - KEPT_S - 1))
    sweep(node.root, ["j"])
    assert node.has("j")
    sweep(node.root, [])
    assert not node.has("j")
