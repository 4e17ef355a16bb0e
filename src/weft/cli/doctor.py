"""``weft doctor``: looks for what could go wrong on this machine, and says what to do about it."""

from __future__ import annotations

from weft.cli import render
from weft.cli.checkup import Finding, Level, checkup
from weft.cli.verb import Json, Verb
from weft.daemon.home import Home, default_home

MARKS = {Level.GOOD: ("ok", "green"), Level.WARNING: ("look", "yellow"), Level.BAD: ("BAD", "red")}


def doctor(as_json: Json = False) -> None:
    """Check Python, torch, devices, WEFT_HOME, the controller, disk, limits, clock and, with GPUs, MPS.

    Exit codes: 0 nothing is bad (there may be things to look at), 3 something is.
    """
    findings = checkup(Home(default_home()))
    if as_json:
        render.print_json({"checks": [finding.row() for finding in findings]})
    else:
        for finding in findings:
            _print(finding)
    if any(finding.level is Level.BAD for finding in findings):
        raise SystemExit(3)


def _print(finding: Finding) -> None:
    word, style = MARKS[finding.level]
    print(f"{render.styled(f'{word:<4}', style)}  {finding.name:<11} {render.plain(finding.text)}")
    if finding.advice:
        print(f"{'':<18}{render.plain(finding.advice)}")


app = Verb(doctor)
