"""The dashboard in a real browser, on a real controller with real jobs: what it shows must be right."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.hang_limit import HANG_S

from browser import Browser, browser, find_chromium
from weft.client import Client
from weft.core.job import Launch
from weft.core.submission import Submission
from weft.daemon.home import Home

pytestmark = pytest.mark.skipif(find_chromium() is None, reason="needs chromium (Debian: apt-get install chromium)")

HOSTILE = "<img src=x onerror=document.title='pwned'> \u202e'\"&amp;$(id)"
# Says something, in the colours of a terminal, and stays until it is stopped.
SPEAKER = """
import signal
print("\\x1b[32mhello\\x1b[0m <b>from</b> the worker", flush=True)
while True:
    signal.pause()
"""


class Site:
    """A controller of one's own and a browser that looks at it."""

    def __init__(self, home: Home, tab: Browser, page: str) -> None:
        self.home, self.tab, self.page = home, tab, page
        self.client = Client(home.root)

    def submit(self, name: str, code: str) -> str:
        launch = Launch((sys.executable, "-c", code), str(self.home.root))
        return self.client.submit(Submission(launch, name=name))

    def log_in(self, fragment: str = "") -> None:
        """By typing the token, unless this browser is still logged in."""
        live = "document.querySelector('#contact-text')?.textContent === 'live'"
        # From elsewhere: between two fragments of one address nothing would be loaded.
        self.tab.go("about:blank")
        self.tab.go(self.page + fragment)
        if self.tab.wait_for(f"document.querySelector('#token') ? 'asks' : {live} ? 'live' : ''") == "asks":
            self.tab.type_into("#token", self.home.token())
            self.tab.press("Enter")
            self.tab.wait_for(live)


def weft(home: Home, *args: str) -> str:
    environment = {
        **os.environ,
        "WEFT_HOME": str(home.root),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "weft", *args]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=HANG_S, env=environment).stdout


