"""``weft checkpoint export``: write a plain state dict from a session's checkpoint."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import util
from pathlib import Path
from typing import Annotated

from weft.cli import render
from weft.cli.verb import Group, Json, connect
from weft.core.command_line import Argument, Option
from weft.core.plural import plural
from weft.daemon.home import Home, default_home
from weft.daemon.ids import is_id
from weft.errors import InputError, MissingToolError, WeftError


def export(
    source: Annotated[str, Argument("SOURCE", "a checkpoint, a folder of checkpoints, or a job")],
    out: Annotated[Path, Option("file to write: .safetensors, anything else for torch.load", metavar="FILE")] = Path(
        "model.pt"
    ),
    model: Annotated[str, Option("the model's name in run.resume", "the only one")] = "",
    as_json: Json = False,
) -> None:
    """Write a model's state dict to a file that torch.load or safetensors reads without weft.

    From a folder or a job, the newest good checkpoint is used. Tied parameters are written under both names.
    """
    if util.find_spec("torch") is None:
        raise MissingToolError("weft checkpoint export needs torch, which is not installed: pip install 'weft[torch]'")
    if out.is_dir() or not out.resolve().parent.is_dir():
        what = "is a folder: add a file name" if out.is_dir() else "the folder does not exist: create it"
        raise InputError(f"--out: {what}", file=str(out))
    command = [sys.executable, "-m", "weft.worker.export", str(_folder(source)), str(out.resolve()), model]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise WeftError(f"the export exited with code {done.returncode}: see the messages above") from None
    if "error" in answer:
        failure = WeftError(answer["error"])
        failure.exit_code = answer["exit_code"]
        raise failure
    if as_json:
        render.print_json(answer)
    else:
        tensors = f"{plural(answer['tensors'], 'tensor')} of model {answer['model']}"
        render.print_text(f"wrote {tensors} at step {answer['step']} to {out}")


def _folder(source: str) -> Path:
    if Path(source).is_dir():
        return Path(source)
    if "/" not in source:
        home = Home(default_home())
        if is_id(source) and home.checkpoints(source).is_dir():
            return home.checkpoints(source)
        if home.read_record() is None:
            raise InputError(
                f"{source} is neither a folder nor the id of a job with checkpoints: to find a job by its name or a "
                "prefix of its id, start the controller with `weft up`"
            )
        folder = home.checkpoints(connect().job(source)["id"])
        if folder.is_dir():
            return folder
    raise InputError(f"{source} is neither a folder nor a job with checkpoints: `weft status` lists the jobs")


checkpoint = Group("Work with the checkpoints of sessions.", export)
