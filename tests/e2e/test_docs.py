"""A command in the docs that does not work costs a newcomer the evening: every one of them is run.

Blocks fenced as ``console`` hold commands after ``$ ``; those fenced as ``console soak`` take minutes and are
only run with the other long tests.  Other pages join by having such blocks.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUN = ("weft sim ", "weft bench ")
BLOCK = re.compile(r"^```console( soak)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)\)")
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")])


def commands() -> Iterator[object]:
    for page in PAGES:
        for long, block in BLOCK.findall(page.read_text()):
            for line in block.splitlines():
                command = line.removeprefix("$ ")
                if line.startswith("$ ") and command.startswith(RUN):
                    marks = [pytest.mark.soak, pytest.mark.timeout(600)] if long else []
                    yield pytest.param(command, id=f"{page.name}: {command}", marks=marks)


@pytest.mark.parametrize("command", list(commands()))
def test_a_command_in_the_docs_works(command: str, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_linked_picture_and_page_exists(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_example_on_the_policies_page_gives_the_documented_result() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "policies.md").read_text(), re.M | re.S)
    *setup, last = code.strip().splitlines()
    expression, _, expected = last.partition("#")
    scope: dict[str, object] = {}
    exec("\n".join([*setup, f"answer = {expression.strip()}"]), scope)
    assert scope["answer"] == ast.literal_eval(expected.strip())
