"""What people install: the wheel alone, in an environment that has no checkout beside it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


class Installed:
    """The wheel in a virtual environment; its dependencies come from the environment of the tests."""

    def __init__(self, folder: Path) -> None:
        source = folder / "source"
        ignored = shutil.ignore_patterns("__pycache__", "results")
        for name in ("src", "benchmarks"):
            shutil.copytree(ROOT / name, source / name, ignore=ignored)
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, source)
        build = ["pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), str(source)]
        subprocess.run([sys.executable, "-m", *build], check=True)
        (wheel,) = folder.glob("weft-*.whl")
        venv.create(folder / "venv", symlinks=True)
        packages = (
            folder / "venv" / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
        )
        with zipfile.ZipFile(wheel) as file:
            file.extractall(packages)
        # Only a folder that Python itself scans has its .pth files read, so the checkout is not found through this.
        (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
        self.python = folder / "venv" / "bin" / "python"
        self._folder = folder
        self.home = folder / "home"

    def weft(self, *arguments: str) -> str:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "WEFT"))}
        done = subprocess.run(
            [self.python, "-m", "weft", *arguments],
            env={**environment, "WEFT_HOME": str(self.home)},
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    found = Installed(tmp_path_factory.mktemp("wheel"))
    yield found
    if found.home.exists():
        subprocess.run([found.python, "-m", "weft", "down", "--jobs"], env={**os.environ, "WEFT_HOME": str(found.home)})


def test_a_queue_and_its_dashboard_run_from_the_wheel_alone(installed: Installed) -> None:
    address = json.loads(installed.weft("up", "--port", "0", "--devices", "1", "--json"))["page"]
    job = installed.weft("submit", "--", "true").strip()
    installed.weft("wait", job)
    token = (installed.home / "token").read_text().strip()
    for name, content in (("", b"<title>"), ("web/main.js", b"import "), ("web/style.css", b"{")):
        request = urllib.request.Request(address + name, headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert content in answer.read()
    installed.weft("down")


def test_predictions_and_benchmarks_come_with_the_wheel(installed: Installed) -> None:
    predicted = installed.weft("predict", "--profile", "resnet50", "--workers", "8", "--link", "10gbit", "--json")
    assert json.loads(predicted)
    assert "--quick" in installed.weft("bench", "elastic", "--help")
