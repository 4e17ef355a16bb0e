"""The dashboard in a real browser, on a real controller with real jobs: what it shows must be right."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

import pytest
from tests.browser import find_chromium
from tests.hang_limit import HANG_S
from tests.page_site import ASKS, Site, open_site

from weft.elastic.registry import POLICIES

pytestmark = pytest.mark.skipif(find_chromium() is None, reason="needs chromium (Debian: apt-get install chromium)")

HOSTILE = "<img src=x onerror=document.title='pwned'> \u202e'\"&amp;$(id)"
# Says something, in the colours of a terminal, and stays until it is stopped.
SPEAKER = """
import signal
print("\\x1b[32mhello\\x1b[0m <b>from</b> the worker", flush=True)
while True:
    signal.pause()
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with open_site(tmp_path_factory.mktemp("page")) as found:
        yield found


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
    assert shown in tab.run("document.querySelector('.spoken').textContent")
    tab.run("document.querySelector('.gantt').focus()")
    site.point_at(shown)

    tab.run(f"{row}.querySelector('.job-link').focus()")
    tab.press("Enter")
    tab.wait_for("document.querySelectorAll('#detail .sentences li').length >= 2")
    newest_first = tab.run("[...document.querySelectorAll('#detail .sentences span')].map(one => one.textContent)")
    assert newest_first[-1].startswith("submitted")
    tab.wait_for("document.querySelector('.log').textContent.includes('hello <b>from</b> the worker')")

    # The first press asks, Escape keeps the job, and only the second press stops it.
    tab.click("#detail .actions .danger")
    assert tab.run("document.activeElement.textContent") == "Keep job"
    tab.press("Escape")
    assert tab.run("document.querySelector('#detail .confirm').hidden")
    assert site.client.job(job_id)["state"] == "RUNNING"
    tab.click("#detail .actions .danger")
    tab.click("#detail .confirm .strong")
    tab.wait_for("document.querySelector('.detail-state .state').textContent === 'Cancelled'")
    (job,) = site.client.wait([job_id], timeout_s=HANG_S)
    assert job["state"] == "CANCELLED"
    # The page that asks for the token comes with status 401, which a browser notes as an error.
    assert [problem for problem in tab.problems() if "401" not in problem] == []


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
    tab.wait_for(ASKS)
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


TIMELINE = """
(async () => {
  const { byDevice } = await import("/web/timeline.js");
  const bar = (job, attempt, start_s, end_s, ...devices) => (
    { job, name: job, attempt, start_s, end_s, devices, workers: devices.length }
  );
  const bars = [
    bar("a", 1, 100, 150, "n/0"), bar("a", 2, 200, null, "n/0", "n/1"), bar("b", 1, 300, 350, "n/1"),
    bar("c", 1, 160, 160, "n/0"),
  ];
  const told = (spans) => spans.map((span) => [span.bar.job, span.from_s, span.to_s, span.lane, span.num, span.from]);
  return JSON.stringify([...byDevice(bars)].map(([device, spans]) => [device, told(spans)]));
})()
"""


def test_the_timeline_shows_resizes_sharing_and_jobs_that_ended_at_once(site: Site) -> None:
    site.log_in()
    found = dict(json.loads(site.tab.run(TIMELINE)))
    assert found["n/0"] == [
        ["a", 100, 150, 0, 1, None],
        ["c", 160, 160.001, 0, 1, None],
        ["a", 200, None, 0, 1, 1],
    ]
    assert found["n/1"] == [
        ["a", 200, 300, 0, 1, 1],
        ["a", 300, 350, 0, 2, None],
        ["b", 300, 350, 1, 2, None],
        ["a", 350, None, 0, 1, None],
    ]


COMMANDS = ["python train.py --lr 3e-4", "a 'b  c' \"d \\\" $e\" f\\ g '' h'i'j", "sh -c 'echo \"$HOME\"'", " x "]


def test_a_command_typed_into_the_dashboard_means_the_same_words_as_in_a_shell(site: Site) -> None:
    site.log_in()
    code = f"import('/web/text.js').then(({{ commandWords }}) => {json.dumps(COMMANDS)}.map(commandWords))"
    assert site.tab.run(code) == [shlex.split(command) for command in COMMANDS]
    unclosed = "import('/web/text.js').then(({ commandWords }) => commandWords('a \"b')).catch(error => error.message)"
    assert "unclosed quote" in site.tab.run(unclosed)


def test_what_if_offers_every_policy(site: Site) -> None:
    site.log_in("#whatif")
    offered = site.tab.run("[...document.querySelector('#whatif select').options].map(one => one.value)")
    assert offered == ["", *POLICIES]


FIGURES = """
import("/web/figures.js").then(({ loss, rate, stepTime }) => [
  [2.05e-4, 0.0037, 0.0205, 1.5].map(stepTime),
  [0.34728, 0.00210987, 0.00044211, 0, null].map(loss),
  [18.38, 0].map(rate),
])
"""


def test_small_numbers_are_short_and_readable(site: Site) -> None:
    site.log_in()
    assert site.tab.run(FIGURES) == [
        ["205 µs", "3.7 ms", "20.5 ms", "1.50 s"],
        ["0.3473", "0.00211", "4.42e-4", "0", ""],
        ["18.4 /s", "0"],
    ]


CURVE = """
import("/web/curve.js").then(({ Curve }) => {
  const curve = new Curve({ title: "Step time", format: String, fromZero: true, mayBeLog: true });
  const points = [[0, 1], [1, 1], [2, 1], [8, 9], [9, 1], [12, 2]];
  curve.show([{ color: "color0", points, breaks: [2.5, 10] }], [], [0, 12]);
  const drawn = curve.root.querySelector(".line").getAttribute("d");
  return [drawn.replaceAll(/[^MLh]/g, ""), curve.root.querySelector("h4").textContent];
})
"""


def test_no_line_suggests_values_for_the_time_a_job_was_restarting(site: Site) -> None:
    site.log_in()
    assert site.tab.run(CURVE) == ["MLLMLMh", "Step time"]


VIEWPORT = """
import("/web/viewport.js").then(({ Viewport }) => {
  const view = new Viewport(100);
  const told = [];
  const tell = () => told.push([view.isLive, Math.round(view.from_s), Math.round(view.to_s)]);
  view.advance(1000); tell();
  view.zoom(0.5); tell();
  view.pan(-1); view.advance(1010); tell();
  view.zoom(2, 0); tell();
  view.pan(9); tell();
  return told;
})
"""


def test_the_timeline_follows_the_present_until_someone_looks_at_the_past(site: Site) -> None:
    site.log_in()
    assert site.tab.run(VIEWPORT) == [
        [True, 902, 1002],
        [True, 951, 1001],
        [False, 901, 951],
        [False, 901, 1001],
        [True, 912, 1012],
    ]
