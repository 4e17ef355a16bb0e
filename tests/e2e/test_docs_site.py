"""The documentation as a site: a broken link, anchor, or reference, and a page nobody links to, fail the build."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOADED = re.compile(r"""<(?:script|link|img)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//([^/"'> ]+)""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    source, built = folder / "source", folder / "0.1.0"
    stage = [sys.executable, str(ROOT / "docs" / "site" / "stage.py")]
    subprocess.run([*stage, "stage", str(source)], check=True)
    config = (ROOT / "mkdocs.yml").read_text().replace("docs_dir: build/site-source", f"docs_dir: {source}")
    for name in ("docs/site/navigation.py", "docs/site/docstrings.py"):
        config = config.replace(name, str(ROOT / name))
    config = config.replace("paths: [src]", f"paths: [{ROOT / 'src'}]")
    (folder / "mkdocs.yml").write_text(config)
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(folder / "mkdocs.yml"), "-d", str(built)],
        capture_output=True,
        text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    subprocess.run([*stage, "versions", str(folder)], check=True)
    return folder


def test_every_link_between_pages_and_every_documented_name_resolves(site: Path) -> None:
    assert (site / "0.1.0" / "docs" / "api" / "index.html").exists()
    assert '"0.1.0"' in (site / "versions.json").read_text()


def test_the_site_loads_nothing_from_other_hosts(site: Path) -> None:
    for page in (site / "0.1.0").rglob("*.html"):
        assert not LOADED.search(page.read_text()), page


def test_the_session_reference_has_every_argument(site: Path) -> None:
    page = (site / "0.1.0" / "docs" / "api" / "index.html").read_text()
    for word in ("batch_size_per_worker", "warmup_steps", "keep_checkpoints", "ends_epoch", "exact_clipping"):
        assert word in page, word
