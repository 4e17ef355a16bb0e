"""A promise in the docs counts only if the test it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REFERENCE = re.compile(r"`(tests/[\w/]+(?:\.py)?)(?:::(\w+))?`")
# Tables that promise nothing: roles, and the meaning of each answer.
WITHOUT_TESTS = ("| who |", "| answer |")


@pytest.mark.parametrize("page", ["security.md", "guarantees.md"])
def test_every_promise_names_a_test_that_exists(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    references = REFERENCE.findall(text)
    assert references
    for file, name in references:
        assert (ROOT / file).exists(), f"{page} names {file}"
        assert not name or f"def {name}(" in (ROOT / file).read_text(), f"{page} names {file}::{name}"
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        if not table.startswith(WITHOUT_TESTS):
            unproven = [row for row in table.splitlines()[2:] if not REFERENCE.search(row)]
            assert not unproven, f"{page}: these rows name no test"
