"""Make dashboard.png: the dashboard as Chromium draws it, with real jobs on a real controller.

    python docs/img/draw_dashboard.py [OUT.png] [--view job|cluster|whatif|compare] [--dark] [--width N] [--height N]

Starts a controller with four devices in a temporary home, submits the jobs below, waits until the last one runs, and
takes the picture.  Everything in it was measured in that run; it takes a few minutes.  Several views come from one run:
OUT may contain {view}, {theme}, and {width}, and then all of them are drawn.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src"), str(ROOT / "tests")]

from tests.page_site import Site, open_site  # noqa: E402

NUM_DEVICES = 4
PATIENCE_S = 900.0


@dataclass(frozen=True)
class Planned:
    """A job: how many steps of how wide a network, on how many workers, and how long after the one before."""

    name: str
    steps: int
    width: int
    max_workers: int
    after_s: float


JOBS = (
    Planned("spirals-wide", 6000, 512, 4, 0.0),
    Planned("spirals-base", 600, 256, 2, 10.0),
    Planned("lr-sweep-1", 200, 128, 1, 20.0),
    Planned("lr-sweep-2", 4000, 128, 1, 5.0),
    Planned("spirals-deep", 3000, 384, 4, 20.0),
    Planned("lr-sweep-3", 4000, 128, 2, 10.0),
    Planned("ablation-small", 4000, 64, 1, 10.0),
)
VIEWS = ("cluster", "job", "whatif", "compare")


def submit_all(site: Site) -> list[str]:
    """In order of ``JOBS``, each after its pause."""
    ids = []
    for job in JOBS:
        time.sleep(job.after_s)
        limits = {"max_workers": job.max_workers, "total_steps": job.steps}
        ids.append(site.train(job.name, job.steps, width=job.width, **limits))
    return ids


def wait_for_curves(site: Site, job_id: str) -> None:
    """Until the job was resized and has measurements since."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        history = site.client.history(job_id)
        resized_s = [mark["time_s"] for mark in history["marks"] if mark["kind"] == "resized"]
        if resized_s and sum(point["time_s"] > resized_s[-1] for point in history["points"]) > 10:
            return
        time.sleep(1.0)
    raise SystemExit(f"job {job_id} was not resized within {PATIENCE_S:.0f} s: the machine is too busy")


def draw(site: Site, ids: list[str], view: str, out: Path, size: tuple[int, int], *, dark: bool) -> None:
    tab = site.tab
    tab.view(*size, dark=dark)
    fragments = {"cluster": "", "job": f"job/{ids[0]}", "whatif": "whatif", "compare": f"compare/{ids[0]}/{ids[4]}"}
    site.show(fragments[view])
    if view == "job":
        tab.wait_for("document.querySelector('#detail .curve:not([hidden])')")
    elif view == "compare":
        tab.wait_for("document.querySelector('#compare .curve:not([hidden])')")
    elif view == "whatif":
        tab.run("document.querySelector('#whatif input[type=number]').value = 8")
        tab.click("#whatif form .strong")
        tab.wait_for("!document.querySelector('#whatif .results').hidden")
    tab.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done())))")
    tab.screenshot(out, *size, dark=dark)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", nargs="?", default=str(Path(__file__).with_name("dashboard.png")))
    parser.add_argument("--view", choices=VIEWS, default="job")
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--width", type=int, default=1440)
    parser.add_argument("--height", type=int, default=1000)
    options = parser.parse_args()
    wanted = [(options.view, options.dark, options.width)]
    if "{view}" in options.out:
        wanted = list(product(VIEWS, (False, True), (390, options.width)))
    with tempfile.TemporaryDirectory() as folder, open_site(Path(folder), NUM_DEVICES) as site:
        ids = submit_all(site)
        wait_for_curves(site, ids[0])
        site.log_in()
        for view, dark, width in wanted:
            out = options.out.format(view=view, theme="dark" if dark else "light", width=width)
            draw(site, ids, view, Path(out), (width, options.height), dark=dark)


if __name__ == "__main__":
    main()
