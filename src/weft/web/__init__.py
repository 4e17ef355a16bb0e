"""The dashboard's files as bytes.  ``daemon/api/dashboard.py`` decides which headers they are served with.

Plain modules that the browser loads directly: no build step, nothing from other sites.  Read ``main.js`` first: it
follows the controller's changes and passes them to one module per part of the dashboard.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from importlib import resources

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
# Listed one by one, so that no other file in this folder is ever served.
_NAMES = (
    "style.css",
    "forms.css",
    "charts.css",
    "icon.svg",
    "main.js",
    "api.js",
    "board.js",
    "cancel.js",
    "clock.js",
    "compare.js",
    "curve.js",
    "curves.js",
    "decisions.js",
    "detail.js",
    "devices.js",
    "elements.js",
    "fields.js",
    "figures.js",
    "forecast.js",
    "gantt.js",
    "gestures.js",
    "jobs.js",
    "logs.js",
    "nodes.js",
    "paint.js",
    "queue.js",
    "settings.js",
    "speeds.js",
    "submit.js",
    "text.js",
    "timeline.js",
    "viewport.js",
    "whatif.js",
)
_INLINE = re.compile(rb"<(script|style)\b[^>]*>(.*?)</\1>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class WebFile:
    """A file of the dashboard."""

    content_type: str
    body: bytes


def index() -> WebFile:
    """What ``/`` serves to a logged-in browser."""
    return _read("index.html")


def modules() -> dict[str, WebFile]:
    """What the dashboard loads from ``/web/``, by name."""
    return {name: _read(name) for name in _NAMES}


def login() -> WebFile:
    """The login form.  Self-contained, because a browser without a session may load nothing else."""
    return _read("login.html")


def inline_hashes(file: WebFile, tag: str) -> list[str]:
    """The inline scripts (or styles) of a file as a content security policy names them: by hash."""
    bodies = [body for found, body in _INLINE.findall(file.body) if found == tag.encode()]
    return [f"'sha256-{base64.b64encode(hashlib.sha256(body).digest()).decode()}'" for body in bodies]


def _read(name: str) -> WebFile:
    return WebFile(_TYPES[name.rpartition(".")[2]], resources.files(__name__).joinpath(name).read_bytes())
