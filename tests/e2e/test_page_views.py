"""Every view of the dashboard with live jobs, in a real browser: numbers, keyboard, both widths, both themes."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator

import pytest
from tests.axe import axe_source, serious_findings
from tests.browser import find_chromium
from tests.hang_limit import HANG_S
from tests.page_site import ASKS, Site, open_site, up, weft

pytestmark = pytest.mark.skipif(find_chromium() is None, reason="needs chromium (Debian: apt-get install chromium)")

SCRIPT = "<script>alert(1)</script>"
RIGHT_TO_LEFT = "\u05e9" * 300
WAITS = "import signal\nprint('one needle\\ntwo hay', flush=True)\nwhile True:\n    signal.pause()"
ROW = "document.querySelector('tr[data-key=\"{}\"]')"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with open_site(tmp_path_factory.mktemp("views")) as found:
        # A page checked by axe-core runs code that its content security policy would stop.
        found.tab.call("Page.setBypassCSP", enabled=True)
        yield found


@pytest.fixture(scope="module")
def trained(site: Site) -> str:
    """A real training job that was over before the dashboard was opened."""
    job_id = site.train("spirals", 40)
    (job,) = site.client.wait([job_id], timeout_s=HANG_S)
    assert job["state"] == "COMPLETED"
    return job_id


@pytest.fixture(scope="module")
def hostile(site: Site, trained: str) -> tuple[str, str]:
    """Two jobs that run until the end, with names that would break a careless page."""
    first, second = site.submit(SCRIPT, WAITS), site.submit(RIGHT_TO_LEFT, WAITS, weight=2.0)
    site.log_in()
    for job_id in (first, second):
        site.tab.wait_for(f"{ROW.format(job_id)}?.querySelector('.state').textContent === 'Running'")
    return first, second


@pytest.fixture(autouse=True)
def no_problems(site: Site) -> Iterator[None]:
    """Console errors, dialogs, and requests that leave this host fail every test."""
    site.tab.events.clear()
    yield
    # A browser notes these as errors: the login form comes with status 401, output that is not there yet with 404.
    expected = ("401", "/logs?")
    assert [one for one in site.tab.problems() if not any(text in one for text in expected)] == []
    requested = [
        event["params"]["request"]["url"]
        for event in site.tab.events
        if event.get("method") == "Network.requestWillBeSent"
    ]
    assert [url for url in requested if not url.startswith((site.page, "data:", "about:"))] == []
    assert not any(event.get("method") == "Page.javascriptDialogOpening" for event in site.tab.events)


def test_a_completed_job_shows_its_whole_life(site: Site, trained: str) -> None:
    tab = site.tab
    site.log_in(f"#job/{trained}")
    tab.wait_for("document.querySelectorAll('#detail .curve:not([hidden])').length >= 3")
    titles = tab.run("[...document.querySelectorAll('#detail .curve:not([hidden]) h4')].map(one => one.textContent)")
    assert {"Loss", "Step time", "Workers"} <= {title.removesuffix(" (log scale)") for title in titles}
    # The values under the cross come from the keyboard, too.
    tab.run("document.querySelector('#detail .curves').focus()")
    tab.press("ArrowLeft")
    assert tab.run("document.querySelector('#detail .range').textContent").startswith("at ")
    shown = float(tab.run("document.querySelector('#detail .curve output').textContent"))
    losses = [point["loss"] for point in site.client.history(trained)["points"] if point["loss"] is not None]
    assert min(losses) * 0.99 <= shown <= max(losses) * 1.01


def test_the_timeline_knows_what_happened_before_the_dashboard_was_opened(site: Site, trained: str) -> None:
    tab = site.tab
    site.log_in()
    tab.run("document.querySelector('.gantt').focus()")
    site.point_at("spirals")
    assert "1 worker, attempt 1" in tab.run("document.querySelector('.tip').textContent")
    tab.press("Enter")
    tab.wait_for(f"location.hash === '#job/{trained}'")


def test_the_timeline_pans_and_zooms_with_keys_wheel_and_mouse(site: Site, trained: str) -> None:
    tab = site.tab
    site.log_in()
    pressed = "document.querySelector('#devices-tools [aria-pressed=\"true\"]')?.textContent ?? null"
    now = "[...document.querySelectorAll('#devices-tools button')].find(one => one.textContent === 'Now')"
    assert tab.run(pressed) == "10 min"
    tab.run("document.querySelector('.gantt').focus()")
    tab.press("+")
    assert tab.run(pressed) is None
    tab.press("ArrowLeft")
    tab.wait_for(f"!{now}.hidden")
    tab.press("End")
    tab.wait_for(f"{now}.hidden")
    box = tab.run("(({left, top}) => [left, top])(document.querySelector('.gantt').getBoundingClientRect())")
    x, y = box[0] + 200, box[1] + 60
    mouse = {"x": x, "y": y, "button": "left", "clickCount": 1}
    tab.call("Input.dispatchMouseEvent", type="mousePressed", **mouse)
    tab.call("Input.dispatchMouseEvent", **{**mouse, "type": "mouseMoved", "x": x + 80, "buttons": 1})
    tab.call("Input.dispatchMouseEvent", **{**mouse, "type": "mouseReleased", "x": x + 80})
    tab.wait_for(f"!{now}.hidden")
    tab.run(f"{now}.click()")
    tab.call("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=-200, deltaY=0)
    tab.wait_for(f"!{now}.hidden")
    tab.run("[...document.querySelectorAll('#devices-tools button')].find(one => one.textContent === '1 h').click()")
    assert tab.run(pressed) == "1 h"


def test_job_names_are_only_text_in_every_view(site: Site, trained: str, hostile: tuple[str, str]) -> None:
    tab = site.tab
    first, second = hostile
    for width in (390, 1280):
        for view in ("", f"job/{first}", f"job/{second}", f"compare/{first}/{second}", "whatif", "submit"):
            tab.view(width, 900)
            site.show(view)
            tab.wait_for(f"innerWidth === {width}")
            assert tab.run("document.documentElement.scrollWidth") <= width, view
    site.show("")
    names = tab.run("[...document.querySelectorAll('#queue .job-link')].map(one => one.textContent)")
    assert {SCRIPT, RIGHT_TO_LEFT} <= set(names)
    assert tab.run("document.querySelectorAll('script').length") == 1


def test_sorting_searching_and_comparing(site: Site, trained: str, hostile: tuple[str, str]) -> None:
    tab = site.tab
    tab.view(1280, 900)
    site.log_in()
    first_row = "document.querySelector('#queue tbody tr').dataset.key"
    tab.click("th.cell-loss button")
    assert tab.run("document.querySelector('th.cell-loss').getAttribute('aria-sort')") == "ascending"
    assert tab.run(first_row) == trained
    site.show(f"job/{hostile[0]}")
    tab.wait_for("document.querySelector('.log')?.textContent.includes('two hay')")
    tab.type_into("#detail input[type=search]", "NEEDLE")
    tab.wait_for("document.querySelector('.log').textContent === 'one needle'")
    site.show(f"compare/{trained}/{hostile[0]}")
    tab.wait_for("document.querySelectorAll('#compare thead .job-link').length === 2")
    tab.wait_for("document.querySelectorAll('#compare .curve:not([hidden])').length >= 3")


def test_what_if_shows_the_simulators_answer_next_to_the_queue_as_it_is(site: Site, hostile: tuple[str, str]) -> None:
    tab = site.tab
    tab.view(1280, 900)
    site.log_in("#whatif")
    tab.wait_for("document.querySelectorAll('#whatif select')[1].options.length === 3")
    tab.run("document.querySelector('#whatif input').value = 3")
    tab.run(f"document.querySelectorAll('#whatif select')[1].value = {json.dumps(hostile[1])}")
    tab.click("#whatif form .strong")
    tab.wait_for("!document.querySelector('#whatif .results').hidden")
    notes = tab.run("[...document.querySelectorAll('.forecast > .range:first-of-type')].map(one => one.textContent)")
    assert notes == ["policy balanced, 2 devices", "policy balanced, 3 devices"]
    assert tab.run("document.querySelectorAll('#whatif .versus tbody tr').length") == 2
    # Neither job says how long it is: that must be said, by name, and fit on a phone.
    assert tab.run("document.querySelectorAll('.assumptions li').length") >= 1
    for width in (390, 1280):
        tab.view(width, 900)
        tab.wait_for(f"innerWidth === {width}")
        assert tab.run("document.documentElement.scrollWidth") <= width


def test_every_control_can_be_reached_and_used_with_the_keyboard(site: Site, hostile: tuple[str, str]) -> None:
    tab = site.tab
    tab.view(1280, 900)
    site.log_in()
    tab.run("document.activeElement.blur()")
    told = """(() => { const one = document.activeElement;
      const ring = getComputedStyle(one).outlineStyle !== 'none';
      const box = one.getBoundingClientRect();
      if (one === document.body) return null;
      return [one.className || one.id || one.textContent.trim(), ring, box.width > 0 && box.height > 0]; })()"""
    visited = []
    tab.press("Tab")
    while (at := tab.run(told)) is not None:
        visited.append(at)
        assert len(visited) < 100, visited
        tab.press("Tab")
    names = [name for name, _, _ in visited]
    for wanted in ("gantt", "node-toggle", "sort", "job-link", "search"):
        assert any(wanted in name for name in names), (wanted, names)
    assert [name for name, ring, seen in visited if not (ring and seen)] == []
    # A job opens with Enter, closes with Escape, and the focus is back where it was.
    tab.run(f"{ROW.format(hostile[0])}.querySelector('.job-link').focus()")
    tab.press("Enter")
    tab.wait_for("document.activeElement.id === 'detail-title'")
    tab.press("Escape")
    tab.wait_for("document.activeElement.className === 'job-link'")


def test_axe_finds_nothing_serious_in_any_view(site: Site, trained: str, hostile: tuple[str, str]) -> None:
    source = axe_source()
    if source is None:
        pytest.skip("needs axe-core, which npm could not fetch")
    tab = site.tab
    site.log_in()
    found = {}
    views = ("", f"job/{trained}", f"job/{hostile[0]}", "whatif", f"compare/{trained}/{hostile[0]}", "submit")
    for view in views:
        site.show(view)
        for width, dark in ((390, False), (1280, True)):
            tab.view(width, 900, dark=dark)
            tab.wait_for(f"innerWidth === {width} && {json.dumps(view)} === location.hash.slice(1)")
            if (findings := serious_findings(tab, source)) != "[]":
                found[view, width, dark] = findings
    tab.click("#logout")
    for width, dark in ((390, True), (1280, False)):
        tab.view(width, 900, dark=dark)
        tab.wait_for(f"innerWidth === {width} && {ASKS}")
        if (findings := serious_findings(tab, source)) != "[]":
            found["login", width, dark] = findings
    tab.view(1280, 900)
    assert found == {}


SUBMIT = "document.querySelector('#views [data-view=submit]')"
CHANGE = "document.querySelector('#detail .actions button')"
DRAIN = "document.querySelector('.node-title .small')"


def test_only_a_session_with_permission_can_submit_change_and_drain(site: Site, hostile: tuple[str, str]) -> None:
    tab = site.tab
    tab.view(1280, 900)
    site.log_in(f"#job/{hostile[0]}")
    tab.wait_for(f"{CHANGE} && {DRAIN}")
    assert tab.run(f"[{SUBMIT}, {CHANGE}, {DRAIN}].every(one => one.hidden)")
    tab.click("#logout")
    tab.wait_for("document.querySelector('#token')")
    site.type_token(change=True)

    tab.wait_for(f"{CHANGE} && !{CHANGE}.hidden")
    tab.click("#detail .actions button")
    assert tab.run("document.activeElement.value") == "1"
    tab.run("document.activeElement.value = '2.5'")
    tab.press("Enter")
    tab.wait_for("document.querySelector('.settings .said').textContent.startsWith('Saved')")
    assert site.client.job(hostile[0])["weight"] == 2.5

    site.show("submit")
    fields = "document.querySelectorAll('#submit input')"
    command = f"{sys.executable} -c 'print(\"a b\")'"
    for index, text in enumerate((command, str(site.home.root), "typed")):
        tab.run(f"{fields}[{index}].value = {json.dumps(text)}")
    tab.click("#submit form .strong")
    tab.wait_for("location.hash.startsWith('#job/')")
    typed = site.client.job(tab.run("location.hash.slice(5)"))
    assert (typed["name"], typed["command"]) == ("typed", shlex.split(command))
    site.client.cancel(typed["id"])

    site.show("")
    tab.wait_for(f"{DRAIN}?.textContent === 'Drain'")
    tab.run(f"{DRAIN}.click()")
    tab.wait_for(f"{DRAIN}.textContent === 'Resume'")
    tab.run(f"{DRAIN}.click()")
    tab.wait_for(f"{DRAIN}.textContent === 'Drain'")


def test_an_open_dashboard_survives_a_controller_restart(site: Site, trained: str, hostile: tuple[str, str]) -> None:
    tab = site.tab
    site.log_in(f"#job/{trained}")
    weft(site.home, "down")
    tab.wait_for("!document.querySelector('#away').hidden")
    assert "weft up" in tab.run("document.querySelector('#away').textContent")
    # Sessions end with their controller: the next one asks for the token again.
    up(site.home, site.port)
    tab.wait_for("document.querySelector('#token')")
    assert tab.run("localStorage.length") == 0
    # Errors that the browser logged while no controller answered are expected.
    site.tab.events.clear()
    site.type_token()
    assert tab.wait_for("document.querySelector('#detail-title')?.textContent") == "spirals"
    tab.wait_for("document.querySelectorAll('#detail .curve:not([hidden])').length >= 3")
    rows = tab.run("[...document.querySelectorAll('#queue tbody tr')].map(one => one.dataset.key)")
    assert sorted(rows) == sorted(job["id"] for job in site.client.jobs())
