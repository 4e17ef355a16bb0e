"""Docstrings in the site: cross-reference roles (``:func:`x```) become code, examples become code blocks."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:func|class|meth|mod|attr|data):`~?([^`]+)`")
EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
DIRECTIVE = re.compile(r" +# doctest: \+\w+$", re.MULTILINE)


def as_markdown(docstring: str) -> str:
    with_blocks = EXAMPLE.sub(lambda found: f"```pycon\n{DIRECTIVE.sub('', found.group())}\n```", docstring)
    return ROLE.sub(r"`\1`", with_blocks)


class MarkdownDocstrings(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