def up(home: Home, port: int = 0) -> Any:
    options = ("--port", str(port), "--devices", "2", "--cold", "--grace-s", "2")
    return json.loads(weft(home, "up", *options, "--json"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("page")
    home = Home(root / "home")
    try:
        page = up(home)["page"]
        with browser(root) as tab:
            yield Site(home, tab, page)
    finally:
        if home.holder():
            weft(home, "down", "--jobs")
        if left := home.holder():
            os.kill(left, signal.SIGKILL)


def test_log_in_see_a_job_ask_why_and_cancel_it(site: Site) -> None:
    tab = site.tab
    job_id = site.submit(HOSTILE, SPEAKER)
    site.log_in()
    row = f"document.querySelector('tr[data-key=\"{job_id}\"]')"
    tab.wait_for(f"{row}?.querySelector('.state').textContent === 'Running'")
    # The name is text, and what would turn the line round is written out.
    shown = tab.run(f"{row}.querySelector('.job-link').textContent")
    assert shown == HOSTILE.replace("\u202e", "\\u202e")
    assert tab.run("document.images.length") == 1
    assert tab.run("document.title") == "1 running, 0 waiting: weft"
    # Its device shows it, both now and on the timeline.
    assert tab.run("document.querySelectorAll('.strip .holders a').length") == 1
    assert tab.run("document.querySelectorAll('.track .block').length") >= 1

    tab.run(f"{row}.querySelector('.job-link').focus()")
    tab.press("Enter")
    tab.wait_for("document.querySelectorAll('#detail .sentences li').length >= 2")
    newest_first = tab.run("[...document.querySelectorAll('#detail .sentences span')].map(one => one.textContent)")
    assert newest_first[-1].startswith("submitted")
    tab.wait_for("document.querySelector('.log').textContent.includes('hello <b>from</b> the worker')")

    # The first press asks, Escape keeps the job, and only the second press stops it.
    tab.click("#detail .cancel button")
    assert tab.run("document.activeElement.textContent") == "Keep job"
    tab.press("Escape")
    assert tab.run("document.querySelector('#detail .confirm').hidden")
    assert site.client.job(job_id)["state"] == "RUNNING"
    tab.click("#detail .cancel button")
    tab.click("#detail .confirm .strong")
    tab.wait_for("document.querySelector('.detail-state .state').textContent === 'Cancelled'")
    (job,) = site.client.wait([job_id], timeout_s=HANG_S)
    assert job["state"] == "CANCELLED"
    # The page that asks for the token comes with status 401, which a browser notes as an error.
    assert [problem for problem in tab.problems() if "401" not in problem] == []


def test_the_dashboard_shows_a_controller_outage_and_recovers_with_it(site: Site) -> None:
    tab = site.tab
    site.log_in()
    port = int(site.page.rstrip("/").rpartition(":")[2])
    weft(site.home, "down")
    tab.wait_for("!document.querySelector('#away').hidden")
    assert "weft up" in tab.run("document.querySelector('#away').textContent")
    # Sessions die with their controller: the next one asks for the token again.
    up(site.home, port)
    tab.wait_for("document.querySelector('#token')")
    assert tab.run("localStorage.length") == 0
    site.log_in()


def test_the_browser_stores_no_token_and_logging_out_clears_the_rest(site: Site) -> None:
    tab = site.tab
    site.log_in()
    token = site.home.token()
    kept = tab.run("JSON.stringify([localStorage, sessionStorage, document.cookie, location.href])")
    assert token not in kept
    cookies = tab.call("Network.getCookies")["cookies"]
    assert [cookie["httpOnly"] for cookie in cookies if cookie["name"].startswith("weft_page_")] == [True]
    assert token not in json.dumps(cookies)
    tab.click("#logout")
    tab.wait_for("document.querySelector('#token')")
    assert tab.run("localStorage.length") == 0
    assert tab.run("fetch('/v1/jobs').then(answer => answer.status)") == 401


def test_a_bookmark_of_a_job_survives_the_login(site: Site) -> None:
    job_id = site.submit("marked", "pass")
    site.log_in()
    site.tab.click("#logout")
    site.tab.wait_for("document.querySelector('#token')")
    site.log_in(f"#job/{job_id}")
    assert site.tab.wait_for("document.querySelector('#detail-title')?.textContent") == "marked"
    assert site.tab.run("location.pathname + location.hash") == f"/#job/{job_id}"


def test_a_wrong_token_is_explained_and_grants_no_access(site: Site) -> None:
    tab = site.tab
    tab.go(f"{site.page}login")
    tab.wait_for("document.querySelector('#token')")
    tab.type_into("#token", "not-the-token")
    tab.press("Enter")
    tab.wait_for("document.querySelector('#note').textContent.startsWith('Wrong token')")


def test_the_content_security_policy_stops_injected_html(site: Site) -> None:
    tab = site.tab
    site.log_in()
    code = "try { document.body.innerHTML = '<b>x</b>'; 'shown' } catch (error) { error.name }"
    assert tab.run(code) == "TypeError"


@pytest.mark.parametrize("width", [360, 800, 1600])
def test_nothing_overflows_the_page(site: Site, width: int) -> None:
    tab = site.tab
    site.log_in()
    tab.view(width, 900)
    assert tab.wait_for(f"innerWidth === {width}")
    assert tab.run("document.documentElement.scrollWidth") <= width


HISTORY = """
(async () => {
  const { History } = await import("/web/history.js");
  const { Devices } = await import("/web/devices.js");
  const { Jobs } = await import("/web/jobs.js");
  const devices = (held) => held.map((jobs, device) => ({ device, jobs }));
  const nodes = (...held) => [{ node: 0, name: "n", up: true, devices: devices(held) }];
  const rows = [{ id: "a", name: "a", finished_s: 150 }, { id: "b", name: "b", finished_s: null }];
  const decisions = [
    { time_s: 100, devices: { a: [0], b: [1] }, reasons: {} },
    { time_s: 200, devices: { b: [0, 1] }, reasons: {} },
  ];
  const history = new History();
  history.note(300, nodes(["b"], ["b"]), rows, decisions);
  history.note(301, nodes(["a", "b"], ["b"]), rows, decisions);
  new Devices().show(302, nodes(["a", "b"], ["b"]), new Jobs(rows), history);
  const [strip] = document.querySelectorAll(".strip .track");
  const lanes = [...strip.querySelectorAll(".upper, .lower")].map((block) => block.textContent);
  return [history.begins_s, [0, 1].map((device) => history.spans(device)), lanes];
})()
"""


def test_the_dashboard_shows_earlier_events_and_sharing(site: Site) -> None:
    site.log_in()
    begins_s, (first, second), lanes = site.tab.run(HISTORY)
    assert begins_s == 100
    assert [(span["from_s"], span["jobs"]) for span in first] == [
        (100, ["a"]),
        (150, []),
        (200, ["b"]),
        (301, ["a", "b"]),
    ]
    assert [(span["from_s"], span["to_s"], span["jobs"]) for span in second] == [(100, None, ["b"])]
    assert lanes == ["a", "b"]
