"""The dashboard of a cluster with more than one kind of devices."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.browser import browser, find_chromium
from tests.fake_controller import FakeController, served_on_both
from tests.page_site import Site

from weft.control.state import JobState
from weft.daemon.attempt_bars import AttemptBar
from weft.daemon.connections import ConnectionPatience
from weft.daemon.contract import NodeStatus, NodeView

pytestmark = pytest.mark.skipif(find_chromium() is None, reason="needs chromium (Debian: apt-get install chromium)")


class KindsController(FakeController):
    """Nodes of the kinds that a test wants, with a job on the first one's devices."""

    kinds: tuple[str, ...] = ()

    def now_s(self) -> float:
        """As the dashboard's clock, which comes with each answer's date."""
        return time.time()

    def nodes(self) -> list[NodeView]:
        return [
            NodeView(
                node,
                f"host{node}",
                NodeStatus.UP,
                {2 * node + i: tuple(self.by_id) if not node else () for i in (0, 1)},
                kind,
            )
            for node, kind in enumerate(self.kinds)
        ]


def test_a_mixed_cluster_shows_the_kind_of_each_node_and_of_a_jobs_devices(tmp_path: Path) -> None:
    controller = KindsController()
    controller.kinds = ("A100", "<b>T4</b>", "")
    job = controller.add(state=JobState.RUNNING, devices=(0, 1), attempt=1, started_s=time.time() - 100)
    controller.bars = [AttemptBar(job.id, 1, time.time() - 100, (0, 1))]
    with (
        served_on_both(controller, tmp_path / "home", ConnectionPatience(), is_for_browsers=True) as (home, port),
        browser(tmp_path) as tab,
    ):
        site = Site(home, tab, f"http://127.0.0.1:{port}/")
        site.log_in()
        tab.wait_for("document.querySelectorAll('.node-note:not(.bad)').length === 3")
        notes = tab.run("[...document.querySelectorAll('.node-note:not(.bad)')].map(one => one.textContent)")
        assert notes == ["A100, 2 of 2 busy", "<b>T4</b>, 0 of 2 busy", "no kind, 0 of 2 busy"]
        spoken = tab.run("[...document.querySelectorAll('.spoken li')].map(one => one.textContent)")
        assert (spoken[0], spoken[2]) == ("host0/0 (A100): train.py", "host1/0 (<b>T4</b>): idle")
        tab.run("document.querySelector('.gantt').focus()")
        site.point_at("train.py")
        assert "2 workers on A100, attempt 1" in tab.run("document.querySelector('.tip').textContent")
        site.show(f"job/{job.id}")
        facts = "document.querySelector('#detail .facts').textContent"
        tab.wait_for(f"{facts}.includes('Deviceshost0/0, host0/1 (A100)')")
        # With one kind, there is nothing to tell apart.
        controller.kinds = ("A100", "A100")
        site.log_in()
        tab.wait_for("document.querySelector('.node-note').textContent === '2 of 2 busy'")
