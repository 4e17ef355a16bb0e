"""``weft doctor``: look for problems on this machine and say what to do about them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from importlib import util
from pathlib import Path
from typing import Annotated

from weft.cli import render
from weft.cli.checkup import Finding, Level, checkup
from weft.cli.verb import Json
from weft.core.command_line import Option
from weft.daemon.home import Home, default_home
from weft.errors import MissingToolError, WeftError

MARKS = {Level.GOOD: ("ok", "green"), Level.WARNING: ("warn", "yellow"), Level.BAD: ("BAD", "red")}
_TEXT_COLUMN = 18


def doctor(
    gpu: Annotated[
        bool, Option("check weft.overlap on 2 or more GPUs: exactness, memory, speed; takes an estimated 5 minutes")
    ] = False,
    device: Annotated[
        str, Option("with --gpu: where to run; cpu tests the check itself, in seconds", choices=("cuda", "cpu"))
    ] = "cuda",
    out: Annotated[
        Path | None, Option("with --gpu: folder for the report", "weft-gpu-report-TIME", metavar="DIR")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check Python, torch, devices, WEFT_HOME, controller, disk, limits, clock, shared memory, and, with GPUs, MPS.

    With --gpu: compare weft.overlap with DDP and FSDP2 on this machine's GPUs, and write a report to send back.

    Exit codes: 0 no problems (warnings are possible); 3 a problem, or --gpu found fewer than 2 GPUs; 1 --gpu found that
    a guarantee does not hold.
    """
    if gpu:
        _check_gpus(device, out, as_json)
        return
    findings = checkup(Home(default_home()))
    if as_json:
        render.print_json({"checks": [finding.row() for finding in findings]})
    else:
        for finding in findings:
            _print(finding, render.terminal_width())
    if any(finding.level is Level.BAD for finding in findings):
        raise SystemExit(3)


def _print(finding: Finding, width: int | None) -> None:
    word, style = MARKS[finding.level]
    head, *more = [
        line
        for text in filter(None, (finding.text, finding.advice))
        for line in render.wrapped(render.plain(text), None if width is None else width - _TEXT_COLUMN).split("\n")
    ]
    print(f"{render.styled(f'{word:<4}', style)}  {finding.name:<11} {head}")
    for line in more:
        print(f"{'':<{_TEXT_COLUMN}}{line}")


def _check_gpus(device: str, out: Path | None, as_json: bool) -> None:
    """Runs in a process of its own: the command line never imports torch."""
    if util.find_spec("torch") is None:
        raise MissingToolError("weft doctor --gpu needs torch, which is not installed: pip install 'weft[torch]'")
    folder = (out or Path(f"weft-gpu-report-{time.strftime('%Y%m%d-%H%M%S')}")).resolve()
    command = [sys.executable, "-m", "weft.worker.gpu_check", device, str(folder)]
    last: dict[str, object] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        for line in program.stdout or ():
            last = json.loads(line)
            if "progress" in last:
                render.note(str(last["progress"]))
    if "error" in last:
        raise MissingToolError(
            f"{last['error']}: run it on a machine with GPUs and a CUDA build of torch (`weft doctor` shows both)"
        )
    report = last.get("report")
    if not isinstance(report, dict):
        raise WeftError(f"the check exited with code {program.returncode} and wrote no report: see the messages above")
    if as_json:
        render.print_json({**report, "written_to": last["json"]})
    else:
        print(Path(str(last["text"])).read_text(), end="")
        render.print_text(
            f"\nwritten to {last['json']} and {last['text']}: please send both back; weft is untested on GPUs so far"
        )
    if not report["ok"]:
        raise SystemExit(1)
