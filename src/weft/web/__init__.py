"""The controller's page: its files as bytes.  What they are served with is decided by ``daemon/api/page.py``.

Plain modules that the browser loads as they are: no build step, nothing from elsewhere.  ``main.js`` is the one to read
first: it asks the controller once a second and hands what it hears to one module per part of the page.
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
# Named one by one: nothing else that may lie in this folder is ever given away.
_NAMES = (
    "style.css",
    "icon.svg",
    "main.js",
    "api.js",
    "clock.js",
    "decisions.js",
    "detail.js",
    "devices.js",
    "elements.js",
    "figures.js",
    "history.js",
    "jobs.js",
    "logs.js",
    "queue.js",
    "text.js",
)
_INLINE = re.compile(rb"<(script|style)\b[^>]*>(.*?)</\1>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class WebFile:
    """A file of the page."""

    content_type: str
    body: bytes


def page() -> WebFile:
    """What is at ``/`` for who may see it."""
    return _read("index.html")


def modules() -> dict[str, WebFile]:
    """By name, what the page loads from ``/web/``."""
    return {name: _read(name) for name in _NAMES}


def login() -> WebFile:
    """What asks for the token.  Whole in itself: it is shown to who may load nothing else."""
    return _read("login.html")


def inline_hashes(file: WebFile, tag: str) -> list[str]:
    """How a content security policy names the inline scripts (or styles) of a file: by what is in them."""
    bodies = [body for found, body in _INLINE.findall(file.body) if found == tag.encode()]
    return [f"'sha256-{base64.b64encode(hashlib.sha256(body).digest()).decode()}'" for body in bodies]


def _read(name: str) -> WebFile:
    return WebFile(_TYPES[name.rpartition(".")[2]], resources.files(__name__).joinpath(name).read_bytes())
