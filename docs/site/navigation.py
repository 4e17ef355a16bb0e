"""The site's menu: the pages that docs/index.md and docs/design/README.md list, in their order."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"^\| \[[^]]*\]\(([^)]+\.md)\)", re.MULTILINE)


def linked_pages(source: Path, page: str) -> list[str]:
    folder = (source / page).parent
    targets = [(folder / target).resolve() for target in LINK.findall((source / page).read_text())]
    return [str(target.relative_to(source.resolve())) for target in targets]


def on_config(config: Any) -> Any:
    source = Path(config.docs_dir)
    elsewhere = ("README.md", "docs/design/README.md")
    guide = [page for page in linked_pages(source, "docs/index.md") if page not in elsewhere]
    config.nav = [
        "README.md",
        {"Guide": ["docs/index.md", *(page for page in guide if page.startswith("docs/"))]},
        {"Results": sorted(f"benchmarks/results/{path.name}" for path in (source / "benchmarks/results").glob("*.md"))},
        {"Design": ["docs/design/README.md", *linked_pages(source, "docs/design/README.md")]},
        {"Project": [page for page in guide if not page.startswith("docs/")]},
    ]
    return config
