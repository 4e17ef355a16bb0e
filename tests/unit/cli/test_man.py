"""The manual page has every command and every option, and nothing else says what they are."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from weft.cli import VERBS, load, main
from weft.cli.verb import Verb


@pytest.fixture
def page(capsys: pytest.CaptureFixture[str]) -> str:
    main(["man", "--roff"])
    return capsys.readouterr().out


def test_every_command_and_option_is_on_the_page(page: str) -> None:
    text = page.replace("\\-", "-")
    for name in VERBS:
        assert f'.SS "weft {name}: ' in text
        verb = load(name)
        for one in [verb] if isinstance(verb, Verb) else verb.verbs.values():
            assert all(flag in text for flag in one.flags())


def test_no_line_of_help_is_taken_for_a_command_of_the_formatter(page: str) -> None:
    lines = [line for line in page.splitlines() if line.startswith((".", "'"))]
    assert {line.split()[0] for line in lines} <= {".TH", ".SH", ".SS", ".B", ".nf", ".fi"}


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
def test_the_formatter_has_no_complaints(page: str) -> None:
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Tutf8"], input=page, capture_output=True, text=True, timeout=120, check=True
    )
    assert "COMMAND [options]" in done.stdout
    assert not [line for line in done.stderr.splitlines() if "cannot" not in line and "break" not in line], done.stderr
