"""The documentation as a site: a broken link, anchor, or reference, and a page nobody links to, fail the build."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.browser import browser, find_chromium

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


class QuietRequests(SimpleHTTPRequestHandler):
    """Serves files without logging them."""

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.mark.skipif(find_chromium() is None, reason="needs chromium (Debian: apt-get install chromium)")
def test_a_reader_switches_between_versions(site: Path, tmp_path: Path) -> None:
    shutil.copytree(site, tmp_path / "site", ignore=shutil.ignore_patterns("source"))
    shutil.copytree(site / "0.1.0", tmp_path / "site" / "0.10.0")
    stage = [sys.executable, str(ROOT / "docs" / "site" / "stage.py"), "versions", str(tmp_path / "site")]
    subprocess.run(stage, check=True)
    handler = functools.partial(QuietRequests, directory=str(tmp_path / "site"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with browser(tmp_path) as tab:
                tab.go(f"http://127.0.0.1:{server.server_port}/")
                shown = "document.querySelector('.md-version__current')?.textContent.trim()"
                tab.wait_for(f"{shown} === '0.10.0'")
                link = "document.querySelector('.md-version__link[href*=\"0.1.0\"]')"
                tab.wait_for(link)
                tab.run(f"void {link}.click()")
                assert tab.wait_for(f"location.pathname.startsWith('/0.1.0/') && {shown} === '0.1.0'")
        finally:
            server.shutdown()
