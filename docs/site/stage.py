"""Lays out the pages for the site as they lie in the repository, so that every relative link between them holds."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
FILES = ("LICENSE", "constraints.txt", "pyproject.toml")
FOLDERS = ("docs", "benchmarks/results", "examples", "src/weft")
LIST_ITEM = re.compile(r"\s*(?:[-*]|\d+\.) ")


def with_separate_lists(text: str) -> str:
    """A blank line before each list: the repository's Markdown does not need one, the site's does."""
    lines: list[str] = []
    in_code = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            in_code = not in_code
        before = lines[-1] if lines else ""
        starts_list = LIST_ITEM.match(line) and before and not LIST_ITEM.match(before) and not before.startswith(" ")
        if starts_list and not in_code:
            lines.append("")
        lines.append(line)
    return "\n".join(lines) + "\n"


def stage(target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name in (*PAGES, *FILES):
        shutil.copy(ROOT / name, target / name)
    for folder in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__", "site", "quick")
        shutil.copytree(ROOT / folder, target / folder, ignore=ignored)
    for page in target.rglob("*.md"):
        page.write_text(with_separate_lists(page.read_text()))


def write_versions(site: Path) -> None:
    """What the site's version selector offers: every version built into this folder, newest first."""
    names = [path.parent.name for path in site.glob("*/index.html")]
    names.sort(key=lambda name: [int(part) for part in re.findall(r"\d+", name)], reverse=True)
    versions = [{"version": name, "title": name, "aliases": []} for name in names]
    (site / "versions.json").write_text(json.dumps(versions))
    (site / "index.html").write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={names[0]}/">\n')


if __name__ == "__main__":
    verb, path = sys.argv[1:]
    {"stage": stage, "versions": write_versions}[verb](Path(path))
