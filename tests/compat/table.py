"""The table of cases in docs/overlap.md, between two comments."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from tests.compat.cases import Case

PAGE = Path(__file__).parents[2] / "docs" / "overlap.md"
BEGIN, END = "<!-- compat: written by scripts/bench compat -->", "<!-- end of compat -->"
PACKAGES = ("torch", "torchvision", "timm", "transformers", "peft", "accelerate", "lightning", "safetensors")


def write(cases: Iterable[Case]) -> None:
    versions = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    lines = [BEGIN, "", f"Run with {versions}.", "", "| from | case | against DDP |", "|---|---|---|"]
    lines += [f"| {case.package} | {case.name} | {case.outcome} |" for case in cases]
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    PAGE.write_text(before + "\n".join([*lines, "", END]) + rest.split(END)[1])


def rows_in_docs() -> list[tuple[str, str, str]]:
    text = PAGE.read_text().split(BEGIN)[1].split(END)[0]
    cells = re.findall(r"^\| (.+) \| (.+) \| (.+) \|$", text, re.MULTILINE)
    return [(name, package, outcome) for package, name, outcome in cells if package != "from"]
