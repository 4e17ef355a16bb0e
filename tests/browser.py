"""A real browser for tests, driven over its DevTools pipe with what the standard library has."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import itertools
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.hang_limit import HANG_S

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-default-apps",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


_LOOK_AGAIN_S = 0.03
# Chromium drops what it is loading when an interface comes or goes on this machine, as in tests with namespaces.
_NETWORK_CHANGED = "net::ERR_NETWORK_CHANGED"


class BrowserError(RuntimeError):
    """The browser, or the page in it, did not do what was asked."""


def find_chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One tab.  Commands go down one pipe, answers and events come up the other, each ended by a NUL."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._numbers = itertools.count(1)
        self._unread = b""
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        self._lost_file = False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") != number:
                self.events.append(answer)
            elif "error" in answer:
                raise BrowserError(f"{method}: {answer['error']}")
            else:
                return answer["result"]

    def _next(self) -> dict[str, Any]:
        deadline_s = time.monotonic() + HANG_S
        while b"\0" not in self._unread:
            if not select.select([self._answers], [], [], max(deadline_s - time.monotonic(), 0))[0]:
                raise BrowserError("the browser does not answer")
            data = os.read(self._answers, 1 << 20)
            if not data:
                raise BrowserError("the browser has ended")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\0")
        answer: dict[str, Any] = json.loads(line)
        params = answer.get("params", {})
        if answer.get("method") == "Network.loadingFailed" and params["errorText"] == _NETWORK_CHANGED:
            self._lost_file |= params["type"] in ("Document", "Script", "Stylesheet")
        return answer

    def go(self, address: str) -> None:
        self.call("Page.navigate", url=address)

    def run(self, code: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise BrowserError(f"{code}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def wait_for(self, condition: str) -> Any:
        """Until the expression is true."""
        # An element has no value that could be sent over: that it is there is what counts.
        look = f"(() => {{ const found = {condition}; return found instanceof Node || found; }})()"
        deadline_s = time.monotonic() + HANG_S
        while time.monotonic() < deadline_s:
            # A page that is being replaced by another one cannot be asked, and would never keep a promise.
            with contextlib.suppress(BrowserError):
                value = self.run(look)
                if value:
                    return value
            if self._lost_file:
                self._lost_file = False
                self.call("Page.reload")
            time.sleep(_LOOK_AGAIN_S)
        text = self.run("document.body.innerText")
        raise BrowserError(f"never true: {condition}; the page says:\n{text}")

    def click(self, selector: str) -> None:
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def type_into(self, selector: str, text: str) -> None:
        """As from a keyboard."""
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowLeft": 37, "ArrowRight": 39, "End": 35}
        text = {"text": "\r"} if key == "Enter" else {} if key in codes else {"text": key}
        for kind in ("keyDown", "keyUp"):
            code = codes.get(key, ord(key.upper()[0]))
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def problems(self) -> list[str]:
        """What the page complained of so far: exceptions, console errors, refused by its policy."""
        self.run("0")
        found = []
        for event in self.events:
            params = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(json.dumps(params["exceptionDetails"]))
            elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
                found.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
            elif event.get("method") == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
                found.append(json.dumps(params["args"]))
        return [problem for problem in found if _NETWORK_CHANGED not in problem]

    def screenshot(self, path: Path, width: int, height: int, *, dark: bool = False, whole: bool = False) -> None:
        """``whole``: the page as long as it is."""
        self.view(width, height, dark=dark)
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def view(self, width: int, height: int, *, dark: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with a profile of its own under ``folder``, gone at the end with all its processes."""
    program = find_chromium()
    if program is None:
        raise BrowserError("there is no chromium here")
    to_browser, from_browser = os.pipe(), os.pipe()
    # It reads commands from 3 and writes to 4: ours must be elsewhere, or one would overwrite the other.
    theirs = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (to_browser[0], from_browser[1])]
    for end in (to_browser[0], from_browser[1]):
        os.close(end)
    short = tempfile.mkdtemp()  # the path to a socket in it must be short
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    pid = os.posix_spawn(
        program,
        [program, *_FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"],
        {**os.environ, "HOME": str(folder), "TMPDIR": short},
        file_actions=[
            *((os.POSIX_SPAWN_DUP2, nothing, number) for number in (0, 1, 2)),
            (os.POSIX_SPAWN_DUP2, theirs[0], 3),
            (os.POSIX_SPAWN_DUP2, theirs[1], 4),
        ],
        setsid=True,
    )
    for end in (*theirs, nothing):
        os.close(end)
    try:
        yield Browser(to_browser[1], from_browser[0])
    finally:
        os.close(to_browser[1])
        os.close(from_browser[0])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        shutil.rmtree(short, ignore_errors=True)
