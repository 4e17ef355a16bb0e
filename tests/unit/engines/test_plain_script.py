"""A script without torch starts at once instead of waiting for torch to be imported for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.core.job import Launch
from weft.engines.plain_script import is_plain_script, needs_no_torch


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("print('hello')\n", True),
        ("import os, sys\nfrom pathlib import Path\n", True),
        ("import torch\n", False),
        ("def f():\n    import torch.nn as nn\n", False),
        ("from . import model\n", False),
        ("import my_model\n", False),
        ("import importlib\n", False),
        ("import subprocess\n", False),
        ("def (\n", False),
    ],
)
def test_only_scripts_that_import_nothing_else_need_no_torch(tmp_path: Path, text: str, expected: bool) -> None:
    path = tmp_path / "train.py"
    path.write_text(text)
    assert needs_no_torch(path) is expected
    assert not needs_no_torch(tmp_path / "missing.py")


def test_a_script_without_weft_is_recognized_before_it_runs(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("import torch\n")
    (tmp_path / "session.py").write_text("import weft\n")
    cwd = str(tmp_path)
    assert is_plain_script(Launch(("python", "plain.py", "--lr", "1"), cwd))
    assert not is_plain_script(Launch(("python", "session.py"), cwd))
    for unknown in (("python", "missing.py"), ("python", "-m", "plain.py"), ("./train",)):
        assert not is_plain_script(Launch(unknown, cwd))
