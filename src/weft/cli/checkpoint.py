"""``weft checkpoint export``: write a plain state dict from a session's checkpoint."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import util
from pathlib import Path
from typing import Annotated

from weft.cli import render
from weft.cli.job_choice import chosen_id
from weft.cli.verb import Group, Json, connect
from weft.core.command_line import Argument, Option
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
        print(f"wrote {answer['tensors']} tensors of model {answer['model']} at step {answer['step']} to {out}")


def _folder(source: str) -> Path:
    if Path(source).is_dir():
        return Path(source)
    if "/" not in source:
        home = Home(default_home())
        # Without a controller, only ids can be looked up.
        job_id = source if is_id(source) or home.read_record() is None else chosen_id(connect(), source)
        if home.checkpoints(job_id).is_dir():
            return home.checkpoints(job_id)
    raise InputError(f"{source} is neither a folder nor a job with checkpoints: `weft status` lists the jobs")


checkpoint = Group("Work with the checkpoints of sessions.", export)
